"""A folder of image files as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import stratified_split
from fedra.data.images import indices, list_images, read_images, under
from fedra.data.loading import DATASETS
from fedra.errors import DataError
from fedra.registry import FileName

Side = Annotated[int, Field(gt=0, le=10_000)]


@DATASETS.add("imagefolder")
def imagefolder(
    root: Path,
    *,
    path: FileName,
    size: Side | tuple[Side, Side] | None = None,
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    gray: bool = False,
    groups: bool = False,
) -> Dataset:
    """Your own images: path/class/image, or path/train/class/image and path/test/class/image.

    `path` is absolute, or relative to the data root or the current folder. With `groups`, one more level
    (group/class/image) is the owner of each image: a hospital, a writer, a camera. `size` (a side, or height and width)
    resizes images. Without a test folder, `test_fraction` of every class is held out.
    """
    base = under(root, path)
    parts = [base / "train", base / "test"] if _has_splits(base) else [base]
    listings = [list_images(part, groups=groups) for part in parts]
    classes, owners = (tuple(sorted(set(names))) for names in (listings[0].classes, listings[0].groups))
    if unknown := sorted(set(listings[-1].classes) - set(classes)):
        raise DataError(f"{parts[-1]} must only have classes of {parts[0]}, got '{unknown[0]}': add or remove it")
    files = [file for listing in listings for file in listing.paths]
    side = (size, size) if isinstance(size, int) else size
    stored = cached(
        root,
        f"imagefolder-{base.name}",
        files,
        lambda: {"inputs": read_images(files, gray=gray, size=side)},
        {"path": str(base), "size": side, "gray": gray},
    )
    targets = indices([name for listing in listings for name in listing.classes], classes)
    if len(listings) == 2:
        train, test = torch.arange(len(files)).tensor_split([len(listings[0].paths)])
    else:
        train, test = stratified_split(targets, test_fraction)
    if len(test) == 0:
        raise DataError(
            f"{base} must have enough images to hold out at least one, got {len(files)} with test_fraction = "
            f"{test_fraction}: add images, or increase test_fraction"
        )
    channels = stored["inputs"].shape[1]
    return Dataset(
        "imagefolder",
        Split(stored["inputs"][train], targets[train]),
        Split(stored["inputs"][test], targets[test]),
        classes,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        groups=indices(listings[0].groups, owners)[train] if groups else None,
        group_names=owners if groups else (),
    )


def _has_splits(base: Path) -> bool:
    """Return whether the top level is train and test (and optionally validation) instead of classes."""
    if not base.is_dir():
        raise DataError(
            f"the folder {base} does not exist: set `path` to a folder of images, absolute or in the data root"
        )
    names = {entry.name for entry in base.iterdir() if entry.is_dir() and entry.name[0] != "."}
    return {"train", "test"} <= names <= {"train", "test", "val", "valid", "validation"}
