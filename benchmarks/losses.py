"""What a margin costs: one training step of every head against a plain softmax layer.

10,000 classes, 512 dimensions, 256 examples: the loss, its gradient with respect to features and class weights,
and a plain SGD update of the weights. All cores work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import Row, cores, in_turns, main, parser
from torch import Tensor

from fedra.losses import LOSSES, Stateful

CLASSES, WIDTH, BATCH, LR = 10_000, 512, 256, 0.01
TARGET = 1.3
PLAIN = "plain softmax"
UNTARGETED = {"softmax", "sphereface2", "circle", "uniface", "unitsface", "triplet", "broadface", "uniformface"}
"""Softmax has no cosines, BroadFace classifies old features too; the others compare pairs of examples or classes."""


class Step:
    """One training step of a loss; calling it takes the step."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor], classes: int, width: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self._loss = loss
        self._features = torch.randn(BATCH, width, generator=draw).requires_grad_()
        self._weight = (torch.randn(classes, width, generator=draw) / width**0.5).requires_grad_()
        self._labels = torch.randint(classes, (BATCH,), generator=draw)

    def __call__(self) -> None:
        value = self._loss(self._features, self._weight, self._labels)
        _, gradient = torch.autograd.grad(value, (self._features, self._weight), allow_unused=True)
        if gradient is not None:  # a loss between examples has no class vectors
            with torch.no_grad():
                self._weight.sub_(gradient, alpha=LR)


def _plain(features: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(features @ weight.T, labels)


def _head(name: str, classes: int, width: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(1)
    stateful = Stateful(LOSSES[name](), torch.randn(classes, width, generator=draw))
    return lambda features, weight, labels: stateful(features, weight, labels, draw)


def measure(quick: bool) -> list[Row]:
    """The time of a step of every registered loss against the plain layer's."""
    torch.set_num_threads(cores())
    classes, width, repeats = (200, 16, 2) if quick else (CLASSES, WIDTH, 7)
    rivals = {PLAIN: Step(_plain, classes, width)}
    rivals |= {name: Step(_head(name, classes, width), classes, width) for name in LOSSES}
    timings = in_turns(rivals, repeats)
    return [
        Row(
            f"{name} against {PLAIN}, step time",
            timings.ratio(name, PLAIN),
            target=None if name in UNTARGETED else TARGET,
        )
        for name in LOSSES
    ]


if __name__ == "__main__":
    main(measure, parser(__doc__))
