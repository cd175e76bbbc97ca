"""The `fedra` command and what its subcommands share."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.utils import get_params_from_function

from fedra import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


SYNONYMS = {"train": "run", "fit": "run", "simulate": "run", "test": "eval", "evaluate": "eval"}
"""What other tools call the commands of fedra."""


class DescribedCommand(TyperCommand):
    """A command that shows the help of its arguments, which click 8.5 resets after typer has set it.

    A file that it would write under its default name is numbered instead of replaced.
    """

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        assert self.callback is not None
        declared = get_params_from_function(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.help is None:
                parameter.help = declared[parameter.name or ""].default.help

    def invoke(self, ctx: click.Context) -> Any:
        out = ctx.params.get("out")
        if isinstance(out, Path) and out.suffix and ctx.get_parameter_source("out") is ParameterSource.DEFAULT:
            ctx.params["out"] = find_free_name(out)
        return super().invoke(ctx)


class SuggestingGroup(TyperGroup):
    """A group that answers an unknown command with the nearest one, wherever it is."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            ctx.fail(f"There is no command '{ctx.command_path} {word}': {self._suggest(ctx.command_path, word)}")
        return super().resolve_command(ctx, args)

    def _suggest(self, path: str, word: str) -> str:
        known = dict(_walk(self, path))  # by their whole names, so commands of other groups are found too
        same = [whole for whole, name in known.items() if name == SYNONYMS.get(word, word)]
        close = difflib.get_close_matches(word, [*known.values()], n=1)
        found = same or [whole for whole, name in known.items() if name in close]
        return f"did you mean `{found[0]}`?" if found else f"`{path} --help` lists the commands"


def _walk(group: click.Group, path: str) -> Iterator[tuple[str, str]]:
    """Yield the whole name and the last word of every command of a group, its own commands first."""
    for name in group.commands:
        yield f"{path} {name}", name
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _walk(command, f"{path} {name}")


def find_free_name(path: Path) -> Path:
    """Return the path, with the first number that makes it and the .csv file next to it new."""
    number, free = 1, path
    while free.exists() or free.with_suffix(".csv").exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free


class CommandGroup(typer.Typer):
    """A group of commands; help texts are Markdown, and no arguments at all shows the help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=SuggestingGroup, no_args_is_help=True, rich_markup_mode="markdown", **settings)

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


def wide_console(width: int = 200) -> Console:
    """Return a console that does not truncate tables in a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=width)


@app.callback()
def _root(
    version: VersionOption = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Handle the options that precede a command."""
