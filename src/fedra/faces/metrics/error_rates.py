"""Genuine and impostor scores, and the rates that follow from them: ROC, EER, AUROC, TAR at FAR.

A comparison is accepted when its score reaches the threshold. Everything is exact: scores are sorted once and
counted, nothing is put into bins. Fifteen million float32 scores (IJB-C) take 60 MB and their sorting as much again;
for billions (MegaFace) a `Tail` holds the few largest impostor scores, which are all that a low FAR needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedra.faces.metrics.embedding_checks import check_flags, check_rate, sorted_scores

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""The false accept rates of the IJB tables."""

Sorted = NDArray[np.floating]
"""Scores in rising order."""


@dataclass(frozen=True)
class Threshold:
    """The smallest threshold whose rate of errors is at most `wanted`.

    `attained` is its true rate: errors come in whole numbers, and equal scores fall together. `smallest` is the
    smallest rate above zero that these impostors can show; below it the threshold lets no impostor through.
    """

    wanted: float
    value: float
    attained: float
    smallest: float

    @property
    def warning(self) -> str | None:
        """A sentence when there are too few impostors for the wanted rate."""
        if self.wanted >= self.smallest:
            return None
        return (
            f"a rate of {self.wanted:g} cannot be measured: the smallest these impostors can show is "
            f"{self.smallest:.3g}, so the threshold lies above them all"
        )


@dataclass(frozen=True)
class OperatingPoint:
    """The share of genuine trials accepted (TAR, TPIR) at a threshold."""

    rate: float
    threshold: Threshold

    def figures(self) -> dict[str, float | str | None]:
        """All its numbers, flat."""
        at = self.threshold
        return {
            "rate": self.rate,
            "threshold": at.value,
            "wanted": at.wanted,
            "attained": at.attained,
            "smallest": at.smallest,
            "warning": at.warning,
        }


class Curve(NamedTuple):
    """The corners of a ROC curve, from (0, 0) to (1, 1), each with the threshold that reaches it."""

    far: NDArray[np.float64]
    tar: NDArray[np.float64]
    thresholds: NDArray[np.float64]


def share_of(rate: float, count: int) -> Fraction:
    """`rate` times `count`, with the rate taken as the decimal it is written as: 0.29 of 100 are 29."""
    check_rate("the rate of errors", rate)
    return Fraction(str(float(rate))) * count


def allowed_errors(wanted: float, impostors: int) -> int:
    """How many errors a rate allows."""
    return math.floor(share_of(wanted, impostors))


def threshold_allowing(errors: int, wanted: float, largest: Sorted, impostors: int) -> Threshold:
    """The smallest threshold with so many errors at most, from the `errors + 1` (or more) largest impostor scores."""
    limit = largest[len(largest) - 1 - errors]
    beyond = len(largest) - int(np.searchsorted(largest, limit, side="right"))
    highest = len(largest) - int(np.searchsorted(largest, largest[-1], side="left"))
    # The next number of the scores' own type: in a wider one, rounding would bring it back to the limit.
    return Threshold(wanted, float(_just_above(limit)), beyond / impostors, highest / impostors)


def threshold_at(wanted: float, largest: Sorted, impostors: int) -> Threshold:
    """The smallest threshold whose rate of errors is at most `wanted`."""
    return threshold_allowing(allowed_errors(wanted, impostors), wanted, largest, impostors)


def operating_point(threshold: Threshold, genuine: Sorted, trials: int) -> OperatingPoint:
    """The share of `trials` whose score is among `genuine` and reaches the threshold."""
    return OperatingPoint(_reached(genuine, threshold.value) / trials, threshold)


def calibrate(impostor: Tensor, far: float) -> Threshold:
    """The threshold for a FAR on a calibration set, to be used on another."""
    scores = sorted_scores("impostor scores", impostor)
    return threshold_at(far, scores, len(scores))


def _just_above(score: np.floating) -> np.floating:
    above: np.floating = np.nextafter(score, score.dtype.type(np.inf))
    return above


def _reached(scores: Sorted, threshold: float) -> int:
    """How many scores are at least the threshold, which is first rounded up to their type: a wider one would copy."""
    limit = scores.dtype.type(threshold)
    if float(limit) < threshold:
        limit = _just_above(limit)
    return len(scores) - int(np.searchsorted(scores, limit, side="left"))


@dataclass(frozen=True, eq=False)
class Scores:
    """Genuine and impostor scores, each in rising order; make them by `Scores.of` or `Scores.of_pairs`."""

    genuine: Sorted
    impostor: Sorted

    @classmethod
    def of(cls, genuine: Tensor, impostor: Tensor) -> Scores:
        """From two lists."""
        first, second = sorted_scores("genuine scores", genuine), sorted_scores("impostor scores", impostor)
        dtype = np.result_type(first, second)
        return cls(first.astype(dtype, copy=False), second.astype(dtype, copy=False))

    @classmethod
    def of_pairs(cls, scores: Tensor, same: Tensor) -> Scores:
        """From one list of pairs; `same` says which are genuine."""
        check_flags("labels", same, len(scores), "scores")
        return cls.of(scores[same], scores[~same])

    def auroc(self) -> float:
        """P(genuine > impostor) + P(genuine = impostor) / 2, the Mann-Whitney statistic."""
        below = np.searchsorted(self.impostor, self.genuine, side="left").sum()
        up_to = np.searchsorted(self.impostor, self.genuine, side="right").sum()
        return float(below + up_to) / 2 / (len(self.genuine) * len(self.impostor))

    def rates(self, threshold: float) -> tuple[float, float]:
        """TAR and FAR at a threshold."""
        tar, far = (_reached(s, threshold) / len(s) for s in (self.genuine, self.impostor))
        return tar, far

    def curve(self) -> Curve:
        """The ROC curve: at most two corners for each genuine score, however many impostors there are.

        Where genuine and impostor scores are equal, the curve rises in a slope, whose area counts ties as one half.
        """
        false, true, thresholds = self._corners()
        return Curve(false / len(self.impostor), true / len(self.genuine), thresholds)

    def _corners(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """False and true accepts just above and at every genuine score, falling."""
        values = np.unique(self.genuine)[::-1]
        at = np.stack([np.nextafter(values, values.dtype.type(np.inf)), values], axis=1).ravel()
        ends = np.array([self.genuine[-1], self.impostor[-1]]).max(), min(self.genuine[0], self.impostor[0])
        at = np.concatenate([[_just_above(ends[0])], at, [ends[1]]])
        false = len(self.impostor) - np.searchsorted(self.impostor, at, side="left")
        true = len(self.genuine) - np.searchsorted(self.genuine, at, side="left")
        new = np.r_[True, (np.diff(false) != 0) | (np.diff(true) != 0)]
        return false[new], true[new], at[new].astype(np.float64)

    def eer(self) -> float:
        """The rate at which FAR = 1 - TAR, on the straight line between the two corners around it."""
        false, true, _ = self._corners()
        many, few = len(self.impostor), len(self.genuine)
        excess = false * few + true * many - few * many
        after = int(np.argmax(excess >= 0))
        share = -excess[after - 1] / (excess[after] - excess[after - 1])
        return float(false[after - 1] + share * (false[after] - false[after - 1])) / many

    def tar_at(self, far: float, rule: Literal["at_most", "closest"] = "at_most") -> OperatingPoint:
        """TAR at a false accept rate.

        at_most  at the smallest threshold whose FAR is not above the wanted one
        closest  at the corner of the curve whose FAR is nearest, the larger TAR of two; tables of IJB use it, and
                 its FAR may be above the wanted one
        """
        exact = threshold_at(far, self.impostor, len(self.impostor))
        if rule == "at_most":
            return operating_point(exact, self.genuine, len(self.genuine))
        curve = self.curve()
        nearest = len(curve.far) - 1 - int(np.argmin(np.abs(curve.far - far)[::-1]))
        threshold = Threshold(far, float(curve.thresholds[nearest]), float(curve.far[nearest]), exact.smallest)
        return OperatingPoint(float(curve.tar[nearest]), threshold)

    def figures(
        self, fars: Sequence[float] = FARS, rule: Literal["at_most", "closest"] = "at_most"
    ) -> dict[str, object]:
        """AUROC, EER and TAR at every FAR, for a table or a JSON file."""
        return {
            "genuine": len(self.genuine),
            "impostors": len(self.impostor),
            "auroc": self.auroc(),
            "eer": self.eer(),
            "tar": {f"{far:g}": self.tar_at(far, rule).figures() for far in fars},
        }
