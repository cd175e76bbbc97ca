"""What whole rounds of a federation cost: three site processes that train, over TLS on loopback.

A round lasts from one line of the run's record to the next, with its checkpoint. A line of 20 Mbit/s is shared by all
sites; its pure transfer is the model once down and once up for each of them, and what else a round takes is measured
without the limit. Memory is the peak of a process beyond its peak with a small model.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import FOLDER, Row, main, parser

sys.path += [str(FOLDER.parent / "tests"), str(FOLDER.parent / "tests" / "federation")]

from federation_processes import Processes
from linking import proxy

import fedra
from fedra.federation.rehearsal import find_free_port

SITES = 3
RATE = 20e6 / 8
"""Bytes per second of a line of 20 Mbit/s."""
SMALL, MIDDLE, LARGE = (100,), (810, 770), (2500, 2500)
"""Hidden units of models of 0.03, 2.7 and 26 MB."""


@dataclass(frozen=True)
class Measured:
    """Seconds of a round, bytes of the model, and the largest memory of each process in MB."""

    seconds: float
    model: int
    peaks: Mapping[str, float]


def measure(quick: bool) -> list[Row]:
    """All rows; a quick run trains few rounds of small models."""
    middle, large = (SMALL, SMALL) if quick else (MIDDLE, LARGE)
    small = train(SMALL, 3 if quick else 30)
    plain = train(middle, 3 if quick else 8)
    limited = train(middle, 3, RATE)
    big = train(large, 3)
    transfer = 2 * SITES * limited.model / RATE
    simulator = simulate(SMALL, 3 if quick else 30)
    note = f"the simulator's round takes {simulator:.3f} s"
    what = f"20 Mbit/s, {limited.model / 1e6:.2g} MB: a round over transfer and the rest"
    over = f"{limited.seconds:.2f} s; transfer {transfer:.2f} s, the rest {plain.seconds:.2f} s"
    rows = [
        Row(f"a round, {SITES} sites, {small.model / 1e6:.2g} MB", small.seconds, "s", 0.3, note=note),
        Row(what, limited.seconds / (transfer + plain.seconds), "x", 1.1, note=over),
    ]
    for role, name in (("coordinator", "coordinator"), ("site", "site-1")):
        grown = 1e6 * (big.peaks[name] - small.peaks[name]) / big.model
        title = f"a {role}'s peak for a model of {big.model / 1e6:.2g} MB, in models"
        note = f"{big.peaks[name]:.0f} MB, {small.peaks[name]:.0f} MB with the small model"
        rows.append(Row(title, grown, "x", note=note))  # with training, folding and checkpoint, not the link alone
    return rows


def table(hidden: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """A configuration: digits at three clients, one epoch of an MLP."""
    return {
        "rounds": rounds,
        "data": "digits",
        "model": {"name": "mlp", "hidden": list(hidden)},
        "partition": {"name": "iid", "clients": SITES},
        "local": {"batch": 50, "lr": 0.05},
        "runner": {"name": "sequential"},
        "evaluation": {"every": rounds},
    }


def train(hidden: tuple[int, ...], rounds: int, rate: float | None = None) -> Measured:
    """Train a federation of processes, over a line of so many bytes a second; the first round does not count."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_proxies:
        rules: dict[str, Any] = {"least": 2}
        port = find_free_port()
        if rate is not None:
            near, _ = open_proxies.enter_context(proxy(port, rate=rate))
            rules["address"] = f"127.0.0.1:{near}"
        processes = Processes(Path(folder), table(hidden, rounds), SITES, 600, port, **rules)
        record, ended, peaks = processes.record / "metrics.jsonl", {}, {}

        def watch(running: Processes, since: float) -> None:
            count = record.read_text().count("\n") if record.exists() else 0
            if count:
                ended.setdefault(count, time.perf_counter())
            for name, process in running.running.items():
                peaks[name] = max(peak_of(process.pid), peaks.get(name, 0.0))

        processes.run(watch)
        (first, began), (last, over) = min(ended.items()), max(ended.items())
        model = (processes.record / "model.safetensors").stat().st_size
        return Measured((over - began) / (last - first), model, peaks)


def simulate(hidden: tuple[int, ...], rounds: int) -> float:
    """Seconds of the simulator's round."""
    with tempfile.TemporaryDirectory() as folder:
        result = fedra.run(table(hidden, rounds), out=Path(folder) / "run")
        return float(result.summary["seconds"]) / rounds


def peak_of(pid: int) -> float:
    """The largest memory of a process so far in MB; 0 if it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


if __name__ == "__main__":
    main(measure, parser(__doc__))
