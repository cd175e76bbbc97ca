"""Choose thresholds from labeled embeddings: for pairs of photos, and for the templates of a gallery.

A template of several photos has a higher similarity to other people too, so a threshold chosen on pairs of single
photos accepts more impostors than intended. The precision of an error rate depends on the number of people, not on the
number of pairs: its confidence interval is a bootstrap over people.
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
from fedra.faces.metrics.search import Done, Tail, ignore_progress, similarity_blocks
from fedra.faces.recognition.thresholds import Decision, Interval, TemplateThreshold

TEMPLATE_PHOTOS = (2, 3, 5, 10)
"""Template sizes (numbers of photos) for which a threshold is measured."""
MIN_PEOPLE = 10
"""A template size is measured only if at least this many people have enough photos."""
MIN_ERRORS = 10
"""An interval is computed only if at least this many pairs of people are falsely accepted."""
REPLICATES = 1000
LARGE = 1_000_000
"""With this many falsely accepted pairs of people, a fifth of the bootstrap replicates is used, to save time."""


@dataclass(frozen=True)
class ImpostorComparisons:
    """Comparisons of photos (N, d) with templates (T, d) of other people; `people` and `owners` are person indices.

    If `templates` is `features` itself, every pair of photos counts once.
    """

    features: Tensor
    people: Tensor
    templates: Tensor
    owners: Tensor
    done: Done

    @property
    def is_pairwise(self) -> bool:
        """Whether photos are compared with each other."""
        return self.templates is self.features

    @property
    def impostors(self) -> int:
        """Number of comparisons."""
        return round(self.count_weighted(np.ones(int(self.people.max()) + 1)))

    def count_weighted(self, weights: NDArray[np.float64]) -> float:
        """Count the comparisons if person i occurs `weights[i]` times; copies of a person are not compared."""
        probes, templates = (
            np.bincount(indices.numpy(), minlength=len(weights)) * weights for indices in (self.people, self.owners)
        )
        total = probes.sum() * templates.sum() - (probes * templates).sum()
        return float(total / 2 if self.is_pairwise else total)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield blocks of scores, a mask of those that count, and the people of the block's rows and columns."""
        for block in similarity_blocks(self.features, self.templates, done=self.done):
            rows = torch.arange(block.query, block.query + len(block.scores))
            columns = torch.arange(block.row, block.row + block.scores.shape[1])
            people, owners = self.people[rows], self.owners[columns]
            counted = people[:, None] != owners
            if self.is_pairwise:
                counted &= rows[:, None] < columns
            yield block.scores, counted, people, owners

    def threshold(self, far: float) -> Threshold:
        """Return the smallest threshold that at most a share `far` of the comparisons reaches."""
        impostors = self.impostors
        tail = Tail(allowed_errors(far, impostors) + 1)
        for scores, counted, _, _ in self.blocks():
            tail.add(scores[counted])
        return threshold_at(far, sorted_scores("impostor scores", tail.largest()), impostors)

    def interval(self, threshold: Threshold) -> Interval | None:
        """Return the 95 % bootstrap interval of the error rate over people; None with fewer than `MIN_ERRORS`."""
        number, keys = int(self.people.max()) + 1, []
        for scores, counted, people, owners in self.blocks():
            rows, columns = (counted & (scores >= threshold.value)).nonzero(as_tuple=True)
            keys.append(people[rows] * number + owners[columns])
        accepted, counts = np.unique(torch.cat(keys).numpy(), return_counts=True)
        if len(accepted) < MIN_ERRORS:
            return None
        random = np.random.default_rng(0)
        rates = []
        for _ in range(REPLICATES if len(accepted) < LARGE else REPLICATES // 5):
            weights = random.multinomial(number, np.full(number, 1 / number)).astype(np.float64)
            errors = float(counts @ (weights[accepted // number] * weights[accepted % number]))
            rates.append(errors / max(self.count_weighted(weights), 1.0))
        low, high = np.quantile(rates, [0.025, 0.975])
        return float(low), float(high)


def calibrate_people(
    features: Tensor, people: Tensor, far: float, *, fingerprint: str, data: str, done: Done = ignore_progress
) -> Decision:
    """Choose thresholds for a false accept rate from embeddings labeled by person.

    Args:
        features: Embeddings (N, d).
        people: Person of each embedding, integers (N,).
        far: False accept rate, at least 0 and below 1.
        fingerprint: Fingerprint of the model.
        data: Name of the data, for messages.
        done: Called with the number of comparisons that were just made, `count_comparisons(people)` in total.

    Returns:
        The threshold over all pairs of different people, and one for each template size for which at least ten people
        have enough photos, each with a confidence interval over people.

    Example:
        >>> calibrate_people(features, people, 1e-3, fingerprint=recognizer.fingerprint, data="others").value
        0.41
    """
    check_rate("far", far)
    indices = torch.unique(people, return_inverse=True)[1]
    counts = torch.bincount(indices)
    if len(counts) < 2:
        raise DataError(f"'{data}' must show at least 2 people to choose a threshold, got {len(counts)}")
    pairs = ImpostorComparisons(features, indices, features, indices, done)
    threshold = pairs.threshold(far)
    genuine = _genuine_scores(features, indices)
    return Decision(
        fingerprint=fingerprint,
        value=threshold.value,
        far=far,
        attained=threshold.attained,
        impostors=pairs.impostors,
        genuine=len(genuine),
        tar=_accept_rate(genuine, threshold) if len(genuine) else None,
        data=data,
        people=len(counts),
        interval=pairs.interval(threshold),
        templates=tuple(
            _template_threshold(features, indices, photos, far, done) for photos in _measured_sizes(counts)
        ),
        warning=threshold.warning,
    )


def count_comparisons(people: Tensor) -> int:
    """Count the comparisons that `calibrate_people` makes."""
    counts = torch.unique(people, return_counts=True)[1]
    templates = sum(int((counts // photos).sum()) for photos in _measured_sizes(counts))
    return 2 * len(people) * (len(people) + templates)


def pool_templates(features: Tensor, people: Tensor, photos: int) -> tuple[Tensor, Tensor]:
    """Form templates of `photos` photos each, as many per person as possible, and return them with their people."""
    order = torch.argsort(people, stable=True)
    ordered = people[order]
    counts = torch.bincount(people)
    position = torch.arange(len(people)) - (counts.cumsum(0) - counts)[ordered]
    used = position < (counts // photos * photos)[ordered]
    rows = order[used]
    grouped = features[rows].float().view(-1, photos, features.shape[1])
    return grouped.sum(dim=1), people[rows][::photos]


def _template_threshold(features: Tensor, people: Tensor, photos: int, far: float, done: Done) -> TemplateThreshold:
    templates, owners = pool_templates(features, people, photos)
    comparisons = ImpostorComparisons(features, people, templates, owners, done)
    threshold = comparisons.threshold(far)
    return TemplateThreshold(
        photos=photos,
        value=threshold.value,
        attained=threshold.attained,
        impostors=comparisons.impostors,
        people=len(torch.unique(owners)),
        interval=comparisons.interval(threshold),
    )


def _measured_sizes(counts: Tensor) -> list[int]:
    """Return the template sizes for which enough people have enough photos."""
    return [photos for photos in TEMPLATE_PHOTOS if int((counts >= photos).sum()) >= MIN_PEOPLE]


def _genuine_scores(features: Tensor, people: Tensor) -> Tensor:
    """Return the scores of all pairs of photos of the same person."""
    found = []
    for rows in torch.split(torch.argsort(people, stable=True), torch.bincount(people).tolist()):
        own = directions("the embeddings", features[rows])
        first, second = torch.triu_indices(len(own), len(own), 1)
        found.append((own @ own.T)[first, second])
    return torch.cat(found)


def _accept_rate(scores: Tensor, threshold: Threshold) -> float:
    genuine = sorted_scores("genuine scores", scores)
    return operating_point(threshold, genuine, len(genuine)).rate
