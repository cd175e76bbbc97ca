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
class Pairs:
    """Pairs of test examples to be told apart: do the rows `first[i]` and `second[i]` show the same person?

    `first` and `second` are int64 (P,), `same` is bool (P,), `folds` int64 (P,) in rising order: the fold of each pair
    where a threshold is chosen on the other folds.
    """

    first: Tensor
    second: Tensor
    same: Tensor
    folds: Tensor

    def __len__(self) -> int:
        return len(self.same)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, the names of the classes, and the constants that normalise the inputs.

    `mean` and `std` are per channel on the 0..1 scale; None leaves float inputs as they are.
    `augment` names the batch operations its papers train with; `groups` is the natural owner of each
    training example (a writer, a hospital, a folder), where the set has one, and `group_names` are their names, where
    it knows them. Test targets from the number of classes on
    are strangers: people whom training never sees, for `pairs` to compare.
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
