"""Help texts: every command has a summary and a working example, every option a sentence and its default."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator

import click
import pytest

from tiny import call, cli

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer asks click for names that click will drop
    import typer

COLUMNS = 80


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from walk(child, (*path, name))


ROOT = typer.main.get_command(cli.app)
COMMANDS = dict(walk(ROOT))
each_command = pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(("fedra", *path)))


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def rendered(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> str:
    code, shown, _ = call(capsys, *path, "--help")
    assert code == 0
    return shown


def examples_of(command: click.Command) -> list[list[str]]:
    return [shlex.split(example) for example in re.findall(r"`([^`]+)`", command.epilog or "")]


def option_blocks(shown: str) -> dict[str, str]:
    """The lines of each option in a rendered help text, by the option's name."""
    blocks: dict[str, str] = {}
    name = ""
    for line in shown.splitlines():
        found = re.match(r"│ (?:\* +| *)(--[a-z-]+)", line)
        name = found[1] if found else name if line.startswith("│") else ""
        if name:
            blocks[name] = blocks.get(name, "") + line.strip("│ ") + " "
    return blocks


def test_the_walk_finds_the_nested_commands() -> None:
    assert {("run",), ("plot", "tsne"), ("faces", "gallery", "remove")} < COMMANDS.keys()


@each_command
def test_every_line_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    shown = rendered(capsys, path)
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert "…" not in shown


@each_command
def test_every_command_has_a_summary_of_one_sentence(path: tuple[str, ...]) -> None:
    summary = (COMMANDS[path].help or "").partition("\n\n")[0].strip()
    assert re.fullmatch(r"[A-Z][^.]*\.", summary.replace("\n", " ")), summary


@each_command
def test_every_command_shows_an_example_of_itself(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    examples = examples_of(COMMANDS[path])
    assert any(tuple(words[1 : len(path) + 1]) == path for words in examples)
    shown = " ".join(rendered(capsys, path).split())
    for words in examples:
        assert " ".join(words) in shown.replace("'", "")


@each_command
def test_the_examples_name_commands_and_options_that_exist(path: tuple[str, ...]) -> None:
    for words in examples_of(COMMANDS[path]):
        assert words[0] == "fedra"
        command, rest = ROOT, words[1:]
        while isinstance(command, click.Group):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(" ".join(words), rest)  # parses and checks, without running the command


@each_command
def test_every_argument_and_option_is_described(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    shown = rendered(capsys, path)
    for parameter in COMMANDS[path].params:
        text = getattr(parameter, "help", None) or ""
        assert re.fullmatch(r"[A-Z].*[^.]\.", text, re.DOTALL), (parameter.name, text)
        for word in text.replace("`", "").split():
            assert word in shown, (parameter.name, word)


@each_command
def test_every_option_with_a_value_shows_its_default(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    """A flag without a negative is off unless given, and says no more."""
    blocks = option_blocks(rendered(capsys, path))
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            block = blocks[parameter.opts[0]]
            if parameter.required:
                assert "[required]" in block
            elif not parameter.is_flag or parameter.secondary_opts:
                assert "[default: " in block, parameter.name
