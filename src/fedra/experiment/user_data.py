"""Convert a user's tensors, arrays and data sets to examples, validated before training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from fedra.core.batches import AsIs, Examples, InputTransform
from fedra.core.random import scoped_seed
from fedra.errors import ConfigError

Batches = Callable[[Tensor], Tensor]
"""A function from a batch of inputs to a batch of inputs, such as an augmentation."""

Client = tuple[Any, Any] | tuple[Any, Any, Batches] | TorchDataset[Any] | DataLoader[Any]
"""A pair (inputs, targets), a triple that adds a transform, a map-style data set, or a loader of one."""

FIXED_SEED = 0
"""Seed of passes outside training, so a random data set always returns the same example to them."""


@dataclass(frozen=True)
class Function:
    """A user's function on batches, seeded for every batch from the client's random stream."""

    function: Batches
    deterministic: bool = False

    def prepare(self, inputs: Tensor) -> Tensor:
        with seeded(FIXED_SEED):
            return self.function(inputs)

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        with seeded(_draw_seed(generator)):
            return self.function(inputs)


@dataclass(frozen=True)
class Reader:
    """Reads examples of a data set when they are needed, so random transforms differ in every epoch."""

    source: TorchDataset[Any]
    deterministic: bool = False

    def prepare(self, inputs: Tensor) -> Tensor:
        with seeded(FIXED_SEED):
            return self._read(inputs)

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        with seeded(_draw_seed(generator)):
            return self._read(inputs)

    def _read(self, rows: Tensor) -> Tensor:
        return torch.stack([torch.as_tensor(self.source[row][0]) for row in rows.tolist()]).to(rows.device)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, random and NumPy in the block, and restore them afterward."""
    plain, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002  (user code may use the old one)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        with scoped_seed(seed):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)  # noqa: NPY002


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def examples_of(source: Client, where: str) -> Examples:
    """Convert the examples of a client or the test set, which error messages call `where`."""
    if isinstance(source, DataLoader):
        source = source.dataset
    if not isinstance(source, tuple | list) and not _is_map_style(source):
        raise ConfigError(
            f"{where} must be a pair (inputs, targets), a map-style Dataset or a DataLoader of one, got "
            f"{type(source).__name__}"
        )
    if isinstance(source, TensorDataset):
        return _from_pair(source.tensors, where)
    if isinstance(source, tuple | list):
        return _from_pair(source, where)
    return _from_dataset(source, where)


def _is_map_style(source: Any) -> bool:
    """Return whether examples can be read by their number; neither a single tensor nor a table of columns is meant."""
    if isinstance(source, IterableDataset | Mapping | str | bytes | Tensor | np.ndarray):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _from_pair(source: tuple[Any, ...] | list[Any], where: str) -> Examples:
    if len(source) not in (2, 3) or (len(source) == 3 and not callable(source[2])):
        raise ConfigError(
            f"{where} must be a pair (inputs, targets) or a triple with a transform, got {len(source)} items"
        )
    transform: InputTransform = Function(source[2]) if len(source) == 3 else AsIs()
    inputs, targets = (torch.as_tensor(values) for values in source[:2])
    if len(inputs) != len(targets) or not len(targets):
        raise ConfigError(
            f"{where} must have as many inputs as targets, and at least one, got {len(inputs)} and {len(targets)}"
        )
    return Examples(inputs, validate_targets(targets, where), transform)


def _from_dataset(source: TorchDataset[Any], where: str) -> Examples:
    count = len(source)  # type: ignore[arg-type]
    if not count:
        raise ConfigError(f"{where} must have at least one example, got none: leave it out, or add examples")
    with seeded(FIXED_SEED):
        targets = torch.as_tensor(np.asarray([_target(source[row], where) for row in range(count)]))
    return Examples(torch.arange(count), validate_targets(targets, where), Reader(source))


def _target(example: Any, where: str) -> Any:
    if not isinstance(example, tuple | list) or len(example) < 2:
        got = f"{len(example)} items" if isinstance(example, tuple | list) else type(example).__name__
        raise ConfigError(f"{where} must return pairs (input, target), got {got} from its data set: wrap the data set")
    return example[1]


def validate_targets(targets: Tensor, where: str) -> Tensor:
    """Return class numbers as an int64 vector; a single column is flattened."""
    if targets.dim() == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.is_floating_point() or targets.is_complex() or targets.dim() != 1:
        raise ConfigError(
            f"{where} must have a vector of class numbers (integers) as targets, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}"
        )
    return targets.long()


def prepared(examples: Examples, count: int) -> Tensor:
    """Return the first inputs, prepared for the model."""
    return examples.transform.prepare(examples.inputs[:count])
