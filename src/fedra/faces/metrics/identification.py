"""Identification: closed-set ranks (CMC) and open-set TPIR at FPIR, in a gallery with one template per subject.

A tie with another subject counts as a miss, so a network that maps all faces to one point gets no credit from the order
of the gallery.
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
    """Embeddings with their subjects.

    Args:
        embeddings: Embeddings (N, d).
        ids: Subject id of each (N,), integers.

    Example:
        >>> len(Subjects(torch.eye(3), torch.tensor([0, 1, 2])))
        3
    """

    embeddings: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        check_table("the embeddings", self.embeddings)
        check_integers("subject ids", self.ids, len(self.embeddings), "embeddings")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ClosedSet:
    """Result of closed-set identification.

    Attributes:
        cmc: Share of probes whose subject is among the first 1, 2, ... of the gallery.
        probes: Number of probes.

    Example:
        >>> closed_set(probes, gallery).rank(1)
        0.93
    """

    cmc: tuple[float, ...]
    probes: int

    def rank(self, k: int) -> float:
        """Return the rank-k identification rate.

        Args:
            k: The rank, from 1.

        Returns:
            Share of probes whose subject is among the first k.

        Example:
            >>> closed_set(probes, gallery).rank(5)
            0.98
        """
        return self.cmc[min(k, len(self.cmc)) - 1]

    def metrics(self, ranks: Sequence[int] = RANKS) -> dict[str, object]:
        """Return the metrics as a dictionary for JSON.

        Args:
            ranks: The ranks to include.

        Returns:
            The number of probes, the rate at each rank, and the CMC.

        Example:
            >>> closed_set(probes, gallery).metrics((1,))["rank_1"]
            0.93
        """
        return {"probes": self.probes, **{f"rank_{k}": self.rank(k) for k in ranks}, "cmc": list(self.cmc)}


@dataclass(frozen=True)
class OpenSet:
    """Result of open-set identification.

    Attributes:
        points: TPIR at each FPIR.
        mated: Number of probes whose subject is in the gallery.
        non_mated: Number of probes whose subject is not.

    Example:
        >>> open_set(probes, gallery, (0.01,)).points[0].rate
        0.87
    """

    points: tuple[OperatingPoint, ...]
    mated: int
    non_mated: int

    def metrics(self) -> dict[str, object]:
        """Return the metrics as a dictionary for JSON.

        Returns:
            The numbers of probes, and TPIR by FPIR.

        Example:
            >>> open_set(probes, gallery, (0.01,)).metrics()["tpir"]["0.01"]["rate"]
            0.87
        """
        tpir = {f"{point.threshold.wanted:g}": point.metrics() for point in self.points}
        return {"mated": self.mated, "non_mated": self.non_mated, "tpir": tpir}


def closed_set(
    probes: Subjects,
    gallery: Subjects,
    *,
    up_to: int = max(RANKS),
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> ClosedSet:
    """Compute the CMC of closed-set identification.

    Args:
        probes: The probes; each subject must be in the gallery.
        gallery: The gallery, one template per subject.
        up_to: The last rank.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        The identification rates up to the last rank.

    Example:
        >>> closed_set(Subjects(torch.eye(3), torch.arange(3)), Subjects(torch.eye(3), torch.arange(3))).rank(1)
        1.0
    """
    check_ranks((up_to,))
    check_single(gallery.ids)
    missing = probes.ids[~_mated(probes, gallery)]
    if len(missing):
        raise DataError(
            f"the subjects of all probes must be in the gallery, but {int(missing[0])} is not: remove such probes, or "
            "use open_set"
        )
    # One more than requested, to detect a tie after the last rank.
    nearest = min(up_to + 1, len(gallery))
    found = top_k(probes.embeddings, gallery.embeddings, nearest, block_bytes=block_bytes, done=done)
    ranks = _ranks(found, probes, gallery)
    counts = torch.bincount(ranks, minlength=nearest + 2)[1 : min(up_to, len(gallery)) + 1]
    return ClosedSet(tuple((counts.cumsum(0).double() / len(probes)).tolist()), len(probes))


def _mated(probes: Subjects, gallery: Subjects) -> Tensor:
    return torch.isin(probes.ids, gallery.ids.to(probes.ids.device))


def _ranks(found: Matches, probes: Subjects, gallery: Subjects) -> Tensor:
    """Return 1 + the number of other subjects that score at least as high; length + 1 if the subject is not found."""
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
    """Compute TPIR at each FPIR of open-set identification.

    FPIR is the share of non-mated probes (subject not in the gallery) whose best score reaches the threshold; TPIR is
    the share of mated probes whose subject ranks first and reaches it.

    Args:
        probes: Mated and non-mated probes.
        gallery: The gallery, one template per subject.
        fpirs: The false positive identification rates.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        TPIR and threshold at each FPIR, and the numbers of probes.

    Example:
        >>> [point.rate for point in open_set(probes, gallery, (0.01, 0.1)).points]
        [0.87, 0.95]
    """
    check_single(gallery.ids)
    mated = _mated(probes, gallery)
    if not bool(mated.any()) or bool(mated.all()):
        kind = "non-mated" if bool(mated.any()) else "mated"
        raise DataError(f"open_set needs mated and non-mated probes, but there are no {kind} ones: add some")
    found = top_k(probes.embeddings, gallery.embeddings, min(2, len(gallery)), block_bytes=block_bytes, done=done)
    mated = mated.to(found.scores.device)
    best, first = found.scores[:, 0], _ranks(found, probes, gallery) == 1
    non_mated_scores = sorted_scores("scores of non-mated probes", best[~mated])
    mated_scores = np.sort(best[mated & first].cpu().numpy())
    trials = int(mated.sum())
    thresholds = (threshold_at(fpir, non_mated_scores, len(non_mated_scores)) for fpir in fpirs)
    points = tuple(operating_point(threshold, mated_scores, trials) for threshold in thresholds)
    return OpenSet(points, trials, len(non_mated_scores))


def open_set_over_galleries(
    probes: Subjects,
    galleries: Sequence[Subjects],
    fpirs: Sequence[float] = FPIRS,
    *,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> tuple[tuple[float, ...], tuple[OpenSet, ...]]:
    """Compute open-set TPIR in several galleries (IJB 1:N).

    The galleries have different subjects, so the probes of one are non-mated in the other.

    Args:
        probes: The probes of all galleries.
        galleries: The galleries, each with one template per subject.
        fpirs: The false positive identification rates.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        The mean TPIR at each FPIR, and the result of each gallery.

    Example:
        >>> open_set_over_galleries(probes, [first, second], (0.01,))[0]
        (0.94,)
    """
    if not galleries:
        raise DataError("galleries must have at least one gallery, got none")
    parts = tuple(open_set(probes, gallery, fpirs, block_bytes=block_bytes, done=done) for gallery in galleries)
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
    """Compute the "FAR" rates of InsightFace's and FedFR's 1:N tables, which are not FPIRs.

    The threshold is the ceil(Q far)-th largest of all similarities between Q probes and other subjects; the rate is
    the share of probes whose similarity to their own subject is above it, whether or not it ranks first.

    Args:
        probes: The probes; each subject must be in the gallery.
        gallery: The gallery, one template per subject.
        fars: The rates that the tables call FAR.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        The rate and threshold at each FAR.

    Example:
        >>> [point.rate for point in insightface_1n(probes, gallery)]
        [0.91, 0.97]
    """
    check_single(gallery.ids)
    if not bool(_mated(probes, gallery).all()):
        raise DataError("the subjects of all probes must be in the gallery: remove the other probes, or use open_set")
    if len(gallery) < 2:
        raise DataError(f"the gallery must have at least 2 subjects, got {len(gallery)}")
    owners, subjects = gallery.ids.to(probes.embeddings.device), probes.ids.to(probes.embeddings.device)
    ranks = [max(1, math.ceil(share_of(far, len(probes)))) for far in fars]
    tail, own = Tail(max(ranks)), subjects.new_zeros(len(probes), dtype=torch.float64)
    for block in similarity_blocks(probes.embeddings, gallery.embeddings, block_bytes=block_bytes, done=done):
        rows, columns = block.scores.shape
        is_own = subjects[block.query : block.query + rows, None] == owners[block.row : block.row + columns]
        own[block.query : block.query + rows] += (block.scores * is_own).sum(dim=1)
        tail.add(block.scores[~is_own])
    largest = sorted_scores("scores of other subjects", tail.largest())
    genuine = np.sort(own.cpu().numpy())
    thresholds = (
        threshold_allowing(rank - 1, far, largest, len(probes)) for rank, far in zip(ranks, fars, strict=True)
    )
    return tuple(operating_point(threshold, genuine, len(probes)) for threshold in thresholds)
