"""Arithmetic on dicts of tensors, for any tree that hypothesis can think of."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from fedra.core import tree
from fedra.core.tree import Params

NAMES = st.text("abc.0_-", min_size=1, max_size=5)
NUMBERS = st.floats(-1e3, 1e3)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=4).map(lambda values: torch.tensor(values, dtype=torch.float64))
FLAT = st.dictionaries(NAMES, VECTORS, min_size=1, max_size=4)
NESTED = st.recursive(FLAT, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    return torch.equal(left, right)


@given(NESTED)
def test_flatten_and_back(values: dict[str, Any]) -> None:
    flat = tree.flatten(values)
    assert all(isinstance(value, torch.Tensor) for value in flat.values())
    assert equal(tree.unflatten(flat), values)


@given(NESTED)
def test_bytes_are_counted_once_each(values: dict[str, Any]) -> None:
    assert tree.size_in_bytes(values) == sum(8 * len(value) for value in tree.flatten(values).values())


@given(FLAT, NUMBERS)
def test_sums_differences_and_multiples(values: Params, factor: float) -> None:
    doubled = tree.add(values, values)
    assert equal(tree.subtract(doubled, values), values)
    assert equal(tree.scale(values, 2.0), doubled)
    assert equal(tree.add(values, tree.zeros_like(values), factor), values)


@given(FLAT)
def test_lengths_and_inner_products(values: Params) -> None:
    whole = torch.cat(list(values.values()))
    assert torch.allclose(tree.norm(values), whole.norm())
    assert float(tree.norm({})) == 0
    assert torch.allclose(tree.dot(values, values), whole.dot(whole))


@given(st.lists(st.tuples(VECTORS, st.floats(0, 10)), min_size=1, max_size=5))
def test_accumulate_is_a_weighted_sum_that_spares_its_values(pairs: list[tuple[torch.Tensor, float]]) -> None:
    pairs = [(vector[:1], weight) for vector, weight in pairs]
    before = [vector.clone() for vector, _ in pairs]
    total: Params = {}
    for vector, weight in pairs:
        total = tree.accumulate(total, {"x": vector}, weight)
    assert torch.allclose(total["x"], sum(weight * vector for vector, weight in pairs), rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]
    assert all(torch.equal(vector, old) for (vector, _), old in zip(pairs, before, strict=True))


def test_names_that_are_absent_keep_their_very_tensor() -> None:
    left = {"body": torch.ones(2), "head": torch.ones(2)}
    moved = tree.add(left, {"head": torch.ones(2)}, 3.0)
    assert moved["body"] is left["body"]
    assert moved["head"].tolist() == [4.0, 4.0]


def test_clones_are_their_own_and_outside_any_graph() -> None:
    value = torch.ones(2, requires_grad=True)
    copy = tree.clone({"x": value})["x"]
    copy.add_(1)
    assert value.tolist() == [1.0, 1.0]
    assert not copy.requires_grad


def test_one_bad_entry_spoils_the_tree() -> None:
    good = {"x": torch.ones(2), "n": torch.tensor(3)}
    assert tree.is_finite({})
    assert tree.is_finite(good)
    assert not tree.is_finite({**good, "y": torch.tensor([0.0, torch.nan])})
    assert not tree.is_finite({**good, "y": torch.tensor([0.0, -torch.inf])})


def test_gradients_that_share_memory_are_copied_inside_vmap_too() -> None:
    def change(params: Params) -> Params:
        gradient = grad(lambda p: (p["a"] + p["b"]).sum() + (p["c"] ** 2).sum())(params)
        own = dict(zip(gradient, tree.unalias(gradient.values()), strict=True))
        own["a"].add_(params["a"])
        return {**own, "kept": torch.tensor(float(own["c"] is gradient["c"]))}

    values = {name: torch.randn(4, 3) for name in "abc"}
    found = vmap(change)(values)
    assert torch.equal(found["a"], 1 + values["a"])
    assert torch.equal(found["b"], torch.ones(4, 3))
    assert found["kept"].all(), "what shares nothing is not copied"
