"""The most similar classes of different clients in the embeddings of several runs, with one layout for all maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fedra.analysis.embeddings import Embeddings
from fedra.analysis.similar_classes import PairCosines, find_similar_classes, measure_pairs
from fedra.analysis.tsne import STEPS, tsne
from fedra.console import steps
from fedra.core.random import generator
from fedra.errors import DataError


@dataclass(frozen=True)
class MappedPairs:
    """Pairs of classes, and for every source their embeddings with positions and histograms of cosines."""

    pairs: list[tuple[int, int]]
    maps: dict[str, tuple[Embeddings, NDArray[np.float64]]]
    cosines: dict[str, PairCosines]


def map_pairs(
    sources: Mapping[str, Embeddings],
    *,
    count: int = 4,
    points: int = 100,
    perplexity: float = 10.0,
    seed: int = 0,
    console: Console | None = None,
) -> MappedPairs:
    """Choose the most similar classes of different clients in the first source, and map their examples in all.

    Args:
        sources: Embeddings of the same examples with clients, by name.
        count: Number of pairs.
        points: Largest number of examples per class; more are sampled.
        perplexity: Perplexity of t-SNE.
        seed: Seed of the sample and of the first layout.
        console: Where progress is shown.

    Returns:
        The pairs, and maps and cosines by source.
    """
    first = next(iter(sources.values()))
    for name, found in sources.items():
        if not torch.equal(found.labels, first.labels):
            raise DataError(
                f"all sources must embed the same examples to share a layout, got '{name}' with other labels than the "
                "first: give runs on the same data and partition"
            )
    pairs = find_similar_classes(first, count)
    rows = _choose_rows(first, pairs, points, seed)
    maps: dict[str, tuple[Embeddings, NDArray[np.float64]]] = {}
    start = None
    for name, found in sources.items():
        chosen = found.rows(rows)
        with steps(console, f"t-SNE of {name}", STEPS) as done:
            places = tsne(chosen, perplexity=perplexity, seed=seed, start=start, done=done)
        start = places if start is None else start
        maps[name] = chosen, places
    return MappedPairs(pairs, maps, {name: measure_pairs(chosen, pairs) for name, (chosen, _) in maps.items()})


def _choose_rows(embeddings: Embeddings, pairs: list[tuple[int, int]], points: int, seed: int) -> torch.Tensor:
    """Return the rows of the classes of pairs, at most `points` of each class."""
    rows = []
    for label in (label for pair in pairs for label in pair):
        own = (embeddings.labels == label).nonzero()[:, 0]
        drawn = torch.randperm(len(own), generator=generator(seed, "pairs", label))[:points]
        rows.append(own[drawn.sort().values.to(own.device)])
    return torch.cat(rows)
