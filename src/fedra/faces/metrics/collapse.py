"""Detect collapsed embeddings and zero embeddings before metrics are computed.

A collapsed network maps every image to the same direction. Its cosines differ only by rounding, so an AUROC would
compare rounding errors: it would look like a result and change from one processor to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedra.losses.angle import NORM_FLOOR

ROUNDING = 32 * torch.finfo(torch.float32).eps
"""How far below 1 rounding may put the cosines of equal float32 embeddings; corresponds to an angle of 0.16 degrees."""

BLOCK = 65_536
"""Number of embeddings checked at a time."""


class Directed(NamedTuple):
    """Embeddings without zero rows, the number of zero embeddings, and the reason if they have collapsed."""

    features: Tensor
    zeros: int
    collapsed: str | None


def separate_zero_embeddings(features: Tensor, passes: torch.dtype = torch.float32) -> Directed:
    """Extend embeddings (N, d) to (N, d + 1) so zero embeddings match each other and no other embedding.

    A network that ends in a ReLU maps some images to zero, especially before training. These get an extra axis on
    which all other embeddings are zero. `passes` is the data type of the forward pass.
    """
    zero = torch.linalg.vector_norm(features, dim=1, keepdim=True) <= NORM_FLOOR
    return Directed(torch.cat([features, zero.to(features)], dim=1), int(zero.sum()), collapse_reason(features, passes))


def collapse_reason(features: Tensor, passes: torch.dtype = torch.float32) -> str | None:
    """Return why embeddings (N, d) have collapsed; None if they have not, or if some are not finite.

    They have collapsed if all are zero, or if all nonzero ones point in the same direction within the rounding of
    float32 or of `passes`, the data type of the forward pass, whichever is coarser.

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
            # Half the squared distance of unit rows equals 1 - cos, without cancellation.
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
    """Return the tolerance of 1 - cos: rounding rotates a row by about eps, and 1 - cos is half the squared angle."""
    return max(ROUNDING, float(torch.finfo(passes).eps) ** 2)


def collapse_warning(reason: str) -> str:
    """Return the warning for a model whose embeddings have collapsed."""
    return (
        f"warning: the model's embeddings have collapsed ({reason}), so there are no metrics: train with a lower "
        "learning rate, from other weights, or with a method that separates the classes"
    )
