"""A user's own module, split at its named head and given back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedra.errors import ConfigError
from fedra.models import NamedHead, RecognitionModel, build, check, named_head
from fedra.models.recognition_model import has_body_and_head

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
VECTORS = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))


class ToyResNet(nn.Module):
    """The usual outline: convolution, norm, mean, `fc`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)  # registered first: order of children must not matter
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.relu(self.bn1(self.conv1(images)))
        logits: Tensor = self.fc(self.drop(torch.flatten(maps.mean((2, 3)), 1)))
        return logits


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


def test_resnet_with_fc() -> None:
    module = ToyResNet()
    model = named_head(module, "fc", example=IMAGES)
    assert has_body_and_head(model)
    assert {name for name, _ in model.named_parameters()} == {
        "head.weight",
        "head.bias",
        "body.conv1.weight",
        "body.conv1.bias",
        "body.bn1.weight",
        "body.bn1.bias",
    }
    model.eval()
    assert model.body(IMAGES).shape == (4, 8)
    assert torch.equal(model(IMAGES), module.eval()(IMAGES))


def test_sequential_with_a_number() -> None:
    module = classifier()
    model = named_head(module, "2", example=VECTORS)
    assert torch.equal(model(VECTORS), module(VECTORS))
    assert torch.equal(model.body(VECTORS), module[:2](VECTORS))


def test_dotted_name() -> None:
    module = nn.Sequential(OrderedDict(features=nn.Flatten(), classifier=classifier()))
    model = named_head(module, "classifier.2", example=VECTORS)
    assert isinstance(model, NamedHead)
    assert torch.equal(model(VECTORS), module(VECTORS))
    assert model.unwrap().state_dict().keys() == module.state_dict().keys()


def test_unwrap_returns_the_users_type_and_names_with_trained_weights() -> None:
    module = ToyResNet()
    untouched = deepcopy(module.state_dict())
    model = named_head(module, "fc")
    assert isinstance(model, NamedHead)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(IMAGES).square().sum().backward()
    optimizer.step()
    trained = model.unwrap()
    assert type(trained) is ToyResNet
    assert list(trained.state_dict()) == list(module.state_dict())
    assert not torch.equal(trained.fc.weight, module.fc.weight)
    assert int(trained.bn1.num_batches_tracked) == 1  # type: ignore[arg-type]
    assert all(torch.equal(value, untouched[name]) for name, value in module.state_dict().items())
    assert torch.equal(trained.eval()(IMAGES), model.eval()(IMAGES))
    again = named_head(trained, "fc")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_unwrapped_weights_are_a_copy() -> None:
    model = named_head(classifier(), "2")
    assert isinstance(model, NamedHead)
    before = deepcopy(model.state_dict())
    with torch.no_grad():
        for weight in model.unwrap().parameters():
            weight.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_functional_call() -> None:
    model = named_head(classifier(), "2")
    other = {name: weight + 1 for name, weight in model.named_parameters()}
    body, head = model.body[0], model.head  # type: ignore[index]
    assert isinstance(head, nn.Linear)
    features = torch.tanh(nn.functional.linear(VECTORS, body.weight + 1, body.bias + 1))
    expected = nn.functional.linear(features, head.weight + 1, head.bias + 1)
    torch.testing.assert_close(functional_call(model, other, (VECTORS,)), expected)


def test_a_module_that_keeps_the_contract_is_used_as_is() -> None:
    model = build("mlp", (6,), 5, seed=0)
    assert named_head(model, example=VECTORS) is model


def test_a_head_inside_a_recognizer_may_be_named() -> None:
    model = build("sl-vit", (1, 8, 8), 5, seed=0, depth=1, width=8, heads=1)
    assert isinstance(named_head(model, "head.1", example=torch.randn(2, 1, 8, 8)), NamedHead)


def test_weights_beside_body_and_head_are_put_into_the_body() -> None:
    class Scaled(RecognitionModel):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, 8), nn.Linear(8, 5))
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.head(self.scale * self.body(inputs))
            return logits

    model = named_head(Scaled(), example=VECTORS)
    assert "body.scale" in dict(model.named_parameters())


def test_check_leaves_buffers_mode_and_generator() -> None:
    model = named_head(ToyResNet().train(), "fc")
    state, generator = deepcopy(model.state_dict()), torch.random.get_rng_state()
    check(model, IMAGES)
    assert model.training
    assert model.body.training
    assert torch.equal(generator, torch.random.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("fcc", "head must name a submodule of ToyResNet, got 'fcc': did you mean 'fc'"),
        ("classifier", "choose one of: bn1, conv1, drop, fc"),
        ("", "ToyResNet, got ''"),
        ("drop", "the head must have weights, got 'drop'"),
    ],
)
def test_wrong_names(head: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named_head(ToyResNet(), head)


class Normalized(nn.Module):
    """Takes the log-softmax after its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.log_softmax(self.layer(inputs), 1)


class Peeking(nn.Module):
    """Reads the head's weights, so the body cannot live without it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(inputs / self.fc.weight.norm())
        return logits


class Pair(Normalized):
    """Gives two things."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs, self.layer(inputs)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("make", "head", "words"),
    [
        (classifier, "0", "Sequential without its head '0' must run"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)),
            "0",
            "'0' of Sequential must be the last layer",
        ),
        (Normalized, "layer", "'layer' of Normalized must be the last layer"),
        (Peeking, "fc", "Peeking without its head 'fc' must run"),
        (Pair, "layer", "the model Pair must return one tensor, got a tuple"),
        (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 5)), "1", r"got \(4, 2, 3\) and"),
    ],
)
def test_a_head_that_is_not_last_is_refused(make: Callable[[], nn.Module], head: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named_head(make(), head, example=VECTORS)


def test_a_contract_module_whose_forward_does_more_is_refused() -> None:
    class Doubling(RecognitionModel):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * super().forward(inputs)

    with pytest.raises(ConfigError, match="'head' of Doubling must be the last layer"):
        named_head(Doubling(nn.Linear(6, 8), nn.Linear(8, 5)), example=VECTORS)


def test_an_example_of_the_wrong_shape_is_told() -> None:
    with pytest.raises(ConfigError, match=r"the model ToyResNet must run on inputs of shape \(4, 6\), got an error"):
        named_head(ToyResNet(), "fc", example=VECTORS)


def test_shared_weights_are_refused() -> None:
    layer = nn.Linear(6, 6)
    with pytest.raises(ConfigError, match="must have weights of its own"):
        named_head(nn.Sequential(layer, nn.Tanh(), layer), "2")


def test_a_lone_layer_has_no_head() -> None:
    with pytest.raises(ConfigError, match=r"submodule of Linear, got 'fc': it has none"):
        named_head(nn.Linear(6, 5), "fc")
