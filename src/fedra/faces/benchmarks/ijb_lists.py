"""The lists of IJB-B and IJB-C as arrays: templates and media, pairs of templates, galleries and probes, points.

Whitelam et al., IARPA Janus Benchmark-B, CVPRW 2017; Maze et al., IARPA Janus Benchmark-C, ICB 2018. The text files are
those with which InsightFace distributes the aligned images (ijbc_face_tid_mid.txt, ijbc_template_pair_label.txt,
ijbc_name_5pts_score.txt); galleries and probes are the benchmark's own CSV files.
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
    """The template and the medium of every image, in the list's order."""

    images: tuple[str, ...]
    templates: Tensor
    media: Tensor


@dataclass(frozen=True)
class TemplatePairs:
    """Pairs of templates by number, and whether they show one person."""

    first: Tensor
    second: Tensor
    same: Tensor


@dataclass(frozen=True)
class TemplateSubjects:
    """A gallery or a set of probes: templates, each once, and the subject of each."""

    templates: Tensor
    subjects: Tensor


@dataclass(frozen=True)
class ImagePoints:
    """Five landmark points (N, 5, 2), x first, and the detector's score of every image."""

    images: tuple[str, ...]
    points: Tensor
    scores: Tensor


def read_template_media(path: Path | str) -> TemplateMedia:
    """Lines of image, template and medium."""
    path = Path(path)
    rows = list(_rows(path, 3))
    numbers = _numbers(path, [row[1:] for row in rows], np.int64)
    return TemplateMedia(tuple(row[0] for row in rows), numbers[:, 0].contiguous(), numbers[:, 1].contiguous())


def read_template_pairs(path: Path | str, *, known: Tensor | None = None) -> TemplatePairs:
    """Lines of template, template and 1 (one person) or 0; `known` templates must include them all."""
    path = Path(path)
    numbers = _table(path, 3)
    if not bool(((numbers[:, 2] == 0) | (numbers[:, 2] == 1)).all()):
        row = int(((numbers[:, 2] != 0) & (numbers[:, 2] != 1)).nonzero()[0, 0])
        raise DataError(f"{path}, line {row + 1}: the label is {int(numbers[row, 2])}, not 0 or 1: check the list")
    if known is not None:
        _check_known(path, numbers[:, :2], known)
    first, second, same = (column.contiguous() for column in numbers.unbind(dim=1))
    return TemplatePairs(first, second, same.bool())


def read_subjects(path: Path | str, *, known: Tensor | None = None) -> TemplateSubjects:
    """A gallery or probe CSV file: the columns TEMPLATE_ID and SUBJECT_ID, lines of one template together as one."""
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
        raise DataError(f"{path} gives template {int(templates[counts.argmax()])} to two subjects: check the list")
    if known is not None:
        _check_known(path, templates, known)
    return TemplateSubjects(numbers[:, 0].contiguous(), numbers[:, 1].contiguous())


def read_points(path: Path | str) -> ImagePoints:
    """Lines of image, five points (x, y) and the detector's score."""
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
                    raise DataError(f"{path}, line {number}: {len(row)} words where {words} are wanted: check the list")
                if row:
                    yield row
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check it") from None


def _numbers(path: Path, rows: list[list[str]], kind: type[np.int64] | type[np.float32]) -> Tensor:
    if not rows:
        raise DataError(f"{path} is empty: fetch it again")
    try:
        return torch.from_numpy(np.array(rows, dtype=np.str_).astype(kind))
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} has a word where a number is wanted ({error}): check the list") from None


def _table(path: Path, columns: int) -> Tensor:
    """A file of whole numbers alone; IJB-C's pairs are 15.6 million lines, so numpy reads them."""
    try:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        numbers = np.loadtxt(path, dtype=np.int64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as whole numbers ({error}): check the list") from None
    if numbers.shape[1:] != (columns,):
        raise DataError(f"{path} has {numbers.shape[-1]} numbers a line where {columns} are wanted: check the list")
    return torch.from_numpy(numbers)


def _column(path: Path, headings: Iterable[str], wanted: str) -> str:
    found = {heading.strip().lower(): heading for heading in headings}
    if wanted not in found:
        hint = nearest(wanted, found) if found else "it has no heading"
        raise DataError(f"{path} has no column '{wanted.upper()}': {hint}")
    return found[wanted]


def _check_known(path: Path, templates: Tensor, known: Tensor) -> None:
    strange = templates[~torch.isin(templates, known)]
    if len(strange):
        raise DataError(f"{path} names template {int(strange[0])}, which has no images: use lists of one benchmark")
