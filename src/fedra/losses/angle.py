"""Functions of cosines: features against class vectors, angles without acos, monotone margins.

The derivatives of acos and of sqrt(1 - c^2) are infinite at c = +1 and c = -1. Here the sine has a lower bound without
gradient, and an angle is atan2(sine, cosine), so every value and gradient is finite.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Overflow = Literal["thmm", "easy", "clamp", "none"]

NORM_FLOOR = 1e-12
SQUARED_SINE_FLOOR = 1e-12


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float32, or float64 if a tensor has it: half precision cannot distinguish 1 - 1e-4 from 1."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def normalize(rows: Tensor) -> Tensor:
    """Return rows of unit length; a row of zeros has no direction, stays zero and has no gradient."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    has_direction = norms > NORM_FLOOR
    return torch.where(has_direction, rows / torch.where(has_direction, norms, 1.0), 0.0)


def cosine(features: Tensor, weight: Tensor) -> Tensor:
    """Return the cosine (B, C) of every feature (B, d) with every class vector (C, d), within [-1, 1].

    Autocast may compute the product in half precision; everything after it is at least float32.
    """
    dtype = working_dtype(features, weight)
    units, rows = normalize(features.to(dtype)), weight.to(dtype)
    if torch.compiler.is_compiling():  # the compiler fuses the plain formula
        return (F.linear(units, rows).to(dtype) * inverse_norms(rows)).clamp(-1.0, 1.0)
    values: Tensor = CosineProduct.apply(units, rows, None)[0]  # type: ignore[no-untyped-call]
    return values


def cosine_and_true(features: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and those with the true classes (B,), whose gradient needs no pass over all classes."""
    if torch.compiler.is_compiling():
        values = cosine(features, weight)
        return values, values.gather(1, labels[:, None])[:, 0]
    dtype = working_dtype(features, weight)
    values, true, _ = CosineProduct.apply(normalize(features.to(dtype)), weight.to(dtype), labels)  # type: ignore[no-untyped-call]
    return values, true


class CosineProduct(torch.autograd.Function):
    """Compute c = units @ rows.T / |rows| and its entries at the labels, without a copy of the rows.

    The rows are the largest tensor of a head.

    d c_ij / d rows_j = u_i / |rows_j| - c_ij rows_j / |rows_j|^2
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(units: Tensor, rows: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        inverse = inverse_norms(rows)
        product = F.linear(units, rows)
        values = F.hardtanh_(product.to(rows.dtype).mul_(inverse))  # within [-1, 1], in place in vmap too
        true = values[:, 0] if labels is None else values.gather(1, labels[:, None])[:, 0]
        return values, true.clone(), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: tuple[Tensor, ...]) -> None:
        units, rows, labels = inputs
        values, true, inverse = output
        ctx.mark_non_differentiable(inverse, *([true] if labels is None else []))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(units, rows, labels, values, true, inverse)
        kind = inputs[1].device.type
        ctx.half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_true: Tensor | None, _: None) -> tuple[Tensor, Tensor, None]:
        units, rows, labels, cosines, true, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative: the saved norms have no graph
            inverse = inverse_norms(rows)
        grad = torch.zeros_like(cosines) if grad is None else grad
        scaled, radial = grad * inverse, (grad * cosines).sum(dim=0)
        if grad_true is not None:
            index = torch.arange(len(labels), device=labels.device), labels
            scaled = scaled.index_put_(index, grad_true * inverse[labels], accumulate=True)
            radial = radial.index_add(0, labels, grad_true * true)
        scaled = scaled.to(ctx.half)
        to_units = (scaled @ rows.to(ctx.half)).to(rows.dtype)
        to_rows = (scaled.mT @ units.to(ctx.half)).to(rows.dtype)
        return to_units, torch.addcmul(to_rows, rows, (radial * inverse.square())[:, None], value=-1), None


def with_true_class(others: Tensor, true: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return the logits (B, C): scale * others, with scale * true (B,) in the column of the true class."""
    if torch.compiler.is_compiling():
        return scale * others.scatter(1, labels[:, None], true[:, None])
    merged: Tensor = TrueColumn.apply(others, true, labels, scale)  # type: ignore[no-untyped-call]
    return merged


class TrueColumn(torch.autograd.Function):
    """See `with_true_class`: one pass over the logits and one over their gradient, where a mask would take several."""

    generate_vmap_rule = True

    @staticmethod
    def forward(others: Tensor, true: Tensor, labels: Tensor, scale: float) -> Tensor:
        rows = torch.arange(len(labels), device=labels.device)
        return (others * scale).index_put_((rows, labels), scale * true)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.scale = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (labels,) = ctx.saved_tensors
        index = torch.arange(len(labels), device=labels.device), labels
        scaled = grad * ctx.scale
        true = scaled[index]
        return scaled.index_put_(index, torch.zeros_like(true)), true, None, None


def inverse_norms(rows: Tensor) -> Tensor:
    """Return one over the norm of every row; 0 for a row without direction."""
    lengths = torch.linalg.vector_norm(rows, dim=-1)
    has_direction = lengths > NORM_FLOOR
    return torch.where(has_direction, 1 / torch.where(has_direction, lengths, 1.0), 0.0)


def sine(cosine: Tensor) -> Tensor:
    """Return the sine of t in [0, pi], at least 1e-6."""
    return ((1 - cosine) * (1 + cosine)).clamp(min=SQUARED_SINE_FLOOR).sqrt()


def angle(cosine: Tensor) -> Tensor:
    """Return the angle t in (0, pi)."""
    return torch.atan2(sine(cosine), cosine)


def unfold(angle: Tensor) -> Tensor:
    """Return the cosine of an angle, continued so it keeps decreasing beyond pi (SphereFace, arXiv:1704.08063).

    psi(a) = (-1)^k cos(a) - 2k,  k = floor(a / pi)
    """
    turns = torch.floor(angle.detach() / math.pi)
    return (1 - 2 * (turns % 2)) * torch.cos(angle) - 2 * turns


def add_angle(cosine: Tensor, margin: Tensor | float, overflow: Overflow, at_turn: float | None = None) -> Tensor:
    """Return cos(t + margin); `overflow` selects the value where t + margin passes pi and the cosine would rise again.

    thmm   c - m sin m, the decreasing continuation of the ArcFace code
    easy   no margin for t > 90 degrees (the value jumps there)
    clamp  t + m stops at pi: value -1 and no gradient
    none   cos(t + m) as it is, whose gradient has the wrong sign beyond pi

    `at_turn` is the margin at the angle where t + margin = pi, for a margin that depends on t.
    """
    if not isinstance(margin, Tensor):
        margin = cosine.new_full((), margin)  # created on the device: copying a number to a GPU would synchronize
    margin = margin.to(cosine)
    shifted = cosine * margin.cos() - sine(cosine) * margin.sin()
    if overflow == "none":
        return shifted
    if overflow == "easy":
        return torch.where(cosine > 0, shifted, cosine)
    # With a negative margin (ElasticFace, AdaFace) the angle may pass 0 instead: the cosine stops at 1.
    shifted = torch.where((margin < 0) & (cosine > margin.cos()), 1.0, shifted)
    turn = margin if at_turn is None else torch.full_like(margin, at_turn)
    beyond = cosine - turn * turn.sin() if overflow == "thmm" else -torch.ones_like(cosine)
    return torch.where((turn > 0) & (cosine <= -turn.cos()), beyond, shifted)


def straight_through(cosine: Tensor, modified: Tensor) -> Tensor:
    """Return the value of `modified` with the gradient of `cosine`."""
    return cosine + (modified - cosine).detach()
