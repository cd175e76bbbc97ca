"""Augmentation and normalization of batches on their device, with a given random generator.

Random numbers are generated on the CPU and then moved, so a batch is the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedra.core.transfer import to_device
from fedra.data.dataset import Dataset
from fedra.errors import ConfigError
from fedra.registry import Registry

AUGMENTATIONS = Registry("augmentation")
"""Batch augmentations by name: crop, cutout, flip, reflect-crop.

Example:
    >>> sorted(AUGMENTATIONS)
    ['crop', 'cutout', 'flip', 'reflect-crop']
"""


class Operation(Protocol):
    """A random augmentation of a batch (B, C, H, W), on raw or on normalized values."""

    normalized: ClassVar[bool]

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Crop:
    """A crop of the image's own size, at a uniform position in the image padded by `padding` on each side."""

    padding: int = 4
    mode: Literal["zeros", "reflect"] = "zeros"
    normalized: ClassVar[bool] = False

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        size, channels, height, width = batch.shape
        shifts = torch.randint(-self.padding, self.padding + 1, (2, size, 1), generator=generator)
        rows, inside_rows = self._source(shifts[0], height)
        columns, inside_columns = self._source(shifts[1], width)
        pixels = (rows[:, :, None] * width + columns[:, None, :]).view(size, 1, -1)
        window = batch.flatten(2).gather(2, to_device(pixels, batch.device).expand(-1, channels, -1)).view_as(batch)
        if self.mode == "reflect":
            return window
        inside = (inside_rows[:, :, None] & inside_columns[:, None, :]).unsqueeze(1)
        return window.mul_(to_device(inside, batch.device))

    def _source(self, shift: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the rows (or columns) of each crop, clamped to the image, and which of them are not padding."""
        rows = shift + torch.arange(length)
        inside = (rows >= 0) & (rows < length)
        if self.mode == "reflect":
            rows = rows.abs()
            rows = (length - 1) - (length - 1 - rows).abs()
        return rows.clamp(0, length - 1), inside


@dataclass(frozen=True)
class Flip:
    """A horizontal flip of each image with probability 0.5."""

    normalized: ClassVar[bool] = False

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        chosen = torch.randint(2, (len(batch), 1, 1, 1), generator=generator).bool()
        return torch.where(to_device(chosen, batch.device), batch.flip(-1), batch)


@dataclass(frozen=True)
class Cutout:
    """One square of normalized zeros, its center uniform over the pixels, clipped at the borders.

    DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017.
    """

    size: int = 16
    normalized: ClassVar[bool] = True

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        covered_rows = self._covered(len(batch), batch.shape[-2], generator)
        covered_columns = self._covered(len(batch), batch.shape[-1], generator)
        hole = (covered_rows[:, :, None] & covered_columns[:, None, :]).unsqueeze(1)
        return batch.masked_fill(to_device(hole, batch.device), 0.0)

    def _covered(self, size: int, length: int, generator: torch.Generator) -> Tensor:
        center = torch.randint(length, (size, 1), generator=generator)
        position = torch.arange(length)
        return (position >= center - self.size // 2) & (position < center + self.size // 2)


@dataclass(frozen=True)
class Normalize:
    """Computes (x - mean) / std per channel, with x on the 0..1 scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: Tensor) -> Tensor:
        channels = (-1, *(1 for _ in batch.shape[2:]))
        mean = to_device(torch.tensor(self.mean, dtype=batch.dtype).view(channels), batch.device)
        std = to_device(torch.tensor(self.std, dtype=batch.dtype).view(channels), batch.device)
        return (batch - mean).div_(std)


@dataclass(frozen=True)
class Transform:
    """Converts raw inputs to the floats that a model takes: `prepare` for evaluation, `batch` for training.

    Args:
        mean: Value to subtract per channel, on the 0..1 scale for uint8.
        std: Value to divide by per channel after that.
        augment: Random operations on training batches, in order.

    Example:
        >>> import torch
        >>> Transform((0.5,), (0.5,)).prepare(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).max()
        tensor(1.)
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[Operation, ...] = ()

    @property
    def deterministic(self) -> bool:
        """Whether `batch` equals `prepare`, so its outputs can be reused."""
        return not self.augment

    def prepare(self, inputs: Tensor) -> Tensor:
        """Scale uint8 inputs to 0..1 and normalize, without augmentation; floats are only normalized."""
        scaled = inputs.to(torch.float32) if inputs.is_floating_point() else inputs.to(torch.float32).div_(255)
        if self.mean is None or self.std is None:
            return scaled
        return Normalize(self.mean, self.std)(scaled)

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Augment and normalize, with crops before normalization so padding is black in raw values."""
        for operation in self.augment:
            if not operation.normalized:
                inputs = operation(inputs, generator)
        outputs = self.prepare(inputs)
        for operation in self.augment:
            if operation.normalized:
                outputs = operation(outputs, generator)
        return outputs


@AUGMENTATIONS.add("crop")
def crop() -> Crop:
    """Random crop of the image padded by 4 black pixels."""
    return Crop(padding=4, mode="zeros")


@AUGMENTATIONS.add("reflect-crop")
def reflect_crop() -> Crop:
    """Random crop of the image padded by 4 mirrored pixels."""
    return Crop(padding=4, mode="reflect")


@AUGMENTATIONS.add("flip")
def flip() -> Flip:
    """Horizontal flip with probability 0.5."""
    return Flip()


@AUGMENTATIONS.add("cutout")
def cutout() -> Cutout:
    """Square of 16 x 16 pixels set to zero after normalization."""
    return Cutout(size=16)


def transform_for(dataset: Dataset, augment: str | Sequence[str] = "paper") -> Transform:
    """Return the preprocessing and augmentation of a data set.

    Args:
        dataset: The data set.
        augment: "none", "paper" for the augmentation that papers use for this data set, or a list of names.

    Returns:
        The transform from raw inputs to floats.

    Example:
        >>> from fedra.data import load
        >>> transform_for(load("digits"), ["flip"]).deterministic
        False
    """
    if augment == "none":
        names: tuple[str, ...] = ()
    elif augment == "paper":
        names = dataset.augment
    elif isinstance(augment, str):
        raise ConfigError(f"augment must be 'none', 'paper' or a list of names, got '{augment}'")
    else:
        names = tuple(augment)
    operations = tuple(AUGMENTATIONS[name]() for name in names)
    _check_shape(dataset, names, operations)
    return Transform(dataset.mean, dataset.std, operations)


def _check_shape(dataset: Dataset, names: Sequence[str], operations: Sequence[Operation]) -> None:
    if operations and len(dataset.shape) != 3:
        raise ConfigError(
            f"augment = {list(names)} must be used with images (C, H, W), got examples of shape {dataset.shape} in "
            f"'{dataset.name}': set augment to 'none'"
        )
    for name, operation in zip(names, operations, strict=True):
        if isinstance(operation, Crop) and operation.padding >= min(dataset.shape[-2:]):
            raise ConfigError(
                f"images must be larger than {operation.padding} pixels for the augmentation '{name}', got "
                f"{dataset.shape[-2]} x {dataset.shape[-1]} in '{dataset.name}': remove it from augment"
            )
