"""The command reproduce: run a table or figure of a paper, and decide its claims."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import TRAIN, app, examples, print_line, wide_console

if TYPE_CHECKING:
    from rich.console import Console

    from fedra.reproduce.entries import PaperEntry


class ReproduceSize(StrEnum):
    """Sizes of a reproduction."""

    quick = "quick"
    small = "small"
    medium = "medium"
    paper = "paper"


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedra reproduce --list",
        "fedra reproduce fedsol table6 --seeds 3",
        "fedra reproduce fedarc --size medium --out runs/papers",
    ),
)
def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(
            help="Paper by its method: fedarc, fedgc, fedsol, fedfs or adaptive-margin.",
            metavar="PAPER",
            show_default="all, with --list",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Table or figure, such as table1 or figure2.", metavar="TABLE|FIGURE", show_default="all of the paper"
        ),
    ] = None,
    size: Annotated[
        ReproduceSize,
        typer.Option(
            help="Quick takes a few minutes at most and needs no data, small minutes on two cores, medium about an "
            "hour; paper is the printed setting."
        ),
    ] = ReproduceSize.small,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds; claims are decided with three or more.", min=1, metavar="N")
    ] = 3,
    out: Annotated[
        Path, typer.Option(help="Output folder; tables and figures in one folder share their runs.", metavar="DIR")
    ] = Path("runs/reproduce"),
    listed: Annotated[bool, typer.Option("--list", help="List all tables and figures, and run nothing.")] = False,
    pages: Annotated[
        Path | None,
        typer.Option(help="Folder for pages, numbers and figures.", metavar="DIR", show_default="the output folder"),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option(
            help="Write claims.md, the verdicts on all claims, from the numbers in this folder, and run nothing.",
            metavar="DIR",
            show_default="do not",
        ),
    ] = None,
    estimated: Annotated[bool, typer.Option("--estimate", help="Estimate time and memory, and run nothing.")] = False,
) -> None:
    """Run a table or figure of a paper, and decide the paper's claims by a paired test over seeds.

    Prints mean and standard deviation over seeds next to the paper's numbers, and for each claim: holds, does not hold,
    or cannot be decided at this size. Interrupted work is continued by the same command. Writes a page and a JSON file.
    """
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.reproduce.entries import PAPERS, find_entry, list_entries

    console = Console()
    if listed:
        _list([entry for one in ([paper] if paper else PAPERS) for entry in list_entries(one)])
        return
    if claims is not None:
        from fedra.reproduce.claim_page import write_claims

        print_line(console, f"page {write_claims(claims)}")
        return
    if paper is None:
        raise ConfigError(f"PAPER must be one of {', '.join(PAPERS)}, got none: choose one, or use --list")
    chosen = [find_entry(paper, name)] if name else [entry for entry in list_entries(paper) if entry.trains]
    for entry in chosen:
        if not entry.trains:
            _show(entry, size, out, console)
        elif estimated:
            _estimate(entry, size, seeds, out, console)
        else:
            _run(entry, size, seeds, out, pages or out, console)


def _run(entry: PaperEntry, size: str, seeds: int, out: Path, pages: Path, console: Console) -> None:
    from fedra.reproduce.reproduction import reproduce as run
    from fedra.reproduce.result_page import screen_table, verdict_table, write_page

    found = run(entry, str(size), seeds, out, console)
    wide = wide_console()
    print_line(console, f"{entry.label}: {entry.title}")
    wide.print(screen_table(found))
    if found.verdicts:
        wide.print(verdict_table(found))
    page, numbers = write_page(found, pages)
    print_line(console, f"page {page}, numbers {numbers}")


def _estimate(entry: PaperEntry, size: str, seeds: int, out: Path, console: Console) -> None:
    from fedra.reproduce.reproduction import estimate_entry

    print_line(console, f"{entry.label}, size {size}: {estimate_entry(entry, str(size), seeds, out, console)}")


def _show(entry: PaperEntry, size: str, out: Path, console: Console) -> None:
    """Show an entry that trains nothing: draw it, compare settings, or say what there is instead."""
    from fedra.reproduce.untrained import show_entry

    for line in show_entry(entry, out):
        print_line(console, line)


def _list(found: list[PaperEntry]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(header_style="bold")
    for heading in ("paper", "entry", "what it shows", "claims", "sizes"):
        table.add_column(heading)
    for entry in found:
        sizes = ", ".join(entry.available) if entry.trains else {"text": "-"}.get(entry.kind, "no training")
        table.add_row(entry.paper, entry.name, escape(entry.title), str(len(entry.claims) or "-"), sizes)
    wide_console().print(table)
