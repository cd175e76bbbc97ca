"""What a loader hands over: images and labels as tensors made once, and how to look at them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """`inputs` uint8 (N, C, H, W) for images, or float (N, ...); `targets` int64 (N,)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, the names of the classes, and the constants that normalise the inputs.

    `mean` and `std` are per channel on the 0..1 scale; None leaves float inputs as they are.
    `augment` names the batch operations its papers train with; `groups` is the natural owner of each
    training example (a writer, a hospital, a folder), where the set has one.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[str, ...] = ()
    groups: Tensor | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.inputs.shape[1:])
