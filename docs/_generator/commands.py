"""docs/commands.md: every command with its arguments and options, as `--help` prints them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import typer
from typer.utils import get_params_from_function

from _generator.markdown import NOTICE, block, joined, table
from fedra.cli import app

INTRODUCTION = """# Commands

`fedra --help` lists the commands, `fedra COMMAND --help` describes one. An error is reported as one message on standard
error; the [exit code](run-folder.md#exit-codes) says of which kind it is.

"""


def pages() -> dict[str, str]:
    """The page of the commands."""
    root = typer.main.get_command(app)
    found = list(_commands(root, "fedra"))
    rows = [(f"[`{path}`](#{_anchor(path)})", _first(command)) for path, command in found]
    text = NOTICE + INTRODUCTION + table(("command", "what it does"), rows) + "\n"
    return {"commands.md": text + "\n".join(_described(path, command) for path, command in found)}


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _paragraphs(text: str | None) -> list[str]:
    return [joined(paragraph) for paragraph in inspect.cleandoc(text or "").split("\n\n") if paragraph.strip()]


def _first(command: Any) -> str:
    return next(iter(_paragraphs(command.help)), "")


def _described(path: str, command: Any) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    text = f"## {path}\n\n" + "\n\n".join(_paragraphs(command.help)) + f"\n\n{block(usage)}\n"
    declared = get_params_from_function(inspect.unwrap(command.callback))
    rows = [(item.param_type_name, _row(item, declared, context)) for item in command.params]
    arguments = [row for kind, row in rows if kind == "argument"]
    options = [row for kind, row in rows if kind == "option"]
    if arguments:
        text += table(("argument", "default", "what it is"), arguments) + "\n"
    if options:
        text += table(("option", "default", "what it does"), options) + "\n"
    examples = re.findall(r"`(fedra [^`]*)`", command.epilog or "")
    return text + (block("\n".join(examples)) if examples else "")


def _row(item: Any, declared: dict[str, Any], context: click.Context) -> tuple[str, str, str]:
    shown = item.make_metavar(context) if item.param_type_name == "argument" else ", ".join(_written(item, context))
    limits = _limits(item.type) if hasattr(item.type, "_describe_range") else ""
    return f"`{shown.replace(' RANGE', '')}`", _default(item), joined(declared[item.name].default.help or "") + limits


def _limits(kind: Any) -> str:
    if kind.min is not None and kind.max is not None:
        return f" ({kind.min} to {kind.max})"
    return f" ({kind._describe_range()})".replace("x", "")


def _default(item: Any) -> str:
    if item.required:
        return "required"
    if isinstance(item.show_default, str):
        return item.show_default if " " in item.show_default else f"`{item.show_default}`"
    if item.default is None or item.default is False or item.default == []:
        return ""
    if item.default is True:
        return f"`{item.opts[0]}`"
    return f"`{getattr(item.default, 'value', item.default)}`"


def _written(item: Any, context: click.Context) -> list[str]:
    metavar = "" if item.is_flag else f" {item.make_metavar(context)}"
    return [*(name + metavar for name in item.opts), *item.secondary_opts]
