"""Owners from a column of a CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedra.data.partition import split
from fedra.errors import ConfigError, DataError

TARGETS = np.array([0, 1, 0, 1, 2])


def write(folder: Path, text: str) -> Path:
    path = folder / "owners.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_column_names_the_owners(tmp_path: Path) -> None:
    path = write(tmp_path, "file,hospital\na,north\nb,south\nc,east\nd,south\ne,north\n")
    parts = split("natural", TARGETS, None, 0, table=str(path), column="hospital")
    assert [part.tolist() for part in parts] == [[2], [0, 4], [1, 3]]  # east, north, south


def test_a_column_goes_before_the_groups_of_the_data_set(tmp_path: Path) -> None:
    path = write(tmp_path, "who\nb\nb\na\na\na\n")
    parts = split("natural", TARGETS, None, 0, groups=np.arange(5), table=path, column="who")
    assert [part.tolist() for part in parts] == [[2, 3, 4], [0, 1]]


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("who\na\nb\n", "who", "one row per training example \\(5\\), got 2"),
        ("who\na\nb\na\nb\na\n", "whom", "did you mean 'who'"),
        ("who,x\na,1\n,1\na,1\nb,1\na,1\n", "who", "a value of 'who' in every row, got none in line 3"),
        ("", "who", "it has no header"),
    ],
)
def test_broken_tables_are_told(tmp_path: Path, text: str, column: str, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        split("natural", TARGETS, None, 0, table=write(tmp_path, text), column=column)


def test_table_and_column_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table and partition.column must be set together"):
        split("natural", TARGETS, None, 0, column="who")
    with pytest.raises(DataError, match=r"nowhere\.csv' must be a readable CSV file"):
        split("natural", TARGETS, None, 0, table=tmp_path / "nowhere.csv", column="who")
