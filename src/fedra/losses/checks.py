"""What can be wrong with a loss's settings, its inputs and its value, each told in one sentence."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedra.errors import ConfigError, FedraError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@cache
def _validators(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: TypeAdapter(hints[entry.name]) for entry in fields(kind)}


def check_settings(loss: Any) -> None:
    """Every field of a dataclass against its annotation."""
    for name, validator in _validators(loss.__class__).items():
        value = getattr(loss, name)
        try:
            validator.validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise ConfigError(f"{type(loss).__name__} cannot take {name}={value!r}: {reason}") from None


def check_shapes(loss: str, features: Tensor, weight: Tensor, labels: Tensor, least_classes: int) -> None:
    """Shapes and types, which cost nothing to look at."""
    shapes = [tuple(it.shape) for it in (features, weight, labels)]
    if features.dim() != 2 or weight.dim() != 2 or features.shape[1] != weight.shape[1]:
        raise ConfigError(f"{loss} takes features (B, d) and class weights (C, d), not {shapes[0]} and {shapes[1]}")
    if shapes[2] != shapes[0][:1] or not shapes[2][0]:
        raise ConfigError(f"{loss} takes one label per feature, not labels {shapes[2]} for features {shapes[0]}")
    _check_integers(loss, labels)
    if len(weight) < least_classes:
        raise ConfigError(
            f"{loss} over {len(weight)} class is constant, whatever the features are: use {least_classes} "
            "classes or more, or a loss that needs no rival class (sphereface2, uniface)"
        )


def check_cosines(loss: str, cosine: Tensor, labels: Tensor) -> None:
    """Shapes and types of the inputs of `logits`."""
    if cosine.dim() != 2 or tuple(labels.shape) != tuple(cosine.shape[:1]) or not len(labels):
        shapes = f"{tuple(cosine.shape)} and {tuple(labels.shape)}"
        raise ConfigError(f"{loss} takes cosines (B, C) and labels (B,), not {shapes}")
    _check_integers(loss, labels)


def _check_integers(loss: str, labels: Tensor) -> None:
    if labels.dtype not in INTEGERS:
        raise ConfigError(f"{loss} takes integer labels, not {labels.dtype}: pass labels.long()")


def check_range(loss: str, labels: Tensor, classes: int, least: int = 0) -> None:
    """Every label names one of the classes, or `least`."""
    low, high = int(labels.min()), int(labels.max())
    if low < least or high >= classes:
        wrong = low if low < least else high
        raise ConfigError(f"label {wrong} has no class weight: {loss} got {classes} classes, 0 to {classes - 1}")


def check_finite(loss: str, losses: Tensor, features: Tensor, weight: Tensor) -> None:
    """A loss that is not finite, and whose fault that is."""
    if torch.isfinite(losses).all():
        return
    culprit = "the loss itself is"
    for who, tensor in (("the features are", features), ("the class weights are", weight)):
        if not torch.isfinite(tensor).all():
            culprit = who
            break
    raise FedraError(
        f"{loss}: {culprit} not finite, so training has diverged: lower the learning rate or the scale, "
        "or clip the gradients"
    )
