"""The lists of a MegaFace folder: which images are probes, whose they are, which are distractors, and what is noise.

Kemelmacher-Shlizerman et al., the MegaFace benchmark, CVPR 2016. The files are those of InsightFace's test pack:
facescrub_lst and megaface_lst name images by their paths within facescrub_images and megaface_images (a probe's folder
is its person); facescrub_noises.txt and megaface_noises.txt name mislabeled probes and distractors that show a
probe's person.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from fedra.errors import DataError

PROBES, DISTRACTORS = "facescrub", "megaface"
"""The two halves of the benchmark, by the names of their lists, images and features."""


@dataclass(frozen=True)
class MegaFaceLists:
    """Images by their paths, the person of every probe by number, and truth values of what is noise.

    `noisy_probes` and `noisy_distractors` are None in a folder without lists of noise.
    """

    probes: tuple[str, ...]
    people: Tensor
    distractors: tuple[str, ...]
    noisy_probes: Tensor | None = None
    noisy_distractors: Tensor | None = None


def is_megaface(folder: Path) -> bool:
    """Whether a folder has MegaFace's lists, in itself or under data."""
    return _list_of(folder, PROBES) is not None and _list_of(folder, DISTRACTORS) is not None


def read_megaface(folder: Path) -> MegaFaceLists:
    """The lists of a folder."""
    probes, distractors = (_images(folder, half) for half in (PROBES, DISTRACTORS))
    names = [PurePosixPath(path).parent.name for path in probes]
    if "" in names:
        raise DataError(
            f"the probe '{probes[names.index('')]}' of {folder} lies in no folder: the folder names its person"
        )
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    people = torch.tensor([numbers[name] for name in names])
    noise = [_noises(folder, half) for half in (PROBES, DISTRACTORS)]
    if noise[0] is None or noise[1] is None:
        return MegaFaceLists(probes, people, distractors)
    noisy_probes = torch.tensor([PurePosixPath(path).name in noise[0] for path in probes])
    noisy_distractors = torch.tensor(["/".join(PurePosixPath(path).parts[-3:]) in noise[1] for path in distractors])
    return MegaFaceLists(probes, people, distractors, noisy_probes, noisy_distractors)


def _list_of(folder: Path, half: str) -> Path | None:
    return _found(folder, f"{half}_lst")


def _found(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / "data" / name) if path.is_file()), None)


def _images(folder: Path, half: str) -> tuple[str, ...]:
    path = _list_of(folder, half)
    if path is None:
        raise DataError(f"{folder} has no {half}_lst: give a MegaFace folder, with both lists in it or under data")
    found = tuple(_lines(path))
    if not found:
        raise DataError(f"{path} is empty: fetch it again")
    return found


def _noises(folder: Path, half: str) -> set[str] | None:
    """The noisy images; lines may begin with a number and a tab, and with # where they are remarks."""
    path = _found(folder, f"{half}_noises.txt")
    if path is None:
        return None
    return {line.split("\t")[-1] for line in _lines(path) if not line.startswith("#")}


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check it") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
