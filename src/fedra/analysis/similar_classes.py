"""The most similar pairs of classes that no client holds together, and the cosines of their examples.

Figure 3 of FedGC's paper (Niu and Deng, AAAI 2022) shows such classes: if no client contrasts two classes, only the
algorithm can keep their embeddings apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedra.analysis.angles import holders
from fedra.analysis.embeddings import Embeddings
from fedra.errors import ConfigError, DataError
from fedra.losses.angle import normalize

BINS = 80
"""Number of bins of a histogram from -1 to 1."""


@dataclass(frozen=True)
class PairCosines:
    """Histograms of cosines, as `measure_pairs` returns them.

    Args:
        within: Counts of pairs of examples of one class (BINS,).
        across: Counts of pairs of examples of the two classes of a pair (BINS,).
        within_mean: Mean cosine within classes.
        across_mean: Mean cosine across the classes of a pair.

    Example:
        ```python
        found = measure_pairs(embeddings, find_similar_classes(embeddings))
        ```
    """

    within: NDArray[np.int64]
    across: NDArray[np.int64]
    within_mean: float
    across_mean: float


def find_similar_classes(embeddings: Embeddings, count: int = 4) -> list[tuple[int, int]]:
    """Find the pairs of classes without a common client whose mean directions are most similar.

    Args:
        embeddings: Embeddings with labels and clients.
        count: Largest number of pairs; a class is in at most one of them.

    Returns:
        Pairs of class indices, the most similar first.

    Raises:
        DataError: If clients are not known, or some client holds both classes of every pair.

    Example:
        ```python
        pairs = find_similar_classes(embed_run("runs/fedpe", split="train"))
        ```
    """
    if count < 1:
        raise ConfigError(f"the number of pairs must be at least 1, got {count}")
    if embeddings.clients is None:
        raise DataError("the clients of the examples must be known, got embeddings without: embed the split 'train'")
    units = embeddings.normalized()
    names, numbers = torch.unique(units.labels, return_inverse=True)
    sums = units.features.new_zeros(len(names), units.features.shape[1]).index_add_(0, numbers, units.features)
    cosines = normalize(sums) @ normalize(sums).T
    held = holders(numbers, units.clients)
    assert held is not None
    cosines[(held @ held.T > 0) | torch.ones_like(cosines, dtype=torch.bool).tril()] = -torch.inf
    found: list[tuple[int, int]] = []
    for place in cosines.flatten().argsort(descending=True, stable=True).tolist():
        one, other = divmod(place, len(names))
        if not torch.isfinite(cosines[one, other]) or len(found) == count:
            break
        pair = int(names[one]), int(names[other])
        if not {*pair} & {label for known in found for label in known}:
            found.append(pair)
    if not found:
        raise DataError(
            "two classes must have no client in common to compare them across clients, got none: use a partition in "
            "which clients hold few classes"
        )
    return found


def measure_pairs(embeddings: Embeddings, pairs: list[tuple[int, int]]) -> PairCosines:
    """Count the cosines of examples within the classes of pairs, and across the two classes of each pair.

    Args:
        embeddings: The embeddings.
        pairs: Pairs of class indices.

    Returns:
        Histograms and means.

    Example:
        ```python
        found = measure_pairs(embeddings, [(0, 3)])
        print(found.across_mean)
        ```
    """
    units = embeddings.normalized()
    edges = np.linspace(-1, 1, BINS + 1)
    counts = {"within": np.zeros(BINS, dtype=np.int64), "across": np.zeros(BINS, dtype=np.int64)}
    sums, totals = {"within": 0.0, "across": 0.0}, {"within": 0, "across": 0}
    for pair in pairs:
        first, second = (units.features[units.labels == label] for label in pair)
        tables = [("across", (first @ second.T).flatten())]
        for rows in (first, second):
            upper = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device).triu(1)
            tables.append(("within", (rows @ rows.T)[upper]))
        for kind, cosines in tables:
            values = cosines.double().clamp(-1, 1).cpu().numpy()
            counts[kind] += np.histogram(values, edges)[0]
            sums[kind] += float(values.sum())
            totals[kind] += len(values)
    means = {kind: sums[kind] / max(totals[kind], 1) for kind in sums}
    return PairCosines(counts["within"], counts["across"], means["within"], means["across"])
