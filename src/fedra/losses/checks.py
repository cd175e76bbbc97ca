"""Checks of a loss's settings, inputs and value."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedra.errors import ConfigError, FedraError, shorten_requirement

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@cache
def _validators(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: TypeAdapter(hints[entry.name]) for entry in fields(kind)}


def check_settings(loss: Any) -> None:
    """Check every field of a dataclass against its annotation."""
    for name, validator in _validators(loss.__class__).items():
        value = getattr(loss, name)
        try:
            validator.validate_python(value, strict=True)
        except ValidationError as error:
            requirement = shorten_requirement(error.errors()[0]["msg"])
            raise ConfigError(f"{name} of {type(loss).__name__} must be {requirement}, got {value!r}") from None


def check_shapes(loss: str, features: Tensor, weight: Tensor, labels: Tensor, least_classes: int) -> None:
    """Check shapes and types, which needs no look at values."""
    shapes = [tuple(it.shape) for it in (features, weight, labels)]
    if features.dim() != 2 or weight.dim() != 2 or features.shape[1] != weight.shape[1]:
        raise ConfigError(
            f"features and class weights of {loss} must have shapes (B, d) and (C, d), got {shapes[0]} and {shapes[1]}"
        )
    if shapes[2] != shapes[0][:1] or not shapes[2][0]:
        raise ConfigError(
            f"labels of {loss} must have one entry per feature, got shape {shapes[2]} for features {shapes[0]}"
        )
    _check_integers(loss, labels)
    if len(weight) < least_classes:
        raise ConfigError(
            f"{loss} must have at least {least_classes} classes, got {len(weight)}: with one class it is constant; add "
            "classes, or use a loss on single pairs (sphereface2, uniface)"
        )


def check_cosines(loss: str, cosine: Tensor, labels: Tensor) -> None:
    """Check shapes and types of the inputs of `logits`."""
    if cosine.dim() != 2 or tuple(labels.shape) != tuple(cosine.shape[:1]) or not len(labels):
        shapes = f"{tuple(cosine.shape)} and {tuple(labels.shape)}"
        raise ConfigError(f"cosines and labels of {loss} must have shapes (B, C) and (B,), got {shapes}")
    _check_integers(loss, labels)


def _check_integers(loss: str, labels: Tensor) -> None:
    if labels.dtype not in INTEGERS:
        raise ConfigError(f"labels of {loss} must be integers, got {labels.dtype}: pass labels.long()")


def check_range(loss: str, labels: Tensor, classes: int, least: int = 0) -> None:
    """Check that every label is a class index, or `least`."""
    low, high = int(labels.min()), int(labels.max())
    if low < least or high >= classes:
        wrong = low if low < least else high
        raise ConfigError(
            f"labels of {loss} must be between {least} and {classes - 1} ({classes} classes), got {wrong}"
        )


def check_finite(loss: str, losses: Tensor, features: Tensor, weight: Tensor) -> None:
    """Raise an error that names the cause if a loss is not finite."""
    if torch.isfinite(losses).all():
        return
    cause = "loss"
    for name, tensor in (("features", features), ("class weights", weight)):
        if not torch.isfinite(tensor).all():
            cause = name
            break
    raise FedraError(
        f"{cause} of {loss} must be finite, got inf or NaN, so training has diverged: lower the learning rate or the "
        "scale, or clip the gradients"
    )
