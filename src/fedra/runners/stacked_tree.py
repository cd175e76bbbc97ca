"""Operations on stacks: trees whose tensors have a leading client dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedra.core import tree
from fedra.core.model import Model
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError
from fedra.runners.stacked_states import StackedTrees


def map_clients(function: Callable[[Tree], Tree], values: Tree) -> Tree:
    """Map a function of one client's tree over a stack of them with `vmap`.

    Tensors go in and out as flat lists, which torch walks several times faster than nested dicts.
    """
    leaves: list[Tensor] = []
    form, returned = _number_leaves(values, leaves), Tree()

    def map_one(*own: Tensor) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        returned.update(_number_leaves(function(_fill(form, own)), found))
        return tuple(found)

    return _fill(returned, vmap(map_one, randomness="error")(*leaves))


def _number_leaves(values: Tree, leaves: list[Tensor]) -> Tree:
    """Append all tensors of a tree to `leaves`; returns the tree with their indices in place of them."""

    def number(value: Tensor) -> Any:
        leaves.append(value)
        return len(leaves) - 1

    return tree.each(values, number)


def _fill(form: Tree, leaves: Sequence[Tensor]) -> Tree:
    """The inverse of `_number_leaves`."""
    return tree.each(form, cast(Any, leaves.__getitem__))


def stack_trees(trees: Sequence[Tree], what: str, hook: str) -> Params:
    """Stack the clients' trees by path; `what` and `hook` name them in the error if they differ in form."""
    groups = [([index], StackedTrees.of(one).values) for index, one in enumerate(trees)]
    return merge_groups(groups, what, hook)


def merge_groups(groups: Sequence[tuple[Sequence[int], Params]], what: str, hook: str) -> Params:
    """Merge stacks of some clients each into one of all, in order; groups are given by the clients' indices.

    Tensors must have equal names and shapes; `what` and `hook` name them in the error. A single group in order is not
    copied.
    """
    groups = sorted(groups, key=lambda group: group[0][0])
    shapes = [{path: value.shape[1:] for path, value in values.items()} for _, values in groups]
    for shape in shapes:
        if shape != shapes[0]:
            path, _ = next(iter(shape.items() ^ shapes[0].items()))
            raise ConfigError(
                f"{what} of the part '{path.partition('|')[0]}' must have the same names and shapes for all clients to "
                f"be stacked, got different ones: return the same from {hook}, or use the runner 'processes'"
            )
    merged = groups[0][1]
    if len(groups) > 1:
        merged = {path: torch.cat([values[path] for _, values in groups]) for path in merged}
    order = np.concatenate([indices for indices, _ in groups])
    if (order[1:] < order[:-1]).any():
        rows = torch.from_numpy(np.argsort(order))
        merged = {path: value[rows.to(value.device)] for path, value in merged.items()}
    return merged


def arrange(model: Model, stacks: Params) -> Params:
    """The stacks on the device, every client's tensor in the model's memory format: kernels are selected by strides."""
    placed = {path: value.to(model.device) for path, value in stacks.items()}
    images = {path for path, value in placed.items() if model.channels_last and value.dim() == 5}
    return {
        path: torch.stack([model.format(one) for one in value]) if path in images else with_plain_strides(value)
        for path, value in placed.items()
    }


def copy_plainly(value: Tensor) -> Tensor:
    """A copy with the strides of a new tensor."""
    return value.clone(memory_format=torch.contiguous_format)


def with_plain_strides(value: Tensor) -> Tensor:
    """The tensor, copied unless its strides are a new one's; `Tensor.contiguous` accepts others in dimensions of 1."""
    return value if value.stride() == torch.empty(value.shape, device="meta").stride() else copy_plainly(value)


def take_first(values: Tree, count: int) -> Tree:
    """The first clients, as views; scalars of an optimizer are common to all clients."""
    return tree.each(values, lambda value: value[:count] if value.dim() else value)


def unstack(values: Params, count: int) -> list[Params]:
    """One dict of views per client."""
    if not values:
        return [{} for _ in range(count)]
    return [dict(zip(values, row, strict=True)) for row in zip(*(v.unbind() for v in values.values()), strict=True)]


def select(values: Tree, group: np.ndarray, size: int) -> Tree:
    """The clients of a group, with the first `size` examples of their batches."""
    rows = torch.from_numpy(group).to(values["targets"].device)
    selected = tree.each(values, lambda value: value[rows])
    per_example: Tree = {
        name: selected[name] for name in ("inputs", "targets", "drawn", "teachers") if name in selected
    }
    return {**selected, **tree.each(per_example, lambda value: value[:, :size])}


def merge(groups: Sequence[Tree], order: np.ndarray) -> Tree:
    """Merge groups of clients in the stack's order."""
    flat = [tree.flatten(group) for group in groups]
    rows = torch.from_numpy(order).to(flat[0]["loss"].device)
    whole = {path: torch.cat([group[path] for group in flat])[rows] for path in flat[0]}
    return {"buffers": {}, "carried": {}, "logs": {}, "held": {}, **tree.unflatten(whole)}
