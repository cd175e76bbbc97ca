"""The stored form of a tree of tensors: flat, on the CPU, optionally in half precision; and its encoding as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import safetensors.torch
import torch
from torch import Tensor

from fedra.config.schema import StoredPrecision
from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.errors import RunFailed

NARROW: dict[StoredPrecision, torch.dtype | None] = {
    "float32": None,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The type that wider numbers are rounded to; None keeps the model's type."""

WIDE = {"float32": torch.float32, "float64": torch.float64}
"""Original types of rounded numbers, by their name in a file."""


@dataclass(frozen=True)
class PackedTree:
    """Tensors by path, in the tree's order; `wide` holds the original types of rounded tensors."""

    values: Params
    wide: Mapping[str, torch.dtype] = field(default_factory=dict)

    @cached_property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values.values())

    def tree(self) -> Tree:
        """The tree; rounded numbers get their original type back."""
        return tree.unflatten({path: value.to(self.wide.get(path, value.dtype)) for path, value in self.values.items()})


def pack(values: Tree, precision: StoredPrecision = "float32") -> PackedTree:
    """Pack a tree, rounding wider floating-point tensors to `precision`.

    Scalars are not rounded: a counter in half precision would soon stop increasing.
    """
    narrow = NARROW[precision]
    packed: Params = {}
    wide: dict[str, torch.dtype] = {}
    addresses: set[int] = set()
    for path, given in tree.flatten(values).items():
        value = given.detach().cpu()
        if narrow is not None and value.is_floating_point() and value.dim() and value.itemsize > narrow.itemsize:
            wide[path] = value.dtype
            value = _round(path, value, narrow)
        packed[path] = _own_storage(value, addresses)
    return PackedTree(packed, wide)


def _round(path: str, value: Tensor, narrow: torch.dtype) -> Tensor:
    rounded = value.to(narrow)
    if narrow is torch.float16 and bool(rounded.isinf().any()):
        raise RunFailed(
            f"client state must be at most {torch.finfo(narrow).max:.0f} in magnitude (float16), got more in '{path}': "
            "set memory.precision = 'bfloat16'"
        )
    return rounded


def _own_storage(value: Tensor, addresses: set[int]) -> Tensor:
    """Copy views, which would keep the whole storage alive, and shared storage, which safetensors rejects."""
    address = value.data_ptr()
    if value.untyped_storage().nbytes() > value.nbytes or address in addresses:
        return value.clone()
    if value.numel():
        addresses.add(address)
    return value


def encode(packed: PackedTree) -> bytes:
    """Encode as safetensors. Entries are numbered, because safetensors reorders names and the rounding of a norm
    depends on their order; the number of a rounded entry is followed by its original type.
    """
    named = {_name(number, path, packed): value for number, (path, value) in enumerate(packed.values.items())}
    return safetensors.torch.save({name: value.contiguous() for name, value in named.items()})


def _name(number: int, path: str, packed: PackedTree) -> str:
    kind = f":{packed.wide[path]}".replace("torch.", "") if path in packed.wide else ""
    return f"{number:06d}{kind}|{path}"


def decode(data: bytes) -> PackedTree:
    """The inverse of `encode`."""
    values: Params = {}
    wide: dict[str, torch.dtype] = {}
    for name, value in sorted(safetensors.torch.load(data).items()):
        head, _, path = name.partition("|")
        values[path] = value
        if ":" in head:
            wide[path] = WIDE[head.partition(":")[2]]
    return PackedTree(values, wide)
