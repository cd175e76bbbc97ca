"""Build a data set from images of people: classes to train, held-out images, and unseen identities to verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedra.core.random import key
from fedra.data.dataset import Dataset, Pairs, Split
from fedra.data.decoding import stratified_split
from fedra.data.image_sizes import UNALIGNED
from fedra.data.images import indices
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets.verification_sets import VerificationSet


@dataclass(frozen=True)
class People:
    """Images with the person and the group of each."""

    inputs: Tensor
    names: Sequence[str]
    groups: Sequence[str] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def closed_set(name: str, people: People, test_fraction: float, unseen: Iterable[str] = ()) -> tuple[Dataset, Tensor]:
    """Make each person except the unseen ones a class, with `test_fraction` of their images held out.

    The test split has these images, then all images of the unseen people, with labels after the last class. Also
    returns the row of each image in the test split, -1 for training images.
    """
    excluded = set(unseen)
    classes = tuple(sorted(set(people.names) - excluded))
    if not classes:
        raise DataError(f"the data set '{name}' must have people to train on, got none: use more, or hold out fewer")
    numbers = indices(people.names, classes + tuple(sorted(set(people.names) & excluded)))
    known = (numbers < len(classes)).nonzero().flatten()
    train, held_out = (known[rows] for rows in stratified_split(numbers[known], test_fraction))
    test = torch.cat([held_out, (numbers >= len(classes)).nonzero().flatten()])
    test_row = torch.full((len(numbers),), -1)
    test_row[test] = torch.arange(len(test))
    owners = tuple(dict.fromkeys(people.groups))
    dataset = Dataset(
        name,
        Split(people.inputs[train], numbers[train]),
        Split(people.inputs[test], numbers[test]),
        classes,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        augment=("flip",),
        groups=indices(people.groups, owners)[train] if owners else None,
        group_names=owners,
        notes=dict(people.notes),
    )
    return dataset, test_row


def with_drawn_pairs(dataset: Dataset, count: int | None, seed: int) -> Dataset:
    """Add balanced random pairs of images of the unseen identities."""
    first = int((dataset.test.targets < len(dataset.classes)).sum())
    drawn = draw_pairs(dataset.test.targets[first:], count, seed=seed)
    return replace(dataset, pairs=replace(drawn, first=drawn.first + first, second=drawn.second + first))


def with_verification(dataset: Dataset, other: VerificationSet) -> Dataset:
    """Append the images and pairs of a verification set to the test split; raise if a person is in both."""
    if shared := sorted(set(dataset.classes) & set(other.names)):
        raise DataError(
            f"the training data and '{other.name}' must not share people, but '{shared[0]}'"
            f"{f' and {len(shared) - 1} more are' if shared[1:] else ' is'} in both: exclude them with leave_out, or "
            "verify on another set"
        )
    before = len(dataset.test)
    inputs = torch.cat([dataset.test.inputs, other.images])
    targets = torch.cat([dataset.test.targets, other.people + len(dataset.classes)])
    pairs = Pairs(other.pairs.first + before, other.pairs.second + before, other.pairs.same, other.pairs.folds)
    notes = dataset.notes | ({f"{UNALIGNED} in {other.name}": other.note} if other.note else {})
    return replace(dataset, test=Split(inputs, targets), pairs=pairs, notes=notes)


def draw_unseen(name: str, candidates: Iterable[str], count: int, seed: int) -> set[str]:
    """Choose people at random who are excluded from training."""
    people = sorted(candidates)
    if len(people) <= count:
        raise ConfigError(
            f"test_identities must be below {len(people)} (the people with two or more images in '{name}'), got {count}"
        )
    drawn = np.random.default_rng(key(seed, "strangers")).permutation(len(people))[:count]
    return {people[row] for row in drawn}


def check_test(dataset: Dataset) -> Dataset:
    """Raise if a data set has no test images."""
    if not len(dataset.test):
        raise ConfigError(
            f"the data set '{dataset.name}' must have test images, got none: raise test_fraction (an identity's only "
            "image is never held out), or set test_identities or verify"
        )
    return dataset
