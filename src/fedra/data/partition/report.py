"""A partition in numbers: label counts, a summary, a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from fedra.data.partition.contract import Indices
from fedra.errors import DataError

QUANTILES = {"min": 0, "10%": 10, "25%": 25, "median": 50, "75%": 75, "90%": 90, "max": 100}
NOTABLE_SHARE = 0.01
COLUMNS_AT_MOST = 12
FIRST, LAST = 12, 4


def label_counts(parts: Sequence[Indices], targets: Indices, classes: int) -> Indices:
    """How many examples of each class each client holds, (clients, classes)."""
    if targets.max() >= classes:
        raise DataError(f"a target is {targets.max()} but there are names for {classes} classes: name every class")
    return np.stack([np.bincount(targets[part], minlength=classes) for part in parts])


def summary(parts: Sequence[Indices], targets: Indices) -> dict[str, float]:
    """Number of clients and examples, quantiles of client sizes, mean number of classes above a 1 % share."""
    counts = label_counts(parts, targets, int(targets.max()) + 1)
    sizes = counts.sum(axis=1)
    spread = {name: float(np.percentile(sizes, percent)) for name, percent in QUANTILES.items()}
    return {
        "clients": float(len(parts)),
        "examples": float(sizes.sum()),
        **spread,
        "classes": float(_notable(counts).mean()),
    }


def client_names(parts: Sequence[Indices], groups: Indices, names: Sequence[str]) -> tuple[str, ...]:
    """Each client's name: its natural group's, or those of its groups; () where a group is spread over clients."""
    held = [np.unique(groups[part]) for part in parts]
    if not len(names) or sum(map(len, held)) != len(np.unique(np.concatenate(held))):
        return ()
    return tuple(" + ".join(names[group] for group in own) for own in held)


def table(parts: Sequence[Indices], targets: Indices, classes: Sequence[str], clients: Sequence[str] = ()) -> Table:
    """One row per client with its label counts, and its name where `clients` has them.

    Many clients show the first, the last and the quantiles of size; "..." stands for the others.
    With more than twelve classes the counts give way to the number of classes and the three most frequent.
    """
    counts = label_counts(parts, targets, len(classes))
    wide = len(classes) <= COLUMNS_AT_MOST
    numbers = summary(parts, targets)
    result = Table(
        caption=f"{len(targets)} examples, {len(parts)} clients, "
        f"{numbers['classes']:.1f} classes per client above a 1 % share"
    )
    result.add_column("client", justify="right", style="bold")
    if clients:
        result.add_column("name", overflow="fold")
    result.add_column("examples", justify="right")
    for name in classes if wide else ("classes",):
        result.add_column(escape(name), justify="right")
    if not wide:
        result.add_column("most frequent")
    shown = _shown(len(parts))
    for client in shown:
        row = counts[client]
        cells = [f"{n}" if n else "·" for n in row] if wide else [f"{_notable(row)}", escape(_top(row, classes))]
        label = (f"{client}", escape(clients[client])) if clients else (f"{client}",)
        result.add_row(*label, f"{row.sum()}", *cells, end_section=client == shown[-1])
        if len(shown) < len(parts) and client == FIRST - 1:
            result.add_row(*("..." for _ in result.columns))
    if len(shown) < len(parts):
        for name in QUANTILES:
            result.add_row(name, *(("",) if clients else ()), f"{numbers[name]:.0f}")
    return result


def _notable(counts: Indices) -> Indices:
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray((shares > NOTABLE_SHARE).sum(axis=-1))


def _shown(clients: int) -> list[int]:
    if clients <= FIRST + LAST:
        return list(range(clients))
    return [*range(FIRST), *range(clients - LAST, clients)]


def _top(row: Indices, classes: Sequence[str]) -> str:
    largest = np.argsort(-row, kind="stable")[:3]
    return ", ".join(f"{classes[label]} {row[label]}" for label in largest if row[label])
