"""The update of class vectors against a softmax over all classes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fedra
from fedra.analysis.softmax_agreement import cosine, missing_step, softmax_step
from fedra.errors import ConfigError
from tiny import table


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    features = torch.randn(10, 4, generator=draw, dtype=torch.float64)
    targets = torch.randint(6, (10,), generator=draw)
    owned = (targets[:, None] // 2) == (torch.arange(6)[None] // 2)  # three clients with two classes each
    return rows, features, targets, owned


def test_the_step_is_the_negative_gradient_of_cross_entropy() -> None:
    rows, features, targets, _ = example()
    rows.requires_grad_(True)
    F.cross_entropy(features @ rows.T, targets).backward()
    assert rows.grad is not None
    torch.testing.assert_close(softmax_step(rows.detach(), features, targets), -rows.grad)


def test_the_missing_part_is_what_other_clients_examples_push_away() -> None:
    rows, features, targets, owned = example()
    shares = torch.softmax(features @ rows.T, dim=1)
    wanted = torch.zeros_like(rows)
    for i, j in (~owned).nonzero().tolist():
        wanted[j] -= shares[i, j] * features[i] / len(features)
    torch.testing.assert_close(missing_step(rows, features, targets, owned), wanted)
    torch.testing.assert_close(missing_step(rows, features, targets, torch.ones_like(owned)), torch.zeros_like(rows))


def test_the_cosine_of_nothing_is_unknown() -> None:
    one = torch.ones(2, 2)
    assert cosine(one, -3 * one) == pytest.approx(-1)
    assert cosine(one, 0 * one) is None


def run(algorithm: dict[str, object]) -> list[dict[str, object]]:
    config = table(
        algorithm=algorithm,
        diagnostics={"softmax_agreement": True},
        partition={"name": "one-class", "clients": 4},
        local={"lr": 0.01},
    )
    return fedra.run(config).metrics


def test_the_correction_is_measured_apart_from_the_local_step() -> None:
    for line in run({"name": "fedpe"}):
        assert line["softmax_cosine"] == line["softmax_cosine_local"]
        assert line["correction_cosine"] is None
    for line in run({"name": "fedgc", "self_term": False}):
        assert line["softmax_cosine"] != line["softmax_cosine_local"]
        assert isinstance(line["correction_cosine"], float)
        assert -1 <= line["correction_cosine"] <= 1


def test_averaged_class_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"diagnostics\.softmax_agreement"):
        run({"name": "fedavg"})
