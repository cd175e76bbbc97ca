"""Runs that take a blink: made-up vectors, four clients, a model of a few dozen weights."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer asks click for names that click will drop
    from fedra import cli

TINY: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "examples": 90, "test_examples": 40, "classes": 4, "shape": [6]},
    "partition": {"name": "quantity", "alpha": 5.0, "clients": 4, "min_size": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 10, "lr": 0.1},
    "checkpoint": {"seconds": 0},
    "runner": {"name": "sequential"},
}

WORDS = (
    "data={name='synthetic', examples=90, test_examples=40, classes=4, shape=[6]}",
    "partition={name='quantity', alpha=5.0, clients=4, min_size=5}",
    "model={name='mlp', hidden=[8]}",
    "local={batch=10, lr=0.1}",
    "checkpoint.seconds=0",
    "runner.name=sequential",
    "rounds=3",
)
"""The same as overrides of an empty file."""


def table(**sections: Any) -> dict[str, Any]:
    """The tiny configuration with sections merged in, single values replaced."""
    merged = copy.deepcopy(TINY)
    for name, value in sections.items():
        fresh = not isinstance(value, dict) or "name" in value
        merged[name] = value if fresh else {**merged.get(name, {}), **value}
    return merged


def lines(path: Path) -> list[dict[str, Any]]:
    """A .jsonl file, read strictly: NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def record(folder: Path) -> dict[str, Any]:
    """All that a run must repeat to the bit: the model, the rounds but for their seconds, and the clients."""
    rounds = [{name: value for name, value in line.items() if name != "seconds"} for line in metrics(folder)]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "metrics": rounds,
        "clients": (folder / "clients.jsonl").read_text(),
    }


def metrics(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / "metrics.jsonl")


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """`fedra WORDS` in this process: exit code, standard output, standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(word) for word in words])
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out, shown.err


def mistake(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 2) -> str:
    """The one sentence that `fedra WORDS` fails with."""
    found, _, told = call(capsys, *words)
    assert found == code, told
    assert told.startswith("fedra: ")
    assert told.endswith("\n")
    assert told.count("\n") == 1, told
    assert "Traceback" not in told
    return told.removeprefix("fedra: ").strip()
