"""Random verification pairs for data sets without official ones, half of them genuine."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.core.random import key
from fedra.data.dataset import Pairs
from fedra.errors import DataError

DEFAULT_COUNT = 6000
"""Default number of pairs, that of LFW."""
FOLDS = 10

Rows = NDArray[np.int64]


def draw_pairs(people: Tensor, count: int | None = None, *, seed: int = 0) -> Pairs:
    """Sample verification pairs without repetition, half genuine and half impostor, in ten folds.

    Genuine pairs are uniform over all pairs of images of one person, impostor pairs over all pairs of two people.

    Args:
        people: The person of each example, integers (N,).
        count: Number of pairs. Defaults to 6,000, or to the largest balanced number if there are fewer.
        seed: Random seed.

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
    half = min(DEFAULT_COUNT // 2, genuine, impostor) if count is None else (count + 1) // 2
    for kind, available in (("one person", genuine), ("two people", impostor)):
        if available < max(half, 1):
            raise DataError(
                f"there must be at least {max(half, 1)} pairs of {kind}, got {available} from {len(labels)} test "
                f"images of {len(numbers)} people: use more people with at least two images each, or fewer pairs"
            )
    draw = np.random.default_rng(key(seed, "pairs"))
    chosen = (_genuine(labels, half, draw), _impostors(labels, half, draw))
    return interleave_pairs(*(torch.from_numpy(pairs) for pairs in chosen))


def interleave_pairs(genuine: Tensor, impostor: Tensor) -> Pairs:
    """Interleave genuine and impostor pairs (P, 2) evenly, so each of the ten folds has both kinds."""
    order = torch.cat([torch.arange(len(kind)) / max(len(kind), 1) for kind in (genuine, impostor)]).argsort(
        stable=True
    )
    rows = torch.cat([genuine, impostor])[order]
    same = (torch.arange(len(rows)) < len(genuine))[order]
    return Pairs(rows[:, 0].contiguous(), rows[:, 1].contiguous(), same, torch.arange(len(rows)) * FOLDS // len(rows))


def _genuine(labels: Rows, count: int, draw: np.random.Generator) -> Rows:
    """Sample genuine pairs by rank: first the person, then two of the person's images."""
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
    """Sample impostor pairs by rank: first an image, then one of the images of later people."""
    order = np.argsort(labels, kind="stable")
    numbers = np.unique(labels, return_counts=True)[1].astype(np.int64)
    others_from = np.repeat(numbers.cumsum(), numbers)
    ends = (len(labels) - others_from).cumsum()
    ranks = draw.choice(int(ends[-1]), count, replace=False)
    one = np.searchsorted(ends, ranks, side="right")
    other = len(labels) - (ends[one] - ranks)
    return np.stack([order[one], order[other]], axis=1)
