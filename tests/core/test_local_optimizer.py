"""The functional optimizers against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedra.core.local_training import LocalTraining
from fedra.core.optimizer import Adam, Optimizer, Sgd
from fedra.errors import ConfigError


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (Sgd(0.1), torch.optim.SGD, {}),
        (Sgd(0.1, weight_decay=0.2), torch.optim.SGD, {"weight_decay": 0.2}),
        (Sgd(0.1, 0.9), torch.optim.SGD, {"momentum": 0.9}),
        (Sgd(0.1, 0.9, 0.2), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.2}),
        (Adam(0.1), torch.optim.Adam, {}),
        (Adam(0.1, 0.2), torch.optim.Adam, {"weight_decay": 0.2}),
    ],
)
def test_steps_as_torch_does(ours: Optimizer, theirs: Any, settings: dict[str, float]) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(6, generator=draw, dtype=torch.float64)
    reference = torch.nn.Parameter(start.clone())
    optimizer = theirs([reference], lr=0.1, **settings)
    params = {"w": start.clone().requires_grad_()}
    state = ours.init({"w": start})
    for _ in range(7):
        slope = torch.randn(6, generator=draw, dtype=torch.float64)
        kept = slope.clone()
        state = ours.step(params, {"w": slope}, state)
        assert torch.equal(slope, kept)
        reference.grad = kept
        optimizer.step()
    assert torch.allclose(params["w"], reference, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("steps", "wanted"), [(5, 13.1), (50, 410.5), (100, 910.0), (150, 1410.0), (250, 2410.0)])
def test_effective_steps(steps: int, wanted: float) -> None:
    assert Sgd(0.1, 0.9).effective_steps(steps) == pytest.approx(wanted, abs=0.06)
    assert Sgd(0.1).effective_steps(steps) == steps


def test_adam_has_no_effective_steps() -> None:
    with pytest.raises(ConfigError, match=r"the optimizer must be 'sgd' .*, got Adam"):
        Adam(0.1).effective_steps(3)


def test_a_round_has_its_optimizer() -> None:
    assert LocalTraining(optimizer="adam", lr=0.1, lr_decay=0.5).at(2) == Adam(0.025)
    assert LocalTraining(lr=0.1, momentum=0.9).at(0) == Sgd(0.1, 0.9)
