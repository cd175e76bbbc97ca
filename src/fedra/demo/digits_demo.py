"""The demonstration on digits: five federated methods in one setting, each trained with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.console import tell
from fedra.demo.demo_folder import make_anew
from fedra.experiment.sweep import sweep
from fedra.reports.sweep_table import Cell, Point
from fedra.runners.base import threads

SETTING: Mapping[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits"},
    "partition": {"name": "class-shards", "clients": 20, "shards": 2},
    "model": {"name": "mlp"},
    # Without momentum, which brings SCAFFOLD to the edge of stability here: the last bits then decide if it diverges.
    "local": {"epochs": 5, "batch": 20, "lr": 0.1, "lr_decay": 0.99},
    "cohort": {"fraction": 0.25},
    "runner": {"name": "sequential"},  # clients so small that workers would cost more than they bring
}
"""Handwritten digits over twenty clients that hold about two classes each; five take part in a round."""

METHODS: tuple[Mapping[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.1},
    {"name": "scaffold"},
    {"name": "fedntd"},
    {"name": "fedsol", "scope": "head"},
)
"""The first is what the others are compared with."""
SEEDS = 3


def compare_methods(
    out: Path,
    console: Console,
    *,
    setting: Mapping[str, Any] = SETTING,
    methods: Sequence[Mapping[str, Any]] = METHODS,
    seeds: int = SEEDS,
) -> list[tuple[Point, Cell]]:
    """Train every method with every seed in `out`, and print what the seeds tell together.

    Args:
        out: A folder that is new or was made by an earlier demonstration.
        console: Where the table and the progress go.
        setting: The configuration that all runs share.
        methods: The `[algorithm]` tables to compare; the first is the baseline.
        seeds: How many runs of each.

    Returns:
        For each method its runs and their accuracies in percent.
    """
    make_anew(out)
    tell(
        console, f"Handwritten digits on 20 clients with 2 classes each, 5 of which train in a round; {seeds} seeds.\n"
    )
    table = {**setting, "sweep": {"algorithm": [dict(method) for method in methods], "seeds": seeds}}
    with threads(1):  # a model this small gains nothing from more, and loses much where other work has the cores
        cells = sweep(table, [], None, out, console)
    tell(console, "")
    for line in findings(cells):
        tell(console, line)
    tell(console, f"\nLook next at {out / 'curves.svg'} (mean and deviation over the rounds), or try:")
    tell(console, f"  fedra compare {out}/*_seed-0 --reach 0.8   # rounds to an accuracy, traffic and time")
    tell(console, "  fedra list methods                          # what else there is to compare")
    return cells


def findings(cells: Sequence[tuple[Point, Cell]]) -> list[str]:
    """What the seeds tell of each method against the first, seed by seed; and what they do not tell."""
    (first, base), *others = cells
    lines, unclear = [], []
    for point, cell in others:
        if cell.failed:
            lines.append(f"{point.label}: {cell.failures()}; the others finished.")
            continue
        ahead = sum(own > other for own, other in zip(cell.accuracies, base.accuracies, strict=True))
        behind = sum(own < other for own, other in zip(cell.accuracies, base.accuracies, strict=True))
        if max(ahead, behind) < len(base.accuracies):
            unclear.append(point.label)
        else:
            where = "above" if ahead else "below"
            gap = abs(cell.mean - base.mean)
            lines.append(f"{point.label} is {gap:.1f} points {where} {first.label} in the mean, and so in every seed.")
    if unclear:
        lines.append(
            f"These seeds do not tell {' and '.join(unclear)} from {first.label}: now one is ahead, now another."
        )
    return lines
