"""The stored form of trees of tensors: flat, on the CPU, optionally in half precision; and their encoding as bytes.

The trees of clients that were trained as a stack stay one stack, until they leave RAM one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

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


@dataclass(frozen=True, eq=False)
class PackedStack:
    """Trees of `count` clients: tensors by path, in the trees' order, with a leading client dimension.

    `wide` holds the original types of rounded tensors.
    """

    values: Params
    count: int
    wide: Mapping[str, torch.dtype] = field(default_factory=dict)

    @cached_property
    def bytes_each(self) -> int:
        """The size of one tree in bytes."""
        return sum(value.nbytes for value in self.values.values()) // self.count

    def take(self, rows: Sequence[int]) -> Params:
        """The tensors of some clients with their original types; those of all clients in order are not copied."""
        values = self.values if list(rows) == list(range(self.count)) else self.select(rows).values
        return {path: value.to(self.wide.get(path, value.dtype)) for path, value in values.items()}

    def select(self, rows: Sequence[int]) -> PackedStack:
        """A copy of some clients' trees."""
        index = torch.tensor(rows, dtype=torch.long)
        return PackedStack({path: v.index_select(0, index) for path, v in self.values.items()}, len(rows), self.wide)

    def trees(self) -> list[PackedTree]:
        """The trees one by one."""
        return [PackedTree(self, row) for row in range(self.count)]


class PackedTree(NamedTuple):
    """One client's tree, a row of a stack."""

    stack: PackedStack
    row: int

    @property
    def values(self) -> Params:
        """The tensors by path, as views."""
        return {path: value[self.row] for path, value in self.stack.values.items()}

    @property
    def nbytes(self) -> int:
        return self.stack.bytes_each

    def tree(self) -> Tree:
        """The tree; rounded numbers get their original type back."""
        wide = self.stack.wide
        return tree.unflatten({path: value.to(wide.get(path, value.dtype)) for path, value in self.values.items()})


def group_by_stack(found: Iterable[PackedTree | None]) -> list[tuple[list[int], Params]]:
    """The trees that were found, stack by stack: their indices, and their tensors with a leading client dimension."""
    groups: dict[PackedStack, tuple[list[int], list[int]]] = {}
    for index, packed in enumerate(found):
        if packed is not None:
            indices, rows = groups.setdefault(packed.stack, ([], []))
            indices.append(index)
            rows.append(packed.row)
    return [(indices, stack.take(rows)) for stack, (indices, rows) in groups.items()]


def pack(values: Tree, precision: StoredPrecision = "float32") -> PackedTree:
    """Pack a tree, rounding wider floating-point tensors to `precision`.

    Scalars are not rounded: a counter in half precision would soon stop increasing.
    """
    one = {path: value.unsqueeze(0) for path, value in tree.flatten(values).items()}
    return PackedTree(pack_stack(one, 1, precision), 0)


def pack_stack(values: Params, count: int, precision: StoredPrecision = "float32") -> PackedStack:
    """Pack the trees of several clients, given by path."""
    narrow = NARROW[precision]
    packed: Params = {}
    wide: dict[str, torch.dtype] = {}
    addresses: set[int] = set()
    for path, given in values.items():
        value = given.detach().cpu()
        if narrow is not None and value.is_floating_point() and value.dim() > 1 and value.itemsize > narrow.itemsize:
            wide[path] = value.dtype
            value = _round(path, value, narrow)
        packed[path] = _own_storage(value, addresses)
    return PackedStack(packed, count, wide)


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
    wide = packed.stack.wide
    kind = f":{wide[path]}".replace("torch.", "") if path in wide else ""
    return f"{number:06d}{kind}|{path}"


def decode(data: bytes) -> PackedTree:
    """The inverse of `encode`."""
    values: Params = {}
    wide: dict[str, torch.dtype] = {}
    for name, value in sorted(safetensors.torch.load(data).items()):
        head, _, path = name.partition("|")
        values[path] = value.unsqueeze(0)
        if ":" in head:
            wide[path] = WIDE[head.partition(":")[2]]
    return PackedTree(PackedStack(values, 1, wide), 0)
