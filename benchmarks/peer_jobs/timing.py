"""What the peers' jobs share: what they return, and the proof that they did the work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from bare import OneProcess, Work
from torch import Tensor

CHECKED_LR = 1e-4
TOLERANCE = 0.05
"""At that rate batches in another order move the weights by under 2 per cent, and a step too many by far more."""


@dataclass(frozen=True)
class Trained:
    """When rounds began and ended, and the global weights before the first and after the last."""

    moments: list[float]
    start: list[Tensor]
    end: list[Tensor]

    @property
    def seconds(self) -> list[float]:
        """The length of each round."""
        return [after - before for before, after in pairwise(self.moments)]


def copies(weights: Iterable[Tensor]) -> list[Tensor]:
    """The weights as they are now."""
    return [value.detach().clone() for value in weights]


def _flat(weights: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in weights])


def must_move(trained: Trained) -> None:
    """Refuse to time a job that trained nothing: some libraries go on when every client failed."""
    if _flat(trained.start).equal(_flat(trained.end)):
        raise RuntimeError("the job trained nothing, so that its time means nothing: see its log")


def must_agree(trained: Trained, work: Work) -> None:
    """Refuse a job whose weights do not go where the bare loop's go in as many rounds."""
    bare = OneProcess(work)
    bare.weights = trained.start
    for _ in trained.seconds:
        bare()
    start, end, right = _flat(trained.start), _flat(trained.end), _flat(bare.weights)
    error = float((end - right).norm() / (right - start).norm())
    if not error < TOLERANCE:
        raise RuntimeError(f"the job's weights are off the bare loop's by {error:.0%} of the way: it does other steps")
