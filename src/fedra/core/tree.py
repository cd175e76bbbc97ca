"""Arithmetic on dicts of tensors: parameters, gradients, and the nested dicts that hold all state and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedra.errors import ConfigError

Params = dict[str, Tensor]
"""Flat names to tensors: "body.0.weight", "head.bias"."""

Tree = dict[str, Any]
"""Nested dicts whose leaves are tensors: client memory, server memory, extras."""


def add(left: Params, right: Params, scale: float | Tensor = 1.0) -> Params:
    """Left + scale * right, over the names of `left`; a name absent from `right` keeps its very tensor."""
    if isinstance(scale, Tensor):
        return {name: value + scale * right[name] if name in right else value for name, value in left.items()}
    return {name: value.add(right[name], alpha=scale) if name in right else value for name, value in left.items()}


def subtract(left: Params, right: Params) -> Params:
    """Left - right, over the names of `left`."""
    return {name: value - right[name] for name, value in left.items()}


def scale(values: Params, factor: float | Tensor) -> Params:
    """Factor * values."""
    return {name: value * factor for name, value in values.items()}


def zeros_like(values: Params) -> Params:
    """A tree of zeros of the same shapes, types and devices."""
    return {name: torch.zeros_like(value) for name, value in values.items()}


def clone(values: Params) -> Params:
    """Copies of every tensor, outside any graph."""
    return {name: value.detach().clone() for name, value in values.items()}


def select(values: Params, names: Iterable[str]) -> Params:
    """The entries with these names."""
    return {name: values[name] for name in names}


def accumulate(total: Params, values: Params, weight: float = 1.0) -> Params:
    """Total += weight * values in place; an empty `total` starts the sum."""
    if not total:
        return {name: value * weight for name, value in values.items()}
    for name, value in values.items():
        total[name].add_(value, alpha=weight)
    return total


def accumulate_stack(total: Params, stacks: Params, weights: Sequence[float]) -> Params:
    """Total += sum_k weights[k] * stacks[k] in place, the k being the first dimension; an empty `total` starts it."""
    some = next(iter(stacks.values()), None)
    if some is None:
        return total
    factors = torch.tensor(weights, dtype=torch.float64).to(some.device)
    for name, stack in stacks.items():
        rows = stack.reshape(len(factors), -1)
        kept = total[name] if name in total else total.setdefault(name, stack.new_zeros(stack.shape[1:]))
        kept.view(-1).addmv_(rows.T, factors.to(rows.dtype))
    return total


def dot(left: Params, right: Params) -> Tensor:
    """The inner product over the names of `left`."""
    return torch.stack([(value * right[name]).sum() for name, value in left.items()]).sum()


def norm(values: Params) -> Tensor:
    """The Euclidean norm of all entries together; of none it is zero."""
    if not values:
        return torch.zeros(())
    lengths = [torch.linalg.vector_norm(value) for value in values.values()]
    total: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
    return total


def unaliased(slopes: Iterable[Tensor]) -> list[Tensor]:
    """Autograd may hand out one tensor for two parameters, or one number for a whole tensor; in-place sums need each
    entry its own.
    """
    seen: set[int] = set()
    own = []
    for slope in slopes:
        own.append(slope.clone() if slope.data_ptr() in seen or 0 in slope.stride() else slope)
        seen.add(slope.data_ptr())
    return own


def is_finite(values: Params) -> bool:
    """Whether every entry is a number, by one sum each and one look at the device for the whole tree.

    Entries so large that their sum overflows count as not finite too.
    """
    if not values:
        return True
    return bool(torch.stack([value.sum() for value in values.values()]).isfinite().all())


def each(values: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """The function of every tensor of a tree."""
    return {n: each(v, function) if isinstance(v, dict) else function(v) for n, v in values.items()}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Params:
    """A nested tree as one flat dict; the path's steps are joined by '|', which no parameter name holds."""
    flat: Params = {}
    for name, value in tree.items():
        path = f"{prefix}|{name}" if prefix else name
        if isinstance(value, Mapping):
            flat.update(flatten(value, path))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Params) -> Tree:
    """The inverse of `flatten`."""
    tree: Tree = {}
    for path, value in flat.items():
        *branches, leaf = path.split("|")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = value
    return tree


def size_in_bytes(tree: Mapping[str, Any]) -> int:
    """The bytes its tensors would take on the wire."""
    return sum(value.numel() * value.element_size() for value in flatten(tree).values())


def refuse_other_values(what: str, values: Any) -> None:
    """All that parts keep or send is a dict of tensors, or of such dicts; `what` begins the sentence about another."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{what} must be a dict of tensors (or of such dicts), got {type(values).__name__}")
    for path, value in flatten(values).items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{what} must hold tensors alone, got {type(value).__name__} under '{path}': wrap it in torch.tensor"
            )
