"""Tables of what is available (registries, parts, lines of code), and the tree of an algorithm's parts."""

from __future__ import annotations

import ast
import importlib
import inspect
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from fedra.core.algorithm import Algorithm
from fedra.core.part import Part, known_parts
from fedra.errors import ConfigError, nearest
from fedra.registry import Field, Registry, class_fields, fields


def list_kinds() -> Table:
    """Return a table of the kinds that can be listed, each with its number of names and the command that lists them."""
    table = Table("kind", "names", "list them", header_style="bold")
    for kind in (*_registries(), "parts"):
        table.add_row(kind, str(sum(1 for _ in _rows(kind))), f"fedra list {kind}")
    return table


def list_entries(kind: str) -> Table:
    """Return a table of the names of one kind, each with its fields and a summary."""
    rows = _rows(kind)
    table = Table(header_style="bold", title=None, show_lines=False)
    for heading in ("name", "fields", "summary"):
        table.add_column(heading, overflow="fold")
    for name, known, summary in rows:
        shown = "\n".join(f"{field.name} = {format_default(field)}" for field in known.values())
        table.add_row(name, escape(shown), escape(summary))
    return table


def count_code_lines() -> Table:
    """Return a table of algorithm files with their lines of code, and those of the parts and algorithms they import.

    Blank lines, comments, docstrings and imports are not counted. Imported classes count with the parts and algorithms
    that they inherit from; the engine is not counted.
    """
    from fedra import algorithms

    table = Table(header_style="bold")
    for heading, justify in (("file", "left"), ("code lines", "right"), ("imported", "right"), ("from", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    files = sorted(Path(algorithms.__file__).parent.glob("[!_]*.py"))
    counts = []
    for path in files:
        source = path.read_text(encoding="utf-8")
        imported = {item.__name__: _code_lines(inspect.getsource(item)) for item in _imported_items(source)}
        names = ", ".join(f"{name} {count}" for name, count in imported.items())
        counts.append((_code_lines(source), sum(imported.values())))
        table.add_row(path.name, *map(str, counts[-1]), names)
    table.add_section()
    own, others = (statistics.median(column) for column in zip(*counts, strict=True))
    table.add_row(f"{len(counts)} files, median", f"{own:g}", f"{others:g}")
    return table


def _imported_items(source: str) -> list[Any]:
    """Return the classes and functions of other part and algorithm files that a file imports, with base classes."""
    homes = ("fedra.parts.", "fedra.algorithms.")
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(homes):
            module = importlib.import_module(node.module or "")
            for item in (getattr(module, alias.name) for alias in node.names):
                for kind in inspect.getmro(item) if isinstance(item, type) else (item,):
                    if getattr(kind, "__module__", "").startswith(homes):
                        found[kind.__name__] = kind
    return list(found.values())


def _code_lines(source: str) -> int:
    """Count the lines of all statements other than imports and docstrings."""
    counted: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            last = node.body[0].lineno - 1 if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.end_lineno
            counted.update(range(node.lineno, max(last or 0, node.lineno) + 1))
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                counted.update(decorator.lineno for decorator in node.decorator_list)
    text = source.splitlines()
    return sum(1 for number in counted if text[number - 1].strip() and not text[number - 1].strip().startswith("#"))


def _rows(kind: str) -> Iterator[tuple[str, Mapping[str, Field], str]]:
    registries = _registries()
    if kind == "parts":
        for name, part in sorted(known_parts().items()):
            yield name, class_fields(part), (part.__doc__ or "").partition("\n")[0]
        return
    if kind not in registries:
        kinds = sorted([*registries, "parts"])
        raise ConfigError(f"KIND must be one of {', '.join(kinds)}, got '{kind}': {nearest(kind, kinds)}")
    registry = registries[kind]
    for name in registry:
        if registry.kind == "runner" and name == "centralized":
            continue  # only `mode = "centralized"` selects it
        entry = registry[name]
        known = class_fields(entry) if isinstance(entry, type) else fields(entry)
        yield name, known, registry.summary(name)


def _registries() -> dict[str, Registry]:
    from fedra.algorithms import ALGORITHMS
    from fedra.core.rates import SCHEDULES
    from fedra.data import DATASETS
    from fedra.data.partition import PARTITIONS
    from fedra.losses import LOSSES
    from fedra.models import MODELS
    from fedra.runners import RUNNERS

    return {
        "methods": ALGORITHMS,
        "datasets": DATASETS,
        "models": MODELS,
        "partitions": PARTITIONS,
        "runners": RUNNERS,
        "losses": LOSSES,
        "schedules": SCHEDULES,
    }


def format_default(field: Field) -> str:
    """Format a field's default as in a configuration."""
    if field.required:
        return "(required)"
    if isinstance(field.default, Part):
        return f"'{field.default.name}'"
    if field.default is None:
        return "(none)"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return repr(field.default)


SLOT_NOTES = {
    "start": "initial weights",
    "data": "training data of a client",
    "objective": "terms are summed",
    "gradient": "rules are nested, the first is outermost",
    "sharing": "which layers are private or shared",
    "combine": "how uploads are combined",
    "server": "rules run in order",
    "upload": "how a change is made smaller",
    "personalize": "personal models of the clients",
}


def algorithm_tree(algorithm: Algorithm) -> Tree:
    """Return the parts of an algorithm as a tree, with their fields and formulas."""
    root = Tree("[bold]algorithm[/bold]")
    for slot, note in SLOT_NOTES.items():
        parts = algorithm.in_slot(slot)
        branch = root.add(f"[bold]{slot}[/bold] [dim]({note})[/dim]")
        if not parts:
            branch.add("[dim]none[/dim]")
        for part in parts:
            _add_part(branch, part)
    return root


def _add_part(branch: Tree, part: Part, label: str = "") -> None:
    values = {f.name: getattr(part, f.name) for f in dataclass_fields(part)}
    shown = ", ".join(
        f"{name} = {_format_value(value)}" for name, value in values.items() if not isinstance(value, Part)
    )
    node = branch.add(f"{label}[cyan]{part.name}[/cyan]" + (f"  {escape(shown)}" if shown else ""))
    if part.formula:
        node.add(f"[green]{escape(part.formula)}[/green]")
    for name, value in values.items():
        if isinstance(value, Part):
            _add_part(node, value, f"{name}: ")


def _format_value(value: Any) -> str:
    return "none" if value is None else str(value)
