"""Verification: the ten-fold protocol of LFW, AgeDB-30, CALFW, CPLFW, CFP and SLLFW.

The distance is the squared Euclidean distance of unit embeddings, 2 - 2 cos; a pair is accepted below a threshold.
The threshold is chosen on nine folds and tested on the tenth. The grids of thresholds are the common ones:
0, 0.01, ... below 4 for accuracy, and steps of 0.001 for TAR at FAR.
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
"""With fewer pairs there are fewer folds, and they are stratified."""


@dataclass(frozen=True)
class Verification:
    """Result of the ten-fold protocol.

    Attributes:
        accuracies: Accuracy of each fold.
        thresholds: Threshold of each fold, as a squared distance.
        best_threshold: The best threshold over all pairs, as a squared distance.
        pairs: Number of pairs.

    Example:
        >>> verify(first, second, same).accuracy
        0.9953
    """

    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]
    best_threshold: float
    pairs: int

    @property
    def accuracy(self) -> float:
        """Mean accuracy over folds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Population standard deviation of the accuracy over folds."""
        return float(np.std(self.accuracies))

    @property
    def best_cosine(self) -> float:
        """The best threshold as a cosine."""
        return 1 - self.best_threshold / 2

    def metrics(self) -> dict[str, object]:
        """Return the metrics as a dictionary for JSON.

        Returns:
            Accuracy, its standard deviation, and accuracies and thresholds of the folds.

        Example:
            >>> verify(first, second, same).metrics()["accuracy"]
            0.9953
        """
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
    """TAR and FAR of each test fold, at the threshold for a FAR on the other folds.

    Attributes:
        wanted: The requested FAR.
        tars: TAR of each fold.
        fars: FAR of each fold.

    Example:
        >>> verify_at_far(first, second, same, 1e-3).metrics()["tar"]
        0.97
    """

    wanted: float
    tars: tuple[float, ...]
    fars: tuple[float, ...]

    def metrics(self) -> dict[str, float]:
        """Return the means over folds and the standard deviation of TAR.

        Returns:
            A dictionary for JSON.

        Example:
            >>> sorted(verify_at_far(first, second, same, 1e-3).metrics())
            ['far', 'far_wanted', 'tar', 'tar_std']
        """
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
    """Distances of all pairs, after the projection learned on the training pairs."""


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
    """Compute the ten-fold accuracy of verification.

    Folds are contiguous. With fewer than 600 pairs there are at most N // 10 folds, and they are stratified.

    Args:
        first: First embedding of each pair (N, d).
        second: Second embedding of each pair (N, d).
        same: Whether the pair shows the same person (N,), boolean.
        folds: Number of folds.
        pca: Project onto this many principal components of the training folds; 0 for none.
        mean_center: Subtract the mean of the training folds. Embeddings are normalized again afterwards.
        done: Called with 1 after each fold.

    Returns:
        Accuracy and threshold of each fold, and the best threshold over all pairs.

    Example:
        >>> verify(first, second, same).accuracy
        0.9953
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
    """Compute TAR at a FAR over folds: the threshold is interpolated on the training folds.

    Args:
        first: First embedding of each pair (N, d).
        second: Second embedding of each pair (N, d).
        same: Whether the pair shows the same person (N,), boolean.
        far: The false accept rate.
        folds: Number of folds.
        pca: Project onto this many principal components of the training folds; 0 for none.
        mean_center: Subtract the mean of the training folds.
        done: Called with 1 after each fold.

    Returns:
        TAR and FAR of each test fold.

    Example:
        >>> verify_at_far(first, second, same, 1e-3).metrics()["tar"]
        0.97
    """
    check_rate("far", far)
    grid = np.arange(0, 4, 0.001)
    tars, fars = [], []
    truth = same.cpu().numpy()
    for number, fold in enumerate(_folds(first, second, same, folds, pca, mean_center)):
        known = truth[fold.test]
        if known.all() or not known.any():
            missing = "impostor" if known.all() else "genuine"
            raise DataError(
                f"each fold must contain genuine and impostor pairs, but fold {number} has no {missing} pairs: reorder "
                "the pairs"
            )
        threshold = _interpolate(fold.distance[fold.train][~truth[fold.train]], far, grid)
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
        raise DataError(f"first and second must have the same number of rows, got {len(first)} and {len(second)}")
    check_flags("labels", same, len(first), "pairs")
    genuine = int(same.sum())
    if genuine in (0, len(same)):
        missing = "impostor" if genuine else "genuine"
        raise DataError(f"verification needs genuine and impostor pairs, but there are no {missing} pairs")
    if not 0 <= pca <= first.shape[1]:
        raise ConfigError(f"pca must be between 0 (off) and {first.shape[1]} (the length of the embeddings), got {pca}")


def _split(truth: Flags, folds: int) -> Iterator[tuple[Rows, Rows]]:
    from sklearn.model_selection import KFold, StratifiedKFold  # slow to import

    pairs = len(truth)
    if folds < 2:
        raise ConfigError(f"folds must be at least 2, got {folds}")
    if pairs >= FEW_PAIRS:
        yield from KFold(folds).split(np.zeros(pairs))
        return
    folds = min(folds, pairs // 10)
    rarest = min(int(truth.sum()), int((~truth).sum()))
    if folds < 2 or rarest < folds:
        raise DataError(
            f"verification needs at least 20 pairs with {max(folds, 2)} genuine and {max(folds, 2)} impostor ones, got "
            f"{pairs} pairs with {rarest} of the rarer kind"
        )
    yield from StratifiedKFold(folds).split(np.zeros(pairs), truth)


def _unit(which: str, rows: Tensor) -> Tensor:
    return directions(f"{which} embeddings", rows.detach().double())


def _distance(one: Tensor, other: Tensor) -> Floats:
    """Return squared distances of unit rows, 2 - 2 cos, clamped because rounding may make them negative."""
    distance: Floats = (2 - 2 * torch.linalg.vecdot(one, other)).clamp(min=0).cpu().numpy()
    return distance


def _accuracy(distance: Floats, truth: Flags, thresholds: Floats) -> Floats:
    """Return the accuracy at each threshold; a pair is accepted if its distance is below."""
    genuine, impostor = np.sort(distance[truth]), np.sort(distance[~truth])
    correct = np.searchsorted(genuine, thresholds) + len(impostor) - np.searchsorted(impostor, thresholds)
    accuracy: Floats = correct / len(distance)
    return accuracy


def _interpolate(impostor: Floats, far: float, grid: Floats) -> float:
    """Return the threshold at a FAR, interpolated between the last grid value not above it and the next."""
    fars = np.searchsorted(np.sort(impostor), grid) / len(impostor)
    last = int(np.searchsorted(fars, far, side="right")) - 1
    if last + 1 == len(grid):
        return float(grid[last])
    share = (far - fars[last]) / (fars[last + 1] - fars[last])
    return float(grid[last] + share * (grid[last + 1] - grid[last]))


class _Projection:
    """Subtracts the mean of embeddings and projects onto their first principal components (0: no projection)."""

    def __init__(self, rows: Tensor, components: int) -> None:
        self._mean = rows.mean(dim=0)
        centered = rows - self._mean
        self._axes = torch.linalg.eigh(centered.T @ centered).eigenvectors[:, -components:] if components else None

    def __call__(self, rows: Tensor) -> Tensor:
        centered = rows - self._mean
        projected = centered if self._axes is None else centered @ self._axes
        return directions("the embeddings minus the training folds' mean", projected)
