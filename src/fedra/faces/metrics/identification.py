"""Who is this face? Closed-set ranks (CMC) and open-set TPIR at FPIR against a gallery of one template a subject.

A subject that another one equals in score is not recognized: a tie is a miss, so that a network which maps all
faces to one point gets no credit from the order of the gallery.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import check_integers, check_ranks, check_single, check_table, sorted_scores
from fedra.faces.metrics.error_rates import OperatingPoint, operating_point, share_of, threshold_allowing, threshold_at
from fedra.faces.metrics.search import BLOCK_BYTES, Done, Matches, Tail, ignore_progress, similarity_blocks, top_k

RANKS = (1, 5, 10)
FPIRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Subjects:
    """Embeddings (N, d) with the number of the subject each shows."""

    embeddings: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        check_table("the embeddings", self.embeddings)
        check_integers("subject numbers", self.ids, len(self.embeddings), "embeddings")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ClosedSet:
    """CMC: the share of probes whose subject is among the first 1, 2, ... of the gallery."""

    cmc: tuple[float, ...]
    probes: int

    def rank(self, k: int) -> float:
        return self.cmc[min(k, len(self.cmc)) - 1]

    def figures(self, ranks: Sequence[int] = RANKS) -> dict[str, object]:
        """For a table or a JSON file."""
        return {"probes": self.probes, **{f"rank_{k}": self.rank(k) for k in ranks}, "cmc": list(self.cmc)}


@dataclass(frozen=True)
class OpenSet:
    """TPIR at each FPIR, with the numbers of mated and of non-mated probes."""

    points: tuple[OperatingPoint, ...]
    mated: int
    non_mated: int

    def figures(self) -> dict[str, object]:
        """For a table or a JSON file."""
        tpir = {f"{point.threshold.wanted:g}": point.figures() for point in self.points}
        return {"mated": self.mated, "non_mated": self.non_mated, "tpir": tpir}


def closed_set(
    probes: Subjects,
    gallery: Subjects,
    *,
    up_to: int = max(RANKS),
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> ClosedSet:
    """The CMC up to a rank. Every probe's subject must be in the gallery."""
    check_ranks((up_to,))
    check_single(gallery.ids)
    strangers = probes.ids[~_mated(probes, gallery)]
    if len(strangers):
        raise DataError(
            f"subject {int(strangers[0])} of a probe is not in the gallery: leave such probes out, or use open_set"
        )
    # One more than asked for, so that a tie behind the last rank is seen.
    nearest = min(up_to + 1, len(gallery))
    found = top_k(probes.embeddings, gallery.embeddings, nearest, block_bytes=block_bytes, done=done)
    ranks = _ranks(found, probes, gallery)
    counts = torch.bincount(ranks, minlength=nearest + 2)[1 : min(up_to, len(gallery)) + 1]
    return ClosedSet(tuple((counts.cumsum(0).double() / len(probes)).tolist()), len(probes))


def _mated(probes: Subjects, gallery: Subjects) -> Tensor:
    return torch.isin(probes.ids, gallery.ids.to(probes.ids.device))


def _ranks(found: Matches, probes: Subjects, gallery: Subjects) -> Tensor:
    """1 + how many other subjects score at least as much as the probe's own; beyond the list, its length + 1."""
    listed = gallery.ids.to(found.rows.device)[found.rows]
    own = listed == probes.ids.to(listed.device)[:, None]
    own_score = found.scores.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
    before = ((found.scores >= own_score) & ~own).sum(dim=1)
    return torch.where(own.any(dim=1), before, found.rows.shape[1]) + 1


def open_set(
    probes: Subjects,
    gallery: Subjects,
    fpirs: Sequence[float] = FPIRS,
    *,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> OpenSet:
    """TPIR at each FPIR. Probes whose subject is not in the gallery are the non-mated ones.

    FPIR is the share of non-mated probes whose best score reaches the threshold; TPIR the share of mated probes
    whose own subject comes first and reaches it.
    """
    check_single(gallery.ids)
    mated = _mated(probes, gallery)
    if not bool(mated.any()) or bool(mated.all()):
        kind = "non-mated" if bool(mated.any()) else "mated"
        raise DataError(f"there are no {kind} probes: an open set needs probes inside and outside of the gallery")
    found = top_k(probes.embeddings, gallery.embeddings, min(2, len(gallery)), block_bytes=block_bytes, done=done)
    mated = mated.to(found.scores.device)
    best, first = found.scores[:, 0], _ranks(found, probes, gallery) == 1
    strangers = sorted_scores("scores of non-mated probes", best[~mated])
    known = np.sort(best[mated & first].cpu().numpy())
    trials = int(mated.sum())
    thresholds = (threshold_at(fpir, strangers, len(strangers)) for fpir in fpirs)
    points = tuple(operating_point(threshold, known, trials) for threshold in thresholds)
    return OpenSet(points, trials, len(strangers))


def open_set_over_galleries(
    probes: Subjects,
    galleries: Sequence[Subjects],
    fpirs: Sequence[float] = FPIRS,
    *,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> tuple[tuple[float, ...], tuple[OpenSet, ...]]:
    """IJB 1:N, open set: every gallery for itself, and the mean TPIR at each FPIR.

    The galleries' subjects differ, so that the probes of one are non-mated in the other.
    """
    if not galleries:
        raise DataError("there are no galleries: give at least one")
    parts = tuple(open_set(probes, it, fpirs, block_bytes=block_bytes, done=done) for it in galleries)
    means = tuple(sum(part.points[i].rate for part in parts) / len(parts) for i in range(len(fpirs)))
    return means, parts


def insightface_1n(
    probes: Subjects,
    gallery: Subjects,
    fars: Sequence[float] = (1e-2, 1e-1),
    *,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> tuple[OperatingPoint, ...]:
    """The "FAR" lines of insightface's and FedFR's 1:N tables, which are no FPIR.

    The threshold is the ceil(Q far)-th largest of all similarities between Q probes and other subjects; the rate is
    the share of probes whose similarity with their own subject is above it, whether or not it comes first.
    """
    check_single(gallery.ids)
    if not bool(_mated(probes, gallery).all()):
        raise DataError("a probe's subject is not in the gallery: leave such probes out, or use open_set")
    if len(gallery) < 2:
        raise DataError("the gallery holds one subject: there is nobody to confuse it with")
    owners, asked = gallery.ids.to(probes.embeddings.device), probes.ids.to(probes.embeddings.device)
    places = [max(1, math.ceil(share_of(far, len(probes)))) for far in fars]
    tail, own = Tail(max(places)), asked.new_zeros(len(probes), dtype=torch.float64)
    for block in similarity_blocks(probes.embeddings, gallery.embeddings, block_bytes=block_bytes, done=done):
        lines, columns = block.scores.shape
        mate = asked[block.query : block.query + lines, None] == owners[block.row : block.row + columns]
        own[block.query : block.query + lines] += (block.scores * mate).sum(dim=1)
        tail.add(block.scores[~mate])
    largest = sorted_scores("scores of other subjects", tail.largest())
    genuine = np.sort(own.cpu().numpy())
    thresholds = (
        threshold_allowing(place - 1, far, largest, len(probes)) for place, far in zip(places, fars, strict=True)
    )
    return tuple(operating_point(threshold, genuine, len(probes)) for threshold in thresholds)
