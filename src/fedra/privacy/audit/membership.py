"""How well scores tell members of a training set from others: ROC, AUC and true positive rates, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedra.errors import ConfigError
from fedra.privacy.audit.findings import AuditFigure

CONFIDENCE = 0.95
"""Confidence of the intervals."""
RESAMPLES = 1000
"""Bootstrap samples behind an interval."""
RATES = (0.01, 0.001)
"""False positive rates at which the true positive rate is reported."""
VIOLATION = 0.999
"""Confidence with which a curve must lie above what epsilon allows before it is called a violation."""


@dataclass(frozen=True)
class Membership:
    """Scores of members and of others; a higher score says "member".

    Args:
        members: Scores of the members (n,).
        others: Scores of the others (m,).
        member_groups: Group of each member, such as the person of a photograph, over which intervals are taken; by
            default every score is its own group.
        other_groups: Group of each other score.

    Example:
        >>> Membership(np.array([2.0, 3.0]), np.array([0.0, 1.0])).auc
        1.0
    """

    members: np.ndarray
    others: np.ndarray
    member_groups: np.ndarray | None = None
    other_groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, scores in (("members", self.members), ("others", self.others)):
            if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
                raise ConfigError(
                    f"the scores of {name} must be a list of finite numbers, got {len(scores)} of shape {scores.shape}"
                )

    @cached_property
    def _ranks(self) -> tuple[np.ndarray, np.ndarray, int]:
        """The position of each score among all distinct scores, and their number."""
        values, place = np.unique(np.concatenate([self.members, self.others]), return_inverse=True)
        return place[: len(self.members)], place[len(self.members) :], len(values)

    @property
    def auc(self) -> float:
        """The probability that a member scores higher than another example, ties counted half."""
        return self._weighted_auc(np.ones(len(self.members)), np.ones(len(self.others)))

    def _weighted_auc(self, member_weights: np.ndarray, other_weights: np.ndarray) -> float:
        own, other, count = self._ranks
        ours = np.bincount(own, member_weights, count)
        theirs = np.bincount(other, other_weights, count)
        below = np.cumsum(theirs) - theirs / 2
        return float((ours * below).sum() / (ours.sum() * theirs.sum()))

    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """The curve over all thresholds.

        Returns:
            False and true positive rates, from (0, 0) to (1, 1).
        """
        own, other, count = self._ranks
        true = np.cumsum(np.bincount(own, minlength=count)[::-1]) / len(own)
        false = np.cumsum(np.bincount(other, minlength=count)[::-1]) / len(other)
        return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])

    def caught(self, rate: float) -> tuple[int, int]:
        """How many members, and how many others, score above the lowest threshold that keeps a false positive rate.

        Args:
            rate: The largest false positive rate.

        Returns:
            The numbers of true and of false positives.
        """
        false, true = self.roc()
        best = int(np.flatnonzero(false <= rate + 1e-12)[-1])
        return round(float(true[best]) * len(self.members)), round(float(false[best]) * len(self.others))

    def figures(self, seed: int = 0) -> list[AuditFigure]:
        """The figures of a report.

        Args:
            seed: Seed of the bootstrap.

        Returns:
            The AUC with a bootstrap interval over groups, and true positive rates with Clopper-Pearson intervals at the
            false positive rates that the number of others can resolve.
        """
        low, high = self._auc_interval(seed)
        count = len(self.members) + len(self.others)
        found = [AuditFigure("AUC", self.auc, low, high, 0.5, count)]
        for rate in RATES:
            if len(self.others) * rate >= 1:
                hits, _ = self.caught(rate)
                low, high = clopper_pearson(hits, len(self.members))
                name = f"true positives at {rate:.1%} false positives"
                found.append(AuditFigure(name, hits / len(self.members), low, high, rate, len(self.members)))
        return found

    def _auc_interval(self, seed: int) -> tuple[float, float]:
        draw = np.random.default_rng(seed)
        ours, theirs = (
            np.arange(len(scores)) if groups is None else np.unique(groups, return_inverse=True)[1]
            for scores, groups in ((self.members, self.member_groups), (self.others, self.other_groups))
        )
        found = [self._weighted_auc(_resampled(ours, draw), _resampled(theirs, draw)) for _ in range(RESAMPLES)]
        tail = (1 - CONFIDENCE) / 2
        return float(np.quantile(found, tail)), float(np.quantile(found, 1 - tail))

    def exceeds(self, epsilon: float, delta: float) -> bool:
        """Whether the curve lies above what a guarantee allows, beyond chance.

        Args:
            epsilon: The epsilon of one member.
            delta: The delta.

        Returns:
            True if, at one of a few fixed false positive rates, the lower end of the interval of the true positive rate
            is above the bound at the upper end of the interval of the false positive rate.
        """
        rates = [rate for rate in (0.001, 0.01, 0.05, 0.1, 0.2, 0.5) if len(self.others) * rate >= 1]
        confidence = 1 - (1 - VIOLATION) / max(2 * len(rates), 1)
        for rate in rates:
            hits, alarms = self.caught(rate)
            least = clopper_pearson(hits, len(self.members), confidence)[0]
            most = clopper_pearson(alarms, len(self.others), confidence)[1]
            if least > allowed_rate(most, epsilon, delta):
                return True
        return False


def _resampled(groups: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """How often each score is drawn if groups are drawn with replacement."""
    count = int(groups.max()) + 1
    weights: np.ndarray = np.bincount(draw.integers(0, count, count), minlength=count)[groups]
    return weights


def allowed_rate(false_positives: float, epsilon: float, delta: float) -> float:
    """The largest true positive rate that (epsilon, delta)-differential privacy allows any attack.

    Args:
        false_positives: The false positive rate.
        epsilon: The epsilon.
        delta: The delta.

    Returns:
        The bound, at most 1.

    Example:
        >>> round(allowed_rate(0.01, 1.0, 0.0), 4)
        0.0272
    """
    growth = math.exp(min(epsilon, 700.0))
    return min(growth * false_positives + delta, 1 - (1 - delta - false_positives) / growth, 1.0)


def clopper_pearson(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a share.

    Args:
        successes: Number of successes.
        trials: Number of trials.
        confidence: Confidence of the interval.

    Returns:
        The lower and the upper end.

    Example:
        >>> [round(end, 4) for end in clopper_pearson(0, 10)]
        [0.0, 0.3085]
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def mean_interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """A bootstrap interval of a mean.

    Args:
        values: One number per unit, such as a person.
        seed: Seed of the bootstrap.

    Returns:
        The lower and the upper end.

    Example:
        >>> mean_interval(np.array([1.0, 1.0]))
        (1.0, 1.0)
    """
    draw = np.random.default_rng(seed)
    means = values[draw.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    return float(np.quantile(means, tail)), float(np.quantile(means, 1 - tail))
