"""What every registered partition promises, on random data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedra.data.partition import PARTITIONS, split
from fedra.errors import ConfigError

GENTLE: dict[str, list[dict[str, Any]]] = {
    "iid": [{}, {"shuffle": False}],
    "shards": [{}, {"shards": 1}, {"shards": 3}],
    "class-shards": [{"shards": 4}, {"shards": 10}],
    "dirichlet": [{"alpha": 1.0, "min_size": 1}, {"alpha": 5.0, "min_size": 2, "cap": False}],
    "dirichlet-clients": [{"alpha": 0.01}, {"alpha": 1.0, "sigma": 1.0}],
    "quantity": [{"min_size": 1}, {"law": "lognormal", "min_size": 2}, {"alpha": 0.001, "min_size": 1}],
    "identity": [{}, {"balance": "lognormal"}],  # sharing is tried on data of its own: it needs several images each
    "one-class": [{}],
    "natural": [{}],
}
CASES = [(name, fields) for name, choices in GENTLE.items() for fields in choices]


def test_every_partition_is_tried() -> None:
    assert set(GENTLE) == set(PARTITIONS)


def test_every_partition_says_what_it_does() -> None:
    assert all(len(PARTITIONS.summary(name)) > 20 for name in PARTITIONS)


@st.composite
def populations(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Long-tailed targets of 5 to 10 classes with gaps between labels, and 1 to 5 clients."""
    counts = draw(st.lists(st.integers(1, 25), min_size=5, max_size=10))
    targets = np.repeat(3 * np.arange(len(counts)), counts)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(len(targets))
    return targets[order], draw(st.integers(1, min(5, len(targets) // 15 + 1)))


@pytest.mark.parametrize(("name", "fields"), CASES)
@settings(max_examples=25, deadline=None)
@given(population=populations(), seed=st.integers(0, 2**40))
def test_disjoint_covering_nonempty_and_deterministic(
    name: str, fields: dict[str, Any], population: tuple[np.ndarray, int], seed: int
) -> None:
    targets, clients = population
    assume(clients * max(fields.get("shards", 1), fields.get("min_size", 1)) <= len(targets))
    assume(name != "class-shards" or clients * fields["shards"] >= len(np.unique(targets)))
    groups = np.arange(len(targets)) % 5
    parts = split(name, targets, clients, seed, groups, **fields)
    again = split(name, targets, clients, seed, groups, **fields)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and len(part) > 0 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(targets)))
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    ("name", "fields"),
    [case for case in CASES if case[0] not in ("natural", "one-class") and case[1] != {"shuffle": False}],
)
def test_another_seed_is_another_partition(name: str, fields: dict[str, Any]) -> None:
    targets = np.repeat(np.arange(10), 20)
    one, two = (split(name, targets, 5, seed, **fields) for seed in (1, 2))
    assert any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", [name for name in GENTLE if name != "natural"])
def test_the_global_random_state_is_left_alone(name: str) -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state that must not change
    split(name, np.repeat(np.arange(10), 20), 5, 0, **GENTLE[name][0])
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", sorted(GENTLE))
def test_more_clients_than_examples_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"clients must be at most .* got 7"):
        split(name, np.arange(6), 7, 0, np.arange(6))


@pytest.mark.parametrize("name", sorted(set(GENTLE) - {"natural", "one-class", "identity"}))
def test_no_clients_is_refused_where_the_data_cannot_tell(name: str) -> None:
    with pytest.raises(ConfigError, match=r"clients must be at least 1 for the partition .* got 0"):
        split(name, np.arange(60), None, 0)
