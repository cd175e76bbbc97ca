"""Upload rules: a client's change in half precision, in eight bits, or its largest entries alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedra.core.tree import Params
from fedra.core.upload_rule import UploadRule

LEVELS = 127
"""The largest magnitude of an eight-bit integer with a sign."""


@dataclass(frozen=True)
class HalfUpload(UploadRule):
    """Changes are sent as 16-bit floating-point numbers, half of the bytes.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(HalfUpload()).upload.name
        'half-upload'
    """

    formula: ClassVar[str] = "u_k = float16(w_k - w_g)"

    def compress(self, change: Tensor) -> Tensor:
        return change.half().to(change.dtype)

    def pack(self, change: Tensor) -> Params:
        return {"values": change.half()}

    def unpack(self, packed: Params, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return _checked(packed["values"], shape, torch.float16).to(dtype)


@dataclass(frozen=True)
class ByteUpload(UploadRule):
    """Changes are sent as 8-bit integers with one scale per tensor, a quarter of the bytes.

    The scale is the power of two at which the largest entry fits, so packing loses nothing. What rounding takes away
    is added to the client's change of its next round.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(ByteUpload()).upload.keeps_error
        True
    """

    keeps_error: ClassVar[bool] = True
    formula: ClassVar[str] = "u_k = s round((w_k - w_g + e_k) / s), e_k <- w_k - w_g + e_k - u_k"

    def compress(self, change: Tensor) -> Tensor:
        scale = _scale(change)
        return (change / scale).round() * scale

    def pack(self, change: Tensor) -> Params:
        scale = _scale(change)
        return {"values": (change / scale).round().to(torch.int8), "scale": scale.reshape(1).float()}

    def unpack(self, packed: Params, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        values = _checked(packed["values"], shape, torch.int8)
        scale = _checked(packed["scale"], torch.Size([1]), torch.float32)
        if not bool(scale.isfinite().all()) or float(scale) <= 0:
            raise ValueError("the scale must be positive and finite")
        return values.to(dtype) * scale.to(dtype)[0]


@dataclass(frozen=True)
class TopUpload(UploadRule):
    """Of each tensor, only the entries of the largest magnitude are sent, with their positions.

    The other entries are added to the client's change of its next round.

    Args:
        share: Share of the entries that are sent; at least one per tensor.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(TopUpload(share=0.05)).upload.share
        0.05
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    keeps_error: ClassVar[bool] = True
    formula: ClassVar[str] = "u_k = top(w_k - w_g + e_k), e_k <- w_k - w_g + e_k - u_k"

    def compress(self, change: Tensor) -> Tensor:
        flat = change.reshape(-1)
        rows = flat.abs().topk(self._count(flat.numel())).indices
        return torch.zeros_like(flat).index_copy(0, rows, flat[rows]).reshape(change.shape)

    def pack(self, change: Tensor) -> Params:
        flat = change.reshape(-1)
        rows = flat.nonzero()[:, 0]
        return {"rows": rows.to(torch.int32), "values": flat[rows]}

    def unpack(self, packed: Params, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        rows, values = packed["rows"], packed["values"]
        if rows.dtype != torch.int32 or values.dtype != dtype or rows.dim() != 1 or rows.shape != values.shape:
            raise ValueError("positions and values must be two lists of one length")
        if len(rows) > self._count(count) or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count):
            raise ValueError("positions must be within the tensor, and no more than the share allows")
        if len(torch.unique(rows)) != len(rows):
            raise ValueError("positions must differ")
        return torch.zeros(count, dtype=dtype).index_copy(0, rows.long(), values).reshape(shape)

    def _count(self, entries: int) -> int:
        return max(math.ceil(self.share * entries), 1)


def _scale(change: Tensor) -> Tensor:
    """The smallest power of two at which every entry rounds to an eight-bit integer; 1 for zeros."""
    largest = change.abs().amax() if change.numel() else change.new_zeros(())
    exponent = torch.frexp(largest / LEVELS).exponent
    exact = torch.ldexp(torch.ones_like(largest), exponent - 1)
    scale = torch.where(exact * LEVELS >= largest, exact, exact * 2)
    return torch.where((largest > 0) & largest.isfinite(), scale, torch.ones_like(largest))


def _checked(value: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if value.shape != shape or value.dtype != dtype:
        raise ValueError("a packed change must have the shape of its parameter")
    return value
