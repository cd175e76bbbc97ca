"""Photographs of people as a set to verify: faces found by a detector, aligned, and those without one left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fedra.console import steps
from fedra.data.dataset import Pairs
from fedra.data.images import indices, list_images, shortened
from fedra.data.pairs import draw_pairs
from fedra.errors import DataError
from fedra.faces.benchmarks.protocols import FaceSet
from fedra.faces.datasets.gathering import rows_of
from fedra.faces.datasets.lfw_lists import read_pair_list
from fedra.faces.datasets.verification_sets import listed_pairs, photos
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.detection import Detector, main_face
from fedra.faces.photos.photo_files import read_photograph


def aligned_photos(
    folder: Path,
    detector: Detector,
    *,
    size: int,
    pairs: int | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> FaceSet:
    """The main face of every photograph of folder/identity/image, with LFW's pairs.txt where the folder has one.

    Photographs without a face are left out, and so are the listed pairs that name one; the note counts them.
    """
    listing = list_images(folder)
    listed = read_pair_list(folder / "pairs.txt") if (folder / "pairs.txt").is_file() else None
    if listed is not None:
        wanted = {photo for pair in listed for photo in (pair.first, pair.second)}
        listing = rows_of(listing, [row for row, photo in enumerate(photos(listing)) if photo in wanted])
    crops, problems = _crops(listing.paths, detector, size, console)
    names = tuple(sorted(set(listing.classes)))
    people, place = indices(listing.classes, names), torch.full((len(listing.paths),), -1)
    rows = torch.tensor([row for row in range(len(listing.paths)) if row not in problems], dtype=torch.int64)
    if not len(rows):
        raise DataError(f"no face was found in any of {len(listing.paths):,} photographs of '{folder}': check them")
    place[rows] = torch.arange(len(rows))
    note = None
    if problems:
        told = shortened([f"{listing.paths[row]} ({why})" for row, why in problems.items()])
        note = f"{len(problems):,} of {len(listing.paths):,} photographs are left out: {told}"
    if listed is None:
        drawn = draw_pairs(people[rows], pairs, seed=seed)
    else:
        drawn, lost = _kept(listed_pairs(listed, listing, folder / "pairs.txt"), place)
        note = f"{note}; {lost:,} of {len(listed):,} pairs are left out with them" if lost else note
    return FaceSet(folder.name, crops, people[rows], drawn, names=names, note=note)


def _crops(
    paths: tuple[Path, ...], detector: Detector, size: int, console: Console | None
) -> tuple[Tensor, dict[int, str]]:
    crops, problems = [], dict[int, str]()
    with steps(console, "finding faces", len(paths)) as done:
        for row, path in enumerate(paths):
            try:
                image = read_photograph(path)
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


def _kept(pairs: Pairs, place: Tensor) -> tuple[Pairs, int]:
    """The pairs whose images are both there, by their new rows, and how many are not."""
    first, second = place[pairs.first], place[pairs.second]
    there = (first >= 0) & (second >= 0)
    if not bool(there.any()):
        raise DataError("no listed pair has a face in both of its photographs: check the photographs")
    kept = Pairs(first[there], second[there], pairs.same[there], pairs.folds[there])
    return kept, int((~there).sum())
