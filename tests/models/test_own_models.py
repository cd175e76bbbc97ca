"""Networks of the user's own, by registration: any module, its head found or named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.models import MODELS, NamedHead, RecognitionModel, build, load_weights, register


class Residual(nn.Module):
    """Its head is defined first, and has a dropout before it."""

    def __init__(self, channels: int, classes: int, softmax: bool = False) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, classes))
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.softmax = softmax

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.norm(self.conv(images))).mean((2, 3)))
        return logits.log_softmax(1) if self.softmax else logits


def lazy(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.Linear(7, classes))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setattr(MODELS, "_functions", dict(MODELS._functions))
    return lambda function: register("own", function)


def test_the_head_is_the_layer_whose_output_is_the_networks(own: Callable[[Any], None]) -> None:
    own(lambda shape, classes: Residual(shape[0], classes))
    before = torch.random.get_rng_state()
    model = build("own", (3, 8, 8), 4, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(model, NamedHead)
    assert model.name == "fc.1"
    assert model.training
    assert model.body(torch.rand(2, 3, 8, 8)).shape == (2, 8)
    assert int(model.state_dict()["body.norm.num_batches_tracked"]) == 1, "trying it out leaves buffers alone"
    again, other = build("own", (3, 8, 8), 4, seed=1), build("own", (3, 8, 8), 4, seed=2)
    assert torch.equal(model.head.weight, again.head.weight)  # type: ignore[arg-type]
    assert not torch.equal(model.head.weight, other.head.weight)  # type: ignore[arg-type]


def test_a_head_may_be_named(own: Callable[[Any], None]) -> None:
    own(lambda shape, classes: Residual(shape[0], classes))
    model = build("own", (3, 8, 8), 4, head="fc")
    assert isinstance(model.head, nn.Sequential)
    with pytest.raises(ConfigError, match="head must name a submodule of Residual, got 'fcc': did you mean 'fc'"):
        build("own", (3, 8, 8), 4, head="fcc")
    with pytest.raises(
        ConfigError, match=r"Residual without its head 'conv' must run.*: name the layer that it calls last"
    ):
        build("own", (3, 8, 8), 4, head="conv")
    with pytest.raises(ConfigError, match=r"model.head must not be set for .* got 'fc'"):
        build("mlp", (4,), 2, head="fc")


def test_body_and_head_are_kept(own: Callable[[Any], None]) -> None:
    own(lambda shape, classes: RecognitionModel(nn.Flatten(), nn.Linear(6, classes)))
    assert type(build("own", (6,), 3)) is RecognitionModel


def test_lazy_layers_get_their_weights_from_the_seed(own: Callable[[Any], None]) -> None:
    own(lazy)
    first, again, other = (build("own", (2, 3), 5, seed=seed).state_dict() for seed in (0, 0, 1))
    assert first["body.1.weight"].shape == (7, 6)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["body.1.weight"], other["body.1.weight"])


def test_a_function_may_take_nothing_by_position(own: Callable[[Any], None]) -> None:
    def fixed(*, hidden: int = 3) -> nn.Module:
        return nn.Sequential(nn.Linear(6, hidden), nn.Linear(hidden, 2))

    own(fixed)
    assert build("own", (6,), 2, hidden=5).head.in_features == 5
    with pytest.raises(ConfigError, match=r"the model 'own' must return 3 logits \(the number of classes\), got 2"):
        build("own", (6,), 3)
    with pytest.raises(ConfigError, match="the model 'own' has no field 'hiden': did you mean 'hidden'"):
        build("own", (6,), 2, hiden=5)
    with pytest.raises(ConfigError, match=r"the field 'hidden' of the model 'own' must be .*, got 'x'"):
        build("own", (6,), 2, hidden="x")


def test_a_class_is_a_function_too(own: Callable[[Any], None]) -> None:
    class Net(nn.Sequential):
        def __init__(self, shape: tuple[int, ...], classes: int, *, hidden: int = 3) -> None:
            super().__init__(nn.Linear(shape[0], hidden), nn.Linear(hidden, classes))

    own(Net)
    assert build("own", (6,), 2, hidden=5).head.in_features == 5


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda shape, classes: Residual(shape[0], classes, softmax=True), "must end with a layer that has weights"),
        (
            lambda shape, classes: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, classes)),
            "must run on the clients' inputs, torch.float32 of shape",
        ),
        (
            lambda shape, classes: nn.Sequential(nn.LazyLinear(4), nn.Linear(5, classes)),
            "must run on inputs of shape",
        ),
        (lambda shape, classes: None, "must return a torch nn.Module, got a NoneType"),
        (lambda shape: None, r"must take \(shape, classes\) or nothing by position, got \(shape\)"),
    ],
)
def test_other_networks_are_refused(own: Callable[[Any], None], function: Any, told: str) -> None:
    own(function)
    shape = (3, 8, 8) if "layer that has weights" in told else (6,)
    with pytest.raises(ConfigError, match=told):
        build("own", shape, 2)


def test_weights_under_the_networks_own_names(own: Callable[[Any], None], tmp_path: Path) -> None:
    own(lambda shape, classes: Residual(shape[0], classes))
    trained, model = Residual(3, 4), build("own", (3, 8, 8), 4)
    torch.save(trained.state_dict(), tmp_path / "own.pt")
    loaded = load_weights(model, str(tmp_path / "own.pt"))
    assert not loaded.left_out
    assert torch.equal(model.head.weight, trained.fc[1].weight)  # type: ignore[arg-type]
    assert torch.equal(model.state_dict()["body.conv.weight"], trained.conv.weight)
    torch.save(Residual(3, 9).state_dict(), tmp_path / "other.pt")
    assert load_weights(model, tmp_path / "other.pt").left_out == ("head.bias", "head.weight")


def test_a_body_without_weights_is_loaded_by_either_names(own: Callable[[Any], None], tmp_path: Path) -> None:
    """The run's own file, and that of the network, which has only its head in it."""
    own(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(6, classes)))
    trained, model = build("own", (6,), 3, seed=1), build("own", (6,), 3, seed=2)
    torch.save(trained.state_dict(), tmp_path / "run.pt")
    assert load_weights(model, tmp_path / "run.pt").used == ("head.bias", "head.weight")
    assert torch.equal(model.head.weight, trained.head.weight)  # type: ignore[arg-type]
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    torch.save(network.state_dict(), tmp_path / "own.pt")
    assert load_weights(model, tmp_path / "own.pt").used == ("head.bias", "head.weight")
    assert torch.equal(model.head.weight, network[1].weight)  # type: ignore[arg-type]


def test_a_field_that_is_not_keyword_only_is_explained(own: Callable[[Any], None]) -> None:
    own(lambda shape, classes, hidden=4: Residual(shape[0], classes))
    with pytest.raises(ConfigError, match=r"'hidden'.*must be a keyword-only argument.*put '\*' before"):
        MODELS.settings("own", {"hidden": 8})
