"""Rounds to an accuracy, as papers tabulate them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedra
import tiny
from fedra.errors import ConfigError
from fedra.reports.comparison import compare, read_shares, rounds_to

METRICS: list[dict[str, Any]] = [
    {"round": 1, "accuracy": 0.2},
    {"round": 2, "accuracy": None},
    {"round": 3, "accuracy": 0.9},
    {"round": 4, "accuracy": 0.5},
    {"round": 5, "accuracy": 0.95},
]


@pytest.mark.parametrize(("share", "round"), [(0.2, 1), (0.21, 3), (0.5, 3), (0.9, 3), (0.91, 5), (0.96, None)])
def test_the_first_round_at_or_above(share: float, round: int | None) -> None:
    assert rounds_to(METRICS, share) == round


def test_a_column_for_every_accuracy(tmp_path: Path) -> None:
    fedra.run(tiny.table(rounds=2), out=tmp_path)
    first = tiny.metrics(tmp_path)[0]["accuracy"]
    table = compare([tmp_path], reach=[first, 1.0]).table
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells[f"to {100 * first:g} %"] == ["1"]
    assert cells["to 100 %"] == ["-"]
    assert len(compare([tmp_path]).table.columns) == len(cells) - 2


def test_shares_are_read_and_percentages_refused() -> None:
    assert read_shares("0.85, .9,1") == [0.85, 0.9, 1.0]
    for text, told in {
        "0.9,85": "above 0 and at most 1, got 85: write 0.85 for 85 %",
        "0": "above 0 and at most 1, got 0",
        "-0.5": "above 0 and at most 1, got -0.5",
        "nan": "above 0 and at most 1, got nan",
        "850": "above 0 and at most 1, got 850",
        "85%": "numbers between 0 and 1, such as 0.85,0.9, got '85%'",
        "0.9,": "such as 0.85,0.9, got ''",
    }.items():
        with pytest.raises(ConfigError) as caught:
            read_shares(text)
        assert told in str(caught.value), text
