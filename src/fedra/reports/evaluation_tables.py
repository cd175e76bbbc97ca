"""Tables of evaluation results for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedra.evaluation.results import ProtocolResult

SHOWN_CLASSES = 30
"""Maximum number of classes in a printed table, worst first; the record has all of them."""


def build_tables(outcome: ProtocolResult) -> Iterator[Table]:
    """Yield the table of a protocol and, for classification, the table of its classes."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in outcome.table.items():
        table.add_row(name, value)
    yield table
    recalls = outcome.metrics.get("class_accuracy")
    if isinstance(recalls, dict):
        yield _class_table(recalls, outcome.metrics)


def _class_table(recalls: Mapping[str, float], metrics: Mapping[str, Any]) -> Table:
    """Build the table of accuracy per class and, if computed, precision, F1 and AUROC."""
    many = len(recalls) > SHOWN_CLASSES
    title = f"the {SHOWN_CLASSES} worst of {len(recalls)} classes" if many else None
    table = Table(title=title, title_justify="left")
    more = metrics.get("per_class") or {}
    columns = [name for name in ("examples", "precision", "f1", "auroc") if name in more]
    for heading in ("class", "accuracy", *columns):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    index = {name: number for number, name in enumerate(metrics.get("classes", recalls))}
    shown = sorted(recalls, key=recalls.__getitem__)[:SHOWN_CLASSES] if many else list(recalls)
    for name in shown:
        cells = [_cell(column, more[column][index[name]]) for column in columns]
        table.add_row(escape(name), f"{recalls[name]:.2%}", *cells)
    return table


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column == "examples":
        return f"{value:,}"
    return f"{value:.4f}" if column == "auroc" else f"{value:.2%}"
