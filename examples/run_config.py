"""Run a configuration from Python, change one thing, and read the record: `python examples/run_config.py [ROUNDS]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import fedra

SETTING: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 10},
    "model": {"name": "mlp", "hidden": [64]},
    "local": {"epochs": 2, "batch": 20, "lr": 0.05},
    "cohort": {"fraction": 0.5},
}
METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedprox", "mu": 0.1, "plus": ["fedsam", {"name": "server-sgd", "momentum": 0.5}]},
]


def main(rounds: int) -> None:
    """Train each method; a run without `out` would keep no record."""
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            result = fedra.run({**SETTING, "rounds": rounds, "algorithm": method}, out=Path(folder) / method["name"])
            print(f"{method['name']}: {result.summary['final_accuracy']:.1%} after {len(result.metrics)} rounds")
            print("  in its folder:", ", ".join(sorted(path.name for path in Path(folder, method["name"]).iterdir())))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
