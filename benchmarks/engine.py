"""What the engine costs: fedra's rounds against bare PyTorch loops that do the same local steps.

The CNN of McMahan et al. on 10 clients x 600 images of 1 x 28 x 28, batch 50, one epoch, plain SGD, no evaluation.
Both sides use channels-last, the same number of processes and one thread in each.
"""

from __future__ import annotations

import torch
from bare import ManyProcesses, OneProcess, Work
from federation import Federation, cnn_job
from measure import Row, Timings, in_turns, main, parser

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
    ]


def _row(what: str, timings: Timings) -> Row:
    note = timings.note("fedra", "bare")
    return Row(f"{what}, throughput", timings.ratio("bare", "fedra"), target=TARGET, at_least=True, note=note)


if __name__ == "__main__":
    main(measure, parser(__doc__))
