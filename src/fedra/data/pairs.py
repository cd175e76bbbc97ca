"""Pairs for verification where a set has none of its own: drawn by a seed, half of them genuine."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.core.random import key
from fedra.data.dataset import Pairs
from fedra.errors import DataError

USUAL = 6000
"""How many pairs LFW has: drawn where nobody says how many, if the images suffice."""
FOLDS = 10

Rows = NDArray[np.int64]


def draw_pairs(people: Tensor, count: int | None = None, *, seed: int = 0) -> Pairs:
    """Balanced pairs of examples by the person each shows, none twice, in ten folds.

    Genuine pairs are uniform over all pairs of one person's examples, impostors over all pairs of two people's.

    Args:
        people: The person of each example, whole numbers (N,).
        count: How many pairs; 6,000 unless given, or as many as the rarer kind allows.
        seed: Seeds the draw.

    Returns:
        The pairs, half of them genuine.

    Example:
        >>> import torch
        >>> len(draw_pairs(torch.arange(20) // 4, 10))
        10
    """
    labels = people.cpu().numpy()
    numbers = np.unique(labels, return_counts=True)[1].astype(np.int64)
    genuine = int((numbers * (numbers - 1) // 2).sum())
    impostor = len(labels) * (len(labels) - 1) // 2 - genuine
    half = min(USUAL // 2, genuine, impostor) if count is None else (count + 1) // 2
    for kind, available in (("one person", genuine), ("two people", impostor)):
        if available < max(half, 1):
            raise DataError(
                f"{len(labels)} test images of {len(numbers)} people have {available} pairs of {kind} where "
                f"{max(half, 1)} are wanted: take more people with two or more images each, or ask for fewer pairs"
            )
    draw = np.random.default_rng(key(seed, "pairs"))
    chosen = (_genuine(labels, half, draw), _impostors(labels, half, draw))
    return alternating(*(torch.from_numpy(pairs) for pairs in chosen))


def alternating(genuine: Tensor, impostor: Tensor) -> Pairs:
    """Pairs (P, 2) of both kinds, in turn as far as they go, so that each of the ten folds has its share of both."""
    order = torch.cat([torch.arange(len(kind)) / max(len(kind), 1) for kind in (genuine, impostor)]).argsort(
        stable=True
    )
    rows = torch.cat([genuine, impostor])[order]
    same = (torch.arange(len(rows)) < len(genuine))[order]
    return Pairs(rows[:, 0].contiguous(), rows[:, 1].contiguous(), same, torch.arange(len(rows)) * FOLDS // len(rows))


def _genuine(labels: Rows, count: int, draw: np.random.Generator) -> Rows:
    """Pairs by their rank among all pairs of one person: who it is, then which two of the images."""
    order = np.argsort(labels, kind="stable")
    numbers = np.unique(labels, return_counts=True)[1].astype(np.int64)
    first_row = np.concatenate([[0], numbers.cumsum()[:-1]])
    ends = (numbers * (numbers - 1) // 2).cumsum()
    ranks = draw.choice(int(ends[-1]), count, replace=False)
    person = np.searchsorted(ends, ranks, side="right")
    rank = ranks - (ends[person] - numbers[person] * (numbers[person] - 1) // 2)
    # Rank r is the pair (j, i), j < i, with i (i - 1) / 2 + j = r.
    later = ((1 + np.sqrt(1 + 8 * rank.astype(np.float64))) / 2).astype(np.int64)
    later -= later * (later - 1) // 2 > rank
    earlier = rank - later * (later - 1) // 2
    return np.stack([order[first_row[person] + earlier], order[first_row[person] + later]], axis=1)


def _impostors(labels: Rows, count: int, draw: np.random.Generator) -> Rows:
    """Pairs by their rank among all pairs of two people: one image, then one of those after its person's."""
    order = np.argsort(labels, kind="stable")
    numbers = np.unique(labels, return_counts=True)[1].astype(np.int64)
    others_from = np.repeat(numbers.cumsum(), numbers)
    ends = (len(labels) - others_from).cumsum()
    ranks = draw.choice(int(ends[-1]), count, replace=False)
    one = np.searchsorted(ends, ranks, side="right")
    other = len(labels) - (ends[one] - ranks)
    return np.stack([order[one], order[other]], axis=1)
