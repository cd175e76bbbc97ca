"""What can be wrong with embeddings, scores and identities, each told in one sentence."""

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
    """One embedding a row, and at least one."""
    if rows.dim() != 2 or not rows.is_floating_point():
        raise DataError(f"{name} must be a floating-point table (N, d), not {rows.dtype} of shape {tuple(rows.shape)}")
    if not rows.numel():
        raise DataError(f"{name} are empty, of shape {tuple(rows.shape)}: there is nothing to evaluate")


def check_same_length(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Embeddings that are compared have one length."""
    if one.shape[1] != other.shape[1]:
        raise DataError(
            f"{first} have length {one.shape[1]} but {second} have {other.shape[1]}: take both from one network"
        )


def lengths(name: str, rows: Tensor, start: int = 0) -> Tensor:
    """The length (N, 1) of every row; a row without a direction is refused by its number, counted from `start`."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    broken = ~torch.isfinite(norms) | (norms <= NORM_FLOOR)
    if bool(broken.any()):
        row = int(broken.squeeze(1).nonzero()[0, 0])
        fault = "is zero, so it has no direction" if float(norms[row]) <= NORM_FLOOR else "holds NaN or infinity"
        raise DataError(f"{name}: row {start + row} {fault}: check the network and the image behind it")
    return norms


def directions(name: str, rows: Tensor, start: int = 0) -> Tensor:
    """Rows of unit length in at least float32; a row without a direction is refused by its number from `start`."""
    rows = rows.to(working_dtype(rows))
    return rows / lengths(name, rows, start)


def check_integers(name: str, values: Tensor, count: int, of: str) -> None:
    """One integer for each of `count` things."""
    if values.dim() != 1 or values.dtype not in INTEGERS:
        raise DataError(f"{name} must be a list of integers, not {values.dtype} of shape {tuple(values.shape)}")
    if len(values) != count:
        raise DataError(f"there are {len(values)} {name} for {count} {of}: give one for each")


def check_flags(name: str, flags: Tensor, count: int, of: str) -> None:
    """One truth value for each of `count` things."""
    if flags.dim() != 1 or flags.dtype != torch.bool:
        raise DataError(f"{name} must be a list of truth values, not {flags.dtype} of shape {tuple(flags.shape)}")
    if len(flags) != count:
        raise DataError(f"there are {len(flags)} {name} for {count} {of}: give one for each")


def sorted_scores(name: str, scores: Tensor) -> NDArray[np.floating]:
    """Scores in rising order, in at least float32; none, NaN or infinity are refused."""
    if scores.dim() != 1 or not scores.is_floating_point():
        raise DataError(f"{name} must be a list of numbers, not {scores.dtype} of shape {tuple(scores.shape)}")
    if not len(scores):
        raise DataError(f"there are no {name}: a rate needs genuine and impostor comparisons")
    values: NDArray[np.floating] = np.sort(scores.detach().to(working_dtype(scores)).cpu().numpy())
    if not (np.isfinite(values[0]) and np.isfinite(values[-1])):  # NaN sorts last
        raise DataError(f"the {name} hold NaN or infinity: check the embeddings they come from")
    return values


def check_rate(name: str, rate: float) -> None:
    """A share of errors that may be asked for."""
    if not 0 <= rate < 1:
        raise ConfigError(f"{name} = {rate!r} cannot be asked for: give a number from 0 to below 1")


def check_single(ids: Tensor) -> None:
    """One gallery template for each subject."""
    subjects, counts = torch.unique(ids, return_counts=True)
    if int(counts.max()) > 1:
        subject = int(subjects[counts.argmax()])
        raise DataError(
            f"subject {subject} has {int(counts.max())} gallery templates: pool them into one by pool_templates"
        )


def check_ranks(ranks: Sequence[int]) -> None:
    """Ranks are counted from one."""
    if not ranks or min(ranks) < 1:
        raise ConfigError(f"ranks = {tuple(ranks)} cannot be asked for: give whole numbers from 1")
