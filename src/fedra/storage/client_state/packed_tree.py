"""A tree of tensors as it is kept: flat, on the host, perhaps in half precision; and as bytes."""

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
"""What wider numbers are rounded to; None leaves them as the model has them."""

WIDE = {"float32": torch.float32, "float64": torch.float64}
"""What a rounded number may have been, by the name that a file has for it."""


@dataclass(frozen=True)
class PackedTree:
    """Tensors by their paths, in the tree's order; `wide` is the type of those that were rounded."""

    values: Params
    wide: Mapping[str, torch.dtype] = field(default_factory=dict)

    @cached_property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values.values())

    def tree(self) -> Tree:
        """The tree again; rounded numbers have their old type and not their old value."""
        return tree.unflatten({path: value.to(self.wide.get(path, value.dtype)) for path, value in self.values.items()})


def pack(values: Tree, precision: StoredPrecision = "float32") -> PackedTree:
    """The tree, with its vectors and matrices of wider floating-point numbers rounded to `precision`.

    Single numbers stay as they are: a counter in half precision would soon stand still.
    """
    narrow = NARROW[precision]
    kept: Params = {}
    wide: dict[str, torch.dtype] = {}
    places: set[int] = set()
    for path, given in tree.flatten(values).items():
        value = given.detach().cpu()
        if narrow is not None and value.is_floating_point() and value.dim() and value.itemsize > narrow.itemsize:
            wide[path] = value.dtype
            value = _rounded(path, value, narrow)
        kept[path] = _alone(value, places)
    return PackedTree(kept, wide)


def _rounded(path: str, value: Tensor, narrow: torch.dtype) -> Tensor:
    rounded = value.to(narrow)
    if narrow is torch.float16 and bool(rounded.isinf().any()):
        raise RunFailed(
            f"what a client remembers ('{path}') is beyond {torch.finfo(narrow).max:.0f}, the largest number of "
            "float16: set memory.precision = 'bfloat16'"
        )
    return rounded


def _alone(value: Tensor, places: set[int]) -> Tensor:
    """The tensor without others in its storage: a view would keep all of it, and no file holds one storage twice."""
    place = value.data_ptr()
    if value.untyped_storage().nbytes() > value.nbytes or place in places:
        return value.clone()
    if value.numel():
        places.add(place)
    return value


def encode(packed: PackedTree) -> bytes:
    """Safetensors. It orders names in its own way, but a norm's last bit depends on the order of its sum: entries are
    numbered, and a rounded one has its old type behind the number.
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
