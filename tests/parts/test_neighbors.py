"""kNN-Per against loops over examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import knn_per
from fedra.algorithms.knn_per import NearestNeighbors
from fedra.core.batches import Examples
from fedra.core.model import Model
from fedra.errors import ConfigError


def brute(f: Tensor, known: Tensor, labels: Tensor, k: int, scale: float) -> list[float]:
    """One query by loops: distances, the k least, their weights by class."""
    apart = [sum(float(a - b) ** 2 for a, b in zip(f, other, strict=True)) for other in known]
    near = sorted(range(len(known)), key=lambda place: apart[place])[:k]
    weights = {place: math.exp(-apart[place] / (len(f) * scale)) for place in near}
    total = sum(weights.values())
    return [sum(w for place, w in weights.items() if int(labels[place]) == c) / total for c in range(toy.CLASSES)]


@pytest.mark.parametrize(("k", "scale"), [(1, 1.0), (5, 0.3), (50, 2.0)])
def test_the_neighbors_say_what_a_loop_says(k: int, scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    known, queries = (torch.randn(n, 6, generator=draw, dtype=torch.float64) for n in (20, 7))
    labels = torch.randint(toy.CLASSES, (20,), generator=draw)
    found = NearestNeighbors(k=k, scale=scale).probabilities(queries, known, labels, toy.CLASSES)
    wanted = torch.tensor([brute(query, known, labels, k, scale) for query in queries], dtype=torch.float64)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)


def test_far_neighbors_still_share_one() -> None:
    """Weights that would all be zero in floating point keep their ratios."""
    known = torch.tensor([[1e3, 0.0], [1e3, 1.0]])
    found = NearestNeighbors(k=2).probabilities(torch.zeros(1, 2), known, torch.tensor([0, 3]), toy.CLASSES)
    assert torch.allclose(found.sum(dim=1), torch.ones(1))
    assert found[0, 0] > found[0, 3] > 0


@pytest.mark.parametrize("mix", ["softmax", "logits"])
def test_the_mixture_and_its_grid(mix: str) -> None:
    model, local = Model(toy.mlp()), toy.clients()[0]
    part = NearestNeighbors(k=3, share=0.3, grid=(0.0, 1.0), mix=mix)  # type: ignore[arg-type]
    inputs = toy.clients()[1].inputs
    weights = model.weights()
    said = part.answers(model, weights, local, torch.Generator())(inputs)
    assert set(said) == {"", "share_0", "share_1"}
    logits = model.output(weights, inputs).logits
    features, known = (model.features(weights, x, train=False) for x in (inputs, local.inputs))
    near = torch.tensor([brute(f, known, local.targets, 3, 1.0) for f in features], dtype=torch.float64)
    first = logits.softmax(dim=1) if mix == "softmax" else logits
    assert torch.allclose(said["share_0"], first, atol=1e-12)
    assert torch.allclose(said["share_1"], near, atol=1e-9)
    assert torch.allclose(said[""], 0.3 * near + 0.7 * first, atol=1e-9)


def test_capacity_draws_some_of_the_clients_examples() -> None:
    model, weights = Model(toy.mlp()), Model(toy.mlp()).weights()
    local = Examples(torch.randn(40, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
                     torch.arange(40) % toy.CLASSES)  # fmt: skip
    part = NearestNeighbors(k=1, share=1.0, capacity=6)

    def known(seed: int) -> Tensor:
        said = part.answers(model, weights, local, torch.Generator().manual_seed(seed))(local.inputs)[""]
        return (said.argmax(dim=1) == local.targets).nonzero().flatten()

    full = NearestNeighbors(k=1, share=1.0).answers(model, weights, local, torch.Generator())(local.inputs)[""]
    assert torch.equal(full.argmax(dim=1), local.targets)  # everybody is their own nearest
    assert 6 <= len(known(0)) < 40
    assert torch.equal(known(0), known(0))
    assert not torch.equal(known(0), known(1))


def test_settings_are_checked() -> None:
    assert knn_per(epochs=(0, 5)).personalize.stages == (0, 5)  # type: ignore[union-attr]
    for wrong in ({"k": 0}, {"share": 1.1}, {"capacity": 0}, {"grid": (2.0,)}, {"epochs": -1}, {"epochs": ()}):
        with pytest.raises(ConfigError, match="nearest-neighbors"):
            knn_per(**wrong)  # type: ignore[arg-type]
