"""Thresholds from embeddings of people: for two photographs, and for templates as they are enrolled.

A template of several photographs scores higher with other people too, so a threshold chosen on pairs of single
photographs lets more of them pass than it says. How sure a rate is depends on the number of people, not of pairs: its
interval comes from drawing the people anew, with replacement, and counting again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import check_rate, directions, sorted_scores
from fedra.faces.metrics.error_rates import Threshold, allowed_errors, operating_point, threshold_at
from fedra.faces.metrics.search import Done, Tail, nobody, similarity_blocks
from fedra.faces.recognition.thresholds import Decision, Interval, TemplateThreshold

TEMPLATE_PHOTOS = (2, 3, 5, 10)
"""Numbers of photographs for which templates are tried."""
LEAST_PEOPLE = 10
"""People with so many photographs that are needed to measure templates of them."""
LEAST_ERRORS = 10
"""Pairs of people that must be mistaken for an interval: fewer say nothing about how much they vary."""
REPLICATES = 1000
LARGE = 1_000_000
"""From so many mistaken pairs of people on, a fifth of the replicates must do."""


@dataclass(frozen=True)
class Trials:
    """Comparisons of photographs (N, d) with templates (T, d), each by its person's number; only of other people.

    Where `templates` are the photographs themselves, every pair counts once.
    """

    features: Tensor
    people: Tensor
    templates: Tensor
    owners: Tensor
    done: Done

    @property
    def pairs(self) -> bool:
        """Whether photographs are compared with each other."""
        return self.templates is self.features

    @property
    def impostors(self) -> int:
        """How many comparisons there are."""
        return round(self.weighted(np.ones(int(self.people.max()) + 1)))

    def weighted(self, weights: NDArray[np.float64]) -> float:
        """How many there are if person i is there `weights[i]` times; copies of one person are not compared."""
        probes, templates = (
            np.bincount(numbers.numpy(), minlength=len(weights)) * weights for numbers in (self.people, self.owners)
        )
        every = probes.sum() * templates.sum() - (probes * templates).sum()
        return float(every / 2 if self.pairs else every)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Scores, which of them count, and the people of their lines and columns, block by block."""
        for block in similarity_blocks(self.features, self.templates, done=self.done):
            lines = torch.arange(block.query, block.query + len(block.scores))
            columns = torch.arange(block.row, block.row + block.scores.shape[1])
            people, owners = self.people[lines], self.owners[columns]
            others = people[:, None] != owners
            if self.pairs:
                others &= lines[:, None] < columns
            yield block.scores, others, people, owners

    def threshold(self, far: float) -> Threshold:
        """The smallest threshold that at most a share `far` of them reaches."""
        impostors = self.impostors
        tail = Tail(allowed_errors(far, impostors) + 1)
        for scores, others, _, _ in self.blocks():
            tail.add(scores[others])
        return threshold_at(far, sorted_scores("impostor scores", tail.largest()), impostors)

    def interval(self, threshold: Threshold) -> Interval | None:
        """95 % of the rates at the threshold when people are drawn anew; None if too few are mistaken to tell."""
        number, keys = int(self.people.max()) + 1, []
        for scores, others, people, owners in self.blocks():
            lines, columns = (others & (scores >= threshold.value)).nonzero(as_tuple=True)
            keys.append(people[lines] * number + owners[columns])
        mistaken, counts = np.unique(torch.cat(keys).numpy(), return_counts=True)
        if len(mistaken) < LEAST_ERRORS:
            return None
        draw = np.random.default_rng(0)
        rates = []
        for _ in range(REPLICATES if len(mistaken) < LARGE else REPLICATES // 5):
            weights = draw.multinomial(number, np.full(number, 1 / number)).astype(np.float64)
            errors = float(counts @ (weights[mistaken // number] * weights[mistaken % number]))
            rates.append(errors / max(self.weighted(weights), 1.0))
        low, high = np.quantile(rates, [0.025, 0.975])
        return float(low), float(high)


def calibrate_people(
    features: Tensor, people: Tensor, far: float, *, fingerprint: str, data: str, done: Done = nobody
) -> Decision:
    """Thresholds for a FAR from embeddings labeled by person.

    Args:
        features: Embeddings (N, d).
        people: The person of each, integers (N,).
        far: The false accept rate, from 0 to below 1.
        fingerprint: The model's.
        data: What the embeddings are of, in a word.
        done: Receives how many comparisons more are done, of `comparisons(people)`.

    Returns:
        The threshold over all pairs of different people, and those for templates where at least ten people have
        enough photographs, each with an interval over people.

    Example:
        >>> calibrate_people(features, people, 1e-3, fingerprint=recognizer.fingerprint, data="others").value
        0.41
    """
    check_rate("far", far)
    numbers = torch.unique(people, return_inverse=True)[1]
    counts = torch.bincount(numbers)
    if len(counts) < 2:
        raise DataError(f"'{data}' shows one person only: a threshold needs photographs of two or more people")
    pairs = Trials(features, numbers, features, numbers, done)
    threshold = pairs.threshold(far)
    genuine = _genuine(features, numbers)
    return Decision(
        fingerprint=fingerprint,
        value=threshold.value,
        far=far,
        attained=threshold.attained,
        impostors=pairs.impostors,
        genuine=len(genuine),
        tar=_accepted(genuine, threshold) if len(genuine) else None,
        data=data,
        people=len(counts),
        interval=pairs.interval(threshold),
        templates=tuple(_template_threshold(features, numbers, photos, far, done) for photos in _tried(counts)),
        warning=threshold.warning,
    )


def comparisons(people: Tensor) -> int:
    """How many comparisons `calibrate_people` makes."""
    counts = torch.unique(people, return_counts=True)[1]
    templates = sum(int((counts // photos).sum()) for photos in _tried(counts))
    return 2 * len(people) * (len(people) + templates)


def pooled(features: Tensor, people: Tensor, photos: int) -> tuple[Tensor, Tensor]:
    """Templates of so many photographs each, as many as every person's suffice for, and their people."""
    order = torch.argsort(people, stable=True)
    ordered = people[order]
    counts = torch.bincount(people)
    place = torch.arange(len(people)) - (counts.cumsum(0) - counts)[ordered]
    used = place < (counts // photos * photos)[ordered]
    rows = order[used]
    grouped = features[rows].float().view(-1, photos, features.shape[1])
    return grouped.sum(dim=1), people[rows][::photos]


def _template_threshold(features: Tensor, people: Tensor, photos: int, far: float, done: Done) -> TemplateThreshold:
    templates, owners = pooled(features, people, photos)
    trials = Trials(features, people, templates, owners, done)
    threshold = trials.threshold(far)
    return TemplateThreshold(
        photos=photos,
        value=threshold.value,
        attained=threshold.attained,
        impostors=trials.impostors,
        people=len(torch.unique(owners)),
        interval=trials.interval(threshold),
    )


def _tried(counts: Tensor) -> list[int]:
    """The numbers of photographs that enough people have."""
    return [photos for photos in TEMPLATE_PHOTOS if int((counts >= photos).sum()) >= LEAST_PEOPLE]


def _genuine(features: Tensor, people: Tensor) -> Tensor:
    """The scores of all pairs of photographs of one person."""
    found = []
    for rows in torch.split(torch.argsort(people, stable=True), torch.bincount(people).tolist()):
        own = directions("the embeddings", features[rows])
        first, second = torch.triu_indices(len(own), len(own), 1)
        found.append((own @ own.T)[first, second])
    return torch.cat(found)


def _accepted(scores: Tensor, threshold: Threshold) -> float:
    genuine = sorted_scores("genuine scores", scores)
    return operating_point(threshold, genuine, len(genuine)).rate
