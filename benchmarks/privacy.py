"""What differential privacy costs: private steps against plain ones, and a private round against a plain one.

Private steps of MobileFaceNet (112 x 112, group normalization, batch 32) take one example per pass on a CPU, so they
need a fraction of the memory: that of a process of its own, without what it has before the first step. The round is
that of 100 clients with a million weights, clipped and noised, against FedAvg's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from measure import Row, in_turns, main, parser

from fedra.algorithms import fedavg
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.private_steps import with_key
from fedra.core.round import init_server
from fedra.core.secret_numbers import Secret
from fedra.data.clients import SeparateClients
from fedra.models import build
from fedra.parts import PrivateGradient
from fedra.runners.sequential import SequentialRunner

BATCH, SIDE, CLASSES = 32, 112, 10
SECRET = Secret(bytes(range(32)))


def job(private: bool, quick: bool) -> Job:
    """One client with one batch of faces."""
    batch, side = (4, 32) if quick else (BATCH, SIDE)
    name = "mobilefacenet-tiny" if quick else "mobilefacenet"
    algorithm = fedavg()
    if private:
        algorithm = replace(algorithm, gradient=(PrivateGradient(batch=batch),))
    draw = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.randn(batch, 3, side, side, generator=draw), torch.randint(CLASSES, (batch,), generator=draw)
    )
    module = build(name, (3, side, side), CLASSES, seed=0, norm="group")
    return Job(
        algorithm=algorithm,
        model=Model(module),
        clients=SeparateClients([examples]),
        local=LocalTraining(batch=batch, lr=0.1),
        classes=CLASSES,
        seed=0,
    )


def stepper(private: bool, quick: bool) -> Callable[[], object]:
    """One local step of one client."""
    work = job(private, quick)
    server = init_server(work.algorithm, work.initial())
    runner = SequentialRunner(work, 1)
    memory = with_key(work.algorithm, {}, SECRET)
    return lambda: list(runner.train(0, server.weights, {}, [0], lambda client: memory))


def peak(private: bool, quick: bool) -> float:
    """The megabytes that a step adds to a process of its own."""
    words = [sys.executable, __file__, "--probe", str(int(private)), str(int(quick))]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def probe(private: bool, quick: bool) -> None:
    """Take two steps and print the peak of this process over what it had before them."""
    step = stepper(private, quick)
    before = megabytes("VmRSS")
    step()
    step()
    print(megabytes("VmHWM") - before)


def megabytes(key: str) -> float:
    """A number of this process: resource.getrusage would give the peak of the process that started it, if larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def measure_round(quick: bool) -> Row:
    """Clip, sum and noise of a cohort beside its training, against the plain mean beside the same training."""
    import fedra

    table = {
        "rounds": 2,
        "data": {"name": "synthetic", "examples": 400 if quick else 20_000, "classes": 10, "shape": [1, 28, 28]},
        "partition": {"name": "iid", "clients": 4 if quick else 20},
        "model": {"name": "fedavg-cnn"},
        "local": {"batch": 50, "lr": 0.1},
        "evaluation": {"every": 2},
        "runner": {"name": "sequential"},
    }
    private = {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 1.0}
    timings = in_turns(
        {"plain": lambda: fedra.run(table), "private": lambda: fedra.run({**table, "privacy": private})},
        repeats=1 if quick else 3,
    )
    return Row("round with client-level privacy against FedAvg's", timings.ratio("private", "plain"), target=1.1)


def measure(quick: bool) -> list[Row]:
    """Time and memory of private steps, and the time of a private round."""
    torch.set_num_threads(1)
    rivals = {"plain": stepper(False, quick), "private": stepper(True, quick)}
    timings = in_turns(rivals, repeats=2 if quick else 5)
    memory = {name: peak(name == "private", quick) for name in rivals}
    return [
        Row("MobileFaceNet: private step against plain", timings.ratio("private", "plain"), target=1.5),
        Row(
            "MobileFaceNet: memory of a private step against plain",
            memory["private"] / max(memory["plain"], 1e-9),
            target=0.2,
            note=f"{memory['private']:.0f} MB, {memory['plain']:.0f} MB",
        ),
        measure_round(quick),
    ]


if __name__ == "__main__":
    if "--probe" in sys.argv:
        torch.set_num_threads(1)
        probe(*(bool(int(word)) for word in sys.argv[-2:]))
    else:
        main(measure, parser(__doc__))
