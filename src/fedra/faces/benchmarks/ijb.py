"""Evaluate a model on IJB-B or IJB-C: 1:1 verification of template pairs, 1:N identification in galleries.

Whitelam et al., CVPRW 2017; Maze et al., ICB 2018. The folder is laid out as InsightFace distributes it, with images in
loose_crop and lists in meta; faces are aligned by the five points in the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from fedra.console import steps, tell
from fedra.errors import ConfigError, DataError
from fedra.evaluation.results import Draw, ModelEvaluation, Protocol, ProtocolResult
from fedra.faces.benchmarks.ijb_folder import IjbFolder, Lists, explain_unfit, remove_missing
from fedra.faces.benchmarks.many_images import embed_files
from fedra.faces.benchmarks.protocols import collapsed_result, points, rates
from fedra.faces.metrics import (
    Subjects,
    Templates,
    closed_set,
    insightface_1n,
    open_set_over_galleries,
    pool_templates,
    verify_templates,
)
from fedra.faces.metrics.error_rates import FARS
from fedra.faces.metrics.identification import FPIRS, RANKS
from fedra.models import Embedder

PROTOCOLS: tuple[Protocol, ...] = ("verification", "identification", "open-set")
"""The protocols of the benchmark."""


def evaluate_ijb(
    embedder: Embedder,
    folder: Path | str,
    protocols: Sequence[Protocol] = (),
    *,
    keep_norm: bool = True,
    detector_scores: bool = True,
    console: Console | None = None,
) -> ModelEvaluation:
    """Run the protocols on a benchmark folder; by default all that its lists allow.

    With `keep_norm`, features with a large norm weigh more in a template; with `detector_scores`, images are weighted
    by the detector's confidence. InsightFace's tables use both.
    """
    folder = Path(folder)
    parts = IjbFolder.of(folder)
    wanted = protocols or (PROTOCOLS if parts.has_identification else PROTOCOLS[:1])
    for protocol in wanted:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)} for {parts.name}, got '{protocol}'")
    lists = Lists.read(parts, wanted)  # before the hours of embedding, to report a damaged list immediately
    wanted = _select_protocols(parts.name, wanted, lists, console, refuse=bool(protocols))
    paths = [parts.images / name for name in lists.media.images]
    found = embed_files(embedder, paths, parts.name, console, lists.points.points)
    if found.collapsed is not None:
        outcomes = {protocol: collapsed_result(protocol, found.collapsed, len(found.rows)) for protocol in wanted}
        return ModelEvaluation(folder.resolve().name, parts.name, outcomes, str(folder.resolve()))
    templates = pool_templates(
        found.features,
        lists.media.templates[found.rows],
        lists.media.media[found.rows],
        detector_scores=lists.points.scores[found.rows] if detector_scores else None,
        keep_norm=keep_norm,
    )
    lists, lost = remove_missing(lists, templates.ids)
    if any(lost.values()):
        counts = ", ".join(f"{count:,} {kind}" for kind, count in lost.items() if count)
        tell(console, f"{parts.name}: templates without a usable image are skipped: {counts}")
    wanted = _select_protocols(parts.name, wanted, lists, console)
    evaluators: dict[Protocol, ProtocolEvaluator] = {
        "verification": verification,
        "identification": identification,
        "open-set": open_identification,
    }
    outcomes = {protocol: evaluators[protocol](parts.name, templates, lists, console) for protocol in wanted}
    common: dict[str, object] = {
        "images": len(paths),
        "unreadable": found.unreadable,
        "templates": len(templates.ids),
        "left_out": lost,
    }
    return ModelEvaluation(
        folder.resolve().name,
        parts.name,
        {protocol: replace(result, metrics={**common, **result.metrics}) for protocol, result in outcomes.items()},
        str(folder.resolve()),
    )


def _select_protocols(
    name: str, wanted: Sequence[Protocol], lists: Lists, console: Console | None, *, refuse: bool = False
) -> tuple[Protocol, ...]:
    """Return the protocols that the lists allow; report the others, or raise with `refuse` or if none is left."""
    reasons = {protocol: reason for protocol in wanted if (reason := explain_unfit(lists, protocol)) is not None}
    for protocol, reason in reasons.items():
        if refuse or len(reasons) == len(wanted):
            raise DataError(f"{name}: {protocol} is not possible, because {reason}: check the lists")
        tell(console, f"{name}: {protocol} is skipped, because {reason}")
    return tuple(protocol for protocol in wanted if protocol not in reasons)


ProtocolEvaluator = Callable[[str, Templates, Lists, Console | None], ProtocolResult]


def verification(name: str, templates: Templates, lists: Lists, console: Console | None) -> ProtocolResult:
    """Evaluate 1:1: TAR at the point of the ROC curve closest to each FAR, as in the benchmark's tables."""
    from fedra.faces.metrics.plots import draw_roc, draw_scores

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
    return ProtocolResult(scores.metrics(fars, "closest"), table, pictures)


def identification(name: str, templates: Templates, lists: Lists, console: Console | None) -> ProtocolResult:
    """Evaluate 1:N over all galleries joined: ranks, and InsightFace's "FAR" rates, which are not FPIRs."""
    from fedra.faces.metrics.plots import draw_cmc

    # Join the lists, not the embeddings: one of the galleries may be empty.
    rows, people = (
        torch.cat([getattr(gallery, field) for gallery in lists.galleries]) for field in ("templates", "subjects")
    )
    gallery, probes = Subjects(templates.of(rows), people), _probes(templates, lists)
    ranks = [rank for rank in RANKS if rank <= len(gallery)]
    with steps(console, f"{name} 1:N", 2 * len(probes) * len(gallery)) as done:
        found = closed_set(probes, gallery, up_to=max(ranks), done=done)
        lines = insightface_1n(probes, gallery, done=done)
    table = {"subjects": f"{len(gallery):,}", "probes": f"{len(probes):,}"}
    table |= {f"rank {rank}": f"{found.rank(rank):.2%}" for rank in ranks}
    table |= points("InsightFace's rate", "FAR", lines)
    figures = {"subjects": len(gallery), **found.metrics(ranks)}
    figures["insightface"] = {f"{line.threshold.wanted:g}": line.metrics() for line in lines}
    return ProtocolResult(figures, table, {"cmc.svg": lambda path: draw_cmc({name: found}, path)})


def open_identification(name: str, templates: Templates, lists: Lists, console: Console | None) -> ProtocolResult:
    """Evaluate open-set 1:N: TPIR at FPIR in every gallery, and the mean."""
    galleries = [Subjects(templates.of(gallery.templates), gallery.subjects) for gallery in lists.galleries]
    probes = _probes(templates, lists)
    with steps(console, f"{name} open set", len(probes) * sum(map(len, galleries))) as done:
        means, each = open_set_over_galleries(probes, galleries, FPIRS, done=done)
    table = {"galleries": " + ".join(f"{len(gallery):,}" for gallery in galleries), "probes": f"{len(probes):,}"}
    table |= {f"mean TPIR at FPIR {rate:g}": f"{mean:.2%}" for rate, mean in zip(FPIRS, means, strict=True)}
    mean_tpir = {f"{rate:g}": mean for rate, mean in zip(FPIRS, means, strict=True)}
    return ProtocolResult({"mean_tpir": mean_tpir, "galleries": [result.metrics() for result in each]}, table)


def _probes(templates: Templates, lists: Lists) -> Subjects:
    assert lists.probes is not None, "the probes were read"
    return Subjects(templates.of(lists.probes.templates), lists.probes.subjects)
