"""Validate embeddings, scores and identities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.losses.angle import NORM_FLOOR, working_dtype

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_table(name: str, rows: Tensor) -> None:
    """Raise unless this is a floating-point tensor (N, d) with at least one row."""
    if rows.dim() != 2 or not rows.is_floating_point():
        raise DataError(f"{name} must be a floating-point tensor (N, d), got {rows.dtype} of shape {tuple(rows.shape)}")
    if not rows.numel():
        raise DataError(f"{name} must not be empty, got shape {tuple(rows.shape)}")


def check_same_length(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Raise unless the embeddings of both tables have the same length."""
    if one.shape[1] != other.shape[1]:
        raise DataError(
            f"{first} and {second} must have the same length, got {one.shape[1]} and {other.shape[1]}: compute both "
            "with the same model"
        )


def lengths(name: str, rows: Tensor, start: int = 0) -> Tensor:
    """Return the norm (N, 1) of each row; raise for a zero or non-finite row with its index counted from `start`."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    broken = ~torch.isfinite(norms) | (norms <= NORM_FLOOR)
    if bool(broken.any()):
        row = int(broken.squeeze(1).nonzero()[0, 0])
        fault = "is zero" if float(norms[row]) <= NORM_FLOOR else "contains NaN or infinity"
        raise DataError(
            f"{name}: row {start + row} {fault}, but must be finite and not zero: check the network and the image"
        )
    return norms


def directions(name: str, rows: Tensor, start: int = 0) -> Tensor:
    """Normalize rows in at least float32; raise for a zero or non-finite row with its index counted from `start`."""
    rows = rows.to(working_dtype(rows))
    return rows / lengths(name, rows, start)


def check_integers(name: str, values: Tensor, count: int, of: str) -> None:
    """Raise unless there is one integer for each of `count` items."""
    if values.dim() != 1 or values.dtype not in INTEGERS:
        raise DataError(f"{name} must be integers (N,), got {values.dtype} of shape {tuple(values.shape)}")
    if len(values) != count:
        raise DataError(f"{name} must have length {count}, one for each of the {of}, got {len(values)}")


def check_flags(name: str, flags: Tensor, count: int, of: str) -> None:
    """Raise unless there is one boolean for each of `count` items."""
    if flags.dim() != 1 or flags.dtype != torch.bool:
        raise DataError(f"{name} must be booleans (N,), got {flags.dtype} of shape {tuple(flags.shape)}")
    if len(flags) != count:
        raise DataError(f"{name} must have length {count}, one for each of the {of}, got {len(flags)}")


def sorted_scores(name: str, scores: Tensor) -> NDArray[np.floating]:
    """Return scores in ascending order, in at least float32; raise if there are none or some are not finite."""
    if scores.dim() != 1 or not scores.is_floating_point():
        raise DataError(f"{name} must be floating-point (N,), got {scores.dtype} of shape {tuple(scores.shape)}")
    if not len(scores):
        raise DataError(f"{name} must not be empty: a rate needs genuine and impostor comparisons")
    values: NDArray[np.floating] = np.sort(scores.detach().to(working_dtype(scores)).cpu().numpy())
    if not (np.isfinite(values[0]) and np.isfinite(values[-1])):  # NaN sorts last
        raise DataError(f"{name} must be finite, got NaN or infinity: check the embeddings")
    return values


def check_rate(name: str, rate: float) -> None:
    """Raise unless an error rate is valid."""
    if not 0 <= rate < 1:
        raise ConfigError(f"{name} must be at least 0 and below 1, got {rate!r}")


def check_single(ids: Tensor) -> None:
    """Raise unless each subject has one gallery template."""
    subjects, counts = torch.unique(ids, return_counts=True)
    if int(counts.max()) > 1:
        subject = int(subjects[counts.argmax()])
        raise DataError(
            f"each subject must have one gallery template, but subject {subject} has {int(counts.max())}: combine them "
            "with pool_templates"
        )


def check_ranks(ranks: Sequence[int]) -> None:
    """Raise unless all ranks are at least 1."""
    if not ranks or min(ranks) < 1:
        raise ConfigError(f"ranks must be at least 1, got {tuple(ranks)}")
