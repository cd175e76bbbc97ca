"""Claims of a paper, decided by paired tests over seeds: holds, does not hold, cannot be decided.

A claim consists of one or several comparisons. Each comparison is one number per seed, positive if the seed agrees
with the claim. The claim holds if every comparison is significantly positive. It does not hold if one comparison is
significantly negative at the level divided by the number of comparisons (Bonferroni), because one of many negatives
appears by chance. Otherwise it cannot be decided. With fewer than three seeds it can never be decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from fedra.errors import ConfigError

LEVEL = 0.05
"""Significance level of a one-sided test."""
NAMED = 3
"""The number of comparisons that were not run which a reason names."""
FEWEST = 3
"""Fewest seeds with which a claim can be decided."""
RANKED = 6
"""Fewest seeds for the signed-rank test; below, its smallest p-value would exceed the level or be close to it."""

Outcome = Literal["holds", "holds in part", "does not hold", "cannot be decided"]
ClaimKind = Literal["greater", "less", "within", "increasing", "decreasing", "steadier", "peak"]
Values = Mapping[tuple[str, str], Sequence[float | None]]
"""One number per seed for each cell (row, column)."""


@dataclass(frozen=True)
class PairedTest:
    """A paired test over seeds.

    Args:
        name: What was compared.
        differences: One number per seed; positive agrees with the claim.
        test: Name of the test, or why there was none.
        agree: One-sided p-value for a positive center, or None.
        disagree: One-sided p-value for a negative center, or None.
    """

    name: str
    differences: tuple[float, ...]
    test: str
    agree: float | None = None
    disagree: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences)) if self.differences else math.nan

    def record(self) -> dict[str, Any]:
        """Return the test for JSON."""
        mean = self.mean if self.differences else None
        return {
            "comparison": self.name,
            "differences": list(self.differences),
            "mean": mean,
            "test": self.test,
            "p_agree": self.agree,
            "p_disagree": self.disagree,
        }


def compare_pairs(name: str, differences: Sequence[float]) -> PairedTest:
    """Test whether paired differences are positive or negative.

    Args:
        name: What was compared.
        differences: One number per seed.

    Returns:
        A paired t-test for three to five seeds and an exact Wilcoxon signed-rank test for six or more, both one-sided.

    Example:
        >>> compare_pairs("a - b", [1.0, 1.2, 0.9]).agree < 0.05
        True
    """
    values = np.asarray(differences, dtype=float)
    given = tuple(map(float, values))
    if len(values) < FEWEST:
        return PairedTest(name, given, f"no test with {len(values)} seed{'s' if len(values) != 1 else ''}")
    if not np.isfinite(values).all():
        return PairedTest(name, given, "no test: a value is not finite")
    if not values.any():
        return PairedTest(name, given, "no test: all pairs are equal", 1.0, 1.0)
    if len(values) >= RANKED:
        from scipy.stats import PermutationMethod, wilcoxon

        exact = PermutationMethod(n_resamples=np.inf)
        up, down = (
            float(wilcoxon(values, zero_method="zsplit", alternative=side, method=exact).pvalue)
            for side in ("greater", "less")
        )
        return PairedTest(name, given, "exact Wilcoxon signed-rank test", up, down)
    error = values.std(ddof=1) / math.sqrt(len(values))
    if error <= 1e-12 * abs(values.mean()):  # equal differences: the statistic is infinite
        up = 0.0 if values.mean() > 0 else 1.0
        return PairedTest(name, given, "paired t-test", up, 1.0 - up)
    from scipy.stats import t

    statistic = values.mean() / error
    up = float(t.sf(statistic, len(values) - 1))
    return PairedTest(name, given, "paired t-test", up, 1.0 - up)


@dataclass(frozen=True)
class Claim:
    """A statement of a paper about the cells of a table.

    Args:
        text: The statement, in our words.
        kind: "greater" or "less": every left cell against the right cells of the same column. "within": left and right
            differ by at most `margin`. "increasing", "decreasing": the left row (minus the right row, if given) over
            the columns. "steadier": the left row varies less over the columns than the right rows. "peak": the left
            row's best value lies in `columns` rather than in `other_columns`.
        left: The rows that the claim is about.
        right: The rows they are compared with; if empty, each left row is compared with its own `other_columns`.
        columns: The columns; all if empty.
        other_columns: For "greater", "less" and "peak": columns that the cells in `columns` are compared with, instead
            of their own.
        margin: Smallest difference for "greater" and "less", largest for "within".
        where: Where the paper says it.
    """

    text: str
    kind: ClaimKind
    left: tuple[str, ...]
    right: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    other_columns: tuple[str, ...] = ()
    margin: float = 0.0
    where: str = ""

    def __post_init__(self) -> None:
        if self.kind == "within" and self.margin <= 0:
            raise ConfigError(f"a claim of kind 'within' must have a margin above 0, got {self.margin}: '{self.text}'")
        if not self.right and not self.other_columns and self.kind in ("greater", "less", "within", "steadier"):
            raise ConfigError(f"a claim of kind '{self.kind}' must have a right side, got none: '{self.text}'")


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, with the tests that decided it.

    Args:
        claim: The claim.
        outcome: "holds", "does not hold", "cannot be decided", or "holds in part" if every comparison that was run is
            significant but others were not run.
        reason: Why, in one sentence.
        tests: The comparisons.
    """

    claim: Claim
    outcome: Outcome
    reason: str
    tests: tuple[PairedTest, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {
            "claim": self.claim.text,
            "where": self.claim.where,
            "outcome": self.outcome,
            "reason": self.reason,
            "tests": [test.record() for test in self.tests],
        }


def decide(
    claim: Claim,
    values: Values,
    columns: Sequence[str],
    positions: Mapping[str, float] = MappingProxyType({}),
    all_columns: Sequence[str] = (),
) -> Verdict:
    """Decide a claim.

    Args:
        claim: The claim.
        values: For each cell (row, column) one number per seed; None where a run has none.
        columns: The columns that were run, in order.
        positions: For a trend: the position of each column on its axis; its index by default.
        all_columns: The columns of the paper's table, to name those that were not run.

    Returns:
        The outcome with its tests. Comparisons of rows or columns that were not run are left out and named.

    Example:
        >>> cells = {("a", "x"): [3.0, 3.1, 3.2], ("b", "x"): [1.0, 1.3, 1.1]}
        >>> decide(Claim("a > b", "greater", ("a",), ("b",)), cells, ["x"]).outcome
        'holds'
    """
    wanted = [column for column in (claim.columns or tuple(columns)) if column in columns]
    skipped = [column for column in (claim.columns or tuple(all_columns)) if column not in columns]
    pairs = _comparisons(claim, values, wanted, [c for c in claim.other_columns if c in columns], positions)
    tests = tuple(compare_pairs(name, differences) for name, differences in pairs if differences is not None)
    if not tests:
        return Verdict(claim, "cannot be decided", "the runs it needs are not part of this size")
    missing = [name for name, differences in pairs if differences is None]
    return _conclude(claim, tests, [*missing, *skipped])


def _conclude(claim: Claim, tests: tuple[PairedTest, ...], missing: Sequence[str]) -> Verdict:
    named = ", ".join(missing[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
    left_out = f"; not run at this size: {named}" if missing else ""
    seeds = min(len(test.differences) for test in tests)
    if seeds < FEWEST:
        reason = f"{seeds} seed{'s' if seeds != 1 else ''}: a paired test needs at least {FEWEST}"
        return Verdict(claim, "cannot be decided", reason + left_out, tests)
    against = [test for test in tests if test.disagree is not None and test.disagree < LEVEL / len(tests)]
    if against:
        worst = min(against, key=lambda test: test.disagree or 0.0)
        reason = f"{worst.name}: mean {worst.mean:+.3g} against the claim, p = {worst.disagree:.2g} ({worst.test})"
        return Verdict(claim, "does not hold", reason + left_out, tests)
    unclear = [test for test in tests if test.agree is None or test.agree >= LEVEL]
    if unclear:
        first = max(unclear, key=lambda test: 1.0 if test.agree is None else test.agree)
        p = "" if first.agree is None else f", p = {first.agree:.2g}"
        also = f" and {len(unclear) - 1} of {len(tests)} more" if len(unclear) > 1 else ""
        reason = f"{first.name}{also}: mean {first.mean:+.3g}{p} ({first.test})"
        return Verdict(claim, "cannot be decided", reason + left_out, tests)
    weakest = max(tests, key=lambda test: test.agree or 0.0)
    count = f"all {len(tests)} comparisons, the weakest: " if len(tests) > 1 else ""
    reason = f"{count}{weakest.name}: mean {weakest.mean:+.3g}, p = {weakest.agree:.2g} ({weakest.test})"
    return Verdict(claim, "holds in part" if missing else "holds", reason + left_out, tests)


Pair = tuple[str, list[float] | None]
"""The name of a comparison and its number per seed; None if a cell was not run."""


def _comparisons(
    claim: Claim, values: Values, columns: list[str], others: list[str], positions: Mapping[str, float]
) -> list[Pair]:
    if claim.kind in ("increasing", "decreasing"):
        sign = 1.0 if claim.kind == "increasing" else -1.0
        return [_trend(claim, row, columns, values, positions, sign) for row in claim.left]
    if claim.kind == "steadier":
        return [_steadier(left, other, columns, values) for left in claim.left for other in claim.right]
    if claim.kind == "peak":
        return [_peak(row, columns, others, values) for row in claim.left]
    found: list[Pair] = []
    for left in claim.left:
        for other in claim.right or (left,):  # a row without a rival is compared with its own other columns
            for column in columns:
                for against in others or [column]:
                    if (left, column) != (other, against):
                        found += _pair(claim, (left, column), (other, against), values)
    return found


def _pair(claim: Claim, left: tuple[str, str], right: tuple[str, str], values: Values) -> list[Pair]:
    above, below = (right, left) if claim.kind == "less" else (left, right)
    name = f"{above[0]} - {below[0]} ({above[1]})" if left[1] == right[1] else f"{left[0]}: {above[1]} - {below[1]}"
    differences = _subtract(values.get(left), values.get(right))
    if differences is None:
        return [(name, None)]
    if claim.kind == "within":
        return [
            (f"{name} + {claim.margin:g}", [one + claim.margin for one in differences]),
            (f"{claim.margin:g} - ({name})", [claim.margin - one for one in differences]),
        ]
    sign = 1.0 if claim.kind == "greater" else -1.0
    by = f" - {claim.margin:g}" if claim.margin else ""
    return [(name + by, [sign * one - claim.margin for one in differences])]


def _subtract(left: Sequence[float | None] | None, right: Sequence[float | None] | None) -> list[float] | None:
    """Subtract by seed; seeds without a value on one side are left out. None if a cell is missing."""
    if not left or not right:
        return None
    pairs = [(one, other) for one, other in zip(left, right, strict=False) if one is not None and other is not None]
    return [one - other for one, other in pairs] or None


def _by_seed(row: str, columns: Sequence[str], values: Values) -> list[list[float]] | None:
    """Return for each seed the row's values over the columns; None if fewer than two columns were run."""
    cells = [values.get((row, column)) for column in columns]
    known = [cell for cell in cells if cell]
    if len(known) < len(columns) or len(columns) < 2:
        return None
    seeds = [list(seed) for seed in zip(*known, strict=False) if None not in seed]
    return [[float(value) for value in seed if value is not None] for seed in seeds] or None


def _trend(
    claim: Claim, row: str, columns: list[str], values: Values, positions: Mapping[str, float], sign: float
) -> Pair:
    against = f" - {claim.right[0]}" if claim.right else ""
    name = f"trend of {row}{against} over {len(columns)} columns"
    mine = _by_seed(row, columns, values)
    other = _by_seed(claim.right[0], columns, values) if claim.right else None
    if mine is None or (claim.right and other is None):
        return name, None
    rows = np.array(mine) - (np.array(other) if other is not None else 0.0)
    axis = np.array([positions.get(column, index) for index, column in enumerate(columns)], dtype=float)
    axis -= axis.mean()
    return name, [sign * float(row @ axis / (axis @ axis)) for row in rows]


def _steadier(left: str, right: str, columns: list[str], values: Values) -> Pair:
    name = f"range of {right} - range of {left} over {len(columns)} columns"
    mine, other = _by_seed(left, columns, values), _by_seed(right, columns, values)
    if mine is None or other is None:
        return name, None
    return name, [(max(b) - min(b)) - (max(a) - min(a)) for a, b in zip(mine, other, strict=False)]


def _peak(row: str, inside: list[str], outside: list[str], values: Values) -> Pair:
    name = f"{row}: best of {', '.join(inside)} - best of {', '.join(outside)}"
    first = [values.get((row, column)) for column in inside]
    second = [values.get((row, column)) for column in outside]
    if not first or not second or not all(first) or not all(second):
        return name, None
    tops = [
        [max((value for value in seed if value is not None), default=None) for seed in zip(*cells, strict=False)]
        for cells in ([c for c in first if c], [c for c in second if c])
    ]
    return name, _subtract(tops[0], tops[1])
