"""Read the lists of IJB-B and IJB-C: templates and media, template pairs, galleries, probes and landmarks.

Whitelam et al., IARPA Janus Benchmark-B, CVPRW 2017; Maze et al., IARPA Janus Benchmark-C, ICB 2018. The text files are
the ones that InsightFace distributes with the images (ijbc_face_tid_mid.txt, ijbc_template_pair_label.txt,
ijbc_name_5pts_score.txt); galleries and probes are the CSV files of the benchmark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.errors import DataError, nearest


@dataclass(frozen=True)
class TemplateMedia:
    """Template and medium of every image, in the order of the list."""

    images: tuple[str, ...]
    templates: Tensor
    media: Tensor


@dataclass(frozen=True)
class TemplatePairs:
    """Pairs of template ids, and whether they show the same person."""

    first: Tensor
    second: Tensor
    same: Tensor


@dataclass(frozen=True)
class TemplateSubjects:
    """A gallery or a set of probes: unique templates and the subject of each."""

    templates: Tensor
    subjects: Tensor


@dataclass(frozen=True)
class ImagePoints:
    """Five landmarks (N, 5, 2), x first, and the detector's score of every image."""

    images: tuple[str, ...]
    points: Tensor
    scores: Tensor


def read_template_media(path: Path | str) -> TemplateMedia:
    """Read lines of image, template and medium."""
    path = Path(path)
    rows = list(_rows(path, 3))
    numbers = _numbers(path, [row[1:] for row in rows], np.int64)
    return TemplateMedia(tuple(row[0] for row in rows), numbers[:, 0].contiguous(), numbers[:, 1].contiguous())


def read_template_pairs(path: Path | str, *, known: Tensor | None = None) -> TemplatePairs:
    """Read lines of template, template and 1 (same person) or 0; all templates must be in `known`."""
    path = Path(path)
    numbers = _table(path, 3)
    if not bool(((numbers[:, 2] == 0) | (numbers[:, 2] == 1)).all()):
        row = int(((numbers[:, 2] != 0) & (numbers[:, 2] != 1)).nonzero()[0, 0])
        raise DataError(f"{path}, line {row + 1}: the label must be 0 or 1, got {int(numbers[row, 2])}")
    if known is not None:
        _check_known(path, numbers[:, :2], known)
    first, second, same = (column.contiguous() for column in numbers.unbind(dim=1))
    return TemplatePairs(first, second, same.bool())


def read_subjects(path: Path | str, *, known: Tensor | None = None) -> TemplateSubjects:
    """Read a gallery or probe CSV file with columns TEMPLATE_ID and SUBJECT_ID; repeated lines count once."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            columns = [_column(path, lines.fieldnames or (), name) for name in ("template_id", "subject_id")]
            rows = [[line[column] or "" for column in columns] for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): give a CSV file of the benchmark") from None
    numbers = torch.unique(_numbers(path, rows, np.int64), dim=0)
    templates, counts = torch.unique(numbers[:, 0], return_counts=True)
    if len(templates) < len(numbers):
        raise DataError(
            f"{path}: each template must have one subject, but template {int(templates[counts.argmax()])} has two"
        )
    if known is not None:
        _check_known(path, templates, known)
    return TemplateSubjects(numbers[:, 0].contiguous(), numbers[:, 1].contiguous())


def read_points(path: Path | str) -> ImagePoints:
    """Read lines of image, five points (x, y) and the detector's score."""
    path = Path(path)
    rows = list(_rows(path, 12))
    numbers = _numbers(path, [row[1:] for row in rows], np.float32)
    return ImagePoints(tuple(row[0] for row in rows), numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10].contiguous())


def _rows(path: Path, words: int) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                row = line.split()
                if row and len(row) != words:
                    raise DataError(f"{path}, line {number}: a line must have {words} words, got {len(row)}")
                if row:
                    yield row
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check the file"
        ) from None


def _numbers(path: Path, rows: list[list[str]], kind: type[np.int64] | type[np.float32]) -> Tensor:
    if not rows:
        raise DataError(f"{path} is empty: download it again")
    try:
        return torch.from_numpy(np.array(rows, dtype=np.str_).astype(kind))
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} must contain numbers ({error}): check the file") from None


def _table(path: Path, columns: int) -> Tensor:
    """Read a file of integers with numpy, for speed: IJB-C has 15.6 million pairs."""
    try:
        if not path.stat().st_size:
            raise ValueError("the file is empty")
        numbers = np.loadtxt(path, dtype=np.int64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as integers ({error}): check the file") from None
    if numbers.shape[1:] != (columns,):
        raise DataError(f"{path}: a line must have {columns} numbers, got {numbers.shape[-1]}")
    return torch.from_numpy(numbers)


def _column(path: Path, headers: Iterable[str], name: str) -> str:
    found = {header.strip().lower(): header for header in headers}
    if name not in found:
        hint = nearest(name, found) if found else "it has no header"
        raise DataError(f"{path} must have a column '{name.upper()}': {hint}")
    return found[name]


def _check_known(path: Path, templates: Tensor, known: Tensor) -> None:
    unknown = templates[~torch.isin(templates, known)]
    if len(unknown):
        raise DataError(f"{path} lists template {int(unknown[0])}, which has no images: use lists of one benchmark")
