"""Error rates of genuine and impostor scores: ROC, EER, AUROC and TAR at FAR.

A comparison is accepted if its score is at least the threshold. All rates are exact: scores are sorted and counted,
without bins. Fifteen million float32 scores (IJB-C) take 60 MB and sorting them as much again; for billions (MegaFace)
a `Tail` holds the largest impostor scores, which is all that a low FAR needs.
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
"""Scores in ascending order."""


@dataclass(frozen=True)
class Threshold:
    """The smallest threshold whose error rate is at most `wanted`.

    Attributes:
        wanted: The requested error rate.
        value: The threshold.
        attained: The actual error rate, which may be lower: the number of errors is an integer, and equal scores are
            accepted together.
        smallest: The smallest rate above zero that these impostors can measure; below it no impostor is accepted.

    Example:
        >>> calibrate(impostor_scores, 1e-3).value
        0.41
    """

    wanted: float
    value: float
    attained: float
    smallest: float

    @property
    def warning(self) -> str | None:
        """Warning if there are too few impostors to measure the requested rate; otherwise None."""
        if self.wanted >= self.smallest:
            return None
        return (
            f"a rate of {self.wanted:g} cannot be measured with these impostors: the smallest measurable rate is "
            f"{self.smallest:.3g}, so the threshold is above all of their scores"
        )


@dataclass(frozen=True)
class OperatingPoint:
    """The share of genuine comparisons accepted (TAR, TPIR) at a threshold.

    Attributes:
        rate: The share.
        threshold: The threshold.

    Example:
        >>> scores.tar_at(1e-3).rate
        0.97
    """

    rate: float
    threshold: Threshold

    def metrics(self) -> dict[str, float | str | None]:
        """Return all values as a flat dictionary for JSON.

        Returns:
            The rate, and the fields of the threshold.

        Example:
            >>> scores.tar_at(1e-3).metrics()["rate"]
            0.97
        """
        threshold = self.threshold
        return {
            "rate": self.rate,
            "threshold": threshold.value,
            "wanted": threshold.wanted,
            "attained": threshold.attained,
            "smallest": threshold.smallest,
            "warning": threshold.warning,
        }


class Curve(NamedTuple):
    """The corners of a ROC curve, from (0, 0) to (1, 1).

    Attributes:
        far: False accept rates, ascending.
        tar: True accept rates.
        thresholds: The threshold of each corner.

    Example:
        >>> far, tar, thresholds = scores.curve()
    """

    far: NDArray[np.float64]
    tar: NDArray[np.float64]
    thresholds: NDArray[np.float64]


def share_of(rate: float, count: int) -> Fraction:
    """Return `rate` times `count`, with the rate interpreted as a decimal fraction: 0.29 of 100 is exactly 29."""
    check_rate("the error rate", rate)
    return Fraction(str(float(rate))) * count


def allowed_errors(wanted: float, impostors: int) -> int:
    """Return the number of errors that a rate allows."""
    return math.floor(share_of(wanted, impostors))


def threshold_allowing(errors: int, wanted: float, largest: Sorted, impostors: int) -> Threshold:
    """Return the smallest threshold with at most `errors` errors; `largest` has at least `errors + 1` scores."""
    limit = largest[len(largest) - 1 - errors]
    beyond = len(largest) - int(np.searchsorted(largest, limit, side="right"))
    highest = len(largest) - int(np.searchsorted(largest, largest[-1], side="left"))
    # The next number in the type of the scores: in a wider type, rounding would return it to the limit.
    return Threshold(wanted, float(_just_above(limit)), beyond / impostors, highest / impostors)


def threshold_at(wanted: float, largest: Sorted, impostors: int) -> Threshold:
    """Return the smallest threshold whose error rate is at most `wanted`."""
    return threshold_allowing(allowed_errors(wanted, impostors), wanted, largest, impostors)


def operating_point(threshold: Threshold, genuine: Sorted, trials: int) -> OperatingPoint:
    """Return the share of `trials` whose score is in `genuine` and reaches the threshold."""
    return OperatingPoint(_reached(genuine, threshold.value) / trials, threshold)


def calibrate(impostor: Tensor, far: float) -> Threshold:
    """Choose the threshold for a FAR from impostor scores.

    Args:
        impostor: Scores (N,) of different people, from data other than the test data.
        far: The false accept rate.

    Returns:
        The smallest threshold whose FAR on these scores is at most `far`.

    Example:
        >>> calibrate(torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.25).attained
        0.25
    """
    scores = sorted_scores("impostor scores", impostor)
    return threshold_at(far, scores, len(scores))


def _just_above(score: np.floating) -> np.floating:
    above: np.floating = np.nextafter(score, score.dtype.type(np.inf))
    return above


def _reached(scores: Sorted, threshold: float) -> int:
    """Count scores of at least the threshold, which is rounded up to their type to avoid a converted copy."""
    limit = scores.dtype.type(threshold)
    if float(limit) < threshold:
        limit = _just_above(limit)
    return len(scores) - int(np.searchsorted(scores, limit, side="left"))


@dataclass(frozen=True, eq=False)
class Scores:
    """Genuine and impostor scores; create them with `Scores.of` or `Scores.of_pairs`.

    Args:
        genuine: Scores of the same person, ascending.
        impostor: Scores of different people, ascending.

    Example:
        >>> Scores.of(torch.tensor([0.8, 0.9]), torch.tensor([0.1, 0.2])).auroc()
        1.0
    """

    genuine: Sorted
    impostor: Sorted

    @classmethod
    def of(cls, genuine: Tensor, impostor: Tensor) -> Scores:
        """Create from genuine and impostor scores.

        Args:
            genuine: Scores (G,) of the same person.
            impostor: Scores (I,) of different people.

        Returns:
            The scores, sorted.

        Example:
            >>> Scores.of(torch.tensor([0.8, 0.9]), torch.tensor([0.1, 0.2])).eer()
            0.0
        """
        first, second = sorted_scores("genuine scores", genuine), sorted_scores("impostor scores", impostor)
        dtype = np.result_type(first, second)
        return cls(first.astype(dtype, copy=False), second.astype(dtype, copy=False))

    @classmethod
    def of_pairs(cls, scores: Tensor, same: Tensor) -> Scores:
        """Create from the scores of pairs.

        Args:
            scores: Scores (N,).
            same: Whether the pair shows the same person (N,), boolean.

        Returns:
            The scores, sorted.

        Example:
            >>> Scores.of_pairs(torch.tensor([0.9, 0.1]), torch.tensor([True, False])).auroc()
            1.0
        """
        check_flags("labels", same, len(scores), "scores")
        return cls.of(scores[same], scores[~same])

    def auroc(self) -> float:
        """Return the area under the ROC curve.

        Returns:
            P(genuine > impostor) + P(genuine = impostor) / 2, the Mann-Whitney statistic.

        Example:
            >>> scores.auroc()
            0.98
        """
        below = np.searchsorted(self.impostor, self.genuine, side="left").sum()
        up_to = np.searchsorted(self.impostor, self.genuine, side="right").sum()
        return float(below + up_to) / 2 / (len(self.genuine) * len(self.impostor))

    def rates(self, threshold: float) -> tuple[float, float]:
        """Return TAR and FAR at a threshold.

        Args:
            threshold: Scores of at least this value are accepted.

        Returns:
            TAR and FAR.

        Example:
            >>> tar, far = scores.rates(0.4)
        """
        tar, far = (_reached(s, threshold) / len(s) for s in (self.genuine, self.impostor))
        return tar, far

    def curve(self) -> Curve:
        """Return the ROC curve, with at most two corners per genuine score.

        Where genuine and impostor scores are equal, the curve has a diagonal segment, so its area counts ties as one
        half.

        Returns:
            FAR, TAR and threshold of each corner.

        Example:
            >>> far, tar, thresholds = scores.curve()
        """
        false, true, thresholds = self._corners()
        return Curve(false / len(self.impostor), true / len(self.genuine), thresholds)

    def _corners(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Count false and true accepts just above and at every genuine score, in descending order of the score."""
        values = np.unique(self.genuine)[::-1]
        at = np.stack([np.nextafter(values, values.dtype.type(np.inf)), values], axis=1).ravel()
        ends = np.array([self.genuine[-1], self.impostor[-1]]).max(), min(self.genuine[0], self.impostor[0])
        at = np.concatenate([[_just_above(ends[0])], at, [ends[1]]])
        false = len(self.impostor) - np.searchsorted(self.impostor, at, side="left")
        true = len(self.genuine) - np.searchsorted(self.genuine, at, side="left")
        new = np.r_[True, (np.diff(false) != 0) | (np.diff(true) != 0)]
        return false[new], true[new], at[new].astype(np.float64)

    def eer(self) -> float:
        """Return the equal error rate, where FAR = 1 - TAR.

        Returns:
            The rate, interpolated linearly between the two corners of the ROC curve around it.

        Example:
            >>> scores.eer()
            0.04
        """
        false, true, _ = self._corners()
        many, few = len(self.impostor), len(self.genuine)
        excess = false * few + true * many - few * many
        after = int(np.argmax(excess >= 0))
        share = -excess[after - 1] / (excess[after] - excess[after - 1])
        return float(false[after - 1] + share * (false[after] - false[after - 1])) / many

    def tar_at(self, far: float, rule: Literal["at_most", "closest"] = "at_most") -> OperatingPoint:
        """Return TAR at a false accept rate.

        Args:
            far: The false accept rate.
            rule: "at_most" uses the smallest threshold whose FAR is at most `far`. "closest" uses the corner of the ROC
                curve whose FAR is closest, as IJB's tables do; its FAR may exceed `far`.

        Returns:
            TAR and threshold.

        Example:
            >>> scores.tar_at(1e-3).rate
            0.97
        """
        exact = threshold_at(far, self.impostor, len(self.impostor))
        if rule == "at_most":
            return operating_point(exact, self.genuine, len(self.genuine))
        curve = self.curve()
        nearest = len(curve.far) - 1 - int(np.argmin(np.abs(curve.far - far)[::-1]))
        threshold = Threshold(far, float(curve.thresholds[nearest]), float(curve.far[nearest]), exact.smallest)
        return OperatingPoint(float(curve.tar[nearest]), threshold)

    def metrics(
        self, fars: Sequence[float] = FARS, rule: Literal["at_most", "closest"] = "at_most"
    ) -> dict[str, object]:
        """Return AUROC, EER and TAR at each FAR as a dictionary for JSON.

        Args:
            fars: The false accept rates.
            rule: The rule of `tar_at`.

        Returns:
            The metrics, and the numbers of genuine and impostor scores.

        Example:
            >>> scores.metrics((1e-3,))["tar"]["0.001"]["rate"]
            0.97
        """
        return {
            "genuine": len(self.genuine),
            "impostors": len(self.impostor),
            "auroc": self.auroc(),
            "eer": self.eer(),
            "tar": {f"{far:g}": self.tar_at(far, rule).metrics() for far in fars},
        }
