"""Every runner on two jobs: many small clients of an MLP, and a few larger ones of a CNN.

1,000 clients x 20 examples, an MLP of 64-64-10, batch 10; and the CNN of McMahan et al. on 10 clients x 600 images of
1 x 28 x 28, batch 50. One epoch, plain SGD, no evaluation, each runner with its defaults. Beside auto's choice stands
the fastest.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import torch
from bare import Work
from measure import Row, in_turns, main, parser
from stacked import CLASSES, CLIENTS, EXAMPLES, WIDTH, job_of

from federation import Federation, cnn_job
from fedra.core.job import Job
from fedra.runners import choose

ROUNDS = 1000
"""How long auto takes the run to be."""


def measure(quick: bool) -> list[Row]:
    """Throughput of every runner as a multiple of sequential's."""
    repeats = 2 if quick else 5
    # Pools are forked first, while this process has no threads of its own.
    rows = _rows("CNN", cnn_job(Work.sized(quick)), repeats)
    return rows + _rows("MLP", small_clients(30 if quick else CLIENTS), repeats)


def small_clients(count: int) -> Job:
    """Clients with 20 examples each."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, EXAMPLES, WIDTH, generator=draw)
    targets = torch.randint(CLASSES, (count, EXAMPLES), generator=draw)
    return job_of(inputs, targets)


def _rows(title: str, job: Job, repeats: int) -> list[Row]:
    names = ["processes", "sequential", "stacked"]
    if importlib.util.find_spec("ray") is not None:
        names.append("ray")
    rivals = {name: Federation(job, name) for name in names}
    try:
        timings = in_turns(rivals, repeats)
    finally:
        for rival in rivals.values():
            rival.close()
    chosen = choose(replace(job, local=replace(job.local, rounds=ROUNDS)), len(job.clients))
    others = [
        Row(
            f"{title}: {name} against sequential, throughput",
            timings.ratio("sequential", name),
            note=timings.note(name),
        )
        for name in names
        if name != "sequential"
    ]
    best = min(names, key=timings.best)
    share = timings.best(best) / timings.best(chosen.runner)
    return [
        *others,
        Row(f"{title}: auto's choice against the fastest, throughput", share, note=f"{chosen.runner}, {best}"),
    ]


if __name__ == "__main__":
    main(measure, parser(__doc__))
