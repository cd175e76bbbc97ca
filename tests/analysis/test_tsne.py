"""t-SNE: repeatable, apart from global randomness, and one sentence for what cannot be mapped."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from fedra.analysis import tsne as module
from fedra.analysis.embeddings import Embeddings
from fedra.analysis.tsne import tsne
from fedra.errors import ConfigError


def clusters() -> Embeddings:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    return Embeddings(8 * torch.eye(3, 5)[labels] + torch.randn(60, 5, generator=draw), labels)


def test_clusters_stay_together_and_a_seed_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openTSNE", reason="openTSNE is not installed")
    assert sum(module.ITERATIONS) == module.STEPS
    monkeypatch.setattr(module, "ITERATIONS", (50, 100))
    data, told = clusters(), list[int]()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    points = tsne(data, perplexity=10, seed=3, done=told.append)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert sum(told) == 150
    assert points.shape == (60, 2)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag(np.full(60, np.inf))
    assert (data.labels.numpy()[distances.argmin(axis=1)] == data.labels.numpy()).all()
    assert np.array_equal(points, tsne(data, perplexity=10, seed=3))


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openTSNE", reason="openTSNE is not installed")
    with pytest.raises(ConfigError, match=r"must have at least 91 examples, got 60: .* set --perplexity to at most 19"):
        tsne(clusters())
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(ConfigError, match=r"openTSNE must be installed for t-SNE: pip install 'fedra\[tsne\]'"):
        tsne(clusters(), perplexity=10)
