"""Angles between embeddings against plain loops, the drawn pairs against all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from fedra.analysis import angles as module
from fedra.analysis.angles import (
    OTHER_CLASS_CROSS_CLIENT,
    OTHER_CLASS_SAME_CLIENT,
    SAME_CLASS_CROSS_CLIENT,
    SAME_CLASS_SAME_CLIENT,
    angles,
    steps,
)
from fedra.analysis.embeddings import Embeddings
from fedra.errors import ConfigError, DataError


def cloud(examples: int = 60, classes: int = 5, clients: int | None = 3) -> Embeddings:
    draw = torch.Generator().manual_seed(4)
    labels = torch.randint(classes, (examples,), generator=draw)
    centers = 2 * torch.randn(classes, 6, generator=draw)
    features = (centers[labels] + torch.randn(examples, 6, generator=draw)) * 3
    owners = None if clients is None else torch.randint(clients, (examples,), generator=draw)
    return Embeddings(features, labels, owners)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))


def naive(cloud: Embeddings) -> tuple[dict[int, list[float]], dict[str, float]]:
    kinds: dict[int, list[float]] = {kind: [] for kind in range(4)}
    for i, j in itertools.combinations(range(len(cloud)), 2):
        together = cloud.clients is not None and bool(cloud.clients[i] == cloud.clients[j])
        kind = 2 * int(cloud.labels[i] == cloud.labels[j]) + int(together)
        kinds[kind].append(cosine(cloud.features[i], cloud.features[j]))
    units = cloud.normalized()
    means = {int(y): units.features[units.labels == y].mean(dim=0) for y in torch.unique(units.labels)}
    values = [cosine(means[a], means[b]) for a, b in itertools.combinations(means, 2)]
    return kinds, {"class_means_cosine": float(np.mean(values)), "class_means_largest_cosine": max(values)}


@pytest.mark.parametrize("block", [7, 100, 10**6])
def test_all_pairs_against_plain_loops(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    data = cloud()
    wanted, means = naive(data)
    told: list[int] = []
    found = angles(data, done=told.append)
    assert sum(told) == steps(len(data), 1) == 60
    for kind, values in wanted.items():
        assert found.mean_cosine(kind) == pytest.approx(np.mean(values), abs=1e-6)
        counts = np.bincount([min(int(math.degrees(math.acos(value))), 179) for value in values], minlength=180)
        assert np.abs(counts - found.histogram(kind).numpy()).sum() <= 2  # an angle may lie on a whole degree
    figures = found.metrics()
    for name, value in means.items():
        assert figures[name] == pytest.approx(value, abs=1e-6)
    assert figures["within_class_pairs"] == len(wanted[SAME_CLASS_CROSS_CLIENT]) + len(wanted[SAME_CLASS_SAME_CLIENT])
    assert figures["between_class_pairs"] == len(wanted[OTHER_CLASS_CROSS_CLIENT]) + len(
        wanted[OTHER_CLASS_SAME_CLIENT]
    )
    assert figures["within_class_cosine"] > figures["between_class_cosine"]
    assert (figures["clients"], figures["classes"], figures["pairs"]) == (3, 5, "all")


def test_without_clients_there_is_no_split() -> None:
    figures = angles(cloud(clients=None)).metrics()
    assert not [name for name in figures if "client" in name]
    wanted, _ = naive(cloud(clients=None))
    assert figures["within_class_cosine"] == pytest.approx(np.mean(wanted[SAME_CLASS_CROSS_CLIENT]), abs=1e-6)


def test_class_means_split_by_whether_a_client_holds_both() -> None:
    features = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    figures = angles(Embeddings(features, torch.tensor([0, 1, 2]), torch.tensor([5, 5, 9]))).metrics()
    assert figures["class_means_one_client_cosine"] == pytest.approx(0.8)
    assert figures["class_means_one_client_largest_cosine"] == pytest.approx(0.8)
    assert figures["class_means_cross_client_cosine"] == pytest.approx(0.3)
    assert figures["class_means_cross_client_largest_cosine"] == pytest.approx(0.6)
    assert figures["within_class_cosine"] is None


def test_drawn_pairs_have_the_means_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cloud(examples=300, classes=7)
    everything = angles(data).metrics()
    monkeypatch.setattr(module, "ALL_PAIRS", 1000)
    monkeypatch.setattr(module, "BLOCK", 6 * 7000)
    told: list[int] = []
    drawn = angles(data, pairs=40_000, done=told.append)
    assert sum(told) == steps(300, 40_000) == 80_000
    figures = drawn.metrics()
    assert figures["pairs"] == "drawn"
    assert figures["within_class_pairs"] == figures["between_class_pairs"] == 40_000
    for name in everything:
        if name.endswith("cosine"):
            assert figures[name] == pytest.approx(everything[name], abs=0.02), name
    again = angles(data, pairs=40_000)
    assert torch.equal(drawn.counts, again.counts)
    assert not torch.equal(drawn.counts, angles(data, pairs=40_000, seed=1).counts)


def test_drawn_pairs_are_never_one_example_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_PAIRS", 0)
    data = Embeddings(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    found = angles(data, pairs=500)
    assert int(found.histogram(0, 1, 2, 3)[90]) == 1000


def test_a_kind_that_does_not_exist_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_PAIRS", 0)
    alone = angles(Embeddings(torch.eye(3), torch.arange(3)), pairs=50).metrics()
    assert (alone["within_class_pairs"], alone["between_class_pairs"]) == (0, 50)
    same = angles(Embeddings(torch.eye(3), torch.zeros(3, dtype=torch.long)), pairs=50).metrics()
    assert (same["within_class_pairs"], same["between_class_pairs"]) == (50, 0)
    assert same["class_means_cosine"] is None


def test_features_without_a_direction_are_left_out() -> None:
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    figures = angles(Embeddings(features, torch.tensor([0, 0, 0, 1]))).metrics()
    assert (figures["examples"], figures["without_direction"]) == (3, 1)
    assert figures["within_class_cosine"] == pytest.approx(1.0)


def test_mistakes() -> None:
    with pytest.raises(DataError, match=r"at least 2 embeddings must be nonzero .* got 0 of 5"):
        angles(Embeddings(torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)))
    with pytest.raises(ConfigError, match="pairs must be at least 1, got 0"):
        angles(cloud(), pairs=0)
