"""What fedra offers, as tables: the registries, the parts, and any algorithm taken apart."""

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


def listing(kind: str) -> Table:
    """The names of one kind, each with its fields and a line about it."""
    rows = _rows(kind)
    table = Table(header_style="bold", title=None, show_lines=False)
    for heading in ("name", "fields", "what it is"):
        table.add_column(heading, overflow="fold")
    for name, known, about in rows:
        shown = "\n".join(f"{field.name} = {default(field)}" for field in known.values())
        table.add_row(name, escape(shown), escape(about))
    return table


def lines_of_code() -> Table:
    """Each algorithm file with its code lines (no blanks, comments, docstrings or imports), and what it borrows.

    A file holds its recipes and the parts that only they use. Borrowed are the shared parts and the other recipes that
    it imports, with what their classes inherit; the engine counts for nobody.
    """
    from fedra import algorithms

    table = Table(header_style="bold")
    for heading, justify in (("file", "left"), ("code lines", "right"), ("borrowed", "right"), ("from", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    files = sorted(Path(algorithms.__file__).parent.glob("[!_]*.py"))
    counts = []
    for path in files:
        source = path.read_text(encoding="utf-8")
        borrowed = {thing.__name__: _code_lines(inspect.getsource(thing)) for thing in _borrowed(source)}
        told = ", ".join(f"{name} {count}" for name, count in borrowed.items())
        counts.append((_code_lines(source), sum(borrowed.values())))
        table.add_row(path.name, *map(str, counts[-1]), told)
    table.add_section()
    own, others = (statistics.median(column) for column in zip(*counts, strict=True))
    table.add_row(f"{len(counts)} files, median", f"{own:g}", f"{others:g}")
    return table


def _borrowed(source: str) -> list[Any]:
    """The classes and functions of other files of parts and algorithms that a file imports, and what they inherit."""
    homes = ("fedra.parts.", "fedra.algorithms.")
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(homes):
            module = importlib.import_module(node.module or "")
            for thing in (getattr(module, alias.name) for alias in node.names):
                for kind in inspect.getmro(thing) if isinstance(thing, type) else (thing,):
                    if getattr(kind, "__module__", "").startswith(homes):
                        found[kind.__name__] = kind
    return list(found.values())


def _code_lines(source: str) -> int:
    """The lines that any statement but an import or a docstring stands on."""
    kept: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            last = node.body[0].lineno - 1 if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.end_lineno
            kept.update(range(node.lineno, max(last or 0, node.lineno) + 1))
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                kept.update(decorator.lineno for decorator in node.decorator_list)
    text = source.splitlines()
    return sum(1 for number in kept if text[number - 1].strip() and not text[number - 1].strip().startswith("#"))


def _rows(kind: str) -> Iterator[tuple[str, Mapping[str, Field], str]]:
    registries = _registries()
    if kind == "parts":
        for name, part in sorted(known_parts().items()):
            yield name, class_fields(part), (part.__doc__ or "").partition("\n")[0]
        return
    if kind not in registries:
        raise ConfigError(f"there is nothing to list under '{kind}': {nearest(kind, [*registries, 'parts'])}")
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


def default(field: Field) -> str:
    """A field's default as a configuration would write it."""
    if field.required:
        return "(needed)"
    if isinstance(field.default, Part):
        return f"'{field.default.name}'"
    if field.default is None:
        return "(none)"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return repr(field.default)


SLOT_NOTES = {
    "start": "how weights begin",
    "data": "what a client trains on",
    "objective": "terms add",
    "gradient": "rules nest, the first is outermost",
    "sharing": "who keeps what",
    "combine": "how uploads become one",
    "server": "rules run in order",
    "personalize": "each client's own model",
}


def anatomy(algorithm: Algorithm) -> Tree:
    """An algorithm as its parts, with their fields and formulas."""
    root = Tree("[bold]algorithm[/bold]")
    for slot, note in SLOT_NOTES.items():
        parts = algorithm.in_slot(slot)
        branch = root.add(f"[bold]{slot}[/bold] [dim]({note})[/dim]")
        if not parts:
            branch.add("[dim]nothing[/dim]")
        for part in parts:
            _add(branch, part)
    return root


def _add(branch: Tree, part: Part, label: str = "") -> None:
    plain = {f.name: getattr(part, f.name) for f in dataclass_fields(part)}
    shown = ", ".join(f"{name} = {_plain(value)}" for name, value in plain.items() if not isinstance(value, Part))
    node = branch.add(f"{label}[cyan]{part.name}[/cyan]" + (f"  {escape(shown)}" if shown else ""))
    if part.formula:
        node.add(f"[green]{escape(part.formula)}[/green]")
    for name, value in plain.items():
        if isinstance(value, Part):
            _add(node, value, f"{name}: ")


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)
