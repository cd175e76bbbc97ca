"""The most similar classes of different clients, their cosines, and one layout for several models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedra.analysis.embeddings import Embeddings
from fedra.analysis.similar_classes import BINS, find_similar_classes, measure_pairs
from fedra.core.random import generator
from fedra.errors import DataError
from fedra.experiment.map_pairs import map_pairs
from fedra.reports.embedding_plots import draw_pairs

DIRECTIONS = torch.tensor([[1.0, 0.1, 0], [1, 0.09, 0], [1, 0.15, 0], [0, 1, 0], [0, 1, 0.4], [0, 0, 1]])
OWNERS = torch.tensor([0, 0, 1, 1, 2, 2])  # classes 0 and 1 are most similar, but one client holds both


def make(images: int = 12, noise: float = 0.002) -> Embeddings:
    labels = torch.arange(6).repeat_interleave(images)
    drawn = noise * torch.randn(len(labels), 3, generator=generator(0, "test"))
    return Embeddings(DIRECTIONS[labels] + drawn, labels, OWNERS[labels])


def test_pairs_are_of_different_clients_most_similar_first_and_disjoint() -> None:
    assert find_similar_classes(make(noise=0.0), 2) == [(0, 2), (3, 4)]
    assert find_similar_classes(make(noise=0.0), 9)[:2] == [(0, 2), (3, 4)]
    held = [label for pair in find_similar_classes(make(noise=0.0), 9) for label in pair]
    assert len(held) == len(set(held))


def test_cosines_of_pairs_are_counted_once() -> None:
    found = measure_pairs(make(), [(0, 2), (3, 4)])
    assert (found.within.shape, found.within.sum(), found.across.sum()) == ((BINS,), 4 * 66, 2 * 144)
    units = make().normalized().features.double().reshape(6, 12, 3)
    across = torch.cat([(units[0] @ units[2].T).flatten(), (units[3] @ units[4].T).flatten()])
    assert found.across_mean == pytest.approx(float(across.mean()), abs=1e-6)
    assert found.within_mean > found.across_mean


def test_maps_share_examples_and_layout_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("openTSNE", reason="openTSNE is not installed")
    first = make()
    turned = Embeddings(first.features @ torch.diag(torch.tensor([-1.0, -1, 1])), first.labels, first.clients)
    mapped = map_pairs({"one": first, "two": turned}, count=2, points=10, perplexity=5)
    assert mapped.pairs == [(0, 2), (3, 4)]
    places = [points for _, points in mapped.maps.values()]
    labels = mapped.maps["one"][0].labels.numpy()
    assert np.bincount(labels).tolist() == [10, 0, 10, 10, 10]
    centers = [np.stack([points[labels == label].mean(axis=0) for label in (0, 3)]) for points in places]
    # The same examples seen by a rotated model: its map starts from the first, so no cluster changes sides.
    assert np.sum((centers[0][0] - centers[0][1]) * (centers[1][0] - centers[1][1])) > 0
    draw_pairs(mapped.maps, mapped.cosines, mapped.pairs, tmp_path / "pairs.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.svg", "pairs.csv", "pairs-map.csv"}


def test_unknown_clients_and_shared_classes_are_refused() -> None:
    found = make()
    with pytest.raises(DataError, match="clients of the examples must be known"):
        find_similar_classes(Embeddings(found.features, found.labels))
    with pytest.raises(DataError, match="must have no client in common"):
        find_similar_classes(Embeddings(found.features, found.labels, torch.zeros_like(found.labels)))
    other = Embeddings(found.features, found.labels.flip(0), found.clients)
    with pytest.raises(DataError, match="must embed the same examples"):
        map_pairs({"one": found, "two": other})
