"""The parts of an IJB-B or IJB-C folder, its lists, and the protocols they allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.evaluation.results import Protocol
from fedra.faces.benchmarks.ijb_lists import (
    ImagePoints,
    TemplateMedia,
    TemplatePairs,
    TemplateSubjects,
    read_points,
    read_subjects,
    read_template_media,
    read_template_pairs,
)

LISTS_1N = "meta/*_1N_gallery_*.csv and meta/*_1N_probe_mixed.csv"


@dataclass(frozen=True)
class IjbFolder:
    """Paths of the parts of a benchmark; `galleries` and `probes` are missing without 1:N lists."""

    name: str
    images: Path
    media: Path
    points: Path
    pairs: Path
    galleries: tuple[Path, ...]
    probes: Path | None

    @classmethod
    def of(cls, folder: Path) -> IjbFolder:
        """Locate the parts in a folder."""
        media = _find_single(folder, "meta/*_face_tid_mid.txt")
        prefix = media.name.removesuffix("_face_tid_mid.txt")
        points, pairs = (
            folder / "meta" / f"{prefix}_{rest}.txt" for rest in ("name_5pts_score", "template_pair_label")
        )
        galleries = tuple(sorted((folder / "meta").glob(f"{prefix}_1N_gallery_*.csv")))
        probes = folder / "meta" / f"{prefix}_1N_probe_mixed.csv"
        return cls(
            prefix.upper(), folder / "loose_crop", media, points, pairs, galleries, probes if probes.is_file() else None
        )

    @property
    def has_identification(self) -> bool:
        """Whether it has galleries and probes."""
        return bool(self.galleries) and self.probes is not None


def is_ijb(folder: Path) -> bool:
    """Return whether a folder has the lists of IJB-B or IJB-C."""
    return any(folder.glob("meta/*_face_tid_mid.txt"))


@dataclass(frozen=True)
class Lists:
    """The lists of a folder; those that are not needed are not read."""

    media: TemplateMedia
    points: ImagePoints
    pairs: TemplatePairs | None
    galleries: tuple[TemplateSubjects, ...]
    probes: TemplateSubjects | None

    @classmethod
    def read(cls, parts: IjbFolder, wanted: Sequence[Protocol]) -> Lists:
        """Read the lists that the protocols need."""
        media = read_template_media(parts.media)
        known = media.templates
        pairs = read_template_pairs(parts.pairs, known=known) if "verification" in wanted else None
        if pairs is not None and len(wanted) == 1:
            return cls(media, _read_points(parts, media), pairs, (), None)
        if parts.probes is None or not parts.galleries:
            raise DataError(
                f"{parts.media.parent} must contain the 1:N lists {LISTS_1N}: add them, or run only verification"
            )
        galleries = tuple(read_subjects(path, known=known) for path in parts.galleries)
        return cls(media, _read_points(parts, media), pairs, galleries, read_subjects(parts.probes, known=known))


def _read_points(parts: IjbFolder, media: TemplateMedia) -> ImagePoints:
    """Read landmarks and detector scores in the order of the images in `media`."""
    found = read_points(parts.points)
    if found.images == media.images:
        return found
    index = {name: row for row, name in enumerate(found.images)}
    missing = [name for name in media.images if name not in index]
    if missing:
        raise DataError(f"{parts.points} has no line for '{missing[0]}' of {parts.media}: use lists of one benchmark")
    rows = torch.tensor([index[name] for name in media.images])
    return ImagePoints(media.images, found.points[rows], found.scores[rows])


def explain_unfit(lists: Lists, protocol: Protocol) -> str | None:
    """Return why the lists do not allow a protocol, or None; called before the hours of embedding."""
    if protocol == "verification":
        return _explain_pairs(lists)
    assert lists.probes is not None, "the probes were read"
    probes, galleries = lists.probes.subjects, [gallery.subjects for gallery in lists.galleries]
    return _explain_ranks(probes, galleries) if protocol == "identification" else _explain_open(probes, galleries)


def _explain_pairs(lists: Lists) -> str | None:
    assert lists.pairs is not None, "the pairs were read"
    for kind, mask in (("the same person", lists.pairs.same), ("different people", ~lists.pairs.same)):
        if not bool(mask.any()):
            return f"no pair of templates shows {kind}"
    return None


def _explain_ranks(probes: Tensor, galleries: Sequence[Tensor]) -> str | None:
    enrolled = torch.cat(list(galleries))
    if (repeated := _find_repeated(enrolled)) is not None:
        return f"subject {repeated} has two templates in the galleries"
    if len(enrolled) < 2:
        return "the galleries contain fewer than two subjects"
    if not len(probes):
        return "there are no probes"
    missing = probes[~torch.isin(probes, enrolled)]
    return f"subject {int(missing[0])} of a probe is not in any gallery" if len(missing) else None


def _explain_open(probes: Tensor, galleries: Sequence[Tensor]) -> str | None:
    for number, gallery in enumerate(galleries, start=1):
        if (repeated := _find_repeated(gallery)) is not None:
            return f"subject {repeated} has two templates in gallery {number}"
        mated = torch.isin(probes, gallery)
        if not bool(mated.any()):
            return f"no probe shows a subject of gallery {number}"
        if bool(mated.all()):
            return f"every probe shows a subject of gallery {number}, so no probe is non-mated"
    return None


def _find_repeated(subjects: Tensor) -> int | None:
    found, counts = torch.unique(subjects, return_counts=True)
    return int(found[counts.argmax()]) if len(found) < len(subjects) else None


def remove_missing(lists: Lists, templates: Tensor) -> tuple[Lists, dict[str, int]]:
    """Remove entries of templates other than the given ones, and count the removed entries of each kind.

    Probes of a subject removed from a gallery are removed too, because they would count as non-mated.
    """
    templates = templates.cpu()
    count = {"templates": len(torch.unique(lists.media.templates)) - len(templates)}
    if not count["templates"]:
        return lists, count
    pairs, galleries, probes = lists.pairs, lists.galleries, lists.probes
    if pairs is not None:
        valid = torch.isin(pairs.first, templates) & torch.isin(pairs.second, templates)
        count["pairs"] = int((~valid).sum())
        pairs = TemplatePairs(pairs.first[valid], pairs.second[valid], pairs.same[valid])
    if probes is not None:
        masks = [torch.isin(gallery.templates, templates) for gallery in galleries]
        removed = torch.cat([gallery.subjects[~mask] for gallery, mask in zip(galleries, masks, strict=True)])
        valid = torch.isin(probes.templates, templates) & ~torch.isin(probes.subjects, removed)
        count |= {"gallery subjects": len(removed), "probes": int((~valid).sum())}
        galleries = tuple(_select(gallery, mask) for gallery, mask in zip(galleries, masks, strict=True))
        probes = _select(probes, valid)
    return replace(lists, pairs=pairs, galleries=galleries, probes=probes), count


def _select(subjects: TemplateSubjects, rows: Tensor) -> TemplateSubjects:
    return TemplateSubjects(subjects.templates[rows], subjects.subjects[rows])


def _find_single(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{folder} must contain one list {pattern}, got {len(found)}: give the folder of one benchmark")
    return found[0]
