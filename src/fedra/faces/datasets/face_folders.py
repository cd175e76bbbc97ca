"""Face data sets from folders with one subfolder per identity, and Labeled Faces in the Wild with its folds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.core.deferred import DeferredInputs
from fedra.data.dataset import Dataset
from fedra.data.images import Listing, under
from fedra.data.loading import DATASETS
from fedra.data.pairs import interleave_pairs
from fedra.data.streaming import ImageSource
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets.assembly import (
    People,
    check_test,
    closed_set,
    draw_unseen,
    with_drawn_pairs,
    with_verification,
)
from fedra.faces.datasets.gathering import (
    Faults,
    SharedNames,
    first_of_each,
    gather,
    list_people,
    read_names,
    rows_of,
    select_people,
    with_enough_images,
)
from fedra.faces.datasets.lfw_lists import read_pair_list, read_people
from fedra.faces.datasets.verification_sets import listed_pairs, verification_set

Count = Annotated[int, Field(gt=0)]
Side = Annotated[int, Field(ge=32, le=10_000)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0)]
Folders = Annotated[tuple[str, ...], Field(min_length=1)]


@DATASETS.add("faces")
def faces(
    root: Path,
    *,
    folders: Folders,
    size: Side = 112,
    width: Side | None = None,
    least: Count = 1,
    most: Count | None = None,
    identities: Count | None = None,
    take: str | None = None,
    leave_out: str | None = None,
    test_fraction: Fraction = 0.1,
    test_identities: Annotated[int, Field(ge=0)] = 0,
    verify: str | None = None,
    pairs: Count | None = None,
    seed: Seed = 0,
    groups: Literal["folder", "level"] = "folder",
    shared_names: SharedNames = "refuse",
    faults: Faults = "refuse",
    stream: bool | None = None,
) -> Dataset:
    """Your own faces: folders of aligned crops, folder/identity/image, with one class per identity.

    `folders` are absolute or relative to the data root; several folders form one data set. Images are read as `size` by
    `size`; `width` cuts out the middle columns, for networks that read 112x96. Identities with at least `least` images
    are used, with the first `most` images of each; `take` and `leave_out` are files that list identities to include and
    exclude, one per line, and `identities` limits their number. Of each identity, `test_fraction` of the images are
    held out to measure accuracy. For verification, `test_identities` randomly chosen people are excluded from training
    and compared in `pairs` balanced pairs; or `verify` names another set: a .bin file, a folder with LFW's pairs.txt,
    or a folder of identities. Natural groups are the folders or, with `groups = "level"`, one more level:
    folder/group/identity/image. `shared_names` decides whether a name in two folders is the same person ("join") or two
    people ("apart"). Unreadable and duplicate images raise an error, or are skipped with `faults = "skip"`. With
    `stream`, images are decoded batch by batch from their files instead of being held in memory; by default only if
    they would take more than half of this machine's memory.
    """
    listing = list_people(
        [under(root, folder) for folder in folders],
        level=groups == "level",
        shared_names=shared_names,
        faults=faults,
    )
    wanted = with_enough_images(_apply_lists(root, listing, take, leave_out).classes, least)
    wanted = set(sorted(wanted)[:identities])
    if not wanted:
        raise DataError(
            f"an identity must have at least {least} images (`least`), but none in {', '.join(folders)} has: lower "
            "`least`, or check the lists"
        )
    listing = first_of_each(select_people(listing, wanted), most)
    people = gather_people(root, f"faces-{Path(folders[0]).name}", listing, size, least, faults, stream)
    people = replace(people, inputs=middle_columns(people.inputs, width))
    return face_dataset("faces", root, people, size, test_fraction, test_identities, verify, pairs, seed)


def middle_columns(images: Tensor, width: int | None) -> Tensor:
    """Cut the same number of columns off the left and right of images."""
    full = images.shape[3]
    if width is None or width == full:
        return images
    if width > full or (full - width) % 2:
        raise ConfigError(f"width must be at most {full} (the image width) and differ by an even number, got {width}")
    if isinstance(images, DeferredInputs) and isinstance(images.source, ImageSource):
        return DeferredInputs(replace(images.source, width=width), images.rows)
    left = (full - width) // 2
    return images[..., left : left + width].contiguous()


def face_dataset(
    name: str,
    root: Path,
    people: People,
    size: int,
    test_fraction: float,
    test_identities: int,
    verify: str | None,
    pairs: int | None,
    seed: int,
) -> Dataset:
    """Build a data set with one class per person, tested on held-out images and, if requested, unseen identities."""
    if test_identities and verify is not None:
        raise ConfigError(f"the data set '{name}' must have only one of test_identities and verify, got both")
    unseen = draw_unseen(name, with_enough_images(people.names, 2), test_identities, seed) if test_identities else set()
    dataset, _ = closed_set(name, people, test_fraction, unseen)
    if unseen:
        dataset = with_drawn_pairs(dataset, pairs, seed)
    if verify is not None:
        streams = isinstance(people.inputs, DeferredInputs)
        others = verification_set(verify, root=root, size=size, pairs=pairs, seed=seed, stream=streams)
        dataset = with_verification(dataset, others)
    return check_test(dataset)


def _apply_lists(root: Path, listing: Listing, take: str | None, leave_out: str | None) -> Listing:
    """Select the people of the list `take` without those of the list `leave_out`."""
    names = set(listing.classes)
    included = names if take is None else read_names(root / Path(take).expanduser(), names)
    excluded = set() if leave_out is None else read_names(root / Path(leave_out).expanduser(), names)
    return select_people(listing, included - excluded)


def gather_people(
    root: Path, name: str, listing: Listing, size: int, least: int, faults: Faults, stream: bool | None
) -> People:
    """Read the images of all people who have enough usable ones."""
    found = gather(root, name, listing, size, faults, stream)
    remaining = with_enough_images(found.listing.classes, least)
    rows = [row for row, person in enumerate(found.listing.classes) if person in remaining]
    notes = dict(found.notes)
    if excluded := sorted(set(listing.classes) - remaining):
        notes["identities left out"] = ", ".join(excluded)
    used = rows_of(found.listing, rows)
    inputs = found.inputs if len(rows) == len(found.inputs) else found.inputs[torch.tensor(rows)]
    return People(inputs, used.classes, used.groups, notes)


@DATASETS.add("lfw")
def lfw(
    root: Path,
    *,
    folder: str = "lfw",
    fold: Annotated[int, Field(ge=0, le=9)] | Literal["dev"] = 9,
    also: tuple[str, ...] = (),
    size: Side = 112,
    least: Count = 1,
    test_fraction: Fraction = 0.1,
    shared_names: Literal["refuse", "apart"] = "refuse",
    faults: Faults = "refuse",
    stream: bool | None = None,
) -> Dataset:
    """Labeled Faces in the Wild: train on the people of nine folds, verify on the pairs of the tenth.

    `folder` contains name/name_0001.jpg, people.txt and pairs.txt. `fold` (0 to 9) is used for verification: its people
    are the unseen identities of the test split, and its 600 pairs are divided into ten balanced folds. "dev" trains on
    peopleDevTrain.txt and verifies pairsDevTest.txt. `also` adds the identities of other folders to the training data.
    Training uses people with at least `least` images, of which `test_fraction` are held out to measure accuracy.
    `stream` is that of the data set 'faces'. To verify all 6,000 pairs, train on 'faces' with `verify = "lfw"`.
    """
    base = root / Path(folder).expanduser()
    others = [root / Path(other).expanduser() for other in also]
    listing = list_people([base, *others], shared_names=shared_names, faults=faults)
    prefix = f"{base.name}/" if shared_names == "apart" else ""
    trained, unseen = ({prefix + person for person in part} for part in _split_people(base, fold))
    own = {person for person, group in zip(listing.classes, listing.groups, strict=True) if group == base.name}
    train = with_enough_images(listing.classes, least) - (own - trained) - unseen
    selected = select_people(listing, train | unseen)
    found = gather(root, f"lfw-{base.name}", selected, size, faults, stream)
    people = People(found.inputs, found.listing.classes, found.listing.groups if also else (), found.notes)
    dataset, test_row = closed_set("lfw", people, test_fraction, unseen)
    named = "pairsDevTest.txt" if fold == "dev" else "pairs.txt"
    pairs = [pair for pair in read_pair_list(base / named) if fold in ("dev", pair.fold)]
    plain = Listing(
        found.listing.paths, tuple(name.removeprefix(prefix) for name in found.listing.classes), found.listing.groups
    )
    rows = listed_pairs(pairs, plain, base / named)
    paired = test_row[torch.stack([rows.first, rows.second], dim=1)]
    if bool((paired < 0).any()):
        raise DataError(f"{base / named} must pair only people outside the training folds: use lists of one release")
    return replace(dataset, pairs=interleave_pairs(paired[rows.same], paired[~rows.same]))


def _split_people(base: Path, fold: int | str) -> tuple[set[str], set[str]]:
    """Return the people to train on and the people to verify."""
    if fold == "dev":
        train, test = (read_people(base / f"peopleDev{part}.txt") for part in ("Train", "Test"))
        return {person for people in train for person in people}, {person for people in test for person in people}
    folds = read_people(base / "people.txt")
    if int(fold) >= len(folds):
        raise ConfigError(
            f"fold must be between 0 and {len(folds) - 1} (the folds of {base / 'people.txt'}), got {fold}"
        )
    return {name for number, people in enumerate(folds) if number != fold for name in people}, set(folds[int(fold)])
