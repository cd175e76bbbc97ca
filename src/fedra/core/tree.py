"""Arithmetic on dicts of tensors: parameters, gradients, and the nested dicts of state, broadcasts and uploads.

Example:
    ```python
    from fedra.parts import tree

    change = tree.subtract(new, old)
    half = tree.add(old, change, 0.5)
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from fedra.errors import ConfigError

Params = dict[str, Tensor]
"""Tensors by name, such as "body.0.weight" or "head.bias"."""

Tree = dict[str, Any]
"""Nested dicts of tensors: client state, server state, extras."""


def add(left: Params, right: Params, scale: float | Tensor = 1.0) -> Params:
    """Add entry by entry.

    Args:
        left: Tensors by name.
        right: Tensors to add; its names may be a subset.
        scale: Factor on `right`.

    Returns:
        left + scale * right, over the names of `left`; entries that `right` does not have are not copied.
    """
    if isinstance(scale, Tensor):
        return {name: value + scale * right[name] if name in right else value for name, value in left.items()}
    return {name: value.add(right[name], alpha=scale) if name in right else value for name, value in left.items()}


def subtract(left: Params, right: Params) -> Params:
    """Subtract entry by entry.

    Args:
        left: Tensors by name.
        right: Tensors with at least the same names.

    Returns:
        left - right, over the names of `left`.
    """
    return {name: value - right[name] for name, value in left.items()}


def scale(values: Params, factor: float | Tensor) -> Params:
    """Multiply every entry.

    Args:
        values: Tensors by name.
        factor: A number or scalar tensor.

    Returns:
        factor * values.
    """
    return {name: value * factor for name, value in values.items()}


def zeros_like(values: Params) -> Params:
    """Zeros of the same shapes, dtypes and devices.

    Args:
        values: Tensors by name.

    Returns:
        Zeros by name.
    """
    return {name: torch.zeros_like(value) for name, value in values.items()}


def clone(values: Params) -> Params:
    """Detached copies.

    Args:
        values: Tensors by name.

    Returns:
        The copies.
    """
    return {name: value.detach().clone() for name, value in values.items()}


def select(values: Params, names: Iterable[str]) -> Params:
    """Select entries by name.

    Args:
        values: Tensors by name.
        names: Names that must be in `values`.

    Returns:
        The entries with these names.
    """
    return {name: values[name] for name in names}


def accumulate(total: Params, values: Params, weight: float = 1.0) -> Params:
    """Add weight * values to `total` in place.

    Args:
        total: The sum so far; empty to start.
        values: Tensors to add.
        weight: Factor on `values`.

    Returns:
        The new total.
    """
    if not total:
        return {name: value * weight for name, value in values.items()}
    for name, value in values.items():
        total[name].add_(value, alpha=weight)
    return total


def accumulate_stack(total: Params, stacks: Params, weights: Sequence[float]) -> Params:
    """Add sum_k weights[k] * stacks[k] to `total` in place.

    Args:
        total: The sum so far; empty to start.
        stacks: Tensors whose first dimension is k.
        weights: One factor for each k.

    Returns:
        The new total.
    """
    first = next(iter(stacks.values()), None)
    if first is None:
        return total
    factors = torch.tensor(weights, dtype=torch.float64).to(first.device)
    for name, stack in stacks.items():
        rows = stack.reshape(len(factors), -1)
        entry = total[name] if name in total else total.setdefault(name, stack.new_zeros(stack.shape[1:]))
        entry.view(-1).addmv_(rows.T, factors.to(rows.dtype))
    return total


def accumulate_rows(total: Params, stacks: Params, weights: Sequence[float]) -> Params:
    """Add weights[k] * stacks[k] to `total` in place for one k after another, with the bits of `accumulate`.

    Args:
        total: The sum so far; empty to start.
        stacks: Tensors whose first dimension is k.
        weights: One factor for each k.

    Returns:
        The new total.
    """
    begin = 0
    if not total:
        total, begin = {name: stack[0] * weights[0] for name, stack in stacks.items()}, 1
    for weight, equal in groupby(range(begin, len(weights)), lambda row: weights[row]):
        rows = list(equal)
        for name, stack in stacks.items():
            # One addition per row, in order, without a call from Python for each. The last dimension is added because
            # the kernel for vectors rounds scalars otherwise.
            index = torch.zeros(len(rows), dtype=torch.long, device=stack.device)
            added = stack[rows[0] : rows[-1] + 1].unsqueeze(-1)
            total[name].unsqueeze(0).unsqueeze(-1).index_add_(0, index, added, alpha=weight)
    return total


def dot(left: Params, right: Params) -> Tensor:
    """The inner product.

    Args:
        left: Tensors by name.
        right: Tensors with at least the same names.

    Returns:
        A scalar tensor.
    """
    return torch.stack([(value * right[name]).sum() for name, value in left.items()]).sum()


def norm(values: Params) -> Tensor:
    """The Euclidean norm of all entries.

    Args:
        values: Tensors by name.

    Returns:
        A scalar tensor; zero without entries.
    """
    if not values:
        return torch.zeros(())
    lengths = [torch.linalg.vector_norm(value) for value in values.values()]
    total: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
    return total


def unalias(gradients: Iterable[Tensor]) -> list[Tensor]:
    """Copy gradients that share memory, as autograd's may, so they can be changed in place; also inside vmap."""
    seen: set[int] = set()
    own = []
    for gradient in gradients:
        plain = gradient
        while is_functorch_wrapped_tensor(plain):
            plain = get_unwrapped(plain)
        own.append(gradient.clone() if plain.data_ptr() in seen or 0 in plain.stride() else gradient)
        seen.add(plain.data_ptr())
    return own


def is_finite(values: Params) -> bool:
    """Whether all entries are finite, with one device synchronization.

    Args:
        values: Tensors by name.

    Returns:
        False for NaN and infinities, and for entries so large that their sum overflows.
    """
    if not values:
        return True
    return bool(torch.stack([value.sum() for value in values.values()]).isfinite().all())


def each(values: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """Apply a function to every tensor of a tree.

    Args:
        values: A nested dict of tensors.
        function: The function to apply.

    Returns:
        A dict of the same structure.
    """
    return {n: each(v, function) if isinstance(v, dict) else function(v) for n, v in values.items()}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Params:
    """Convert a nested dict to a flat one.

    Args:
        tree: A nested dict of tensors.
        prefix: Path to put in front.

    Returns:
        Tensors by path; the names of a path are joined by '|', which no parameter name contains.
    """
    flat: Params = {}
    for name, value in tree.items():
        path = f"{prefix}|{name}" if prefix else name
        if isinstance(value, Mapping):
            flat.update(flatten(value, path))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Params) -> Tree:
    """The inverse of `flatten`.

    Args:
        flat: Tensors by path.

    Returns:
        A nested dict of tensors.
    """
    tree: Tree = {}
    for path, value in flat.items():
        *branches, leaf = path.split("|")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = value
    return tree


def size_in_bytes(tree: Mapping[str, Any]) -> int:
    """The size of all tensors.

    Args:
        tree: A nested dict of tensors.

    Returns:
        The number of bytes.
    """
    return sum(value.numel() * value.element_size() for value in flatten(tree).values())


def check_tensors(what: str, values: Any) -> None:
    """Raise ConfigError, starting with `what`, unless `values` is a nested dict of tensors."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{what} must be a dict of tensors (or of such dicts), got {type(values).__name__}")
    for path, value in flatten(values).items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{what} must contain only tensors, got {type(value).__name__} at '{path}': wrap it in torch.tensor"
            )
