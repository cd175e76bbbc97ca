"""The command that attacks a run of your own: audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import INSPECT, Trust, app, examples, print_line, wide_console
from fedra.cli.plot_commands import Device

if TYPE_CHECKING:
    from rich.table import Table

    from fedra.privacy.audit.findings import Audit


@app.command(
    rich_help_panel=INSPECT,
    epilog=examples(
        "fedra audit runs/faces",
        "fedra audit runs/faces --attack rows --people 10 --steps 300",
        "fedra audit runs/private --attack photographs,mechanism --shadows 8",
    ),
)
def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of your own.", metavar="RUN")],
    attack: Annotated[
        str | None,
        typer.Option(
            help="Attacks, separated by commas: photographs, people, rows, uploads, mechanism.",
            metavar="NAME,...",
            show_default="all that fit the run",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results.", metavar="DIR", show_default="audit in the run's folder"),
    ] = None,
    most: Annotated[
        int, typer.Option("--examples", help="Largest number of photographs tested for membership.", min=1, metavar="N")
    ] = 1000,
    shadows: Annotated[
        int,
        typer.Option(help="Shadow runs for LiRA, an even number; each takes as long as the run.", min=0, metavar="N"),
    ] = 0,
    minutes: Annotated[
        float, typer.Option(help="Time limit of all shadow runs in minutes.", min=0.0, metavar="NUMBER")
    ] = 15.0,
    people: Annotated[int, typer.Option(help="Number of class vectors to invert.", min=1, metavar="N")] = 10,
    images: Annotated[int, typer.Option(help="Number of images to reconstruct from uploads.", min=1, metavar="N")] = 4,
    steps: Annotated[int, typer.Option(help="Gradient steps of a picture.", min=1, metavar="N")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.", min=0, metavar="N")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Attack a run of your own: what its model, class vectors and uploads reveal."""
    from rich.console import Console

    from fedra.experiment.auditing.audit_run import audit as audit_run

    found = audit_run(
        run,
        out=out,
        attacks=[name.strip() for name in attack.split(",")] if attack else (),
        examples=most,
        shadows=shadows,
        minutes=minutes,
        people=people,
        images=images,
        steps=steps,
        seed=seed,
        device=device,
        trust=trust,
        console=Console(stderr=True),
    )
    console = wide_console()
    if json:
        import json as writer

        print_line(console, writer.dumps(found.as_dict(), indent=1))
    else:
        _show(found, run / "audit" if out is None else out)
    if found.violations:
        raise typer.Exit(1)


def _show(found: Audit, folder: Path) -> None:
    console = wide_console()
    for table in _tables(found):
        console.print(table)
    for name, reason in found.skipped.items():
        print_line(console, f"{name}: not run, {reason}")
    for sentence in found.violations:
        print_line(console, f"the guarantee does not hold: {sentence}")
    print_line(console, f"pictures and how to read them: {folder / 'audit.md'} (readable by you alone)")


def _tables(found: Audit) -> list[Table]:
    from rich.table import Table

    from fedra.privacy.audit.findings import figure_rows

    tables = []
    for one in found.findings:
        table = Table(
            "figure",
            *("value", "95 % interval", "chance", "control", "of"),
            title=f"{one.attack}: {one.title}: {one.verdict}",
            title_justify="left",
            header_style="bold",
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for row in figure_rows(one):
            table.add_row(*row)
        tables.append(table)
    return tables
