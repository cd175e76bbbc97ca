"""Read the lists of a MegaFace folder: probes with their people, distractors, and noise.

Kemelmacher-Shlizerman et al., the MegaFace benchmark, CVPR 2016. The files are those of InsightFace's test pack:
facescrub_lst and megaface_lst list images by their paths within facescrub_images and megaface_images (the folder of a
probe names its person); facescrub_noises.txt and megaface_noises.txt list mislabeled probes, and distractors that show
a person of the probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.file_reading import LARGE, read_text_file

PROBES, DISTRACTORS = "facescrub", "megaface"
"""Prefixes of the lists, images and features of probes and distractors."""


@dataclass(frozen=True)
class MegaFaceLists:
    """Paths of the images, the index of each probe's person, and boolean masks of the noisy images.

    `noisy_probes` and `noisy_distractors` are None in a folder without noise lists.
    """

    probes: tuple[str, ...]
    people: Tensor
    distractors: tuple[str, ...]
    noisy_probes: Tensor | None = None
    noisy_distractors: Tensor | None = None


def is_megaface(folder: Path) -> bool:
    """Return whether a folder has MegaFace's lists, at its top or under data."""
    return _find_list(folder, PROBES) is not None and _find_list(folder, DISTRACTORS) is not None


def read_megaface(folder: Path) -> MegaFaceLists:
    """Read the lists of a folder."""
    probes, distractors = (_read_list(folder, half) for half in (PROBES, DISTRACTORS))
    names = [PurePosixPath(path).parent.name for path in probes]
    if "" in names:
        raise DataError(
            f"the probe '{probes[names.index('')]}' of {folder} must be in a folder that names its person: check "
            f"{PROBES}_lst"
        )
    indices = {name: index for index, name in enumerate(sorted(set(names)))}
    people = torch.tensor([indices[name] for name in names])
    noise = [_read_noise(folder, half) for half in (PROBES, DISTRACTORS)]
    if noise[0] is None or noise[1] is None:
        return MegaFaceLists(probes, people, distractors)
    noisy_probes = torch.tensor([PurePosixPath(path).name in noise[0] for path in probes])
    noisy_distractors = torch.tensor(["/".join(PurePosixPath(path).parts[-3:]) in noise[1] for path in distractors])
    return MegaFaceLists(probes, people, distractors, noisy_probes, noisy_distractors)


def _find_list(folder: Path, half: str) -> Path | None:
    return _find(folder, f"{half}_lst")


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / "data" / name) if path.is_file()), None)


def _read_list(folder: Path, half: str) -> tuple[str, ...]:
    path = _find_list(folder, half)
    if path is None:
        raise DataError(f"{folder} must contain {half}_lst, at its top or under data: give a MegaFace folder")
    found = tuple(_lines(path))
    if not found:
        raise DataError(f"{path} is empty: download it again")
    return found


def _read_noise(folder: Path, half: str) -> set[str] | None:
    """Read the noisy images; a line may start with a number and a tab, and # starts a comment."""
    path = _find(folder, f"{half}_noises.txt")
    if path is None:
        return None
    return {line.split("\t")[-1] for line in _lines(path) if not line.startswith("#")}


def _lines(path: Path) -> list[str]:
    try:
        text = read_text_file(path, LARGE)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check the file"
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]
