"""Verification sets: images and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core.deferred import DeferredInputs
from fedra.data.cache import cached
from fedra.data.dataset import Pairs
from fedra.data.image_sizes import crop_note, image_sizes
from fedra.data.images import Listing, indices, list_images, read_images
from fedra.data.loading import DATASETS, data_root, load
from fedra.data.pairs import FOLDS, draw_pairs
from fedra.data.sets.pickled import read_pickle
from fedra.data.streaming import ImageFiles, PackedImages, join_bytes
from fedra.errors import DataError
from fedra.faces.datasets.gathering import rows_of
from fedra.faces.datasets.lfw_lists import read_pair_list
from fedra.faces.datasets.named_pair import NamedPair, Photo
from fedra.file_reading import LARGE, read_file


@dataclass(frozen=True)
class VerificationSet:
    """Images and the pairs to verify.

    Args:
        name: Name of the set.
        images: Images, uint8 (N, 3, H, W).
        pairs: Pairs of rows.
        people: Person of each image (N,). Without names, only genuine pairs share a person.
        names: Names of the people, if the set has them.
        note: What was done to images that do not have the requested size; None if nothing.

    Example:
        >>> verification_set("lfw").images.shape
        torch.Size([7701, 3, 112, 112])
    """

    name: str
    images: Tensor
    pairs: Pairs
    people: Tensor
    names: tuple[str, ...] = ()
    note: str | None = None


def verification_set(
    on: str | Path,
    *,
    root: Path | str | None = None,
    size: int = 112,
    width: int | None = None,
    pairs: int | None = None,
    seed: int = 0,
    stream: bool = False,
    **settings: Any,
) -> VerificationSet:
    """Open a verification set of any kind.

    Args:
        on: One of InsightFace's .bin files; a folder with LFW's pairs.txt (all folds); a folder with one subfolder per
            identity, whose pairs are random; or the name of a data set with pairs.
        root: Folder that relative paths start from; default: the data root.
        size: Images are read as squares of this side.
        width: Images that are all `size` high and `width` wide are used unchanged.
        pairs: For a folder of identities: the maximum number of pairs.
        seed: For a folder of identities: random seed of the pairs.
        stream: Whether images stay encoded until they are needed; not for data sets.
        settings: For a data set: its fields.

    Returns:
        The images and pairs.

    Example:
        >>> len(verification_set("lfw").pairs.same)
        6000
    """
    base = data_root() if root is None else Path(root).expanduser()
    path = base / Path(on).expanduser()
    if path.is_file():
        return bin_set(path, size=size, root=base, stream=stream)
    if (path / "pairs.txt").is_file():
        return lfw_set(path, size=size, width=width, root=base, stream=stream)
    if path.is_dir():
        return folder_set(path, size=size, width=width, pairs=pairs, seed=seed, root=base, stream=stream)
    if str(on) not in DATASETS:
        raise DataError(f"'{on}' must be a data set, or a file or folder under {base}: check the name")
    dataset = load(str(on), root=base, **settings)
    if dataset.pairs is None:
        raise DataError(f"the data set '{on}' has no pairs to verify: use a face data set or a folder of identities")
    return VerificationSet(dataset.name, dataset.test.inputs, dataset.pairs, dataset.test.targets)


def bin_set(
    path: Path | str, *, size: int = 112, root: Path | str | None = None, stream: bool = False
) -> VerificationSet:
    """Read one of InsightFace's .bin files: a pickle of 2 P encoded images and P booleans.

    Images 2 i and 2 i + 1 are pair i. Only lists, bytes, booleans and numpy arrays are unpickled; anything else raises.

    Args:
        path: The file.
        size: Images are read as squares of this side.
        root: Folder of the cache; default: the folder of the file.
        stream: Whether images stay encoded, in the cache, until they are needed.

    Returns:
        The images and pairs.

    Example:
        >>> bin_set("faces/agedb_30.bin").name
        'agedb_30'
    """
    path = Path(path)
    fields = {"path": str(path), "size": size, "sizes": True} | ({"stream": True} if stream else {})
    cache = cached(Path(root or path.parent), f"bin-{path.stem}", [path], lambda: _read_bin(path, size, stream), fields)
    images = cache["images"]
    if stream:
        images = DeferredInputs(PackedImages(size=size, label=str(path), encoded=images, ends=cache["ends"]))
    note = crop_note(cache["sizes"], (size, size))
    same = cache["same"].bool()
    rows = torch.arange(2 * len(same)).view(-1, 2)
    people = torch.where(same[:, None], rows[:, :1], rows).flatten()
    folds = torch.arange(len(same)) * FOLDS // len(same)
    pairs = Pairs(rows[:, 0].contiguous(), rows[:, 1].contiguous(), same, folds)
    people = torch.unique(people, return_inverse=True)[1]
    return VerificationSet(path.stem, images, pairs, people, note=note)


def lfw_set(
    folder: Path | str,
    *,
    size: int = 112,
    width: int | None = None,
    pairs: str = "pairs.txt",
    root: Path | str | None = None,
    stream: bool = False,
) -> VerificationSet:
    """Read a folder with a list of pairs in LFW's format; folder/name/name_0001.jpg is image 1 of a person.

    Args:
        folder: The folder.
        size: Images are read as squares of this side.
        width: Images that are all `size` high and `width` wide are used unchanged.
        pairs: Name of the list.
        root: Folder of the cache; default: the parent folder.
        stream: Whether images stay in their files until they are needed, as squares of `size`.

    Returns:
        The pairs, and the images in them.

    Example:
        >>> len(lfw_set("data/lfw").pairs.same)
        6000
    """
    folder = Path(folder)
    listed = read_pair_list(folder / pairs)
    listing = list_images(folder)
    wanted = {photo for pair in listed for photo in (pair.first, pair.second)}
    rows = [row for row, photo in enumerate(photos(listing)) if photo in wanted]
    chosen = rows_of(listing, rows)
    images, note = _images(Path(root or folder.parent), folder, chosen, size, width, stream)
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
    stream: bool = False,
) -> VerificationSet:
    """Read all images folder/identity/image, with balanced random pairs.

    Args:
        folder: The folder.
        size: Images are read as squares of this side.
        width: Images that are all `size` high and `width` wide are used unchanged.
        pairs: Maximum number of pairs.
        seed: Random seed of the pairs.
        root: Folder of the cache; default: the parent folder.
        stream: Whether images stay in their files until they are needed, as squares of `size`.

    Returns:
        The images and pairs.

    Example:
        >>> folder_set("data/staff", pairs=600).names[:2]
        ('Ada', 'Grace')
    """
    folder = Path(folder)
    listing = list_images(folder)
    names = tuple(sorted(set(listing.classes)))
    people = indices(listing.classes, names)
    images, note = _images(Path(root or folder.parent), folder, listing, size, width, stream)
    return VerificationSet(folder.name, images, draw_pairs(people, pairs, seed=seed), people, names, note)


def listed_pairs(listed: Sequence[NamedPair], listing: Listing, source: Path) -> Pairs:
    """Convert pairs of names to pairs of rows of a listing."""
    row = {photo: number for number, photo in enumerate(photos(listing))}
    for pair in listed:
        for photo in (pair.first, pair.second):
            if photo not in row:
                raise DataError(
                    f"{source} lists image {photo[1]} of '{photo[0]}', but {photo[0]}/{photo[0]}_{photo[1]:04d}.jpg "
                    "does not exist: unpack all images next to the list"
                )
    first, second = (torch.tensor([row[getattr(pair, side)] for pair in listed]) for side in ("first", "second"))
    same = torch.tensor([pair.same for pair in listed])
    return Pairs(first, second, same, torch.tensor([pair.fold for pair in listed]))


def photos(listing: Listing) -> list[Photo]:
    """Return each image as in LFW's lists: name_0001 is photo 1; other images get number 0, which no list contains."""
    numbers = [path.stem.rpartition("_")[2] for path in listing.paths]
    return [
        (name, int(number) if number.isdecimal() else 0) for name, number in zip(listing.classes, numbers, strict=True)
    ]


def _images(
    root: Path, folder: Path, listing: Listing, size: int, width: int | None, stream: bool
) -> tuple[Tensor, str | None]:
    """Read images as squares of `size`, or unchanged if all are `size` high and `width` wide; also return a note."""
    if stream:
        note = crop_note(image_sizes(listing.paths), (size, size))
        return DeferredInputs(ImageFiles.of(listing.paths, size)), note

    def decode() -> dict[str, Tensor]:
        sizes = image_sizes(listing.paths)
        fits = bool((sizes == torch.tensor([size, width or size])).all())
        images = read_images(listing.paths) if fits else read_images(listing.paths, size=(size, size), square=True)
        return {"images": images, "sizes": sizes}

    fields = {"path": str(folder), "size": size, "width": width}
    cache = cached(root, f"verification-{folder.name}", listing.paths, decode, fields)
    return cache["images"], crop_note(cache["sizes"], (size, int(cache["images"].shape[3])))


def _read_bin(path: Path, size: int, stream: bool) -> dict[str, Tensor]:
    """Read a .bin file; with `stream`, its images stay encoded, one after the other, with the end of each."""
    content = read_pickle(read_file(path, LARGE), path, "a .bin file of verification pairs")
    if not isinstance(content, tuple | list) or len(content) != 2:
        raise DataError(f"{path} must contain a list of images and a list of booleans: download it again")
    encoded, same = _check_images(path, content[0]), _check_labels(path, content[1])
    if not same or len(encoded) != 2 * len(same):
        raise DataError(f"{path} must have 2 images per pair, got {len(encoded)} for {len(same)}: download it again")
    found = {"same": torch.tensor(same, dtype=torch.uint8), "sizes": image_sizes(encoded)}
    if stream:
        joined, ends = join_bytes(encoded)
        return found | {"images": joined, "ends": ends}
    try:
        return found | {"images": read_images(encoded, size=(size, size), square=True)}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _check_images(path: Path, images: Any) -> list[bytes]:
    if not isinstance(images, list | tuple):
        raise DataError(f"{path}: its images must be a list, got a {type(images).__name__}: download it again")
    found = [image.tobytes() if isinstance(image, np.ndarray) else image for image in images]
    for number, image in enumerate(found):
        if not isinstance(image, bytes):
            raise DataError(f"{path}: image {number} must be bytes, got a {type(image).__name__}: download it again")
    return found


def _check_labels(path: Path, same: Any) -> list[bool]:
    values = list(same) if isinstance(same, list | tuple | np.ndarray) else [same]
    for number, value in enumerate(values):
        if not isinstance(value, bool | int | np.bool_ | np.integer) or value not in (0, 1):
            raise DataError(
                f"{path}: the label of pair {number} must be true or false, got {value!r}: replace the file"
            )
    return [bool(value) for value in values]
