"""The field's protocols on embedded faces, each with its figures, the lines of its table, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedra.core.random import key
from fedra.data.dataset import Pairs
from fedra.errors import DataError
from fedra.evaluation.results import Draw, Protocol, ProtocolResult
from fedra.faces.metrics import (
    ClientScores,
    Scores,
    Subjects,
    closed_set,
    enrolled_scores,
    open_set,
    verify,
)
from fedra.faces.metrics.error_rates import FARS, OperatingPoint
from fedra.faces.metrics.identification import FPIRS, RANKS

HEADLINES: dict[Protocol, tuple[str, ...]] = {
    "verification": ("accuracy", "auroc", "eer", "tar"),
    "identification": ("rank_1", "cmc"),
    "open-set": ("tpir",),
    "clients": ("auroc", "auroc_macro", "eer", "tpir"),
    "training-gallery": ("auroc_macro", "eer_macro", "pooled"),
    "megaface": ("raw",),
}
"""The figures of each protocol that are null where embeddings have collapsed."""


@dataclass(frozen=True)
class FaceSet:
    """Images uint8 (N, C, H, W), the person each shows, and the pairs to tell apart where there are any.

    `named` is false where numbers tell apart less than people do, as in sets that are pairs and nothing else. `names`
    are the people's, where known; `note` says what had to be done to the images.
    """

    name: str
    images: Tensor
    people: Tensor
    pairs: Pairs | None
    named: bool = True
    names: tuple[str, ...] = ()
    note: str | None = None


def collapsed_result(protocol: Protocol, reason: str, images: int) -> ProtocolResult:
    """What a protocol gives for embeddings that have collapsed: why, and no figure that looks like one."""
    missing = dict.fromkeys(HEADLINES[protocol])
    return ProtocolResult({"images": images, **missing, "collapsed": reason}, {"collapsed": reason})


def verification(faces: FaceSet, pairs: Pairs, features: Tensor) -> ProtocolResult:
    """Ten-fold accuracy, AUROC, EER, and TAR at the FARs that so many impostors can show."""
    from fedra.faces.metrics.plots import draw_roc, draw_scores, draw_worst

    first, second = features[pairs.first], features[pairs.second]
    found = verify(first, second, pairs.same)
    cosines = torch.cosine_similarity(first.double(), second.double())
    scores = Scores.of_pairs(cosines, pairs.same)
    fars = [far for far in FARS if far * len(scores.impostor) >= 1]
    table = {
        "pairs": f"{found.pairs:,}",
        "accuracy": f"{found.accuracy:.2%} +- {found.deviation:.2%}",
        "best cosine": f"{found.best_cosine:.3f}",
        **rates(scores, fars),
    }
    pictures: dict[str, Draw] = {
        "roc.svg": lambda path: draw_roc({faces.name: scores}, path),
        "scores.svg": lambda path: draw_scores(scores, path, threshold=found.best_cosine),
        "errors.png": lambda path: draw_worst(
            cosines,
            pairs.same,
            lambda pair: (faces.images[pairs.first[pair]], faces.images[pairs.second[pair]]),
            path,
        ),
    }
    return ProtocolResult({**found.figures(), **scores.figures(fars)}, table, pictures)


def identification(faces: FaceSet, features: Tensor, done: Callable[[int], None]) -> ProtocolResult:
    """CMC: the first image of everybody with two or more is the gallery, and the others are probes."""
    from fedra.faces.metrics.plots import draw_cmc

    first, later = _enrolled(faces)
    probes, gallery = (Subjects(features[rows], faces.people[rows]) for rows in (later, first))
    found = closed_set(probes, gallery, up_to=min(max(RANKS), len(gallery)), done=done)
    table = {"people": f"{len(gallery):,}", "probes": f"{len(probes):,}"}
    table |= {f"rank {rank}": f"{found.rank(rank):.2%}" for rank in RANKS if rank <= len(gallery)}
    figures = {"people": len(gallery), **found.figures([rank for rank in RANKS if rank <= len(gallery)])}
    return ProtocolResult(figures, table, {"cmc.svg": lambda path: draw_cmc({faces.name: found}, path)})


def open_identification(faces: FaceSet, features: Tensor, seed: int, done: Callable[[int], None]) -> ProtocolResult:
    """TPIR at FPIR: half of the people, drawn by the seed, are enrolled by an image each; the rest are strangers."""
    first, later = _enrolled(faces)
    drawn = np.random.default_rng(key(seed, "enrolled")).permutation(len(first))[: len(first) // 2]
    gallery_rows = first[torch.from_numpy(np.sort(drawn))]
    if not len(gallery_rows):
        raise DataError(f"'{faces.name}' shows one person with two images: an open set needs two or more such people")
    mated = later[torch.isin(faces.people[later], faces.people[gallery_rows])]
    strangers = (~torch.isin(faces.people, faces.people[gallery_rows])).nonzero().flatten()
    rows = torch.cat([mated, strangers])
    gallery = Subjects(features[gallery_rows], faces.people[gallery_rows])
    fpirs = [rate for rate in FPIRS if rate * len(strangers) >= 1] or [max(FPIRS)]
    found = open_set(Subjects(features[rows], faces.people[rows]), gallery, fpirs, done=done)
    table = {"people": f"{len(gallery):,}", "mated probes": f"{found.mated:,}", "strangers": f"{found.non_mated:,}"}
    table |= points("TPIR", "FPIR", found.points)
    return ProtocolResult({"people": len(gallery), **found.figures()}, table)


def client_verification(
    enrolled: Mapping[int, Sequence[int]], train: tuple[Tensor, Tensor], probes: tuple[Tensor, Tensor]
) -> ProtocolResult:
    """Every client for itself and all pooled: its people are enrolled by their training images.

    `enrolled` are the classes of every client; `train` and `probes` are embeddings and classes. Held-out images of a
    person are genuine, those of everybody else impostors.
    """
    (known, known_of), (features, people) = train, probes
    scores = {}
    for client, classes in enrolled.items():
        tested = [number for number in classes if bool((people == number).any())]
        if tested and len(torch.unique(people)) > 1:
            pairs = [
                enrolled_scores(known[known_of == number], features[people == number], features[people != number])
                for number in tested
            ]
            genuine, impostor = (torch.cat(kind) for kind in zip(*pairs, strict=True))
            scores[client] = genuine, impostor
    if not scores:
        raise DataError("no client has held-out images of its people: raise data.test_fraction")
    found = ClientScores.of(scores)
    pooled = found.pooled()
    fars = [far for far in FARS if far * len(pooled.impostor) >= 1]
    figures = found.figures(fars)
    table = {
        "clients": f"{len(scores):,}",
        "AUROC, mean of clients": f"{figures['auroc_macro']:.4f} +- {figures['auroc_std']:.4f}",
        "EER, mean of clients": f"{figures['eer_macro']:.2%}",
        **{f"{name}, pooled": text for name, text in rates(pooled, fars).items()},
    }
    return ProtocolResult(figures, table)


def _enrolled(faces: FaceSet) -> tuple[Tensor, Tensor]:
    """The first image of everybody with two or more, and the rows of their others."""
    if not faces.named:
        raise DataError(f"'{faces.name}' does not say who its images show, pairs apart: it can be verified only")
    _, place, counts = torch.unique(faces.people, return_inverse=True, return_counts=True)
    rows = torch.arange(len(place))
    first = torch.full((len(counts),), len(place)).scatter_reduce(0, place, rows, "amin")[counts > 1]
    if not len(first):
        raise DataError(f"nobody in '{faces.name}' has two images: identification needs one to enroll and one to probe")
    later = rows[(counts[place] > 1) & ~torch.isin(rows, first)]
    return first, later


def rates(scores: Scores, fars: Sequence[float], rule: Literal["at_most", "closest"] = "at_most") -> dict[str, str]:
    """The lines of a table of verification."""
    found = [scores.tar_at(far, rule) for far in fars]
    return {"AUROC": f"{scores.auroc():.4f}", "EER": f"{scores.eer():.2%}", **points("TAR", "FAR", found)}


def points(rate: str, error: str, found: Sequence[OperatingPoint]) -> dict[str, str]:
    """A line for each operating point."""
    return {f"{rate} at {error} {point.threshold.wanted:g}": f"{point.rate:.2%}" for point in found}
