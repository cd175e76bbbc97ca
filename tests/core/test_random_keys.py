"""Draws keyed by purpose and place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedra.core.random import generator, key, scoped_seed


@given(
    st.integers(0, 2**64),
    st.sampled_from(["shuffle", "augment", "layers"]),
    st.lists(st.integers(0, 10**6), max_size=3),
)
def test_a_key_is_a_seed_torch_takes(seed: int, purpose: str, where: list[int]) -> None:
    assert 0 <= key(seed, purpose, *where) < 2**63
    generator(seed, purpose, *where)


def test_keys_differ_by_every_word() -> None:
    keys = [
        key(seed, purpose, round, client)
        for seed in range(4)
        for purpose in ("shuffle", "augment")
        for round in range(12)
        for client in range(12)
    ]
    assert len(set(keys)) == len(keys)
    assert key(1, "shuffle", 1, 11) != key(1, "shuffle", 11, 1)


def test_a_key_is_the_same_tomorrow() -> None:
    assert key(0, "shuffle", 0, 0) == 2084696019275353285


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    torch.randperm(5, generator=generator(0, "shuffle"))
    with scoped_seed(3):
        first = torch.rand(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with scoped_seed(3):
        assert torch.equal(torch.rand(2), first)
