"""The `fedra` command and what its subcommands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.utils import get_params_from_function

from fedra import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


class DescribedCommand(TyperCommand):
    """A command that shows the help of its arguments, which click 8.5 resets after typer has set it."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        assert self.callback is not None
        declared = get_params_from_function(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.help is None:
                parameter.help = declared[parameter.name or ""].default.help


class CommandGroup(typer.Typer):
    """A group of commands; help texts are Markdown, and no arguments at all shows the help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode="markdown", **settings)
        self.suggest_commands = not hasattr(click, "NoSuchCommand")  # a click that has it suggests names itself

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=DescribedCommand, **settings)


def examples(*commands: str) -> str:
    """Format example commands for the end of a help text, one per line."""
    if len(commands) == 1:
        return f"Example: `{commands[0]}`"
    return "\n\n".join(["Examples:", *(f"- `{command}`" for command in commands)])


app = CommandGroup(
    name="fedra",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train recognition models across clients whose images stay where they are.",
    epilog=examples("fedra demo", "fedra run config.toml --out runs/first", "fedra list methods"),
)

TRAIN, INSPECT, USE = "Train", "Inspect", "Use a model"
"""The groups of commands in the help."""

ConfigArgument = Annotated[
    str, typer.Argument(help="Configuration file (TOML), or - for standard input.", metavar="CONFIG")
]
OptionalConfig = Annotated[
    str | None, typer.Argument(help="Configuration file (TOML), or - for standard input.", metavar="CONFIG")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that override the file, such as local.epochs=5.", metavar="KEY=VALUE..."),
]
Grid = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to vary (local.lr=0.1,0.01) or to override (rounds=5).", metavar="KEY=A,B..."),
]

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the functions that the configuration names as module:function."),
]


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedra {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def print_line(console: Console, text: str) -> None:
    """Print text as it is: without markup, and without breaking paths or TOML lines."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def wide_console() -> Console:
    """Return a console that does not truncate tables when the output is a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


@app.callback()
def _root(
    version: VersionOption = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Handle the options that precede a command."""
