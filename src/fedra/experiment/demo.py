"""The demonstration: several federated methods on embedded data, with curves and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.config import reading as configuration
from fedra.experiment import run as experiment
from fedra.reports.comparison import compare_table, draw_curves, titles
from fedra.storage.run_folder import RunFolder

SETTING: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits"},
    "partition": {"name": "class-shards", "clients": 20, "shards": 2},
    "model": {"name": "mlp"},
    "local": {"epochs": 5, "batch": 10, "lr": 0.05, "lr_decay": 0.99, "momentum": 0.9},
    "cohort": {"fraction": 0.25},
    "runner": {"name": "processes"},
}
"""Handwritten digits over twenty clients that hold about two classes each; five take part in a round."""

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.1},
    {"name": "scaffold"},
    {"name": "fedntd"},
    {"name": "fedsol", "scope": "head"},
)


def demo(out: Path, console: Console) -> None:
    """Train every method in the same setting, then compare."""
    console.print("Digits written by hand, split over 20 clients with 2 classes each; 5 clients train in a round.\n")
    folders = []
    for method in METHODS:
        folder = out / f"demo-{method['name']}"
        experiment.run(configuration.read({**SETTING, "algorithm": method}), out=folder, force=True, console=console)
        folders.append(RunFolder(folder))
    console.print(compare_table(folders))
    runs = dict(zip(titles(folders), (folder.metrics() for folder in folders), strict=True))
    draw_curves(runs, out / "comparison.svg")
    draw_curves(runs, out / "comparison.png")
    console.print(f"curves in {out / 'comparison.svg'}; every run has its own folder in {out}", highlight=False)
