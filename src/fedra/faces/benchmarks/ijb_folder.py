"""The parts of an IJB-B or IJB-C folder, what its lists say, and which protocols they allow."""

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
    """Where the parts of a benchmark are; `galleries` and `probes` are missing where 1:N lists are."""

    name: str
    images: Path
    media: Path
    points: Path
    pairs: Path
    galleries: tuple[Path, ...]
    probes: Path | None

    @classmethod
    def of(cls, folder: Path) -> IjbFolder:
        """The parts of a folder."""
        media = _only(folder, "meta/*_face_tid_mid.txt")
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
    def identifies(self) -> bool:
        """Whether it has galleries and probes."""
        return bool(self.galleries) and self.probes is not None


def is_ijb(folder: Path) -> bool:
    """Whether a folder has the lists of IJB-B or IJB-C."""
    return any(folder.glob("meta/*_face_tid_mid.txt"))


@dataclass(frozen=True)
class Lists:
    """Everything a folder says beside its images; what is not asked for is not read."""

    media: TemplateMedia
    points: ImagePoints
    pairs: TemplatePairs | None
    galleries: tuple[TemplateSubjects, ...]
    probes: TemplateSubjects | None

    @classmethod
    def read(cls, parts: IjbFolder, wanted: Sequence[Protocol]) -> Lists:
        """The lists that the protocols need."""
        media = read_template_media(parts.media)
        known = media.templates
        pairs = read_template_pairs(parts.pairs, known=known) if "verification" in wanted else None
        if pairs is not None and len(wanted) == 1:
            return cls(media, _points(parts, media), pairs, (), None)
        if parts.probes is None or not parts.galleries:
            raise DataError(f"{parts.media.parent} has no lists for 1:N ({LISTS_1N}): add them, or verify alone")
        galleries = tuple(read_subjects(path, known=known) for path in parts.galleries)
        return cls(media, _points(parts, media), pairs, galleries, read_subjects(parts.probes, known=known))


def _points(parts: IjbFolder, media: TemplateMedia) -> ImagePoints:
    """Landmarks and detector scores, for the images of the other list and in its order."""
    found = read_points(parts.points)
    if found.images == media.images:
        return found
    place = {name: number for number, name in enumerate(found.images)}
    missing = [name for name in media.images if name not in place]
    if missing:
        raise DataError(f"{parts.points} has no line for '{missing[0]}' of {parts.media}: use lists of one benchmark")
    rows = torch.tensor([place[name] for name in media.images])
    return ImagePoints(media.images, found.points[rows], found.scores[rows])


def unfit(lists: Lists, protocol: Protocol) -> str | None:
    """Why the lists do not allow a protocol, if they do not: asked before hours of embedding."""
    if protocol == "verification":
        return _unfit_pairs(lists)
    assert lists.probes is not None, "the probes were read"
    probes, galleries = lists.probes.subjects, [gallery.subjects for gallery in lists.galleries]
    return _unfit_ranks(probes, galleries) if protocol == "identification" else _unfit_open(probes, galleries)


def _unfit_pairs(lists: Lists) -> str | None:
    assert lists.pairs is not None, "the pairs were read"
    for kind, some in (("one person", lists.pairs.same), ("different people", ~lists.pairs.same)):
        if not bool(some.any()):
            return f"no pair of templates shows {kind}"
    return None


def _unfit_ranks(probes: Tensor, galleries: Sequence[Tensor]) -> str | None:
    everybody = torch.cat(list(galleries))
    if (twice := _twice(everybody)) is not None:
        return f"subject {twice} has two templates in the galleries"
    if len(everybody) < 2:
        return "the galleries hold fewer than two subjects"
    if not len(probes):
        return "there are no probes"
    strangers = probes[~torch.isin(probes, everybody)]
    return f"subject {int(strangers[0])} of a probe is in no gallery" if len(strangers) else None


def _unfit_open(probes: Tensor, galleries: Sequence[Tensor]) -> str | None:
    for number, gallery in enumerate(galleries, start=1):
        if (twice := _twice(gallery)) is not None:
            return f"subject {twice} has two templates in gallery {number}"
        mated = torch.isin(probes, gallery)
        if not bool(mated.any()):
            return f"no probe shows a subject of gallery {number}"
        if bool(mated.all()):
            return f"every probe shows a subject of gallery {number}, and nobody a stranger"
    return None


def _twice(subjects: Tensor) -> int | None:
    found, counts = torch.unique(subjects, return_counts=True)
    return int(found[counts.argmax()]) if len(found) < len(subjects) else None


def without(lists: Lists, templates: Tensor) -> tuple[Lists, dict[str, int]]:
    """The lists without what names other templates than these, and how much of each kind that was.

    Where a gallery lost a subject, its probes go too: they would pass for strangers.
    """
    templates = templates.cpu()
    count = {"templates": len(torch.unique(lists.media.templates)) - len(templates)}
    if not count["templates"]:
        return lists, count
    pairs, galleries, probes = lists.pairs, lists.galleries, lists.probes
    if pairs is not None:
        kept = torch.isin(pairs.first, templates) & torch.isin(pairs.second, templates)
        count["pairs"] = int((~kept).sum())
        pairs = TemplatePairs(pairs.first[kept], pairs.second[kept], pairs.same[kept])
    if probes is not None:
        there = [torch.isin(gallery.templates, templates) for gallery in galleries]
        gone = torch.cat([gallery.subjects[~some] for gallery, some in zip(galleries, there, strict=True)])
        kept = torch.isin(probes.templates, templates) & ~torch.isin(probes.subjects, gone)
        count |= {"gallery subjects": len(gone), "probes": int((~kept).sum())}
        galleries = tuple(_some(gallery, some) for gallery, some in zip(galleries, there, strict=True))
        probes = _some(probes, kept)
    return replace(lists, pairs=pairs, galleries=galleries, probes=probes), count


def _some(subjects: TemplateSubjects, rows: Tensor) -> TemplateSubjects:
    return TemplateSubjects(subjects.templates[rows], subjects.subjects[rows])


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{folder} has {len(found)} lists {pattern}: give a folder of one benchmark, with one of them")
    return found[0]
