"""Build a verification set from a folder of photos by detecting and aligning the faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fedra.console import steps
from fedra.data.dataset import Pairs
from fedra.data.images import indices, list_images, shorten_list
from fedra.data.pairs import draw_pairs
from fedra.errors import DataError
from fedra.faces.benchmarks.protocols import FaceSet
from fedra.faces.datasets.gathering import rows_of
from fedra.faces.datasets.lfw_lists import read_pair_list
from fedra.faces.datasets.verification_sets import listed_pairs, photos
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.detection import Detector, main_face
from fedra.faces.photos.photo_files import read_photo_file


def aligned_photos(
    folder: Path,
    detector: Detector,
    *,
    size: int,
    pairs: int | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> FaceSet:
    """Align the main face of every photo folder/identity/image; pairs come from pairs.txt (LFW's format) if present.

    Photos without a face are skipped, and so are listed pairs that contain one; the note counts them.
    """
    listing = list_images(folder)
    listed = read_pair_list(folder / "pairs.txt") if (folder / "pairs.txt").is_file() else None
    if listed is not None:
        needed = {photo for pair in listed for photo in (pair.first, pair.second)}
        listing = rows_of(listing, [row for row, photo in enumerate(photos(listing)) if photo in needed])
    crops, problems = _align_all(listing.paths, detector, size, console)
    names = tuple(sorted(set(listing.classes)))
    people, new_row = indices(listing.classes, names), torch.full((len(listing.paths),), -1)
    rows = torch.tensor([row for row in range(len(listing.paths)) if row not in problems], dtype=torch.int64)
    if not len(rows):
        raise DataError(
            f"no face was found in any of the {len(listing.paths):,} photos of '{folder}': check the photos"
        )
    new_row[rows] = torch.arange(len(rows))
    note = None
    if problems:
        examples = shorten_list([f"{listing.paths[row]} ({reason})" for row, reason in problems.items()])
        note = f"{len(problems):,} of {len(listing.paths):,} photos are skipped: {examples}"
    if listed is None:
        all_pairs = draw_pairs(people[rows], pairs, seed=seed)
    else:
        all_pairs, lost = _select_pairs(listed_pairs(listed, listing, folder / "pairs.txt"), new_row)
        note = f"{note}; {lost:,} of {len(listed):,} pairs contain one and are skipped" if lost else note
    return FaceSet(folder.name, crops, people[rows], all_pairs, names=names, note=note)


def _align_all(
    paths: tuple[Path, ...], detector: Detector, size: int, console: Console | None
) -> tuple[Tensor, dict[int, str]]:
    crops, problems = [], dict[int, str]()
    with steps(console, "finding faces", len(paths)) as done:
        for row, path in enumerate(paths):
            try:
                image = read_photo_file(path)
                face = main_face(detector(image), image.shape)
                if face is None:
                    problems[row] = "no face was found"
                else:
                    crops.append(align_face(image, face.landmarks, size))
            except DataError as error:
                problems[row] = str(error)
            done(1)
    stacked = np.stack(crops) if crops else np.zeros((0, size, size, 3), np.uint8)
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous(), problems


def _select_pairs(pairs: Pairs, new_row: Tensor) -> tuple[Pairs, int]:
    """Return the pairs whose images both have a new row, and the number of the others."""
    first, second = new_row[pairs.first], new_row[pairs.second]
    complete = (first >= 0) & (second >= 0)
    if not bool(complete.any()):
        raise DataError("no listed pair has a face in both of its photos: check the photos")
    selected = Pairs(first[complete], second[complete], pairs.same[complete], pairs.folds[complete])
    return selected, int((~complete).sum())
