"""Federated methods written the plain way: modules, deepcopy, torch's own optimizer, loops over clients.

Nothing of fedra is used but the order of the batches. `Method` is FedAvg; a method is told by the losses of its
`Extra` (a proximal term with whatever state it keeps) and by the point at which gradients are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.core.random import shuffles

Data = list[tuple[Tensor, Tensor]]
Values = list[Tensor]
"""One tensor per parameter, in the module's order."""


@dataclass
class Setting:
    """The federation and how its clients train."""

    data: Data
    seed: int
    epochs: int
    batch: int
    lr: float
    decay: float
    momentum: float
    weight_decay: float
    lr_of: dict[str, float] = field(default_factory=dict)

    def rates(self, net: nn.Module, lr: float, prefix: str = "") -> list[float]:
        """One learning rate per parameter: `lr`, times what the longest prefix in lr_of asks for."""
        found = []
        for name, _ in net.named_parameters(prefix.rstrip(".")):
            matching = sorted((p for p in self.lr_of if name.startswith(p)), key=len)
            found.append(lr * self.lr_of[matching[-1]] / self.lr if matching else lr)
        return found

    def sgd(self, net: nn.Module, lr: float, prefix: str = "") -> torch.optim.SGD:
        """Torch's optimizer with a group for every parameter."""
        pairs = zip(net.parameters(), self.rates(net, lr, prefix), strict=True)
        groups = [{"params": [parameter], "lr": rate} for parameter, rate in pairs]
        return torch.optim.SGD(groups, lr, self.momentum, weight_decay=self.weight_decay)

    def steps(self, client: int) -> int:
        return self.epochs * math.ceil(len(self.data[client][1]) / self.batch)

    def long_steps(self, client: int) -> float:
        """FedNova's a_i, counted step by step."""
        counter = total = 0.0
        for _ in range(self.steps(client)):
            counter = counter * self.momentum + 1
            total += counter
        return total

    def total(self) -> int:
        return sum(len(targets) for _, targets in self.data)


@dataclass
class Scene:
    """One client in one round."""

    client: int
    net: nn.Module
    sent: nn.Module
    lr: float
    counts: Tensor
    number: int = 0
    rates: list[float] = field(default_factory=list)

    def moved(self) -> Values:
        return [(p - q).detach() for p, q in zip(self.net.parameters(), self.sent.parameters(), strict=True)]


class Extra:
    """A proximal term: zero unless told otherwise."""

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        return sum((p.sum() * 0 for p in scene.net.parameters()), torch.zeros((), dtype=torch.float64))

    def after_client(self, scene: Scene, setting: Setting) -> None:
        pass

    def after_round(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        pass


@dataclass
class Method:
    """FedAvg: local SGD, mean weighted by sizes."""

    extra: Extra = field(default_factory=Extra)
    head_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda z, y, counts: F.cross_entropy(z, y)

    def main(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        return self.head_loss(logits(scene.net, x), y, scene.counts)

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        return slope(scene.net, self.main(scene, x, y) + self.extra.value(scene, x, y))

    def step(self, scene: Scene, x: Tensor, y: Tensor) -> Sequence[Tensor | None]:
        """The gradient to step along; None leaves a parameter alone, weight decay included."""
        return self.gradient(scene, x, y)

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        sizes = [len(setting.data[scene.client][1]) for scene in scenes]
        mix(server, scenes, [size / sum(sizes) for size in sizes])


def logits(net: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = net.head(net.body(x))  # type: ignore[operator]
    return out


def features(net: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = net.body(x)  # type: ignore[operator]
    return out


def slope(net: nn.Module, loss: Tensor) -> Values:
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, net.parameters(), strict=True)]


def length(values: Values) -> Tensor:
    return torch.stack([value.square().sum() for value in values]).sum().sqrt()


def inner(left: Values, right: Iterable[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()


def mix(server: nn.Module, scenes: list[Scene], shares: Sequence[float]) -> None:
    """The server becomes the sum of shares * the clients' models; whole-number buffers take the largest."""
    states = [scene.net.state_dict() for scene in scenes]
    mixed = {
        name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
        if value.is_floating_point()
        else torch.stack([state[name] for state in states]).amax(dim=0)
        for name, value in server.state_dict().items()
    }
    server.load_state_dict(mixed)


def train(method: Method, start: nn.Module, cohorts: Sequence[Sequence[int]], setting: Setting) -> nn.Module:
    """The global model after the rounds of these cohorts."""
    server = deepcopy(start)
    for number, cohort in enumerate(cohorts):
        scenes = [visit(method, server, number, client, setting) for client in cohort]
        before = deepcopy(server)
        method.aggregate(server, scenes, setting)
        method.extra.after_round(server, scenes, setting)
        finish = getattr(method, "serve", None)
        if finish is not None:
            finish(before, server)
    return server


def visit(method: Method, server: nn.Module, number: int, client: int, setting: Setting) -> Scene:
    inputs, targets = setting.data[client]
    lr = setting.lr * setting.decay**number
    counts = torch.tensor([int((targets == c).sum()) for c in range(server.head.out_features)])  # type: ignore
    rates = setting.rates(server, lr)
    scene = Scene(client, deepcopy(server), deepcopy(server).eval(), lr, counts, number, rates)
    optimizer = setting.sgd(scene.net, lr)
    for order in torch.from_numpy(shuffles(setting.seed, number, [client], [len(targets)], setting.epochs)):
        for rows in torch.split(order, setting.batch):
            found: Sequence[Tensor | None] = method.step(scene, inputs[rows], targets[rows])
            for parameter, value in zip(scene.net.parameters(), found, strict=True):
                parameter.grad = None if value is None else value.detach().clone()
            optimizer.step()
    method.extra.after_client(scene, setting)
    return scene
