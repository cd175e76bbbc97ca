"""Class-row inversion: a picture that a network takes for the person of a class vector.

A class vector is a template of a person. The attack needs the network, the vector, and a mean face of other people.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core.evaluate import ignore_progress

Embed = Callable[[Tensor], Tensor]
"""From pictures (n, c, h, w) in 0..1 to embeddings (n, d), differentiable."""
RATE = 0.02
"""Step size of Adam, in pixel values."""
SMOOTHNESS = 0.5
"""Weight of the total variation."""
SHIFT = 2
"""Largest shift of a picture in pixels: what only shows at one position is noise of the network."""
GRID = 14
"""Longest side of the gray pictures that are compared without the network."""


def invert_rows(
    embed: Embed,
    rows: Tensor,
    start: Tensor,
    draw: torch.Generator,
    steps: int = 200,
    done: Callable[[int], None] = ignore_progress,
) -> Tensor:
    """Compute a picture for each class vector by gradient steps, from one start picture for all.

    Args:
        embed: The network.
        rows: Class vectors (n, d).
        start: Where to start, such as the mean face of other people (c, h, w).
        draw: Random shifts and mirror images.
        steps: Number of gradient steps.
        done: Called with the number of finished steps.

    Returns:
        Pictures (n, c, h, w) in 0..1.

    Example:
        ```python
        faces = invert_rows(network, network_head.weight[:5], mean_face, torch.Generator().manual_seed(0))
        ```
    """
    units = F.normalize(rows.detach(), dim=1)
    pictures = start.expand(len(rows), *start.shape).clone().requires_grad_()
    optimizer = torch.optim.Adam([pictures], lr=RATE)
    for _ in range(steps):
        moved = _moved(pictures, draw)
        match = (F.normalize(embed(moved), dim=1) * units).sum(dim=1)
        loss = (1 - match).sum() + SMOOTHNESS * total_variation(pictures).sum()
        (gradient,) = torch.autograd.grad(loss, [pictures])
        pictures.grad = gradient
        optimizer.step()
        with torch.no_grad():
            pictures.clamp_(0, 1)
        done(1)
    return pictures.detach()


def _moved(pictures: Tensor, draw: torch.Generator) -> Tensor:
    """The pictures, shifted by a few pixels and mirrored half of the time."""
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2,), generator=draw).tolist()
    moved = torch.roll(pictures, (down, right), dims=(2, 3))
    return moved.flip(3) if int(torch.randint(0, 2, (1,), generator=draw)) else moved


def total_variation(pictures: Tensor) -> Tensor:
    """The mean absolute difference between neighboring pixels of each picture (n,)."""
    down = (pictures[:, :, 1:] - pictures[:, :, :-1]).abs().mean(dim=(1, 2, 3))
    right = (pictures[:, :, :, 1:] - pictures[:, :, :, :-1]).abs().mean(dim=(1, 2, 3))
    return down + right


def rank_by_pixels(pictures: Tensor, candidates: Tensor, right: Tensor) -> np.ndarray:
    """The rank of the right candidate for each picture, by correlation of small gray pictures, without any network.

    Args:
        pictures: Pictures (n, c, h, w).
        candidates: The mean photograph of each candidate (m, c, h, w).
        right: The right candidate of each picture (n,).

    Returns:
        Ranks from 1; (m + 1) / 2 on average for pictures that say nothing.

    Example:
        >>> people = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> rank_by_pixels(people, people, torch.arange(3))
        array([1., 1., 1.])
    """
    center = _small(candidates).mean(dim=0, keepdim=True)
    ours, theirs = (F.normalize(_small(images) - center, dim=1) for images in (pictures, candidates))
    return rank_of(ours @ theirs.T, right)


def _small(pictures: Tensor) -> Tensor:
    """Gray pictures of at most GRID pixels a side, flat, with mean zero: brightness says nothing about a person."""
    height, width = pictures.shape[2:]
    scale = min(GRID / max(height, width), 1.0)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    gray = F.adaptive_avg_pool2d(pictures.double().mean(dim=1, keepdim=True), size).flatten(1)
    return gray - gray.mean(dim=1, keepdim=True)


def rank_of(similarities: Tensor, right: Tensor) -> np.ndarray:
    """The rank of the right column in each row; equal values count half.

    Args:
        similarities: One row per picture, one column per candidate.
        right: The right column of each row.

    Returns:
        Ranks from 1, as floats.

    Example:
        >>> rank_of(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
        array([2.])
    """
    own = similarities.gather(1, right[:, None])
    above, equal = (similarities > own).sum(dim=1), (similarities == own).sum(dim=1)
    ranks: np.ndarray = (above.double() + (equal.double() + 1) / 2).numpy()
    return ranks


def share_beaten(ranks: np.ndarray, candidates: int) -> np.ndarray:
    """The share of wrong candidates that match a picture worse than the right one: 0.5 by chance, 1 for rank 1.

    Args:
        ranks: Ranks from 1.
        candidates: Number of candidates.

    Returns:
        One share per picture.

    Example:
        >>> share_beaten(np.array([1.0, 11.0]), 11)
        array([1., 0.])
    """
    shares: np.ndarray = 1 - (ranks - 1) / max(candidates - 1, 1)
    return shares
