"""simulate: people's own modules and data, against a loop written here without fedra."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import fedra
from fedra.algorithms import fedavg, fedprox, scaffold
from fedra.callbacks import EarlyStopping
from fedra.errors import ConfigError

SIZES = (7, 12, 5)


class Own(nn.Module):
    """A user's module that keeps the contract."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(4)
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
        self.head = nn.Linear(5, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def pairs(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    return [
        (torch.randn(size, 3, generator=draw, dtype=torch.float64).to(dtype), torch.randint(3, (size,), generator=draw))
        for size in SIZES
    ]


def naive_fedavg(
    model: nn.Module, clients: list[tuple[Tensor, Tensor]], rounds: int, steps: int, **sgd: Any
) -> nn.Module:
    """Full-batch FedAvg as a textbook has it: no fedra in it."""
    model = copy.deepcopy(model)
    total = sum(len(targets) for _, targets in clients)
    for _ in range(rounds):
        mean = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        for inputs, targets in clients:
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), **sgd)
            for _ in range(steps):
                optimizer.zero_grad()
                F.cross_entropy(local(inputs), targets).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                mean[name] += value * len(targets) / total
        model.load_state_dict(mean)
    return model


@pytest.mark.parametrize("runner", ["sequential", "processes", "stacked"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_a_naive_loop(runner: str, momentum: float) -> None:
    clients, sgd = pairs(), {"lr": 0.2, "momentum": momentum, "weight_decay": 0.01}
    result = fedra.simulate(fedavg(), Own(), clients, clients[0], rounds=3, epochs=2, batch=None, runner=runner, **sgd)
    expected = naive_fedavg(Own(), clients, 3, 2, **sgd)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=1e-9, atol=1e-11)
    inputs, targets = clients[0]
    assert result.metrics[-1]["accuracy"] == float((expected(inputs).argmax(1) == targets).double().mean())
    assert result.metrics[-1]["loss"] == pytest.approx(F.cross_entropy(expected(inputs), targets).item())
    assert [line["round"] for line in result.metrics] == [1, 2, 3]
    assert result.folder is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_is_copied_and_keeps_its_type(dtype: torch.dtype) -> None:
    model = Own(dtype)
    before = copy.deepcopy(model.state_dict())
    result = fedra.simulate(fedprox(mu=0.1), model, pairs(torch.float32), rounds=1)
    assert isinstance(result.model, Own)
    assert result.model is not model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.dtype is dtype for value in result.model.state_dict().values())
    assert not torch.equal(result.model.head.weight, model.head.weight)


class Lazy(Dataset[Any]):
    """A data set that makes its examples one by one, as numpy arrays with plain numbers for labels."""

    def __init__(self, pair: tuple[Tensor, Tensor]) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(self.pair[1])

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pair[0][index].numpy(), int(self.pair[1][index])


@pytest.mark.parametrize(
    "wrap", [Lazy, lambda pair: TensorDataset(*pair), lambda pair: tuple(t.numpy() for t in pair), list]
)
def test_data_sets_and_arrays_are_as_good_as_pairs(wrap: Any) -> None:
    plain = fedra.simulate(fedavg(), Own(), pairs(), pairs()[1], rounds=2, lr=0.1)
    other = fedra.simulate(fedavg(), Own(), [wrap(p) for p in pairs()], wrap(pairs()[1]), rounds=2, lr=0.1)
    assert [line["accuracy"] for line in plain.metrics] == [line["accuracy"] for line in other.metrics]
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


class Named(Lazy):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.pair[0][index], "label": self.pair[1][index]}


class Classifier(nn.Module):
    """A module that knows nothing of bodies and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.tanh(self.first(inputs)))
        return logits


def test_a_named_head_is_the_same_training() -> None:
    own, plain = Own(torch.float32), Classifier()
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), own.parameters(), strict=True):
            mine.copy_(theirs)
    named = fedra.models.named_head(plain, "fc")
    left = fedra.simulate(fedavg(), named, pairs(torch.float32), rounds=2, lr=0.1)
    right = fedra.simulate(fedavg(), own, pairs(torch.float32), rounds=2, lr=0.1)
    values = zip(left.model.state_dict().values(), right.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in values)


def test_a_fraction_of_the_clients_and_memory() -> None:
    result = fedra.simulate(scaffold(), Own(), pairs(), rounds=6, fraction=0.34, lr=0.1)
    assert [line["clients"] for line in result.metrics] == [1] * 6


def test_the_seed_decides() -> None:
    def weights(seed: int) -> Tensor:
        return fedra.simulate(fedavg(), Own(), pairs(), rounds=1, batch=3, seed=seed).model.head.weight  # type: ignore[return-value,union-attr]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


class Softmax(Classifier):
    """A module whose output is not a layer's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).softmax(dim=1)


class Doubled(Own):
    """A module whose output is not its head's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


GOOD = pairs()
INPUTS, TARGETS = GOOD[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"clients": []}, "clients must be a list of at least one client, got none"),
        ({"clients": 5}, "clients must be a list of at least one client, got int"),
        ({"model": torch.nn.ReLU()}, "model must be a torch.nn.Module with parameters, got one without"),
        ({"model": torch.relu}, "model must be a torch.nn.Module with parameters, got builtin"),
        (
            {"clients": [GOOD[0], (INPUTS, TARGETS + 1)]},
            "labels must be between 0 and 2 \\(the classes of the model's head\\), got .* in client 1",
        ),
        (
            {"clients": [GOOD[0], (INPUTS, TARGETS - 3)]},
            "labels must be between 0 and 2 \\(the classes of the model's head\\), got .* in client 1",
        ),
        ({"test": (INPUTS, TARGETS + 1)}, "labels must be between 0 and 2 .*, got 3 in the test set"),
        (
            {"clients": [GOOD[0], (INPUTS[:0], TARGETS[:0])]},
            "client 1 must have as many inputs as targets, and at least one, got 0 and 0",
        ),
        (
            {"clients": [GOOD[0], TensorDataset(INPUTS[:0], TARGETS[:0])]},
            "client 1 must have as many inputs as targets, and at least one",
        ),
        (
            {"clients": [(INPUTS, TARGETS[1:])]},
            "client 0 must have as many inputs as targets, and at least one, got 7 and 6",
        ),
        (
            {"clients": [(INPUTS, TARGETS.double())]},
            "client 0 must have a vector of class numbers .* got torch.float64",
        ),
        ({"clients": [(INPUTS, F.one_hot(TARGETS))]}, "client 0 must have a vector of class numbers"),
        (
            {"clients": [(INPUTS[:, :2], TARGETS)]},
            r"must accept the inputs of client 0, torch.float64 of shape \(2,\) each",
        ),
        ({"model": Softmax()}, "must end with a layer that has weights, .*named_head"),
        (
            {"model": fedra.models.named_head(Softmax(), "fc")},
            r"the head 'fc' of Softmax must be the last layer .*, but head\(body\(x\)\) differs from model\(x\)",
        ),
        ({"model": Doubled()}, r"the head 'head' of Doubled must be the last layer"),
        ({"clients": [iter(GOOD)]}, "client 0 must be a pair .*, a map-style Dataset or a DataLoader"),
        ({"clients": GOOD[0]}, r"client 0 must be a pair \(inputs, targets\), .* got Tensor"),
        ({"clients": [{"x": INPUTS}]}, "client 0 must be a pair .* got dict"),
        ({"clients": ["a.npz"]}, "client 0 must be a pair .* got str"),
        ({"clients": [Named(GOOD[0])]}, r"client 0 must return pairs \(input, target\), got dict from its data set"),
        ({"callbacks": [print]}, "callbacks must be objects with hooks such as on_round_end, got builtin_function"),
        ({"callbacks": [EarlyStopping]}, "callbacks must be objects with hooks .*, got the class EarlyStopping"),
        ({"callbacks": EarlyStopping()}, "callbacks must be a list, got EarlyStopping"),
        ({"optimizer": "lbfgs"}, "local.optimizer must be 'sgd' or 'adam', got 'lbfgs'"),
        ({"diagnostics": ["angles"]}, "unknown key 'diagnostics.angles'"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"epochs": 0}, "local.epochs must be at least 1, got 0"),
        ({"batch": -1}, "local.batch must be at least 1, got -1"),
        ({"lr": 0.0}, "local.lr must be greater than 0, got 0.0"),
        ({"momentum": 1.0}, "local.momentum must be less than 1, got 1.0"),
        ({"fraction": 0.0}, "cohort.fraction must be greater than 0, got 0.0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"runner": "sequental"}, "there is no runner 'sequental': did you mean 'sequential'?"),
    ],
)
def test_mistakes_are_sentences(changes: dict[str, Any], told: str) -> None:
    settings: dict[str, Any] = {"model": Own(), "clients": GOOD, "rounds": 1, **changes}
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        fedra.simulate(fedavg(), settings.pop("model"), settings.pop("clients"), settings.pop("test", None), **settings)


def test_numpy_targets_of_any_width() -> None:
    clients = [(inputs.numpy(), targets.numpy().astype(np.int32)) for inputs, targets in GOOD]
    assert len(fedra.simulate(fedavg(), Own(), clients, rounds=1).metrics) == 1  # type: ignore[arg-type]
