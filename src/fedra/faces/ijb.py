"""A model on IJB-B or IJB-C, as InsightFace distributes them: 1:1 by pairs of templates, 1:N by galleries and probes.

Whitelam et al., CVPRW 2017; Maze et al., ICB 2018. A folder has images in loose_crop and lists in meta; the faces are
aligned by the five points that come with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from fedra.data.faces.ijb import (
    ImagePoints,
    TemplateMedia,
    TemplatePairs,
    TemplateSubjects,
    read_points,
    read_subjects,
    read_template_media,
    read_template_pairs,
)
from fedra.errors import ConfigError, DataError
from fedra.evaluation.faces import (
    Subjects,
    Templates,
    closed_set,
    insightface_1n,
    open_set_over_galleries,
    pool_templates,
    verify_templates,
)
from fedra.evaluation.faces.identification import FPIRS, RANKS
from fedra.evaluation.faces.rates import FARS
from fedra.experiment.face_evaluation import Evaluation, Protocol
from fedra.experiment.face_protocols import Draw, Outcome, points, rates
from fedra.experiment.progress import steps
from fedra.faces.many_images import embed_files
from fedra.models import Embedder

ASKED: tuple[Protocol, ...] = ("verification", "identification", "open-set")
"""The protocols that the benchmark has."""
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


def evaluate_ijb(
    embedder: Embedder,
    folder: Path,
    protocols: Sequence[Protocol] = (),
    *,
    keep_norm: bool = True,
    detector_scores: bool = True,
    console: Console | None = None,
) -> Evaluation:
    """The protocols on a benchmark folder; by default all for which it has lists.

    `keep_norm` lets long features weigh more within a template, `detector_scores` weighs images by the detector's
    confidence: InsightFace's tables do both.
    """
    parts = IjbFolder.of(folder)
    wanted = protocols or (ASKED if parts.identifies else ASKED[:1])
    for protocol in wanted:
        if protocol not in ASKED:
            raise ConfigError(f"the protocol '{protocol}' does not go with {parts.name}: choose of {', '.join(ASKED)}")
    lists = Lists.read(parts, wanted)  # before the images, which take hours: a damaged list is told at once
    paths = [parts.images / name for name in lists.media.images]
    found = embed_files(embedder, paths, parts.name, console, lists.points.points)
    templates = pool_templates(
        found.features,
        lists.media.templates[found.rows],
        lists.media.media[found.rows],
        detector_scores=lists.points.scores[found.rows] if detector_scores else None,
        keep_norm=keep_norm,
    )
    judges: dict[Protocol, Judge] = {
        "verification": verification,
        "identification": identification,
        "open-set": open_identification,
    }
    outcomes = {protocol: judges[protocol](parts.name, templates, lists, console) for protocol in wanted}
    told: dict[str, object] = {"images": len(paths), "unreadable": found.unreadable, "templates": len(templates.ids)}
    return Evaluation(
        folder.resolve().name,
        parts.name,
        {protocol: replace(it, figures={**told, **it.figures}) for protocol, it in outcomes.items()},
    )


Judge = Callable[[str, Templates, Lists, Console | None], Outcome]


def verification(name: str, templates: Templates, lists: Lists, console: Console | None) -> Outcome:
    """1:1: TAR at the point of the curve that is closest to each FAR, as the benchmark's tables read it."""
    from fedra.evaluation.faces.pictures import draw_roc, draw_scores

    pairs = lists.pairs
    assert pairs is not None, "the pairs were read"
    with steps(console, f"{name} 1:1", len(pairs.same)) as done:
        scores = verify_templates(templates, pairs.first, pairs.second, pairs.same, done=done)
    fars = [far for far in FARS if far * len(scores.impostor) >= 1]
    table = {
        "templates": f"{len(templates.ids):,}",
        "genuine pairs": f"{len(scores.genuine):,}",
        "impostor pairs": f"{len(scores.impostor):,}",
        **rates(scores, fars, "closest"),
    }
    pictures: dict[str, Draw] = {
        "roc.svg": lambda path: draw_roc({name: scores}, path),
        "scores.svg": lambda path: draw_scores(scores, path),
    }
    return Outcome(scores.figures(fars, "closest"), table, pictures)


def identification(name: str, templates: Templates, lists: Lists, console: Console | None) -> Outcome:
    """1:N over all galleries as one: ranks, and InsightFace's "FAR" lines, which are no FPIR."""
    from fedra.evaluation.faces.pictures import draw_cmc

    galleries, probes = _subjects(templates, lists)
    gallery = Subjects(torch.cat([one.embeddings for one in galleries]), torch.cat([one.ids for one in galleries]))
    ranks = [rank for rank in RANKS if rank <= len(gallery)]
    with steps(console, f"{name} 1:N", 2 * len(probes) * len(gallery)) as done:
        found = closed_set(probes, gallery, up_to=max(ranks), done=done)
        lines = insightface_1n(probes, gallery, done=done)
    table = {"subjects": f"{len(gallery):,}", "probes": f"{len(probes):,}"}
    table |= {f"rank {rank}": f"{found.rank(rank):.2%}" for rank in ranks}
    table |= points("InsightFace's rate", "FAR", lines)
    figures = {"subjects": len(gallery), **found.figures(ranks)}
    figures["insightface"] = {f"{line.threshold.wanted:g}": line.figures() for line in lines}
    return Outcome(figures, table, {"cmc.svg": lambda path: draw_cmc({name: found}, path)})


def open_identification(name: str, templates: Templates, lists: Lists, console: Console | None) -> Outcome:
    """1:N, open set: TPIR at FPIR in every gallery, and the mean."""
    galleries, probes = _subjects(templates, lists)
    with steps(console, f"{name} open set", len(probes) * sum(map(len, galleries))) as done:
        means, each = open_set_over_galleries(probes, galleries, FPIRS, done=done)
    table = {"galleries": " + ".join(f"{len(one):,}" for one in galleries), "probes": f"{len(probes):,}"}
    table |= {f"mean TPIR at FPIR {rate:g}": f"{mean:.2%}" for rate, mean in zip(FPIRS, means, strict=True)}
    mean_tpir = {f"{rate:g}": mean for rate, mean in zip(FPIRS, means, strict=True)}
    return Outcome({"mean_tpir": mean_tpir, "galleries": [one.figures() for one in each]}, table)


def _subjects(templates: Templates, lists: Lists) -> tuple[list[Subjects], Subjects]:
    assert lists.probes is not None, "the probes were read"
    galleries = [Subjects(templates.of(one.templates), one.subjects) for one in lists.galleries]
    return galleries, Subjects(templates.of(lists.probes.templates), lists.probes.subjects)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{folder} has {len(found)} lists {pattern}: give a folder of one benchmark, with one of them")
    return found[0]
