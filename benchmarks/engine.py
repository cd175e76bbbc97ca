"""What the engine costs: fedra's rounds against bare PyTorch loops that do the same local steps.

The CNN of McMahan et al. on 10 clients x 600 images of 1 x 28 x 28, batch 50, one epoch, plain SGD, no evaluation.
Both sides use channels-last, the same number of processes and one thread in each.

A second question: what is gained by testing a round's model beside the next round's training, on 5 clients of unequal
size (200 to 1,000 images) and a test set of 10,000?
"""

from __future__ import annotations

from dataclasses import replace

import torch
from bare import CLASSES, ManyProcesses, OneProcess, Work
from measure import Row, Timings, in_turns, main, parser

from federation import Federation, cnn_job
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.data.clients import SeparateClients
from fedra.experiment.evaluators.evaluator import RoundTest, classification
from fedra.runners import Runner
from fedra.runners.processes import default_start_method

WORKERS = 2
TARGET = 0.97


def measure(quick: bool) -> list[Row]:
    """Throughput of fedra as a share of the bare loop's."""
    torch.set_num_threads(1)
    work, repeats = Work.sized(quick), 2 if quick else 9
    # Workers are forked first, while this process has no threads of its own.
    bare_pool = ManyProcesses(work, WORKERS, default_start_method())
    pool = Federation(cnn_job(work), "processes", workers=WORKERS)
    try:
        together = in_turns({"fedra": pool, "bare": bare_pool}, repeats)
    finally:
        pool.close()
        bare_pool.close()
    alone = in_turns({"fedra": Federation(cnn_job(work), "sequential"), "bare": OneProcess(work)}, repeats)
    return [
        _row(f"processes x {WORKERS} against a bare loop of {WORKERS} processes", together),
        _row("sequential against a bare loop", alone),
        _tests(work, quick, repeats),
    ]


def _tests(work: Work, quick: bool, repeats: int) -> Row:
    """Rounds with a test each, which goes on beside the next round or is waited for."""
    sizes = (3, 6, 9) if quick else (200, 400, 600, 800, 1000)
    own = SeparateClients([_images(size, seed) for seed, size in enumerate(sizes)])
    job = replace(cnn_job(work, clients=own), test=_images(100 if quick else 10_000, seed=99))
    beside = Federation(job, "processes", workers=WORKERS)
    between = Federation(job, "processes", evaluator=_waited, workers=WORKERS)
    try:
        timings = in_turns({"beside": beside, "between": between}, repeats)
    finally:
        beside.close()
        between.close()
    note = timings.note("beside", "between")
    return Row(
        "tests beside training against tests between rounds, throughput", timings.ratio("between", "beside"), note=note
    )


def _waited(job: Job, runner: Runner, weights: Weights) -> RoundTest:
    return classification(job, runner, weights).outcome()


def _images(count: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, 1, 28, 28, generator=draw), torch.randint(CLASSES, (count,), generator=draw))


def _row(what: str, timings: Timings) -> Row:
    note = timings.note("fedra", "bare")
    return Row(f"{what}, throughput", timings.ratio("bare", "fedra"), target=TARGET, at_least=True, note=note)


if __name__ == "__main__":
    main(measure, parser(__doc__))
