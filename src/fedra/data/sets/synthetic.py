"""Learnable random examples: class prototypes with structured noise, generated from a seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedra.data.dataset import Dataset, Split
from fedra.data.loading import DATASETS
from fedra.errors import ConfigError
from fedra.machine import require_memory

Count = Annotated[int, Field(gt=0)]

NUISANCES = 8
"""Rank of the structured noise; it is low, so averaging pixels does not remove the noise."""
GROUP_SHIFT = 0.5
GRAY, CONTRAST = 128.0, 40.0


@DATASETS.add("synthetic")
def synthetic(
    root: Path,
    *,
    examples: Count = 2000,
    test_examples: Count = 500,
    classes: Annotated[int, Field(gt=1)] = 10,
    shape: tuple[Count, ...] = (1, 16, 16),
    noise: Annotated[float, Field(ge=0)] = 0.5,
    seed: Annotated[int, Field(ge=0)] = 0,
    groups: Annotated[int, Field(ge=0)] = 0,
) -> Dataset:
    """Learnable random images (shape C, H, W) or vectors (any other shape), in any number and size.

    x = prototype(class) + noise (structured + white) + shift(group). Images are uint8, other shapes float. Labels are
    balanced. With `groups`, every example belongs to one of `groups` groups, each with its own shift.
    """
    if not shape:
        raise ConfigError("data.shape must have at least one size for 'synthetic', got []: set shape = [1, 16, 16]")
    numbers = (4 * max(examples, test_examples) + 3 * (classes + groups)) * math.prod(shape)  # with copies
    require_memory(
        "the synthetic examples", 4 * numbers, "lower data.examples, data.test_examples, data.classes or data.shape"
    )
    draw = torch.Generator().manual_seed(seed)
    prototypes = _patterns(classes, shape, draw)
    nuisances = _patterns(NUISANCES, shape, draw) / math.sqrt(NUISANCES)
    shifts = GROUP_SHIFT * _patterns(groups, shape, draw)

    def split(count: int) -> tuple[Split, Tensor | None]:
        targets = (torch.arange(count) % classes)[torch.randperm(count, generator=draw)]
        structured = torch.randn(count, NUISANCES, generator=draw) @ nuisances.flatten(1)
        white = torch.randn(count, math.prod(shape), generator=draw)
        values = prototypes[targets] + noise * (structured + white).view(count, *shape)
        owners = torch.randint(groups, (count,), generator=draw) if groups else None
        if owners is not None:
            values += shifts[owners]
        return Split(_as_bytes(values) if len(shape) == 3 else values, targets), owners

    train, owners = split(examples)
    test, _ = split(test_examples)
    return Dataset(
        "synthetic",
        train,
        test,
        tuple(f"class {number}" for number in range(classes)),
        mean=(GRAY / 255,) if len(shape) == 3 else None,
        std=(CONTRAST / 255,) if len(shape) == 3 else None,
        groups=owners,
    )


def _patterns(count: int, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Sample `count` random patterns of unit variance; those of images are smooth."""
    if count == 0:
        return torch.zeros(0, *shape)
    if len(shape) != 3:
        return torch.randn(count, *shape, generator=draw)
    coarse = torch.randn(count, shape[0], 4, 4, generator=draw)
    smooth = torch.nn.functional.interpolate(coarse, shape[1:], mode="bilinear", align_corners=False)
    return smooth / smooth.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()


def _as_bytes(values: Tensor) -> Tensor:
    return (GRAY + CONTRAST * values).round().clamp(0, 255).to(torch.uint8)
