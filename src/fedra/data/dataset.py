"""What a loader hands over: images and labels as tensors made once, and how to look at them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Examples and their labels.

    Args:
        inputs: uint8 (N, C, H, W) for images, or float (N, ...).
        targets: int64 (N,), the number of each example's class.

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
    """Pairs of test examples to be told apart: do the rows `first[i]` and `second[i]` show the same person?

    Args:
        first: Rows of the test split, int64 (P,).
        second: The rows they are compared with, int64 (P,).
        same: Whether both show the same person, bool (P,).
        folds: The fold of each pair, int64 (P,) in rising order; a fold's threshold is chosen on the others.

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
    """A training and a test split, and how to look at them.

    Args:
        name: What messages call the data set.
        train: The training examples.
        test: The test examples. Targets from the number of classes on are unseen identities: people whom training
            never sees, for `pairs` to compare.
        classes: The names of the classes.
        mean: Subtracted per channel, on the 0..1 scale for bytes; None leaves inputs as they are.
        std: Divided by after that.
        augment: The batch operations that the set's papers train with.
        groups: The natural owner of each training example (a writer, a hospital, a folder), where the set has one.
        notes: What a report says about the data.
        pairs: Pairs of test examples for verification.
        group_names: The names of the groups, where the set knows them.

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
        """The shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def known_test(self) -> Split:
        """The test examples of the classes: those of which accuracy can be counted."""
        known = self.test.targets < len(self.classes)
        return self.test if bool(known.all()) else Split(self.test.inputs[known], self.test.targets[known])
