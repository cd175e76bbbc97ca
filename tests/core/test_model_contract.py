"""A module as functions of its weights: what is asked of it, and what it must not remember."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import toy
from fedra.core.model import Model, Weights
from fedra.errors import ConfigError


def test_a_model_needs_a_body_and_a_head() -> None:
    with pytest.raises(
        ConfigError, match=r"'body' and 'head', got Linear without them: build it with both, or name its last"
    ):
        Model(nn.Linear(2, 2))


def test_no_parameter_may_lie_outside() -> None:
    net = toy.mlp()
    net.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(ConfigError, match="in the model's body or head, got 'scale' outside"):
        Model(net)


def test_body_and_head_may_not_share() -> None:
    """Each is called with its own weights, so that a shared one would stand still in one of them."""
    net = toy.Net(nn.Linear(3, 3), nn.Linear(3, 3))
    net.head.weight = net.body.weight
    with pytest.raises(ConfigError, match=r"must not share parameters, got 'head\.weight'"):
        Model(net)


def test_tied_layers_inside_the_body_move_together() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = Model(toy.Net(nn.Sequential(first, second), nn.Linear(3, 2)))
    weights = model.weights()
    moved = Weights({**weights.params, "body.0.weight": torch.zeros(3, 3)}, {})
    features = model.features(moved, torch.ones(1, 3), train=False)
    assert torch.equal(features[0], weights.params["body.1.bias"])


def test_a_pass_is_the_modules_own() -> None:
    net = toy.conv()
    model, inputs = Model(net), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    out = model.output(model.weights(), inputs)
    net.eval()
    assert torch.equal(out.logits, net.head(net.body(inputs)))


def test_the_weights_are_copies() -> None:
    model = Model(toy.conv())
    weights = model.weights()
    before = model.module.body[1].running_mean.clone()  # type: ignore[index,union-attr]
    model.features(weights, torch.randn(3, 1, 4, 4, dtype=torch.float64), train=True)
    assert torch.equal(model.module.body[1].running_mean, before)  # type: ignore[index,union-attr]
    assert int(weights.buffers["body.1.num_batches_tracked"]) == 1
    weights.params["head.bias"].add_(1)
    assert not torch.equal(weights.params["head.bias"], model.weights().params["head.bias"])


def test_a_switched_module_does_not_switch_training() -> None:
    """`module_with` hands the module out; whoever puts it into evaluation mode must not change later training."""
    model = Model(toy.conv())
    inputs = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    trained = model.output(model.weights(), inputs, train=True).logits
    model.module_with(model.weights()).eval()
    assert torch.equal(model.output(model.weights(), inputs, train=True).logits, trained)


def test_the_module_carries_the_weights_it_was_given() -> None:
    model = Model(toy.conv())
    weights = model.weights()
    weights.params["head.bias"].fill_(3)
    weights.buffers["body.1.running_mean"].fill_(2)
    state = model.module_with(weights).state_dict()
    assert torch.equal(state["head.bias"], torch.full((4,), 3.0, dtype=torch.float64))
    assert torch.equal(state["body.1.running_mean"], torch.full((3,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(("track", "looked_up"), [(True, True), (False, False)])
def test_batch_statistics_are_not_per_example(track: bool, looked_up: bool) -> None:
    model = Model(toy.conv(track=track))
    assert model.per_example is looked_up
    assert model.has_buffers is track


def test_convolutions_are_arranged_in_channels_last() -> None:
    model = Model(toy.conv(channels=2))
    kernel = model.arrange(model.weights().params)["body.0.weight"]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert kernel.data_ptr() != model.module.body[0].weight.data_ptr()  # type: ignore[index,union-attr]
