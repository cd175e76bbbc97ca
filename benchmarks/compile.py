"""What `precision = "bfloat16"` and `compile` gain or cost: a round with each against plain float32, on one thread.

Three models on random images: the CNN of McMahan et al. and an MLP on 1 x 28 x 28 (300 per client, batch 50), a
ResNet-18 on 3 x 32 x 32 (64 per client, batch 32); two clients, plain SGD, no evaluation. The start of a compiled run
is its first client, with nothing in torch's cache of compiled code, less a later one. Rounding
errors are distances of a client's trained weights from those of a float64 training.
"""

from __future__ import annotations

import os
import tempfile
import time

import torch
from measure import Row, in_turns, main, parser

from federation import Federation
from fedra.algorithms import fedavg
from fedra.core.batches import Examples
from fedra.core.compiling import check_compiler
from fedra.core.job import Job, run_client
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.precision import PrecisionName, build_precision
from fedra.core.tree import Params
from fedra.data.clients import SeparateClients
from fedra.models import build

CLIENTS, CLASSES = 2, 10
CPU = torch.device("cpu")
JOBS = {"fedavg-cnn": ((1, 28, 28), 300, 50), "mlp": ((1, 28, 28), 300, 50), "resnet18": ((3, 32, 32), 64, 32)}


def measure(quick: bool) -> list[Row]:
    """Round times of each option as multiples of plain float32's."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        check_compiler(CPU)
        return [row for name in (["mlp"] if quick else JOBS) for row in _rows(name, quick)]


def _rows(name: str, quick: bool) -> list[Row]:
    plain, compiled = _job(name, quick), _job(name, quick, compiled=True)
    seconds, first = _client(compiled)
    again, _ = _client(compiled)
    _, exact = _client(_job(name, quick, "float64"))
    errors = [_distance(delta, exact) for delta in (first, _client(plain)[1])]
    rivals = {"float32": Federation(plain, "sequential"), "compiled": Federation(compiled, "sequential")}
    rivals["bfloat16"] = Federation(_job(name, quick, "bfloat16"), "sequential")
    timings = in_turns(rivals, 2 if quick else 3)
    rows = [
        Row(f"{name}, {option}, round time", timings.ratio(option, "float32"), note=timings.note(option, "float32"))
        for option in ("compiled", "bfloat16")
    ]
    return [
        *rows,
        Row(f"{name}, compiled, start", seconds - again, "s"),
        Row(f"{name}, compiled, rounding error against plain float32's", errors[0] / errors[1], "x", 2.0),
    ]


def _job(name: str, quick: bool, precision: PrecisionName = "float32", compiled: bool = False) -> Job:
    shape, examples, batch = JOBS[name]
    examples = batch if quick else examples
    draw = torch.Generator().manual_seed(0)
    own = [
        Examples(torch.randn(examples, *shape, generator=draw), torch.randint(CLASSES, (examples,), generator=draw))
        for _ in range(CLIENTS)
    ]
    model = Model(build(name, shape, CLASSES, seed=0), CPU, build_precision(precision, CPU), compiled)
    return Job(
        algorithm=fedavg(),
        model=model,
        clients=SeparateClients(own),
        local=LocalTraining(epochs=1, batch=batch, lr=0.01),
        classes=CLASSES,
        seed=0,
    )


def _distance(left: Params, right: Params) -> float:
    """The largest difference of any weight."""
    return max(float((value - right[path]).abs().max()) for path, value in left.items())


def _client(job: Job) -> tuple[float, Params]:
    """The seconds and the outcome of training one client."""
    started = time.perf_counter()
    _, upload = run_client(job, 0, 0, job.initial(), {}, {})
    return time.perf_counter() - started, upload.delta


if __name__ == "__main__":
    main(measure, parser(__doc__))
