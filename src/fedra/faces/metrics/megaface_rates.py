"""MegaFace: identification among up to a million distractors (Kemelmacher-Shlizerman et al. 2016, arXiv:1512.00596).

Probes are FaceScrub images, distractors are photos of other people. Cleaning ("R" in tables) removes label noise:
mislabeled probes, and distractors that show a person of the probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import check_flags, check_table, directions, sorted_scores
from fedra.faces.metrics.error_rates import OperatingPoint, allowed_errors, operating_point, threshold_at
from fedra.faces.metrics.identification import Subjects
from fedra.faces.metrics.search import BLOCK_BYTES, Done, Tail, ignore_progress, similarity_blocks

NOISE = 1e-3
"""Amplitude of the uniform noise added to the mean of a person that replaces a noisy probe."""

FAR_AWAY = 100.0
"""The extra coordinate of a removed distractor, far from unit embeddings."""


@dataclass(frozen=True)
class MegaFace:
    """Result of MegaFace.

    Attributes:
        rank_1: Rank-1 identification rate over all ordered pairs of probes of the same person.
        points: TAR at each FAR.
        pairs: Number of these pairs.

    Example:
        >>> megaface(probes, distractors).rank_1
        0.81
    """

    rank_1: float
    points: tuple[OperatingPoint, ...]
    pairs: int

    def metrics(self) -> dict[str, object]:
        """Return the metrics as a dictionary for JSON.

        Returns:
            The number of pairs, rank-1, and TAR by FAR.

        Example:
            >>> megaface(probes, distractors).metrics()["rank_1"]
            0.81
        """
        tar = {f"{point.threshold.wanted:g}": point.metrics() for point in self.points}
        return {"pairs": self.pairs, "rank_1": self.rank_1, "tar": tar}


def megaface(
    probes: Subjects,
    distractors: Tensor,
    fars: Sequence[float] = (1e-6,),
    *,
    removed: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> MegaFace:
    """Compute rank-1 and TAR of MegaFace.

    Rank-1: for every two images p, g of a person, g is added to the distractors, and p must have a larger cosine with g
    than with every distractor. TAR: these pairs (p, g) are genuine, and all probes against all distractors are
    impostors.

    Args:
        probes: The probes.
        distractors: Embeddings (D, d).
        fars: The false accept rates.
        removed: Mask (D,) of distractors to ignore; they count as rejected impostors.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        Rank-1, and TAR at each FAR.

    Example:
        >>> megaface(probes, distractors, (1e-6,)).points[0].rate
        0.85
    """
    impostors = len(probes) * len(distractors)
    used = distractors if removed is None else distractors[~_check_mask(removed, distractors)]
    if not len(used):
        raise DataError("there must be at least one distractor that is not removed, got none")
    tail = Tail(max(allowed_errors(far, impostors) for far in fars) + 1) if fars else None
    nearest = torch.full((len(probes),), -torch.inf, dtype=torch.float64, device=probes.embeddings.device)
    for block in similarity_blocks(probes.embeddings, used, block_bytes=block_bytes, done=done):
        rows = slice(block.query, block.query + len(block.scores))
        nearest[rows] = torch.maximum(nearest[rows], block.scores.amax(dim=1).double())
        if tail is not None:
            tail.add(block.scores)
    genuine, found = _genuine_scores(probes, nearest)
    if tail is None:
        return MegaFace(found, (), len(genuine))
    # If a rate allows more errors than there are scores, the removed distractors follow with a score below any cosine.
    largest = F.pad(tail.largest(), (0, tail.missing()), value=-2.0)
    worst, mates = sorted_scores("impostor scores", largest), sorted_scores("genuine scores", genuine)
    thresholds = (threshold_at(far, worst, impostors) for far in fars)
    points = tuple(operating_point(threshold, mates, len(mates)) for threshold in thresholds)
    return MegaFace(found, points, len(genuine))


def _check_mask(removed: Tensor, distractors: Tensor) -> Tensor:
    check_flags("removal flags", removed, len(distractors), "distractors")
    return removed.to(distractors.device)


def _genuine_scores(probes: Subjects, nearest: Tensor) -> tuple[Tensor, float]:
    """Return the cosines of all ordered pairs of a person's images, and the share above the nearest distractor."""
    scores, found = [], 0
    for person in torch.unique(probes.ids).tolist():
        rows = (probes.ids == person).nonzero().squeeze(1).to(probes.embeddings.device)
        units = directions("the probes", probes.embeddings[rows])
        others = ~torch.eye(len(rows), dtype=torch.bool, device=units.device)
        table = units @ units.T
        found += int(((table > nearest[rows][:, None]) & others).sum())
        scores.append(table[others])
    genuine = torch.cat(scores)
    if not len(genuine):
        raise DataError("at least one person must have two probe images, got none")
    return genuine, found / len(genuine)


def clean_probes(probes: Subjects, noisy: Tensor, generator: torch.Generator) -> Subjects:
    """Replace noisy probes by the mean of their person's clean ones, plus noise of at most 0.001.

    Args:
        probes: The probes.
        noisy: Mask (N,) of the noisy ones.
        generator: Random generator of the noise.

    Returns:
        The probes, normalized.

    Example:
        >>> clean_probes(probes, noisy, torch.Generator().manual_seed(0)).embeddings.shape
        torch.Size([3530, 512])
    """
    check_flags("noise flags", noisy, len(probes), "probes")
    units = directions("the probes", probes.embeddings)
    cleaned = units.clone()
    for row in noisy.nonzero().squeeze(1).tolist():
        clean = (probes.ids == probes.ids[row]) & ~noisy.to(probes.ids.device)
        if not bool(clean.any()):
            raise DataError(
                f"each subject must have a clean probe image, but {int(probes.ids[row])} has none: remove the subject"
            )
        center = units[clean.to(units.device)].sum(dim=0)
        noise = torch.rand(len(center), generator=generator).to(center) * 2 - 1
        cleaned[row] = directions("the centers of persons", (center + NOISE * noise)[None])[0]
    return Subjects(cleaned, probes.ids)


def mark_distractors(distractors: Tensor, noisy: Tensor) -> Tensor:
    """Mark noisy distractors for the devkit, which compares by distance, with an extra coordinate of 100.

    For `megaface`, which compares by angle, pass the mask as `removed` instead.

    Args:
        distractors: Embeddings (N, d).
        noisy: Mask (N,) of the noisy ones.

    Returns:
        Embeddings (N, d + 1).

    Example:
        >>> mark_distractors(torch.eye(2), torch.tensor([False, True]))[:, -1]
        tensor([  0., 100.])
    """
    check_table("the distractors", distractors)
    extra = _check_mask(noisy, distractors).to(distractors) * FAR_AWAY
    return torch.cat([distractors, extra[:, None]], dim=1)
