"""The entry point: what it refuses, and the proof it runs on every result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedra.data.partition import PARTITIONS, split
from fedra.errors import ConfigError, DataError, FedraError

TARGETS = np.repeat(np.arange(4), 10)


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("dirichlt", {}, "no partition 'dirichlt': did you mean 'dirichlet'"),
        ("dirichlet", {"alpa": 1.0}, "no field 'alpa': did you mean 'alpha'"),
        ("dirichlet", {"alpha": -1.0}, "'alpha' of .* must be at least 0.000001, got -1.0"),
        ("dirichlet", {"alpha": float("nan")}, "'alpha' of .*, got nan"),
        ("shards", {"shards": 0}, "'shards' of .* must be at least 1, got 0"),
        ("quantity", {"law": "zipf"}, "'law' of .*, got 'zipf'"),
        ("one-class", {"alpha": 1.0}, "no field 'alpha': it has none"),
    ],
)
def test_wrong_names_and_values_are_told(name: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        split(name, TARGETS, 2, 0, **fields)


@pytest.mark.parametrize("targets", [np.zeros(5), np.zeros((5, 1), int), np.array([], int), np.array([0, -1])])
def test_targets_must_be_a_vector_of_labels(targets: np.ndarray) -> None:
    with pytest.raises(DataError, match="non-empty vector of non-negative integers"):
        split("iid", targets, 2, 0)


def test_groups_must_match_the_targets() -> None:
    with pytest.raises(DataError, match="one group per training example \\(40\\), got 3"):
        split("natural", TARGETS, None, 0, [0, 1, 2])


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        split("iid", TARGETS, 2, -1)


@pytest.fixture
def register() -> Iterator[Any]:
    """Register a partition that returns what it is told, for one test."""

    def put(parts: list[list[int]]) -> None:
        arrays = [np.array(part, dtype=np.int64) for part in parts]
        PARTITIONS.add("told")(lambda targets, clients, seed, groups: arrays)

    yield put
    del PARTITIONS._functions["told"]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([[0, 1], [1, 2]], "got example 1 more than once"),
        ([[0], [2]], "got no client for example 1"),
        ([[0, 1, 2], []], "got none for client 1"),
        ([[0, 1, 2], [3]], "must use indices below 3, got 3"),
    ],
)
def test_a_broken_partition_does_not_pass(register: Any, parts: list[list[int]], sentence: str) -> None:
    register(parts)
    with pytest.raises(FedraError, match=sentence):
        split("told", np.arange(3), 2, 0)
