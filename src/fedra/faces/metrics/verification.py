"""Are these two faces one person? The ten-fold protocol of LFW, AgeDB-30, CALFW, CPLFW, CFP and SLLFW.

Distance is the squared length between unit embeddings, 2 - 2 cos, and a pair is called the same below a threshold.
The threshold is chosen on nine folds and judged on the tenth. The grids of thresholds are those of common practice:
0, 0.01, ... below 4 for accuracy and steps of 0.001 for TAR at FAR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics.embedding_checks import check_flags, check_rate, check_same_length, check_table, directions
from fedra.faces.metrics.search import Done, ignore_progress

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]

FEW_PAIRS = 600
"""Below this many pairs there are fewer folds, each with its share of genuine pairs."""


@dataclass(frozen=True)
class Verification:
    """Accuracies and thresholds of the folds, and the threshold that is best on all pairs together."""

    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]
    best_threshold: float
    pairs: int

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """The standard deviation over folds, of the population."""
        return float(np.std(self.accuracies))

    @property
    def best_cosine(self) -> float:
        """The best threshold as a cosine."""
        return 1 - self.best_threshold / 2

    def figures(self) -> dict[str, object]:
        """For a table or a JSON file."""
        return {
            "pairs": self.pairs,
            "accuracy": self.accuracy,
            "accuracy_std": self.deviation,
            "fold_accuracies": list(self.accuracies),
            "fold_thresholds": list(self.thresholds),
            "best_threshold": self.best_threshold,
            "best_cosine": self.best_cosine,
        }


@dataclass(frozen=True)
class FoldRates:
    """TAR and FAR of each test fold at the threshold for a FAR on the other folds."""

    wanted: float
    tars: tuple[float, ...]
    fars: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        """Means over the folds, and the deviation of TAR."""
        return {
            "far_wanted": self.wanted,
            "tar": float(np.mean(self.tars)),
            "tar_std": float(np.std(self.tars)),
            "far": float(np.mean(self.fars)),
        }


@dataclass(frozen=True)
class _Fold:
    train: Rows
    test: Rows
    distance: Floats
    """Of every pair, after what was learned on the training pairs."""


def verify(
    first: Tensor,
    second: Tensor,
    same: Tensor,
    *,
    folds: int = 10,
    pca: int = 0,
    mean_center: bool = False,
    done: Done = ignore_progress,
) -> Verification:
    """Ten-fold accuracy of pairs (first[i], second[i]); `same` says which are one person.

    Folds are contiguous. Below 600 pairs there are N // 10 of them at most, stratified. `pca` keeps that many
    principal components of the training folds' embeddings, `mean_center` subtracts their mean; both before the
    embeddings are given unit length again. `done` is told of every fold.
    """
    grid = np.arange(0, 4, 0.01)
    accuracies, thresholds = [], []
    truth = same.cpu().numpy()
    for fold in _folds(first, second, same, folds, pca, mean_center):
        chosen = grid[np.argmax(_accuracy(fold.distance[fold.train], truth[fold.train], grid))]
        thresholds.append(float(chosen))
        accuracies.append(float(_accuracy(fold.distance[fold.test], truth[fold.test], np.array([chosen]))[0]))
        done(1)
    every = _distance(_unit("the first", first), _unit("the second", second))
    best = float(grid[np.argmax(_accuracy(every, truth, grid))])
    return Verification(tuple(accuracies), tuple(thresholds), best, len(truth))


def verify_at_far(
    first: Tensor,
    second: Tensor,
    same: Tensor,
    far: float,
    *,
    folds: int = 10,
    pca: int = 0,
    mean_center: bool = False,
    done: Done = ignore_progress,
) -> FoldRates:
    """TAR at a FAR over folds: the threshold is interpolated on the training folds and used on the test fold."""
    check_rate("far", far)
    grid = np.arange(0, 4, 0.001)
    tars, fars = [], []
    truth = same.cpu().numpy()
    for number, fold in enumerate(_folds(first, second, same, folds, pca, mean_center)):
        known = truth[fold.test]
        if known.all() or not known.any():
            missing = "impostor" if known.all() else "genuine"
            raise DataError(
                f"fold {number} holds no {missing} pairs, so it has no rate: order the pairs so that each "
                "tenth of them has both kinds"
            )
        threshold = _interpolated(fold.distance[fold.train][~truth[fold.train]], far, grid)
        accepted = fold.distance[fold.test] < threshold
        tars.append(float(accepted[known].mean()))
        fars.append(float(accepted[~known].mean()))
        done(1)
    return FoldRates(far, tuple(tars), tuple(fars))


def _folds(first: Tensor, second: Tensor, same: Tensor, folds: int, pca: int, mean_center: bool) -> Iterator[_Fold]:
    _check(first, second, same, pca)
    one, other = _unit("the first", first), _unit("the second", second)
    truth = same.cpu().numpy()
    distance = _distance(one, other)
    for train, test in _split(truth, folds):
        if pca or mean_center:
            rows = torch.from_numpy(train).to(one.device)
            change = _Projection(torch.cat([one[rows], other[rows]]), pca)
            distance = _distance(change(one), change(other))
        yield _Fold(train, test, distance)


def _check(first: Tensor, second: Tensor, same: Tensor, pca: int) -> None:
    for name, rows in (("the first embeddings", first), ("the second embeddings", second)):
        check_table(name, rows)
    check_same_length("the first embeddings", first, "the second embeddings", second)
    if len(first) != len(second):
        raise DataError(f"there are {len(first)} first and {len(second)} second embeddings: a pair has one of each")
    check_flags("labels", same, len(first), "pairs")
    genuine = int(same.sum())
    if genuine in (0, len(same)):
        missing = "impostor" if genuine else "genuine"
        raise DataError(f"all {len(same)} pairs are of one kind: verification needs {missing} pairs too")
    if not 0 <= pca <= first.shape[1]:
        raise ConfigError(f"pca = {pca} components cannot be kept of {first.shape[1]}: give 0 (off) or fewer")


def _split(truth: Flags, folds: int) -> Iterator[tuple[Rows, Rows]]:
    from sklearn.model_selection import KFold, StratifiedKFold  # takes longer to import than all of fedra

    pairs = len(truth)
    if folds < 2:
        raise ConfigError(f"folds = {folds} leaves nothing to choose the threshold on: give 2 or more")
    if pairs >= FEW_PAIRS:
        yield from KFold(folds).split(np.zeros(pairs))
        return
    folds = min(folds, pairs // 10)
    rarest = min(int(truth.sum()), int((~truth).sum()))
    if folds < 2 or rarest < folds:
        raise DataError(
            f"{pairs} pairs, {rarest} of the rarer kind, are too few for folds: give 20 or more, "
            f"{max(folds, 2)} or more of each kind"
        )
    yield from StratifiedKFold(folds).split(np.zeros(pairs), truth)


def _unit(which: str, rows: Tensor) -> Tensor:
    return directions(f"{which} embeddings", rows.detach().double())


def _distance(one: Tensor, other: Tensor) -> Floats:
    """Squared lengths between unit rows, 2 - 2 cos; rounding must not make them negative."""
    distance: Floats = (2 - 2 * torch.linalg.vecdot(one, other)).clamp(min=0).cpu().numpy()
    return distance


def _accuracy(distance: Floats, truth: Flags, thresholds: Floats) -> Floats:
    """The share of right answers at each threshold; a pair is the same when its distance is below."""
    genuine, impostor = np.sort(distance[truth]), np.sort(distance[~truth])
    right = np.searchsorted(genuine, thresholds) + len(impostor) - np.searchsorted(impostor, thresholds)
    accuracy: Floats = right / len(distance)
    return accuracy


def _interpolated(impostor: Floats, far: float, grid: Floats) -> float:
    """The threshold at a FAR, on the straight line between the grid's last value not above it and the next."""
    fars = np.searchsorted(np.sort(impostor), grid) / len(impostor)
    last = int(np.searchsorted(fars, far, side="right")) - 1
    if last + 1 == len(grid):
        return float(grid[last])
    share = (far - fars[last]) / (fars[last + 1] - fars[last])
    return float(grid[last] + share * (grid[last + 1] - grid[last]))


class _Projection:
    """The mean of some embeddings and their first principal components (all of space for none)."""

    def __init__(self, rows: Tensor, components: int) -> None:
        self._mean = rows.mean(dim=0)
        centered = rows - self._mean
        self._axes = torch.linalg.eigh(centered.T @ centered).eigenvectors[:, -components:] if components else None

    def __call__(self, rows: Tensor) -> Tensor:
        centered = rows - self._mean
        moved = centered if self._axes is None else centered @ self._axes
        return directions("the embeddings without the training folds' mean", moved)
