"""Arithmetic on stacks: trees whose tensors have the clients in front."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError


def together(trees: Sequence[Tree], does: str, hook: str) -> Tree:
    """What the clients remember, or send, as one; all must be of one shape."""
    if not any(trees):
        return {}
    flat = [tree.flatten(one) for one in trees]
    shapes = [{path: value.shape for path, value in one.items()} for one in flat]
    for shape in shapes:
        if shape != shapes[0]:
            path, _ = next(iter(shape.items() ^ shapes[0].items()))
            raise ConfigError(
                f"the part '{path.partition('|')[0]}' {does} other things of one client than of another, so that "
                f"they cannot be stacked: let its {hook} give the same, or use the runner 'processes'"
            )
    return tree.unflatten({path: torch.stack([one[path] for one in flat]) for path in flat[0]})


def first(values: Tree, count: int) -> Tree:
    """The first clients' slices, as views; an optimizer's scalar is common to all."""
    return tree.each(values, lambda value: value[:count] if value.dim() else value)


def apart(values: Params, count: int) -> list[Params]:
    """A dict of stacks as one dict of views per client."""
    if not values:
        return [{} for _ in range(count)]
    return [dict(zip(values, row, strict=True)) for row in zip(*(v.unbind() for v in values.values()), strict=True)]


def picked(values: Tree, group: np.ndarray, size: int) -> Tree:
    """The clients of a group, with the first `size` examples of their batches."""
    rows = torch.from_numpy(group).to(values["targets"].device)
    some = tree.each(values, lambda value: value[rows])
    by_example: Tree = {name: some[name] for name in ("inputs", "targets", "drawn", "teachers") if name in some}
    return {**some, **tree.each(by_example, lambda value: value[:, :size])}


def joined(pieces: Sequence[Tree], order: np.ndarray) -> Tree:
    """Groups of clients put together again in the stack's order."""
    flat = [tree.flatten(piece) for piece in pieces]
    rows = torch.from_numpy(order).to(flat[0]["loss"].device)
    whole = {path: torch.cat([piece[path] for piece in flat])[rows] for path in flat[0]}
    return {"buffers": {}, "carried": {}, "logs": {}, "held": {}, **tree.unflatten(whole)}
