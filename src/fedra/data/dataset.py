"""The data set classes: splits of examples, verification pairs, and metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Inputs and their labels.

    Args:
        inputs: uint8 (N, C, H, W) for images, or float (N, ...).
        targets: Class index of each example, int64 (N,).

    Example:
        >>> import torch
        >>> len(Split(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
        5
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Pairs:
    """Pairs of test examples for verification.

    Args:
        first: Row of the test split of each pair's first image, int64 (P,).
        second: Row of each pair's second image, int64 (P,).
        same: Whether both images show the same person, bool (P,).
        folds: Fold of each pair, int64 (P,) in ascending order. The threshold of a fold is chosen on the other folds.

    Example:
        >>> import torch
        >>> one = torch.tensor([0])
        >>> len(Pairs(one, one + 1, torch.tensor([True]), one))
        1
    """

    first: Tensor
    second: Tensor
    same: Tensor
    folds: Tensor

    def __len__(self) -> int:
        return len(self.same)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with metadata.

    Args:
        name: Name of the data set in messages.
        train: Training examples.
        test: Test examples. Targets of `len(classes)` and above are unseen identities, which `pairs` compares.
        classes: Names of the classes.
        mean: Value to subtract per channel, on the 0..1 scale for uint8; None disables normalization.
        std: Value to divide by per channel after that.
        augment: Names of the augmentations that papers use for this data set.
        groups: Owner of each training example (a writer, a hospital, a folder), if the data set has owners.
        notes: Notes on the data for reports.
        pairs: Pairs of test examples for verification.
        group_names: Names of the groups, if known.

    Example:
        >>> import torch
        >>> split = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
        >>> Dataset("two", split, split, ("no", "yes"), mean=(0.5,), std=(0.5,)).shape
        (1, 8, 8)
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
    pairs: Pairs | None = None
    group_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def known_test(self) -> Split:
        """Test examples of the training classes, without unseen identities; accuracy is computed on these."""
        known = self.test.targets < len(self.classes)
        return self.test if bool(known.all()) else Split(self.test.inputs[known], self.test.targets[known])
