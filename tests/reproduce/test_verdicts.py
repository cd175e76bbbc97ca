"""Claims against hand-made numbers: holds, does not hold, cannot be decided."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from fedra.errors import ConfigError
from fedra.reproduce.verdicts import Claim, compare_pairs, decide

Cells = Mapping[tuple[str, str], Sequence[float | None]]
CLEAR = [10.0, 10.3, 9.8, 10.1]
LOW = [5.0, 5.1, 5.2, 4.9]
NEAR = [10.1, 10.2, 9.9, 9.95]


def outcome(claim: Claim, cells: Cells, columns: Sequence[str] = ("x",), **settings: object) -> str:
    return decide(claim, cells, columns, **settings).outcome  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_never_decide(seeds: int) -> None:
    cells = {("a", "x"): [100.0] * seeds, ("b", "x"): [0.0] * seeds}
    verdict = decide(Claim("a > b", "greater", ("a",), ("b",)), cells, ["x"])
    assert verdict.outcome == "cannot be decided"
    assert f"{seeds} seed" in verdict.reason


def test_a_clear_order_holds_and_its_opposite_does_not() -> None:
    cells = {("a", "x"): CLEAR, ("b", "x"): LOW}
    assert outcome(Claim("a > b", "greater", ("a",), ("b",)), cells) == "holds"
    assert outcome(Claim("b > a", "greater", ("b",), ("a",)), cells) == "does not hold"
    assert outcome(Claim("b < a", "less", ("b",), ("a",)), cells) == "holds"
    assert outcome(Claim("a < b", "less", ("a",), ("b",)), cells) == "does not hold"


def test_close_values_and_equal_values_cannot_be_told() -> None:
    claim = Claim("a > b", "greater", ("a",), ("b",))
    assert outcome(claim, {("a", "x"): CLEAR, ("b", "x"): NEAR}) == "cannot be decided"
    assert outcome(claim, {("a", "x"): CLEAR, ("b", "x"): CLEAR}) == "cannot be decided"


def test_every_comparison_must_hold() -> None:
    cells = {("a", "x"): CLEAR, ("b", "x"): LOW, ("c", "x"): NEAR}
    claim = Claim("a > all", "greater", ("a",), ("b", "c"))
    verdict = decide(claim, cells, ["x"])
    assert verdict.outcome == "cannot be decided"
    assert "a - c" in verdict.reason
    assert outcome(claim, {**cells, ("c", "x"): [20.0, 20.1, 19.9, 20.3]}) == "does not hold"


def test_one_of_many_negatives_must_pass_a_stricter_level() -> None:
    differences = [-1.0, -3.0, -0.6]  # one-sided p between 0.05 / 20 and 0.05
    p = compare_pairs("d", differences).disagree
    assert p is not None
    assert 0.05 / 20 < p < 0.1
    ahead = {("a", f"{n}"): [10.0, 10.1, 10.2] for n in range(20)} | {("b", f"{n}"): [0.0, 0.2, 0.1] for n in range(20)}
    ahead[("b", "0")] = [10.0 + 1.0, 10.1 + 3.0, 10.2 + 0.6]
    claim = Claim("a > b", "greater", ("a",), ("b",))
    assert outcome(claim, ahead, [str(n) for n in range(20)]) == "cannot be decided"


def test_a_margin_is_part_of_the_claim() -> None:
    cells = {("a", "x"): CLEAR, ("b", "x"): LOW}
    assert outcome(Claim("by 3", "greater", ("a",), ("b",), margin=3.0), cells) == "holds"
    assert outcome(Claim("by 9", "greater", ("a",), ("b",), margin=9.0), cells) == "does not hold"


def test_within_needs_both_sides() -> None:
    cells = {("a", "x"): CLEAR, ("b", "x"): NEAR, ("c", "x"): LOW}
    assert outcome(Claim("near", "within", ("a",), ("b",), margin=1.0), cells) == "holds"
    assert outcome(Claim("near", "within", ("a",), ("b",), margin=0.01), cells) == "cannot be decided"
    assert outcome(Claim("near", "within", ("a",), ("c",), margin=1.0), cells) == "does not hold"
    with pytest.raises(ConfigError, match="margin"):
        Claim("near", "within", ("a",), ("b",))


def test_a_trend_uses_positions() -> None:
    cells = {("a", "1"): [1.0, 1.1, 0.9], ("a", "2"): [2.0, 2.1, 2.2], ("a", "3"): [3.0, 3.2, 3.1]}
    columns = ["1", "2", "3"]
    assert outcome(Claim("up", "increasing", ("a",)), cells, columns) == "holds"
    assert outcome(Claim("down", "decreasing", ("a",)), cells, columns) == "does not hold"
    reversed_axis = {"1": 3.0, "2": 2.0, "3": 1.0}
    assert outcome(Claim("down", "decreasing", ("a",)), cells, columns, positions=reversed_axis) == "holds"
    test = decide(Claim("up", "increasing", ("a",)), cells, columns, {"1": 0.0, "2": 1.0, "3": 4.0}).tests[0]
    wanted = [np.polyfit([0.0, 1.0, 4.0], [cells["a", c][seed] for c in columns], 1)[0] for seed in range(3)]
    assert test.differences == pytest.approx(wanted)


def test_a_gap_can_have_a_trend() -> None:
    cells = {("a", "1"): [5.0, 5.1, 5.2], ("a", "2"): [5.0, 5.2, 5.1], ("b", "1"): [1.0, 1.2, 1.0]}
    cells |= {("b", "2"): [4.0, 4.1, 4.2]}
    assert outcome(Claim("gap shrinks", "decreasing", ("a",), ("b",)), cells, ["1", "2"]) == "holds"


def test_steadier_compares_ranges_and_peak_the_best() -> None:
    cells: dict[tuple[str, str], list[float]] = {("a", "1"): [5.0, 5.0, 5.1], ("a", "2"): [5.1, 5.2, 5.2]}
    cells |= {("b", "1"): [1.0, 1.1, 1.2], ("b", "2"): [9.0, 9.2, 9.0]}
    assert outcome(Claim("steady", "steadier", ("a",), ("b",)), cells, ["1", "2"]) == "holds"
    assert outcome(Claim("steady", "steadier", ("b",), ("a",)), cells, ["1", "2"]) == "does not hold"
    best = Claim("best at 2", "peak", ("b",), columns=("2",), other_columns=("1",))
    assert outcome(best, cells, ["1", "2"]) == "holds"


def test_columns_are_compared_within_a_row() -> None:
    cells = {("a", "low"): LOW, ("a", "high"): CLEAR}
    claim = Claim("high > low", "greater", ("a",), columns=("high",), other_columns=("low",))
    assert outcome(claim, cells, ["low", "high"]) == "holds"


def test_rows_without_rivals_are_compared_with_themselves_alone() -> None:
    cells = {(row, column): values for row in "ab" for column, values in (("high", CLEAR), ("low", LOW))}
    claim = Claim("high > low", "greater", ("a", "b"), columns=("high",), other_columns=("low",))
    verdict = decide(claim, cells, ["high", "low"])
    assert [test.name for test in verdict.tests] == ["a: high - low", "b: high - low"]


def test_what_was_not_run_is_named_and_decides_nothing() -> None:
    cells = {("a", "x"): CLEAR, ("b", "x"): LOW}
    claim = Claim("a > all", "greater", ("a",), ("b", "missing"))
    verdict = decide(claim, cells, ["x"], all_columns=["x", "y"])
    assert verdict.outcome == "holds in part"
    assert "missing" in verdict.reason
    assert verdict.reason.endswith("y")
    assert outcome(Claim("m > n", "greater", ("m",), ("n",)), cells) == "cannot be decided"


def test_a_failed_seed_is_left_out_of_the_pairs() -> None:
    cells: Cells = {("a", "x"): [10.0, None, 9.8, 10.1], ("b", "x"): LOW}
    verdict = decide(Claim("a > b", "greater", ("a",), ("b",)), cells, ["x"])
    assert len(verdict.tests[0].differences) == 3
    assert verdict.outcome == "holds"


def test_p_values_are_those_of_the_textbook() -> None:
    few = [0.3, 1.2, -0.1, 0.9]
    assert compare_pairs("d", few).agree == pytest.approx(stats.ttest_1samp(few, 0.0, alternative="greater").pvalue)
    many = [0.3, 1.2, -0.1, 0.9, 0.4, 2.0, -0.6]
    found = compare_pairs("d", many)
    assert "Wilcoxon" in found.test
    ranks = stats.rankdata(np.abs(many))
    seen = sum(ranks[index] for index, value in enumerate(many) if value > 0)
    sums = [
        sum(r for r, keep in zip(ranks, signs, strict=True) if keep) for signs in itertools.product((0, 1), repeat=7)
    ]
    assert found.agree == pytest.approx(np.mean([one >= seen - 1e-9 for one in sums]))
    assert found.disagree == pytest.approx(np.mean([one <= seen + 1e-9 for one in sums]))


def test_equal_differences_are_decided_without_dividing_by_zero() -> None:
    assert compare_pairs("d", [1.0, 1.0, 1.0]).agree == 0.0
    assert compare_pairs("d", [-1.0, -1.0, -1.0]).disagree == 0.0
    assert compare_pairs("d", [0.0, 0.0, 0.0]).agree == 1.0
    assert compare_pairs("d", [1.0, math.nan, 1.0]).agree is None


def test_a_reason_names_a_few_of_the_comparisons_that_were_not_run() -> None:
    claim = Claim("a > all", "greater", ("a",), ("b", "c", "d", "e", "f"))
    values = {("a", "x"): [3.0, 3.1, 3.2], ("b", "x"): [1.0, 1.3, 1.1]}
    verdict = decide(claim, values, ["x"])
    assert verdict.outcome == "holds in part"
    assert verdict.reason.endswith("not run at this size: a - c (x), a - d (x), a - e (x) and 1 more")
