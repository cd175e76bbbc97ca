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
from fedra.core.evaluate import nobody
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError
from fedra.losses.angle import normalize

BINS = 180
"""One bin a degree."""

ALL_PAIRS = 200_000_000
"""Up to this many pairs all are measured; beyond, some are drawn."""

BLOCK = 4_000_000
"""Cosines held at once."""

ACROSS, TOGETHER, OWN_ACROSS, OWN_TOGETHER = range(4)
"""A pair's kind: 2 for one class, plus 1 for one client."""


class Measured(NamedTuple):
    """Some pairs: their cosines, their kinds, and how many steps of the work they were."""

    cosine: Tensor
    kind: Tensor
    steps: int


@dataclass(frozen=True)
class Angles:
    """Pairs counted by kind and degree (4, 180), the sums of their cosines by kind (4,), and cosines of class means."""

    counts: Tensor
    sums: Tensor
    means: dict[str, float | None]
    examples: int
    classes: int
    clients: int | None
    drawn: bool
    without_direction: int

    def histogram(self, *kinds: int) -> Tensor:
        """How many pairs of these kinds lie at each degree."""
        return self.counts[list(kinds)].sum(dim=0)

    def mean_cosine(self, *kinds: int) -> float | None:
        """The mean cosine of the pairs of these kinds; None where there are none."""
        pairs = int(self.counts[list(kinds)].sum())
        return float(self.sums[list(kinds)].sum()) / pairs if pairs else None

    def figures(self) -> dict[str, Any]:
        """All numbers, for people and for JSON."""
        found: dict[str, Any] = {
            "examples": self.examples,
            "without_direction": self.without_direction,
            "classes": self.classes,
            "pairs": "drawn" if self.drawn else "all",
            "within_class_pairs": int(self.histogram(OWN_ACROSS, OWN_TOGETHER).sum()),
            "between_class_pairs": int(self.histogram(ACROSS, TOGETHER).sum()),
            "within_class_cosine": self.mean_cosine(OWN_ACROSS, OWN_TOGETHER),
            "between_class_cosine": self.mean_cosine(ACROSS, TOGETHER),
        }
        if self.clients is not None:
            found |= {
                "clients": self.clients,
                "within_class_one_client_cosine": self.mean_cosine(OWN_TOGETHER),
                "within_class_cross_client_cosine": self.mean_cosine(OWN_ACROSS),
                "between_class_one_client_cosine": self.mean_cosine(TOGETHER),
                "between_class_cross_client_cosine": self.mean_cosine(ACROSS),
            }
        return found | self.means


def steps(examples: int, pairs: int) -> int:
    """What the `done` of `angles` adds up to: examples where all pairs are measured, else drawn pairs."""
    return examples if _pairs(examples) <= ALL_PAIRS else 2 * pairs


def angles(
    embeddings: Embeddings, *, pairs: int = 1_000_000, seed: int = 0, done: Callable[[int], None] = nobody
) -> Angles:
    """The angles of all pairs of examples, and the cosines of the classes' mean directions.

    Beyond 200 million pairs, `pairs` within classes and as many between classes are drawn instead, with replacement.
    Features without a direction (all zero) are left out and counted.
    """
    if pairs < 1:
        raise ConfigError(f"angles of {pairs} pairs say nothing: draw one or more")
    directed = embeddings.features.abs().sum(dim=1) > 0
    if int(directed.sum()) < 2:
        raise DataError("there are not two features with a direction, so there is no angle to measure")
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
    """The kinds of pairs of rows; `left` may be a column, for a whole table."""
    own = (units.labels[left] == units.labels[right]).long()
    return 2 * own if units.clients is None else 2 * own + (units.clients[left] == units.clients[right])


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Blocks of rows whose tables against all rows from their first on are of bounded size."""
    start = 0
    while start < rows:
        end = min(start + max(BLOCK // (rows - start), 1), rows)
        yield start, end
        start = end


def _all_pairs(units: Embeddings) -> Iterator[Measured]:
    """Every pair once: a block of rows against all rows after them."""
    rows = torch.arange(len(units), device=units.features.device)
    for start, end in _blocks(len(units)):
        later = rows[start:end, None] < rows[start:]
        cosine = units.features[start:end] @ units.features[start:].T
        yield Measured(cosine[later], _kinds(units, rows[start:end, None], rows[start:])[later], end - start)


def _drawn_pairs(units: Embeddings, pairs: int, seed: int) -> Iterator[Measured]:
    """As many pairs within classes as between classes; a kind that does not exist is not drawn."""
    labels, device = units.labels.cpu(), units.features.device
    order = labels.argsort(stable=True)
    sizes = torch.unique(labels, return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    draw = generator(seed, "pairs")
    within, between = (sizes * (sizes - 1)).double(), (sizes * (len(labels) - sizes)).double()
    block = max(BLOCK // units.features.shape[1], 1)
    for weights, own in ((within, True), (between, False)):
        for count in [min(block, pairs - done) for done in range(0, pairs, block)] if weights.sum() > 0 else ():
            group = _choose(weights, count, draw)
            first = (torch.rand(count, generator=draw, dtype=torch.float64) * sizes[group]).long()
            others = sizes[group] - 1 if own else len(labels) - sizes[group]
            step = (torch.rand(count, generator=draw, dtype=torch.float64) * others).long()
            # Around the class to another of its members, or past its end and around all the others.
            second = (first + 1 + step) % sizes[group] if own else sizes[group] + step
            left = order[starts[group] + first].to(device)
            right = order[(starts[group] + second) % len(labels)].to(device)
            cosine = (units.features[left] * units.features[right]).sum(dim=1)
            yield Measured(cosine, _kinds(units, left, right), count)


def _choose(weights: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Indices in proportion to weights, by the inverse of their cumulative sum; any number of weights will do."""
    ends = weights.cumsum(0)
    spots = torch.rand(count, generator=draw, dtype=torch.float64) * ends[-1]
    return torch.searchsorted(ends, spots, right=True).clamp(max=len(weights) - 1)


def class_means(units: Embeddings) -> dict[str, float | None]:
    """Mean and largest cosine between the mean directions of two classes; where clients are known, also of the
    classes that some client holds both of, and of those that none does.
    """
    names, numbers = torch.unique(units.labels, return_inverse=True)
    sums = units.features.new_zeros(len(names), units.features.shape[1]).index_add_(0, numbers, units.features)
    means, rows = normalize(sums), torch.arange(len(names), device=sums.device)
    held = _holders(numbers, units.clients)
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


def _holders(classes: Tensor, clients: Tensor | None) -> Tensor | None:
    """(classes, clients): 1 where the client holds an example of the class."""
    if clients is None:
        return None
    owners = torch.unique(clients, return_inverse=True)[1]
    held = torch.zeros(int(classes.max()) + 1, int(owners.max()) + 1, device=classes.device)
    held[classes, owners] = 1.0
    return held
