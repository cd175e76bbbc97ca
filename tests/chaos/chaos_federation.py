"""A federation over loopback TLS whose coordinator and sites are killed and started again while it trains."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "federation"))

import torch
from chaos_scenarios import Scenario
from federation_processes import Processes

import fedra
import tiny
from fedra.federation.audit_log import verify_log
from fedra.storage.checkpoint import load_model

TABLE = tiny.table(algorithm={"name": "scaffold"}, rounds=6, local={"epochs": 20, "batch": 10, "lr": 0.01})
LONGEST = 1200.0
"""Seconds after which a federation counts as hanging; many kills on a busy machine take their time."""
FIRST, BETWEEN = (0.5, 12.0), (0.3, 8.0)
"""Seconds before the first kill, and from one to the next."""


def _nothing(folder: Path) -> None:
    """A federation makes its folders itself."""


FEDERATION = Scenario("federation", _nothing, _nothing)


def run_federation(folder: Path, key: str, most: int) -> tuple[int, list[str], list[str]]:
    """Run a federation with up to `most` kills; returns their number, what was killed when, and what is wrong."""
    chance, told, problems = random.Random(key), list[str](), list[str]()
    due = chance.uniform(*FIRST)

    def kill(running: Processes, since: float) -> None:
        nonlocal due
        if len(told) < most and since > due:
            victim = chance.choice(sorted(running.running))
            due = since + chance.uniform(*BETWEEN)
            told.append(f"  {victim} killed after {since:.2f} s")
            running.kill(victim)

    processes = Processes(folder, TABLE, limit=LONGEST)
    try:
        processes.run(kill)
    except AssertionError as error:
        return len(told), told, [str(error)]
    fedra.run(TABLE, out=folder / "simulator")
    (found, _), (expected, _) = (load_model(f / "model.safetensors") for f in (processes.record, folder / "simulator"))
    if found.keys() != expected.keys() or not all(torch.equal(found[name], expected[name]) for name in expected):
        problems.append("the model differs from the simulator's")
    if [line["round"] for line in tiny.metrics(processes.record)] != list(range(1, 7)):
        problems.append("metrics.jsonl lacks rounds")
    for name in processes.federation.places:
        verify_log(folder / name / "log.jsonl")
    time.sleep(0.1)
    left = [path for path in folder.rglob("*") if path.suffix == ".tmp" or path.name == ".lock"]
    problems += [f"{path.relative_to(folder)} is left over" for path in left]
    return len(told), told, problems
