"""How time and memory grow with the number of clients, at a fixed cohort of 10.

A pool of 60,000 gray images of 28 x 28 bytes, in which 10 to 10,000 clients hold 60 rows each, so that a round is
the same work whatever their number. Each size runs in a process of its own; the sizes take turns.

The baseline of memory is what no simulation can do without: the data once, and for each worker a process that has
imported the package and trains one client. Against it stands the parent's peak with the workers' private memory.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import Row, Timings, main, parser

WORKERS = 2
COHORT = 10
ROWS = 60
MIB = 2**20


def measure(quick: bool) -> list[Row]:
    """Round time and peak memory for each number of clients, against the smallest."""
    if not Path("/proc/self/smaps_rollup").exists():
        print("skipped: private memory is read from /proc/self/smaps_rollup, which is Linux alone")
        return []
    sizes, repeats = ((10, 50), 1) if quick else ((10, 100, 1000, 10_000), 3)
    found: dict[int, list[dict[str, Any]]] = {clients: [] for clients in sizes}
    for repeat in range(repeats):
        for clients in sizes if repeat % 2 else reversed(sizes):
            found[clients].append(_in_own_process(clients, quick))
    alone = min(_in_own_process(0, quick)["peak"] for _ in range(repeats))
    timings = Timings({str(clients): [s for one in runs for s in one["seconds"]] for clients, runs in found.items()})
    rows = []
    for clients, runs in found.items():
        grown, data, private = (min(one[key] for one in runs) for key in ("grown", "data", "private"))
        rows += [
            Row(f"{clients:,} clients, round time", timings.best(str(clients)), "s"),
            Row(f"{clients:,} clients, parent's growth over its imports", grown, "MiB", note=f"data {data:.0f} MiB"),
            Row(f"{clients:,} clients, private memory of {WORKERS} workers", private, "MiB"),
        ]
    few, many = str(sizes[0]), str(sizes[-1])
    least, most = (min(one["grown"] + one["private"] for one in found[size]) for size in (sizes[0], sizes[-1]))
    whole = min(one["peak"] + one["private"] for one in found[sizes[-1]])
    floor = found[sizes[-1]][0]["data"] + WORKERS * alone
    return [
        *rows,
        Row(f"{sizes[-1]:,} clients against {sizes[0]}, round time", timings.ratio(many, few)),
        Row(f"{sizes[-1]:,} clients against {sizes[0]}, memory", most / least),
        Row(
            f"{sizes[-1]:,} clients against the data and {WORKERS} lone workers, memory",
            whole / floor,
            target=1.15,
            note=f"{whole:.0f} MiB, data {floor - WORKERS * alone:.0f} MiB, a lone worker {alone:.0f} MiB",
        ),
    ]


def _in_own_process(clients: int, quick: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--clients", str(clients), *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def probe(clients: int, quick: bool) -> dict[str, Any]:
    """Train a few rounds with so many clients: seconds, memory in MiB; 0 clients stand for a lone worker."""
    import torch
    from bare import CLASSES, Work

    from federation import Federation, cnn_job
    from fedra.core.batches import Examples
    from fedra.data import Transform
    from fedra.data.clients import PooledClients

    if not clients:
        Federation(cnn_job(Work(1, ROWS, 20)), "sequential")()
        return {"peak": _peak()}
    before = _peak()
    images = 2_000 if quick else 60_000
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (images, 1, 28, 28), generator=draw, dtype=torch.uint8)
    pool = Examples(inputs, torch.randint(CLASSES, (images,), generator=draw), Transform((0.5,), (0.5,)))
    rows = torch.split(torch.arange(clients * ROWS).remainder(images), ROWS)
    job = cnn_job(Work(batch=20), clients=PooledClients(pool, rows))
    federation = Federation(job, "processes", fraction=COHORT / clients, workers=WORKERS)
    federation()
    seconds = [_seconds(federation) for _ in range(1 if quick else 5)]
    private = sum(_private(child.pid) for child in multiprocessing.active_children() if child.pid is not None)
    federation.close()
    data = sum(tensor.nbytes for tensor in job.tensors()) / MIB
    return {"seconds": seconds, "peak": _peak(), "grown": _peak() - before, "private": private, "data": data}


def _seconds(federation: Any) -> float:
    started = time.perf_counter()
    federation()
    return time.perf_counter() - started


def _peak() -> float:
    """The largest resident memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _private(process: int) -> float:
    """Memory that is the process's own: what it does not share with its parent or its siblings."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--clients", type=int, help="measure this number alone and print JSON; 0: a lone worker")
    given = options.parse_args()
    if given.clients is None:
        main(measure, options)
    else:
        print(json.dumps(probe(given.clients, given.quick)))
