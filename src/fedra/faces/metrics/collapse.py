"""Embeddings that cannot be told apart, and images without an embedding: what to know before any figure is computed.

A network that has collapsed gives every image the same direction. Its cosines differ by rounding alone, so an AUROC
would compare rounding errors: a number that looks like a result and changes from one processor to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedra.losses.angle import NORM_FLOOR

ROUNDING = 32 * torch.finfo(torch.float32).eps
"""How far below 1 the cosines of float32 embeddings may lie by rounding; it is an angle of 0.16 degrees."""

BLOCK = 65_536
"""Embeddings that are looked at together."""


class Directed(NamedTuple):
    """Embeddings of which each has a direction, how many had none, and why no two of them differ, where none do."""

    features: Tensor
    zeros: int
    collapsed: str | None


def give_directions(features: Tensor, passes: torch.dtype = torch.float32) -> Directed:
    """Embeddings (N, d) as (N, d + 1), in which those that were zero are alike, and unlike all others.

    A network with ReLUs at its end gives zeros for some images, above all before it is trained. They get an axis of
    their own, on which all others are zero. `passes` is the type the network computes in.
    """
    zero = torch.linalg.vector_norm(features, dim=1, keepdim=True) <= NORM_FLOOR
    return Directed(torch.cat([features, zero.to(features)], dim=1), int(zero.sum()), collapse_reason(features, passes))


def collapse_reason(features: Tensor, passes: torch.dtype = torch.float32) -> str | None:
    """Why no two embeddings (N, d) can be told apart by cosine; None where some can, or some are not finite.

    They have collapsed where all are zero, or where all that are not point in one direction within rounding: that of
    float32, or of the type `passes` the network computes in where that is coarser.

    Example:
        >>> collapse_reason(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
        'all 3 embeddings point in one direction'
        >>> collapse_reason(torch.eye(3)) is None
        True
    """
    first: Tensor | None = None
    zeros = 0
    for block in torch.split(features.detach(), BLOCK):
        rows = block.cpu().double()
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if not bool(lengths.isfinite().all()):
            return None
        long = lengths > NORM_FLOOR
        zeros += int((~long).sum())
        units = rows[long] / lengths[long, None]
        if len(units):
            first = units[0] if first is None else first
            # Half the squared distance of unit rows is 1 - cos, without its cancellation.
            if float((units - first).square().sum(dim=1).max()) / 2 > _tolerance(passes):
                return None
    if first is None:
        return f"all {len(features):,} embeddings are zero" if len(features) else None
    if len(features) < 2:
        return None
    if zeros:
        return f"{zeros:,} of {len(features):,} embeddings are zero, and the others point in one direction"
    return f"all {len(features):,} embeddings point in one direction"


def _tolerance(passes: torch.dtype) -> float:
    """Rounding turns a row by about its type's precision, and 1 - cos is half the square of an angle."""
    return max(ROUNDING, float(torch.finfo(passes).eps) ** 2)


def collapse_warning(reason: str) -> str:
    """What people are told of a model whose embeddings have collapsed."""
    return (
        f"warning: the model's embeddings have collapsed ({reason}), so there is nothing to measure: train with a "
        "lower rate, from other weights, or with a method that keeps people apart"
    )
