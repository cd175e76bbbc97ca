"""Many small clients at once: the stacked runner against a bare `torch.func.vmap` loop, and against sequential.

1,000 clients x 20 examples, an MLP of 64-64-10, batch 10, one epoch, plain SGD. The stacked runner and the bare
loop use all cores; sequential runs as it does by default, on one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bare import CLASSES, SMALL, WIDTH
from measure import Row, cores, in_turns, main, parser
from torch import Tensor
from torch.func import grad, vmap

from federation import Federation
from fedra.algorithms import fedavg
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.data.clients import SeparateClients
from fedra.models import build

CLIENTS, EXAMPLES, BATCH, LR = SMALL.clients, SMALL.images, SMALL.batch, SMALL.lr


class BareStack:
    """The same training with every client's weights in one stack; calling it trains one round."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets
        draw = torch.Generator().manual_seed(0)
        shapes = ((WIDTH, WIDTH), (WIDTH,), (CLASSES, WIDTH), (CLASSES,))
        self._weights = tuple(torch.randn(shape, generator=draw) / WIDTH**0.5 for shape in shapes)
        self._gradients = vmap(grad(_loss))

    def __call__(self) -> None:
        clients, examples = self._targets.shape
        stack = tuple(value.expand(clients, *value.shape).clone() for value in self._weights)
        order = torch.rand(clients, examples).argsort(dim=1)
        owner = torch.arange(clients)[:, None]
        for rows in torch.split(order, BATCH, dim=1):
            gradients = self._gradients(stack, self._inputs[owner, rows], self._targets[owner, rows])
            for value, gradient in zip(stack, gradients, strict=True):
                value.sub_(gradient, alpha=LR)
        self._weights = tuple(value.mean(dim=0) for value in stack)


def _loss(weights: tuple[Tensor, ...], inputs: Tensor, targets: Tensor) -> Tensor:
    wide, wide_bias, last, last_bias = weights
    return F.cross_entropy(F.linear(F.relu(F.linear(inputs, wide, wide_bias)), last, last_bias), targets)


def job_of(inputs: Tensor, targets: Tensor, lr: float = LR) -> Job:
    """One client for each row."""
    model = Model(build("mlp", (WIDTH,), CLASSES, seed=0, hidden=(WIDTH,)))
    clients = SeparateClients([Examples(*pair) for pair in zip(inputs, targets, strict=True)])
    return Job(
        algorithm=fedavg(),
        model=model,
        clients=clients,
        local=LocalTraining(epochs=1, batch=BATCH, lr=lr),
        classes=CLASSES,
        seed=0,
    )


def measure(quick: bool) -> list[Row]:
    """Throughput of the stacked runner as a share of the bare loop's, and as a multiple of sequential's."""
    clients, repeats = (30, 2) if quick else (CLIENTS, 9)
    torch.set_num_threads(cores())
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(clients, EXAMPLES, WIDTH, generator=draw)
    targets = torch.randint(CLASSES, (clients, EXAMPLES), generator=draw)
    job = job_of(inputs, targets)
    rivals: dict[str, Callable[[], None]] = {
        "stacked": Federation(job, "stacked"),
        "bare": BareStack(inputs, targets),
        "sequential": Federation(job, "sequential"),
    }
    timings = in_turns(rivals, repeats)
    return [
        Row(
            "stacked against a bare vmap loop, throughput",
            timings.ratio("bare", "stacked"),
            target=0.7,
            at_least=True,
            note=timings.note("stacked", "bare"),
        ),
        Row(
            "stacked against sequential, throughput",
            timings.ratio("sequential", "stacked"),
            note=timings.note("sequential"),
        ),
    ]


if __name__ == "__main__":
    main(measure, parser(__doc__))
