"""Statistics of a partition: label counts, a summary, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from fedra.data.partition.contract import Indices
from fedra.errors import DataError

QUANTILES = {"min": 0, "10%": 10, "25%": 25, "median": 50, "75%": 75, "90%": 90, "max": 100}
NOTABLE_SHARE = 0.01
MAX_COLUMNS = 12
FIRST, LAST = 12, 4


def label_counts(parts: Sequence[Indices], targets: Indices, classes: int) -> Indices:
    """Count the examples of each class for each client, (clients, classes)."""
    if targets.max() >= classes:
        raise DataError(f"targets must be below {classes} (the number of class names), got {targets.max()}")
    return np.stack([np.bincount(targets[part], minlength=classes) for part in parts])


def summary(parts: Sequence[Indices], targets: Indices) -> dict[str, float]:
    """Return numbers of clients and examples, quantiles of client sizes, and mean classes per client above 1 %."""
    counts = label_counts(parts, targets, int(targets.max()) + 1)
    sizes = counts.sum(axis=1)
    spread = {name: float(np.percentile(sizes, percent)) for name, percent in QUANTILES.items()}
    return {
        "clients": float(len(parts)),
        "examples": float(sizes.sum()),
        **spread,
        "classes": float(_count_notable(counts).mean()),
    }


def client_names(parts: Sequence[Indices], groups: Indices, names: Sequence[str]) -> tuple[str, ...]:
    """Return each client's name from its groups, or () if a group has several clients."""
    held = [np.unique(groups[part]) for part in parts]
    if not len(names) or sum(map(len, held)) != len(np.unique(np.concatenate(held))):
        return ()
    return tuple(" + ".join(names[group] for group in own) for own in held)


def table(parts: Sequence[Indices], targets: Indices, classes: Sequence[str], clients: Sequence[str] = ()) -> Table:
    """Build a table with one row per client: its label counts and, if given, its name.

    With many clients, the table shows the first, the last and the quantiles of client sizes. With more than twelve
    classes, it shows the number of classes and the three most frequent ones instead of all counts.
    """
    counts = label_counts(parts, targets, len(classes))
    wide = len(classes) <= MAX_COLUMNS
    numbers = summary(parts, targets)
    result = Table(
        caption=f"{len(targets)} examples, {len(parts)} clients, "
        f"{numbers['classes']:.1f} classes per client with more than 1 % of its examples"
    )
    result.add_column("client", justify="right", style="bold")
    if clients:
        result.add_column("name", overflow="fold")
    result.add_column("examples", justify="right")
    for name in classes if wide else ("classes",):
        result.add_column(escape(name), justify="right")
    if not wide:
        result.add_column("most frequent")
    shown = _shown_clients(len(parts))
    for client in shown:
        row = counts[client]
        cells = [f"{n}" if n else "·" for n in row] if wide else [f"{_count_notable(row)}", escape(_top(row, classes))]
        label = (f"{client}", escape(clients[client])) if clients else (f"{client}",)
        result.add_row(*label, f"{row.sum()}", *cells, end_section=client == shown[-1])
        if len(shown) < len(parts) and client == FIRST - 1:
            result.add_row(*("..." for _ in result.columns))
    if len(shown) < len(parts):
        for name in QUANTILES:
            result.add_row(name, *(("",) if clients else ()), f"{numbers[name]:.0f}")
    return result


def _count_notable(counts: Indices) -> Indices:
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray((shares > NOTABLE_SHARE).sum(axis=-1))


def _shown_clients(clients: int) -> list[int]:
    if clients <= FIRST + LAST:
        return list(range(clients))
    return [*range(FIRST), *range(clients - LAST, clients)]


def _top(row: Indices, classes: Sequence[str]) -> str:
    largest = np.argsort(-row, kind="stable")[:3]
    return ", ".join(f"{classes[label]} {row[label]}" for label in largest if row[label])
