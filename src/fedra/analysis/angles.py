"""Angles between embeddings: within and between classes, and within and across clients.

Figure 3 of FedGC (Niu and Deng, "Federated learning for face recognition with gradient correction") shows such cosines
between classes of different clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedra.analysis.embeddings import Embeddings
from fedra.core.evaluate import ignore_progress
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError
from fedra.losses.angle import normalize

BINS = 180
"""One bin per degree."""

ALL_PAIRS = 200_000_000
"""Largest number of pairs that are all measured; above it, pairs are drawn."""

BLOCK = 4_000_000
"""Number of cosines in memory at once."""

OTHER_CLASS_CROSS_CLIENT, OTHER_CLASS_SAME_CLIENT, SAME_CLASS_CROSS_CLIENT, SAME_CLASS_SAME_CLIENT = range(4)
"""The kind of a pair: 2 if both have the same class, plus 1 if both have the same client."""


class Measured(NamedTuple):
    """Cosines and kinds of some pairs, and how many steps of progress they were."""

    cosine: Tensor
    kind: Tensor
    steps: int


@dataclass(frozen=True)
class Angles:
    """Histograms and mean cosines of pairs of embeddings, as `angles` returns them.

    Args:
        counts: Number of pairs by kind and degree (4, 180).
        sums: Sums of cosines by kind (4,).
        means: Cosines of class means, by name.
        examples: Number of embeddings.
        classes: Number of classes.
        clients: Number of clients; None if they are not known.
        drawn: Whether pairs were drawn at random instead of measuring all.
        without_direction: Number of zero embeddings, which were left out.
    """

    counts: Tensor
    sums: Tensor
    means: dict[str, float | None]
    examples: int
    classes: int
    clients: int | None
    drawn: bool
    without_direction: int

    def histogram(self, *kinds: int) -> Tensor:
        """Return the number of pairs of these kinds at each degree."""
        return self.counts[list(kinds)].sum(dim=0)

    def mean_cosine(self, *kinds: int) -> float | None:
        """Return the mean cosine of the pairs of these kinds; None if there are none."""
        pairs = int(self.counts[list(kinds)].sum())
        return float(self.sums[list(kinds)].sum()) / pairs if pairs else None

    def metrics(self) -> dict[str, Any]:
        """Return all metrics by name, for tables and JSON."""
        found: dict[str, Any] = {
            "examples": self.examples,
            "without_direction": self.without_direction,
            "classes": self.classes,
            "pairs": "drawn" if self.drawn else "all",
            "within_class_pairs": int(self.histogram(SAME_CLASS_CROSS_CLIENT, SAME_CLASS_SAME_CLIENT).sum()),
            "between_class_pairs": int(self.histogram(OTHER_CLASS_CROSS_CLIENT, OTHER_CLASS_SAME_CLIENT).sum()),
            "within_class_cosine": self.mean_cosine(SAME_CLASS_CROSS_CLIENT, SAME_CLASS_SAME_CLIENT),
            "between_class_cosine": self.mean_cosine(OTHER_CLASS_CROSS_CLIENT, OTHER_CLASS_SAME_CLIENT),
        }
        if self.clients is not None:
            found |= {
                "clients": self.clients,
                "within_class_one_client_cosine": self.mean_cosine(SAME_CLASS_SAME_CLIENT),
                "within_class_cross_client_cosine": self.mean_cosine(SAME_CLASS_CROSS_CLIENT),
                "between_class_one_client_cosine": self.mean_cosine(OTHER_CLASS_SAME_CLIENT),
                "between_class_cross_client_cosine": self.mean_cosine(OTHER_CLASS_CROSS_CLIENT),
            }
        return found | self.means


def steps(examples: int, pairs: int) -> int:
    """Return the total that `done` of `angles` adds up to: examples if all pairs are measured, else drawn pairs."""
    return examples if _pairs(examples) <= ALL_PAIRS else 2 * pairs


def angles(
    embeddings: Embeddings, *, pairs: int = 1_000_000, seed: int = 0, done: Callable[[int], None] = ignore_progress
) -> Angles:
    """Measure the angles of all pairs of examples, and the cosines of the classes' mean directions.

    Embeddings without a direction (all zero) are left out and counted.

    Args:
        embeddings: The embeddings, with labels and, if known, clients.
        pairs: Above 200 million pairs, the number of pairs within classes, and of pairs between classes, that are drawn
            with replacement instead.
        seed: Seed of that draw.
        done: Called with the number of finished steps; their total is `steps(len(embeddings), pairs)`.

    Returns:
        Histograms by degree and mean cosines.

    Example:
        >>> found = angles(Embeddings(torch.eye(3), torch.tensor([0, 0, 1])))
        >>> found.metrics()["between_class_pairs"]
        2
    """
    if pairs < 1:
        raise ConfigError(f"pairs must be at least 1, got {pairs}")
    directed = embeddings.features.abs().sum(dim=1) > 0
    if int(directed.sum()) < 2:
        raise DataError(
            f"at least 2 embeddings must be nonzero to measure an angle, got {int(directed.sum())} of {len(embeddings)}"
        )
    units = embeddings.rows(directed.nonzero()[:, 0]).normalized()
    drawn = _pairs(len(embeddings)) > ALL_PAIRS
    counts = torch.zeros(4 * BINS, dtype=torch.int64, device=units.features.device)
    sums = torch.zeros(4, dtype=torch.float64, device=units.features.device)
    for cosine, kind, steps_done in _drawn_pairs(units, pairs, seed) if drawn else _all_pairs(units):
        degree = cosine.clamp(-1, 1).acos().rad2deg().long().clamp(max=BINS - 1)
        counts += torch.bincount(kind * BINS + degree, minlength=4 * BINS)
        sums += torch.bincount(kind, weights=cosine.double(), minlength=4)
        done(steps_done)
    owners = units.clients
    return Angles(
        counts.view(4, BINS).cpu(),
        sums.cpu(),
        class_means(units),
        len(units),
        len(torch.unique(units.labels)),
        None if owners is None else len(torch.unique(owners)),
        drawn,
        len(embeddings) - len(units),
    )


def _pairs(examples: int) -> int:
    return examples * (examples - 1) // 2


def _kinds(units: Embeddings, left: Tensor, right: Tensor) -> Tensor:
    """Return the kinds of pairs of rows; `left` may be a column, for a whole table."""
    same = (units.labels[left] == units.labels[right]).long()
    return 2 * same if units.clients is None else 2 * same + (units.clients[left] == units.clients[right])


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of rows whose tables against all later rows have a bounded size."""
    start = 0
    while start < rows:
        end = min(start + max(BLOCK // (rows - start), 1), rows)
        yield start, end
        start = end


def _all_pairs(units: Embeddings) -> Iterator[Measured]:
    """Yield every pair once: a block of rows against all later rows."""
    rows = torch.arange(len(units), device=units.features.device)
    for start, end in _blocks(len(units)):
        later = rows[start:end, None] < rows[start:]
        cosine = units.features[start:end] @ units.features[start:].T
        yield Measured(cosine[later], _kinds(units, rows[start:end, None], rows[start:])[later], end - start)


def _drawn_pairs(units: Embeddings, pairs: int, seed: int) -> Iterator[Measured]:
    """Draw as many pairs within classes as between classes; a kind without pairs is left out."""
    labels, device = units.labels.cpu(), units.features.device
    order = labels.argsort(stable=True)
    sizes = torch.unique(labels, return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    draw = generator(seed, "pairs")
    within, between = (sizes * (sizes - 1)).double(), (sizes * (len(labels) - sizes)).double()
    block = max(BLOCK // units.features.shape[1], 1)
    for weights, same_class in ((within, True), (between, False)):
        for count in [min(block, pairs - done) for done in range(0, pairs, block)] if weights.sum() > 0 else ():
            group = _choose(weights, count, draw)
            first = (torch.rand(count, generator=draw, dtype=torch.float64) * sizes[group]).long()
            others = sizes[group] - 1 if same_class else len(labels) - sizes[group]
            step = (torch.rand(count, generator=draw, dtype=torch.float64) * others).long()
            # Step cyclically to another member of the class, or past its end to any example of the other classes.
            second = (first + 1 + step) % sizes[group] if same_class else sizes[group] + step
            left = order[starts[group] + first].to(device)
            right = order[(starts[group] + second) % len(labels)].to(device)
            cosine = (units.features[left] * units.features[right]).sum(dim=1)
            yield Measured(cosine, _kinds(units, left, right), count)


def _choose(weights: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Draw indices in proportion to weights, by the inverse of their cumulative sum, for any number of weights."""
    ends = weights.cumsum(0)
    spots = torch.rand(count, generator=draw, dtype=torch.float64) * ends[-1]
    return torch.searchsorted(ends, spots, right=True).clamp(max=len(weights) - 1)


def class_means(units: Embeddings) -> dict[str, float | None]:
    """Return the mean and largest cosine between the mean directions of two classes.

    If clients are known, also those of the pairs of classes that some client holds both of, and of those that none
    does.
    """
    names, numbers = torch.unique(units.labels, return_inverse=True)
    sums = units.features.new_zeros(len(names), units.features.shape[1]).index_add_(0, numbers, units.features)
    means, rows = normalize(sums), torch.arange(len(names), device=sums.device)
    held = holders(numbers, units.clients)
    groups = ("",) if held is None else ("", "_one_client", "_cross_client")
    count, total = dict.fromkeys(groups, 0), dict.fromkeys(groups, 0.0)
    largest = dict.fromkeys(groups, -1.0)
    for start, end in _blocks(len(names)):
        later = rows[start:end, None] < rows[start:]
        cosine = (means[start:end] @ means[start:].T)[later]
        chosen = {"": cosine}
        if held is not None:
            together = (held[start:end] @ held[start:].T)[later] > 0
            chosen |= {"_one_client": cosine[together], "_cross_client": cosine[~together]}
        for group, values in chosen.items():
            count[group] += len(values)
            total[group] += float(values.double().sum())
            if len(values):
                largest[group] = max(largest[group], float(values.max()))
    found: dict[str, float | None] = {}
    for group in groups:
        found[f"class_means{group}_cosine"] = total[group] / count[group] if count[group] else None
        found[f"class_means{group}_largest_cosine"] = largest[group] if count[group] else None
    return found


def holders(classes: Tensor, clients: Tensor | None) -> Tensor | None:
    """Return (classes, clients): 1 where the client holds an example of the class."""
    if clients is None:
        return None
    owners = torch.unique(clients, return_inverse=True)[1]
    held = torch.zeros(int(classes.max()) + 1, int(owners.max()) + 1, device=classes.device)
    held[classes, owners] = 1.0
    return held
