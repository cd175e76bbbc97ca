"""What the peers' jobs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import Tensor


def gaps(moments: list[float]) -> list[float]:
    """The times between the moments at which rounds ended."""
    return [after - before for before, after in pairwise(moments)]


def copies(weights: Iterable[Tensor]) -> list[Tensor]:
    """The weights as they are now."""
    return [value.detach().clone() for value in weights]


def must_differ(before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Refuse to time a job that trained nothing: some libraries go on when every client failed."""
    if len(before) != len(after) or all(old.equal(new) for old, new in zip(before, after, strict=True)):
        raise RuntimeError("the job trained nothing, so that its time means nothing: see its log")
