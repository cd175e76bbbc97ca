"""From images of people to a data set: classes to train, images to count accuracy on, strangers to verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedra.core.random import key
from fedra.data.dataset import Dataset, Pairs, Split
from fedra.data.decoding import stratified
from fedra.data.image_sizes import UNALIGNED
from fedra.data.images import indices
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets.verification_sets import VerificationSet


@dataclass(frozen=True)
class People:
    """Images and the name of the person, and of the group, that each belongs to."""

    inputs: Tensor
    names: Sequence[str]
    groups: Sequence[str] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def closed_set(
    name: str, people: People, test_fraction: float, strangers: Iterable[str] = ()
) -> tuple[Dataset, Tensor]:
    """Everybody but the strangers as a class, with `test_fraction` of each one's images held out.

    The test split is these images, then all images of the strangers, numbered from the last class on. Also returned:
    the row of the test split that each image has gone to, -1 for those that are trained on.
    """
    aside = set(strangers)
    classes = tuple(sorted(set(people.names) - aside))
    if not classes:
        raise DataError(f"the data set '{name}' has nobody left to train on: take more people, or hold out fewer")
    numbers = indices(people.names, classes + tuple(sorted(set(people.names) & aside)))
    known = (numbers < len(classes)).nonzero().flatten()
    train, held_out = (known[rows] for rows in stratified(numbers[known], test_fraction))
    test = torch.cat([held_out, (numbers >= len(classes)).nonzero().flatten()])
    place = torch.full((len(numbers),), -1)
    place[test] = torch.arange(len(test))
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
    return dataset, place


def with_drawn_pairs(dataset: Dataset, count: int | None, seed: int) -> Dataset:
    """Balanced pairs of the strangers' images."""
    first = int((dataset.test.targets < len(dataset.classes)).sum())
    drawn = draw_pairs(dataset.test.targets[first:], count, seed=seed)
    return replace(dataset, pairs=replace(drawn, first=drawn.first + first, second=drawn.second + first))


def with_verification(dataset: Dataset, other: VerificationSet) -> Dataset:
    """The images and pairs of a verification set behind the test split; nobody may be in both."""
    if shared := sorted(set(dataset.classes) & set(other.names)):
        raise DataError(
            f"'{shared[0]}'{f' and {len(shared) - 1} more' if shared[1:] else ''} would be trained on and verified in "
            f"'{other.name}' too: leave them out with leave_out, or verify on others"
        )
    before = len(dataset.test)
    inputs = torch.cat([dataset.test.inputs, other.images])
    targets = torch.cat([dataset.test.targets, other.people + len(dataset.classes)])
    pairs = Pairs(other.pairs.first + before, other.pairs.second + before, other.pairs.same, other.pairs.folds)
    notes = dataset.notes | ({f"{UNALIGNED} in {other.name}": other.note} if other.note else {})
    return replace(dataset, test=Split(inputs, targets), pairs=pairs, notes=notes)


def draw_strangers(name: str, candidates: Iterable[str], count: int, seed: int) -> set[str]:
    """So many people at random, who are then kept out of training."""
    people = sorted(candidates)
    if len(people) <= count:
        raise ConfigError(
            f"the data set '{name}' has {len(people)} people with two or more images, too few for test_identities = "
            f"{count}: hold out fewer"
        )
    drawn = np.random.default_rng(key(seed, "strangers")).permutation(len(people))[:count]
    return {people[row] for row in drawn}


def check_test(dataset: Dataset) -> Dataset:
    """Refuse a set that has nothing to test on."""
    if not len(dataset.test):
        raise ConfigError(
            f"the data set '{dataset.name}' has no test images: raise test_fraction (nobody's only image is held out), "
            "or set test_identities or verify"
        )
    return dataset
