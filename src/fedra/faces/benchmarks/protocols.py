"""The evaluation protocols on embedded faces; each returns metrics, the rows of a table, and plots."""

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
"""The metrics of each protocol that are null if the embeddings have collapsed."""


@dataclass(frozen=True)
class FaceSet:
    """Images, uint8 (N, C, H, W), the person of each, and pairs to verify if there are any.

    `named` is false if `people` does not identify people, as in sets that consist of pairs only. `names` are the
    people's names, if known; `note` describes what was done to the images.
    """

    name: str
    images: Tensor
    people: Tensor
    pairs: Pairs | None
    named: bool = True
    names: tuple[str, ...] = ()
    note: str | None = None


def collapsed_result(protocol: Protocol, reason: str, images: int) -> ProtocolResult:
    """Return the result of a protocol for collapsed embeddings: the reason, and null for every metric."""
    missing = dict.fromkeys(HEADLINES[protocol])
    return ProtocolResult({"images": images, **missing, "collapsed": reason}, {"collapsed": reason})


def verification(faces: FaceSet, pairs: Pairs, features: Tensor) -> ProtocolResult:
    """Measure ten-fold accuracy, AUROC, EER, and TAR at the FARs for which there are enough impostors."""
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
    return ProtocolResult({**found.metrics(), **scores.metrics(fars)}, table, pictures)


def identification(faces: FaceSet, features: Tensor, done: Callable[[int], None]) -> ProtocolResult:
    """Measure the CMC: the first image of each person with two or more is the gallery, the others are probes."""
    from fedra.faces.metrics.plots import draw_cmc

    first, later = _split_enrolled(faces)
    probes, gallery = (Subjects(features[rows], faces.people[rows]) for rows in (later, first))
    found = closed_set(probes, gallery, up_to=min(max(RANKS), len(gallery)), done=done)
    table = {"people": f"{len(gallery):,}", "probes": f"{len(probes):,}"}
    table |= {f"rank {rank}": f"{found.rank(rank):.2%}" for rank in RANKS if rank <= len(gallery)}
    figures = {"people": len(gallery), **found.metrics([rank for rank in RANKS if rank <= len(gallery)])}
    return ProtocolResult(figures, table, {"cmc.svg": lambda path: draw_cmc({faces.name: found}, path)})


def open_identification(faces: FaceSet, features: Tensor, seed: int, done: Callable[[int], None]) -> ProtocolResult:
    """Measure TPIR at FPIR: a random half of the people is enrolled with one image each, the others are not."""
    first, later = _split_enrolled(faces)
    drawn = np.random.default_rng(key(seed, "enrolled")).permutation(len(first))[: len(first) // 2]
    gallery_rows = first[torch.from_numpy(np.sort(drawn))]
    if not len(gallery_rows):
        raise DataError(f"open-set needs at least 2 people with 2 or more images, got 1 in '{faces.name}'")
    mated = later[torch.isin(faces.people[later], faces.people[gallery_rows])]
    non_mated = (~torch.isin(faces.people, faces.people[gallery_rows])).nonzero().flatten()
    rows = torch.cat([mated, non_mated])
    gallery = Subjects(features[gallery_rows], faces.people[gallery_rows])
    fpirs = [rate for rate in FPIRS if rate * len(non_mated) >= 1] or [max(FPIRS)]
    found = open_set(Subjects(features[rows], faces.people[rows]), gallery, fpirs, done=done)
    table = {
        "people": f"{len(gallery):,}",
        "mated probes": f"{found.mated:,}",
        "non-mated probes": f"{found.non_mated:,}",
    }
    table |= points("TPIR", "FPIR", found.points)
    return ProtocolResult({"people": len(gallery), **found.metrics()}, table)


def client_verification(
    enrolled: Mapping[int, Sequence[int]], train: tuple[Tensor, Tensor], probes: tuple[Tensor, Tensor]
) -> ProtocolResult:
    """Measure verification per client and pooled; each client's people are enrolled with their training images.

    `enrolled` has the classes of every client; `train` and `probes` are embeddings and classes. Held-out images of a
    person are genuine, those of all other people impostors.
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
        raise DataError(
            "at least one client must have held-out images of its people, got none: raise data.test_fraction"
        )
    found = ClientScores.of(scores)
    pooled = found.pooled()
    fars = [far for far in FARS if far * len(pooled.impostor) >= 1]
    figures = found.metrics(fars)
    table = {
        "clients": f"{len(scores):,}",
        "AUROC, mean of clients": f"{figures['auroc_macro']:.4f} +- {figures['auroc_std']:.4f}",
        "EER, mean of clients": f"{figures['eer_macro']:.2%}",
        **{f"{name}, pooled": text for name, text in rates(pooled, fars).items()},
    }
    return ProtocolResult(figures, table)


def _split_enrolled(faces: FaceSet) -> tuple[Tensor, Tensor]:
    """Return the rows of the first image of each person with two or more, and the rows of their other images."""
    if not faces.named:
        raise DataError(f"'{faces.name}' lists pairs without identities: only verification is possible")
    _, person, counts = torch.unique(faces.people, return_inverse=True, return_counts=True)
    rows = torch.arange(len(person))
    first = torch.full((len(counts),), len(person)).scatter_reduce(0, person, rows, "amin")[counts > 1]
    if not len(first):
        raise DataError(f"identification needs a person with at least 2 images, got none in '{faces.name}'")
    later = rows[(counts[person] > 1) & ~torch.isin(rows, first)]
    return first, later


def rates(scores: Scores, fars: Sequence[float], rule: Literal["at_most", "closest"] = "at_most") -> dict[str, str]:
    """Return the rows of a verification table."""
    found = [scores.tar_at(far, rule) for far in fars]
    return {"AUROC": f"{scores.auroc():.4f}", "EER": f"{scores.eer():.2%}", **points("TAR", "FAR", found)}


def points(rate: str, error: str, found: Sequence[OperatingPoint]) -> dict[str, str]:
    """Return one table row per operating point."""
    return {f"{rate} at {error} {point.threshold.wanted:g}": f"{point.rate:.2%}" for point in found}
