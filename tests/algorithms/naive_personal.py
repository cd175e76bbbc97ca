"""PersonalModels methods written the plain way: every client's own model, by modules and torch's own optimizers.

Nothing of fedra is used but the order of the batches. `Personal` is FedAvg; a method is told by what its clients keep,
by what they do in a step, and by the model they use in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from naive import Setting, logits, slope
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.core.random import shuffles


@dataclass
class Personal:
    """FedAvg; `kept` holds what clients remember."""

    kept: dict[int, Any] = field(default_factory=dict)

    def shared(self, name: str) -> bool:
        return True

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        self.optimizer = setting.sgd(net, lr)

    def step(self, client: int, net: nn.Module, x: Tensor, y: Tensor, epoch: int) -> None:
        descend(self.optimizer, F.cross_entropy(logits(net, x), y))

    def end(self, client: int, net: nn.Module) -> None:
        pass

    def own(self, client: int, server: nn.Module) -> nn.Module:
        return server


def descend(optimizer: torch.optim.SGD, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def federate(method: Personal, start: nn.Module, cohorts: Sequence[Sequence[int]], setting: Setting) -> nn.Module:
    """The global model after the rounds of these cohorts; the method has learned what clients keep."""
    server = deepcopy(start)
    for number, cohort in enumerate(cohorts):
        nets = [visit(method, server, number, client, setting) for client in cohort]
        sizes = [len(setting.data[client][1]) for client in cohort]
        with torch.no_grad():
            for name, p in server.named_parameters():
                if method.shared(name):
                    own = [dict(net.named_parameters())[name] for net in nets]
                    p.copy_(sum(size / sum(sizes) * q for size, q in zip(sizes, own, strict=True)))
    return server


def visit(method: Personal, server: nn.Module, number: int, client: int, setting: Setting) -> nn.Module:
    net = deepcopy(server)
    method.begin(client, net, setting.lr * setting.decay**number, setting)
    inputs, targets = setting.data[client]
    orders = torch.from_numpy(shuffles(setting.seed, number, [client], [len(targets)], setting.epochs))
    for epoch, order in enumerate(orders):
        for rows in torch.split(order, setting.batch):
            method.step(client, net, inputs[rows], targets[rows], epoch)
    method.end(client, net)
    return net


@dataclass
class Last(Personal):
    """A client uses the model that it trained last."""

    def end(self, client: int, net: nn.Module) -> None:
        self.kept[client] = deepcopy(net)

    def own(self, client: int, server: nn.Module) -> nn.Module:
        found: nn.Module = self.kept.get(client, server)
        return found


@dataclass
class Private(Personal):
    """Parameters that begin with `prefix` stay with the client."""

    prefix: str = "head."

    def shared(self, name: str) -> bool:
        return not name.startswith(self.prefix)

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        net.load_state_dict(self.kept.get(client, {}), strict=False)
        super().begin(client, net, lr, setting)

    def end(self, client: int, net: nn.Module) -> None:
        state = {name: value.clone() for name, value in net.state_dict().items()}
        self.kept[client] = {name: value for name, value in state.items() if not self.shared(name)}

    def own(self, client: int, server: nn.Module) -> nn.Module:
        found = deepcopy(server)
        found.load_state_dict(self.kept.get(client, {}), strict=False)
        return found


@dataclass
class Rep(Private):
    """Private heads; an optimizer for the head in the first epoch, another for the body in the next."""

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        super().begin(client, net, lr, setting)
        self.turns = [setting.sgd(net.head, lr, "head."), setting.sgd(net.body, lr, "body.")]  # type: ignore

    def step(self, client: int, net: nn.Module, x: Tensor, y: Tensor, epoch: int) -> None:
        descend(self.turns[min(epoch, 1)], F.cross_entropy(logits(net, x), y))


@dataclass
class Ditto(Personal):
    """A second net, pulled toward the one that was received."""

    strength: float = 0.1

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        super().begin(client, net, lr, setting)
        self.sent = deepcopy(net)
        self.twin = self.kept.setdefault(client, deepcopy(net))
        self.twins = setting.sgd(self.twin, lr)

    def step(self, client: int, net: nn.Module, x: Tensor, y: Tensor, epoch: int) -> None:
        super().step(client, net, x, y, epoch)
        pairs = zip(self.twin.parameters(), self.sent.parameters(), strict=True)
        pull = torch.stack([(v - w.detach()).square().sum() for v, w in pairs]).sum()
        descend(self.twins, F.cross_entropy(logits(self.twin, x), y) + self.strength / 2 * pull)

    def own(self, client: int, server: nn.Module) -> nn.Module:
        found: nn.Module = self.kept.get(client, server)
        return found


@dataclass
class Apfl(Personal):
    """A second net and its share; their mixture is what is looked at."""

    alpha: float = 0.5
    adaptive: bool = True

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        super().begin(client, net, lr, setting)
        self.twin, self.share = self.kept.get(client, (deepcopy(net), self.alpha))
        self.twins, self.lr = setting.sgd(self.twin, lr), lr

    def step(self, client: int, net: nn.Module, x: Tensor, y: Tensor, epoch: int) -> None:
        mixture = self.mixture(self.twin, net, self.share)
        found = slope(mixture, F.cross_entropy(logits(mixture, x), y))
        apart = [(v - w).detach() for v, w in zip(self.twin.parameters(), net.parameters(), strict=True)]
        super().step(client, net, x, y, epoch)
        for v, g in zip(self.twin.parameters(), found, strict=True):
            v.grad = self.share * g
        self.twins.step()
        if self.adaptive:
            along = sum(float((g * d).sum()) for g, d in zip(found, apart, strict=True))
            self.share = min(max(self.share - self.lr * along, 0.0), 1.0)

    def end(self, client: int, net: nn.Module) -> None:
        self.kept[client] = (deepcopy(self.twin), self.share)

    def mixture(self, twin: nn.Module, net: nn.Module, share: float) -> nn.Module:
        found = deepcopy(net)
        with torch.no_grad():
            for u, v, w in zip(found.parameters(), twin.parameters(), net.parameters(), strict=True):
                u.copy_(share * v + (1 - share) * w)
        return found

    def own(self, client: int, server: nn.Module) -> nn.Module:
        if client not in self.kept:
            return server
        twin, share = self.kept[client]
        return self.mixture(twin, server, share)


@dataclass
class Meta(Personal):
    """One half of the batch steps ahead, the other half looks; `hessian` multiplies by I - lr H as it stands."""

    inner_lr: float | None = None
    hessian: bool = False
    delta: float | None = None

    def begin(self, client: int, net: nn.Module, lr: float, setting: Setting) -> None:
        super().begin(client, net, lr, setting)
        self.rates = setting.rates(net, lr) if self.inner_lr is None else [self.inner_lr] * len(list(net.parameters()))

    def step(self, client: int, net: nn.Module, x: Tensor, y: Tensor, epoch: int) -> None:
        one = range(0, len(y), 2)
        other = range(1, len(y), 2) if len(y) > 1 else one
        a, b = (x[list(one)], y[list(one)]), (x[list(other)], y[list(other)])
        ahead = self.moved(net, self.times_rates(self.slopes(net, *a)), -1)
        found = self.slopes(ahead, *b)
        if self.delta is not None:
            along, far = self.times_rates(found), self.delta / self.rates[0]
            up, down = (self.slopes(self.moved(net, along, sign * far), *a) for sign in (1, -1))
            found = [g - (u - d) / (2 * far) for g, u, d in zip(found, up, down, strict=True)]
        elif self.hessian:
            parameters = list(net.parameters())
            g = torch.autograd.grad(F.cross_entropy(logits(net, a[0]), a[1]), parameters, create_graph=True)
            along = self.times_rates([v.detach() for v in found])
            products = torch.autograd.grad(
                torch.stack([(u * v).sum() for u, v in zip(g, along, strict=True)]).sum(), parameters
            )
            found = [u - h for u, h in zip(found, products, strict=True)]
        for p, g in zip(net.parameters(), found, strict=True):
            p.grad = g
        self.optimizer.step()

    def times_rates(self, values: list[Tensor]) -> list[Tensor]:
        return [rate * value for rate, value in zip(self.rates, values, strict=True)]

    @staticmethod
    def slopes(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        return slope(net, F.cross_entropy(logits(net, x), y))

    @staticmethod
    def moved(net: nn.Module, along: list[Tensor], far: float) -> nn.Module:
        found = deepcopy(net)
        with torch.no_grad():
            for p, g in zip(found.parameters(), along, strict=True):
                p.add_(far * g)
        return found
