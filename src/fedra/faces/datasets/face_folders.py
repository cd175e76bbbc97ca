"""Folders of faces, one for each identity, and Labeled Faces in the Wild with its folds of people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.data.dataset import Dataset
from fedra.data.images import Listing, under
from fedra.data.loading import DATASETS
from fedra.data.pairs import alternating
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets.assembly import (
    People,
    check_test,
    closed_set,
    draw_strangers,
    with_drawn_pairs,
    with_verification,
)
from fedra.faces.datasets.gathering import (
    Faults,
    SharedNames,
    chosen,
    enough,
    first_of_each,
    gather,
    list_people,
    read_names,
    rows_of,
)
from fedra.faces.datasets.lfw_lists import read_pair_list, read_people
from fedra.faces.datasets.verification_sets import listed_pairs, verification_set

Count = Annotated[int, Field(gt=0)]
Side = Annotated[int, Field(ge=32)]
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
) -> Dataset:
    """Your own faces: folders of aligned images, folder/identity/image, every identity a class.

    `folders` are absolute or under the data root, and several make one set. Of images of `size` by `size` the middle
    `width` columns are kept, where a network wants 112x96. Everybody is taken who has `least` images, of each the first
    `most`; `take` and `leave_out` name lists of identities, one a line, and `identities` takes the first so many. Of
    every identity `test_fraction` of the images are held out to count accuracy on. For verification, `test_identities`
    people drawn by `seed` are kept out of training and compared in `pairs` balanced pairs; or `verify` names another
    set: a .bin file, a folder with LFW's pairs.txt, or a folder of identities. Natural groups are the folders, or with
    `groups = "level"` one more level, folder/group/identity/image. `shared_names` says whether a name in two folders is
    one person ("join") or two ("apart"). Unreadable images and copies of images are refused, or left out with
    `faults = "skip"`.
    """
    listing = list_people(
        [under(root, folder) for folder in folders],
        level=groups == "level",
        shared_names=shared_names,
    )
    wanted = enough(_listed(root, listing, take, leave_out).classes, least)
    wanted = set(sorted(wanted)[:identities])
    if not wanted:
        raise DataError(f"nobody in {', '.join(folders)} has {least} images: lower `least`, or check the lists")
    listing = first_of_each(chosen(listing, wanted), most)
    people = gathered(root, f"faces-{Path(folders[0]).name}", listing, size, least, faults)
    people = replace(people, inputs=middle_columns(people.inputs, width))
    return face_dataset("faces", root, people, size, test_fraction, test_identities, verify, pairs, seed)


def middle_columns(images: Tensor, width: int | None) -> Tensor:
    """The images without as many columns at the left as at the right."""
    whole = images.shape[3]
    if width is None or width == whole:
        return images
    if width > whole or (whole - width) % 2:
        raise ConfigError(
            f"width = {width} is not the middle of images of {whole} columns: give fewer, by an even number"
        )
    left = (whole - width) // 2
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
    """People as classes, tested on held-out images of theirs and, where asked for, on strangers."""
    if test_identities and verify is not None:
        raise ConfigError(f"the data set '{name}' has both test_identities and verify: hold out people or name a set")
    strangers = draw_strangers(name, enough(people.names, 2), test_identities, seed) if test_identities else set()
    dataset, _ = closed_set(name, people, test_fraction, strangers)
    if strangers:
        dataset = with_drawn_pairs(dataset, pairs, seed)
    if verify is not None:
        dataset = with_verification(dataset, verification_set(verify, root=root, size=size, pairs=pairs, seed=seed))
    return check_test(dataset)


def _listed(root: Path, listing: Listing, take: str | None, leave_out: str | None) -> Listing:
    """The people of the one list without those of the other."""
    names = set(listing.classes)
    wanted = names if take is None else read_names(root / Path(take).expanduser(), names)
    unwanted = set() if leave_out is None else read_names(root / Path(leave_out).expanduser(), names)
    return chosen(listing, wanted - unwanted)


def gathered(root: Path, name: str, listing: Listing, size: int, least: int, faults: Faults) -> People:
    """The images of everybody who still has enough of them when the faulty ones are gone."""
    found = gather(root, name, listing, size, faults)
    remaining = enough(found.listing.classes, least)
    rows = [row for row, person in enumerate(found.listing.classes) if person in remaining]
    notes = dict(found.notes)
    if gone := sorted(set(listing.classes) - remaining):
        notes["identities left out"] = ", ".join(gone)
    kept = rows_of(found.listing, rows)
    inputs = found.inputs if len(rows) == len(found.inputs) else found.inputs[torch.tensor(rows)]
    return People(inputs, kept.classes, kept.groups, notes)


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
) -> Dataset:
    """Labeled Faces in the Wild: train on the people of nine folds, verify on the pairs of the tenth.

    `folder` holds name/name_0001.jpg, people.txt and pairs.txt. `fold` (0 to 9) is verified: all its images are the
    strangers of the test split, and its 600 pairs are put in ten parts of both kinds. "dev" trains on
    peopleDevTrain.txt and verifies pairsDevTest.txt. `also` adds the identities of other folders to the training.
    Training takes people with `least` images, of which `test_fraction` are held out to count accuracy on. To verify all
    6,000 pairs, train on the data set 'faces' with `verify = "lfw"`.
    """
    base = root / Path(folder).expanduser()
    listing = list_people([base, *(root / Path(other).expanduser() for other in also)], shared_names=shared_names)
    prefix = f"{base.name}/" if shared_names == "apart" else ""
    trained, strangers = ({prefix + person for person in part} for part in _parts(base, fold))
    own = {person for person, group in zip(listing.classes, listing.groups, strict=True) if group == base.name}
    train = enough(listing.classes, least) - (own - trained) - strangers
    taken = chosen(listing, train | strangers)
    found = gather(root, f"lfw-{base.name}", taken, size, faults)
    people = People(found.inputs, found.listing.classes, found.listing.groups if also else (), found.notes)
    dataset, place = closed_set("lfw", people, test_fraction, strangers)
    named = "pairsDevTest.txt" if fold == "dev" else "pairs.txt"
    pairs = [pair for pair in read_pair_list(base / named) if fold in ("dev", pair.fold)]
    plain = Listing(
        found.listing.paths, tuple(name.removeprefix(prefix) for name in found.listing.classes), found.listing.groups
    )
    rows = listed_pairs(pairs, plain, base / named)
    ends = place[torch.stack([rows.first, rows.second], dim=1)]
    if bool((ends < 0).any()):
        raise DataError(f"{base / named} pairs people whom {base}'s lists give to training: use lists of one release")
    return replace(dataset, pairs=alternating(ends[rows.same], ends[~rows.same]))


def _parts(base: Path, fold: int | str) -> tuple[set[str], set[str]]:
    """Who is trained on, and who is verified."""
    if fold == "dev":
        train, test = (read_people(base / f"peopleDev{part}.txt") for part in ("Train", "Test"))
        return {person for people in train for person in people}, {person for people in test for person in people}
    folds = read_people(base / "people.txt")
    if int(fold) >= len(folds):
        raise ConfigError(f"fold = {fold} is not among the {len(folds)} folds of {base / 'people.txt'}: count from 0")
    return {name for number, people in enumerate(folds) if number != fold for name in people}, set(folds[int(fold)])
