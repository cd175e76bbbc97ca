"""The digits part of the demo: five federated methods in one setting, each trained with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.console import tell
from fedra.demo.demo_folder import create_demo_folder
from fedra.experiment.sweep import sweep
from fedra.reports.sweep_table import Cell, Point
from fedra.runners.base import threads

SETTING: Mapping[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits"},
    "partition": {"name": "class-shards", "clients": 20, "shards": 2},
    "model": {"name": "mlp"},
    # No momentum: with it SCAFFOLD is at the edge of stability here, and rounding decides whether it diverges.
    "local": {"epochs": 5, "batch": 20, "lr": 0.1, "lr_decay": 0.99},
    "cohort": {"fraction": 0.25},
    "runner": {"name": "sequential"},  # the clients are too small to gain from worker processes
}
"""Handwritten digits on twenty clients with about two classes each; five take part in a round."""

METHODS: tuple[Mapping[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.1},
    {"name": "scaffold"},
    {"name": "fedntd"},
    {"name": "fedsol", "scope": "head"},
)
"""The first is the baseline of the others."""
SEEDS = 3


def compare_methods(
    out: Path,
    console: Console,
    *,
    setting: Mapping[str, Any] = SETTING,
    methods: Sequence[Mapping[str, Any]] = METHODS,
    seeds: int = SEEDS,
) -> list[tuple[Point, Cell]]:
    """Train every method with every seed, then print a table and what the seeds agree on.

    Args:
        out: Output folder, which must be new or made by an earlier demo.
        console: Where the table and the progress are printed.
        setting: The configuration that all runs share.
        methods: The `[algorithm]` tables to compare; the first is the baseline.
        seeds: Number of seeds per method.

    Returns:
        The runs of each method and their accuracies in percent.

    Example:
        >>> from rich.console import Console
        >>> compare_methods(Path("runs/digits"), Console(), seeds=2)  # doctest: +SKIP
    """
    create_demo_folder(out)
    tell(
        console,
        "Handwritten digits on 20 clients with 2 classes each; 5 clients train in each of "
        f"{setting['rounds']} rounds; {seeds} seed{'s' if seeds > 1 else ''}.\n",
    )
    table = {**setting, "sweep": {"algorithm": [dict(method) for method in methods], "seeds": seeds}}
    with threads(1):  # so small a model gains nothing from more threads and slows down if the cores are busy
        cells = sweep(table, [], None, out, console)
    tell(console, "")
    for line in summarize_findings(cells):
        tell(console, line)
    tell(console, f"\nSee {out / 'curves.svg'} for the mean and standard deviation per round, or try:")
    tell(console, f"  fedra compare {out}/*_seed-0 --reach 0.8   # rounds to an accuracy, traffic and time")
    tell(console, "  fedra list methods                          # all methods that can be compared")
    return cells


def summarize_findings(cells: Sequence[tuple[Point, Cell]]) -> list[str]:
    """Describe each method's difference from the first: whether it is the same for every seed."""
    (first, base), *others = cells
    one_seed = len(base.accuracies) == 1
    lines, unclear = [], []
    for point, cell in others:
        if cell.failed:
            lines.append(f"{point.label}: {cell.failures()}; the other runs finished.")
            continue
        if one_seed:
            continue
        ahead = sum(own > other for own, other in zip(cell.accuracies, base.accuracies, strict=True))
        behind = sum(own < other for own, other in zip(cell.accuracies, base.accuracies, strict=True))
        if max(ahead, behind) < len(base.accuracies):
            unclear.append(point.label)
        else:
            where = "above" if ahead else "below"
            gap = abs(cell.mean - base.mean)
            lines.append(
                f"{point.label} is {gap:.1f} points {where} {first.label} on average, and {where} it in every seed."
            )
    if unclear:
        lines.append(f"No consistent difference from {first.label} across the seeds: {', '.join(unclear)}.")
    return [*lines, "One seed does not show which method is better."] if one_seed else lines
