"""The command `fedra` itself, and what its commands have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedra import __version__

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="fedra",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated recognition with angular margins: train across clients whose images never move.",
    epilog="Begin with `fedra demo`, then `fedra run CONFIG.toml --out runs/first`.",
)

TRAIN, LOOK, USE = "Train", "Look", "Use a model"
"""The groups of commands in the help."""

ConfigArgument = Annotated[str, typer.Argument(help="A TOML file, or - for standard input.", metavar="CONFIG")]
OptionalConfig = Annotated[str | None, typer.Argument(help="A TOML file, or - for standard input.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings that replace the file's, e.g. local.epochs=5.", metavar="KEY=VALUE")
]
Grid = Annotated[list[str] | None, typer.Argument(help="key=a,b,c to vary; key=value to set.", metavar="KEY=A,B")]

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the functions of your own (module:function) that the configuration names."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedra {__version__}")
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


def tell(console: Console, text: str) -> None:
    """Plain words as they are: no markup, and no line broken where a path or a TOML line would suffer."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def wide_console() -> Console:
    """A console whose tables are not cut short in a pipe or a file, which have no width of their own."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


@app.callback()
def _root(
    version: VersionOption = False,
) -> None:
    """Options that stand before any command."""
