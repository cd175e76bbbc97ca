"""Commands for the cache of decoded images: `fedra cache list` and `fedra cache clear`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedra.cli.app import INSPECT, CommandGroup, app, examples, print_line

cache_app = CommandGroup(
    name="cache",
    help="List or remove decoded images that fedra keeps under the data root.",
    epilog=examples("fedra cache list", "fedra cache clear"),
)
app.add_typer(cache_app, rich_help_panel=INSPECT)


@cache_app.command("list", epilog=examples("fedra cache list"))
def list_cache() -> None:
    """List the decoded data sets on the disk and their sizes."""
    from rich.console import Console

    from fedra.data import data_root
    from fedra.data.cache import CACHE, cache_entries

    console, entries = Console(), cache_entries(data_root())
    for entry in entries:
        print_line(console, f"{entry.name}  {entry.bytes / 1e6:.1f} MB")
    print_line(console, f"{_count(len(entries), sum(entry.bytes for entry in entries))} in {data_root() / CACHE}")


@cache_app.command("clear", epilog=examples("fedra cache clear", "fedra cache clear imagefolder-clinic"))
def clear(
    name: Annotated[
        str | None,
        typer.Argument(help="Remove only entries whose names start with this.", metavar="NAME", show_default="all"),
    ] = None,
) -> None:
    """Remove decoded data sets from the disk; they are decoded again when needed."""
    from rich.console import Console

    from fedra.data import data_root
    from fedra.data.cache import CACHE, clear_cache

    removed = clear_cache(data_root(), name)
    size = sum(entry.bytes for entry in removed)
    print_line(Console(), f"removed {_count(len(removed), size)} from {data_root() / CACHE}")


def _count(entries: int, size: int) -> str:
    return f"{entries} {'entry' if entries == 1 else 'entries'} ({size / 1e6:.1f} MB)"
