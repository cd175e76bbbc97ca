"""MegaFace: find a face among a million strangers (Kemelmacher-Shlizerman et al. 2016, arXiv:1512.00596).

Probes are FaceScrub images, the strangers ("distractors") other photographs. Cleaning ("R" in tables) removes what
is wrong with either: mislabeled probes and distractors that show a probe's person.
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
"""A replaced probe differs from the center of its person by uniform noise up to this size."""

FAR_AWAY = 100.0
"""The extra coordinate of a removed distractor, far beyond unit embeddings."""


@dataclass(frozen=True)
class MegaFace:
    """Rank-1 over all ordered pairs of one person's probes, and TAR at each FAR."""

    rank_1: float
    points: tuple[OperatingPoint, ...]
    pairs: int

    def figures(self) -> dict[str, object]:
        """For a table or a JSON file."""
        tar = {f"{point.threshold.wanted:g}": point.figures() for point in self.points}
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
    """Identification and verification among distractors.

    Rank-1: for every two images p, g of one person, g is put among the distractors and p has to find it: its cosine
    must be larger than with every distractor. TAR: genuine pairs are those (p, g), impostors all probes against all
    distractors. `removed` distractors never match, but count as impostors that were refused.
    """
    impostors = len(probes) * len(distractors)
    kept = distractors if removed is None else distractors[~_flags(removed, distractors)]
    if not len(kept):
        raise DataError("there are no distractors: a probe would find its person without search")
    tail = Tail(max(allowed_errors(far, impostors) for far in fars) + 1) if fars else None
    nearest = torch.full((len(probes),), -torch.inf, dtype=torch.float64, device=probes.embeddings.device)
    for block in similarity_blocks(probes.embeddings, kept, block_bytes=block_bytes, done=done):
        some = slice(block.query, block.query + len(block.scores))
        nearest[some] = torch.maximum(nearest[some], block.scores.amax(dim=1).double())
        if tail is not None:
            tail.add(block.scores)
    genuine, found = _genuine(probes, nearest)
    if tail is None:
        return MegaFace(found, (), len(genuine))
    # Where a rate allows more errors than there are scores, removed distractors follow, below every cosine.
    largest = F.pad(tail.largest(), (0, tail.missing()), value=-2.0)
    worst, mates = sorted_scores("impostor scores", largest), sorted_scores("genuine scores", genuine)
    thresholds = (threshold_at(far, worst, impostors) for far in fars)
    points = tuple(operating_point(threshold, mates, len(mates)) for threshold in thresholds)
    return MegaFace(found, points, len(genuine))


def _flags(removed: Tensor, distractors: Tensor) -> Tensor:
    check_flags("removal marks", removed, len(distractors), "distractors")
    return removed.to(distractors.device)


def _genuine(probes: Subjects, nearest: Tensor) -> tuple[Tensor, float]:
    """The cosines of all ordered pairs of one person's images, and the share that beats the nearest distractor."""
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
        raise DataError("no person has two probe images: there is nothing to find")
    return genuine, found / len(genuine)


def clean_probes(probes: Subjects, noisy: Tensor, generator: torch.Generator) -> Subjects:
    """Noisy images replaced by the direction of the sum of their person's clean ones, plus noise within 0.001."""
    check_flags("noise marks", noisy, len(probes), "probes")
    units = directions("the probes", probes.embeddings)
    cleaned = units.clone()
    for row in noisy.nonzero().squeeze(1).tolist():
        clean = (probes.ids == probes.ids[row]) & ~noisy.to(probes.ids.device)
        if not bool(clean.any()):
            raise DataError(f"subject {int(probes.ids[row])} has no clean probe image: leave it out")
        center = units[clean.to(units.device)].sum(dim=0)
        noise = torch.rand(len(center), generator=generator).to(center) * 2 - 1
        cleaned[row] = directions("the centers of persons", (center + NOISE * noise)[None])[0]
    return Subjects(cleaned, probes.ids)


def mark_distractors(distractors: Tensor, noisy: Tensor) -> Tensor:
    """Embeddings (N, d + 1) for the devkit, which compares by distance: noisy ones get a last coordinate of 100.

    For `megaface`, which compares by angle, give the marks as `removed` instead.
    """
    check_table("the distractors", distractors)
    extra = _flags(noisy, distractors).to(distractors) * FAR_AWAY
    return torch.cat([distractors, extra[:, None]], dim=1)
