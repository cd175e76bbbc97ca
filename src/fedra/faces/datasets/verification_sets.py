"""Sets that are made for verification alone: images and the pairs to be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.data.cache import cached
from fedra.data.dataset import Pairs
from fedra.data.image_sizes import cut_note, image_sizes
from fedra.data.images import Listing, indices, list_images, read_images
from fedra.data.loading import DATASETS, data_root, load
from fedra.data.pairs import FOLDS, draw_pairs
from fedra.data.sets.pickled import read_pickle
from fedra.errors import DataError
from fedra.faces.datasets.gathering import rows_of
from fedra.faces.datasets.lfw_lists import NamedPair, Photo, read_pair_list


@dataclass(frozen=True)
class VerificationSet:
    """Images uint8 (N, 3, H, W), pairs of their rows, and a number for the person each image shows.

    `names` are the people by number, where the set names them. Where it does not, images get one number when a
    genuine pair says that they show one person.
    """

    name: str
    images: Tensor
    pairs: Pairs
    people: Tensor
    names: tuple[str, ...] = ()
    note: str | None = None  # what had to be done to images that are no crops of the wanted size


def verification_set(
    on: str | Path,
    *,
    root: Path | str | None = None,
    size: int = 112,
    width: int | None = None,
    pairs: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> VerificationSet:
    """A verification set by what it is, under `root` unless its path is absolute.

    Images are read as squares of `size`; those that are all `size` high and `width` wide are taken as they are. A .bin
    file of InsightFace; a folder with LFW's pairs.txt (all of its folds); any folder of identity folders, whose
    pairs are drawn by `seed`, at most `pairs` of them; or a data set with pairs by its name, which takes its own
    `settings` alone.
    """
    base = data_root() if root is None else Path(root).expanduser()
    path = base / Path(on).expanduser()
    if path.is_file():
        return bin_set(path, size=size, root=base)
    if (path / "pairs.txt").is_file():
        return lfw_set(path, size=size, width=width, root=base)
    if path.is_dir():
        return folder_set(path, size=size, width=width, pairs=pairs, seed=seed, root=base)
    if str(on) not in DATASETS:
        raise DataError(f"'{on}' is neither a data set nor a file or folder under {base}: check the name")
    dataset = load(str(on), root=base, **settings)
    if dataset.pairs is None:
        raise DataError(f"the data set '{on}' has no pairs to verify: give one of faces, or a folder of identities")
    return VerificationSet(dataset.name, dataset.test.inputs, dataset.pairs, dataset.test.targets)


def bin_set(path: Path | str, *, size: int = 112, root: Path | str | None = None) -> VerificationSet:
    """InsightFace's .bin: a pickle of 2 P encoded images and P truth values; images 2 i and 2 i + 1 are pair i.

    Only lists, bytes, truth values and arrays of numpy are unpickled; a file that asks for more is refused.
    """
    path = Path(path)
    kept = cached(
        Path(root or path.parent),
        f"bin-{path.stem}",
        [path],
        lambda: _read_bin(path, size),
        {"path": str(path), "size": size, "sizes": True},
    )
    note = cut_note(kept["sizes"], (size, size))
    same = kept["same"].bool()
    rows = torch.arange(2 * len(same)).view(-1, 2)
    people = torch.where(same[:, None], rows[:, :1], rows).flatten()
    folds = torch.arange(len(same)) * FOLDS // len(same)
    pairs = Pairs(rows[:, 0].contiguous(), rows[:, 1].contiguous(), same, folds)
    people = torch.unique(people, return_inverse=True)[1]
    return VerificationSet(path.stem, kept["images"], pairs, people, note=note)


def lfw_set(
    folder: Path | str,
    *,
    size: int = 112,
    width: int | None = None,
    pairs: str = "pairs.txt",
    root: Path | str | None = None,
) -> VerificationSet:
    """The pairs of a list in LFW's format, and the images that they name; folder/name/name_0001.jpg is image 1."""
    folder = Path(folder)
    listed = read_pair_list(folder / pairs)
    listing = list_images(folder)
    wanted = {photo for pair in listed for photo in (pair.first, pair.second)}
    rows = [row for row, photo in enumerate(photos(listing)) if photo in wanted]
    chosen = rows_of(listing, rows)
    images, note = _images(Path(root or folder.parent), folder, chosen, size, width)
    names = tuple(sorted(set(chosen.classes)))
    rows_of_pairs = listed_pairs(listed, chosen, folder / pairs)
    return VerificationSet(folder.name, images, rows_of_pairs, indices(chosen.classes, names), names, note)


def folder_set(
    folder: Path | str,
    *,
    size: int = 112,
    width: int | None = None,
    pairs: int | None = None,
    seed: int = 0,
    root: Path | str | None = None,
) -> VerificationSet:
    """All images of folder/identity/image, with balanced pairs drawn by the seed."""
    folder = Path(folder)
    listing = list_images(folder)
    names = tuple(sorted(set(listing.classes)))
    people = indices(listing.classes, names)
    images, note = _images(Path(root or folder.parent), folder, listing, size, width)
    return VerificationSet(folder.name, images, draw_pairs(people, pairs, seed=seed), people, names, note)


def listed_pairs(listed: Sequence[NamedPair], listing: Listing, source: Path) -> Pairs:
    """Pairs by name as pairs of rows of a listing."""
    row = {photo: number for number, photo in enumerate(photos(listing))}
    for pair in listed:
        for photo in (pair.first, pair.second):
            if photo not in row:
                raise DataError(
                    f"{source} names image {photo[1]} of '{photo[0]}', which is not there as "
                    f"{photo[0]}/{photo[0]}_{photo[1]:04d}.jpg: unpack all images beside the list"
                )
    first, second = (torch.tensor([row[getattr(pair, side)] for pair in listed]) for side in ("first", "second"))
    same = torch.tensor([pair.same for pair in listed])
    return Pairs(first, second, same, torch.tensor([pair.fold for pair in listed]))


def photos(listing: Listing) -> list[Photo]:
    """Each image as LFW's lists name it: name_0001 is photo 1; other images have number 0, which no list asks for."""
    numbers = [path.stem.rpartition("_")[2] for path in listing.paths]
    return [
        (name, int(number) if number.isdecimal() else 0) for name, number in zip(listing.classes, numbers, strict=True)
    ]


def _images(root: Path, folder: Path, listing: Listing, size: int, width: int | None) -> tuple[Tensor, str | None]:
    """The images as squares of `size`, or as they are where all are `size` high and `width` wide; and what was done."""

    def decode() -> dict[str, Tensor]:
        sizes = image_sizes(listing.paths)
        fits = bool((sizes == torch.tensor([size, width or size])).all())
        images = read_images(listing.paths) if fits else read_images(listing.paths, size=(size, size), square=True)
        return {"images": images, "sizes": sizes}

    fields = {"path": str(folder), "size": size, "width": width}
    kept = cached(root, f"verification-{folder.name}", listing.paths, decode, fields)
    return kept["images"], cut_note(kept["sizes"], (size, int(kept["images"].shape[3])))


def _read_bin(path: Path, size: int) -> dict[str, Tensor]:
    content = read_pickle(path.read_bytes(), path, "a .bin file of verification pairs")
    if not isinstance(content, tuple | list) or len(content) != 2:
        raise DataError(f"{path} does not hold a list of images and a list of truth values: fetch it again")
    encoded, same = _encoded_images(path, content[0]), _truths(path, content[1])
    if not same or len(encoded) != 2 * len(same):
        raise DataError(f"{path} has {len(encoded)} images for {len(same)} pairs, not two each: fetch it again")
    try:
        images = read_images(encoded, size=(size, size), square=True)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return {"images": images, "same": torch.tensor(same, dtype=torch.uint8), "sizes": image_sizes(encoded)}


def _encoded_images(path: Path, images: Any) -> list[bytes]:
    if not isinstance(images, list | tuple):
        raise DataError(f"{path} holds a {type(images).__name__} where its images should be: fetch it again")
    found = [image.tobytes() if isinstance(image, np.ndarray) else image for image in images]
    for number, image in enumerate(found):
        if not isinstance(image, bytes):
            raise DataError(f"{path}: image {number} is a {type(image).__name__}, not an encoded image: fetch it again")
    return found


def _truths(path: Path, same: Any) -> list[bool]:
    values = list(same) if isinstance(same, list | tuple | np.ndarray) else [same]
    for number, value in enumerate(values):
        if not isinstance(value, bool | int | np.bool_ | np.integer) or value not in (0, 1):
            raise DataError(f"{path}: the label of pair {number} is {value!r}, not true or false: fetch it again")
    return [bool(value) for value in values]
