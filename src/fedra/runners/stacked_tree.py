"""Operations on stacks: trees whose tensors have a leading client dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError


def stack_trees(trees: Sequence[Tree], what: str, hook: str) -> Tree:
    """Stack the clients' trees, which must have equal names and shapes; `what` and `hook` name them in the error."""
    if not any(trees):
        return {}
    flat = [tree.flatten(one) for one in trees]
    shapes = [{path: value.shape for path, value in one.items()} for one in flat]
    for shape in shapes:
        if shape != shapes[0]:
            path, _ = next(iter(shape.items() ^ shapes[0].items()))
            raise ConfigError(
                f"{what} of the part '{path.partition('|')[0]}' must have the same names and shapes for all clients to "
                f"be stacked, got different ones: return the same from {hook}, or use the runner 'processes'"
            )
    return tree.unflatten({path: torch.stack([one[path] for one in flat]) for path in flat[0]})


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
