"""Folders of runs that were never trained: their records are written as wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny
from fedra.config import reading as configuration

VERSIONS = {"fedra": "0.2.0", "python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"}


def write_run(
    folder: Path,
    accuracies: Sequence[float | None] = (0.2, 0.4, 0.6),
    *,
    seed: int = 0,
    status: str | None = "finished",
    summary: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    **sections: Any,
) -> Path:
    """A run with one round per accuracy; `extra` is added to every round, and a status of None is an unfinished run."""
    folder.mkdir(parents=True)
    table = {**tiny.table(**sections), "seed": seed, "rounds": max(len(accuracies), 1)}
    (folder / "config.toml").write_text(configuration.write(configuration.read(table)), encoding="utf-8")
    rounds = [round_line(number, accuracy, **(extra or {})) for number, accuracy in enumerate(accuracies, 1)]
    write_lines(folder / "metrics.jsonl", rounds)
    clients = [
        {"round": r["round"], "client": c, "examples": 10 + c, "train_loss": 1.0, "update_norm": 0.5, "bytes_up": 500}
        for r in rounds
        for c in range(4)
    ]
    write_lines(folder / "clients.jsonl", clients)
    if status is not None:
        found = {"status": status, "final_accuracy": accuracies[-1], "clients": 4, "parameters": 100}
        found |= {"algorithm": "fedavg", "protocol": "classification", "rounds": len(accuracies), "seconds": 1.0}
        found |= {"bytes_up": 2000, "bytes_down": 4000}
        text = json.dumps({**found, "versions": VERSIONS, **(summary or {})})
        (folder / "summary.json").write_text(text, encoding="utf-8")
    return folder


def round_line(number: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    known = {"train_loss": 1 / number, "loss": 2 / number, "clients": 4, "dropped": 0, "seconds": 2.0}
    return {"round": number, "accuracy": accuracy, **known, "bytes_up": 2000, "bytes_down": 4000, **more}


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
