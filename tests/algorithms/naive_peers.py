"""What fluke computes where it differs from the papers, as plain versions: they show that the stated cause is it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from naive import Extra, Method, Scene, Setting, Values, length, mix, slope
from naive_extras import zeros
from naive_methods import Sam, Served, at
from torch import Tensor, nn


class SummedNova(Method):
    """FedNova with models, instead of their changes, times tau p_k / a_k."""

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        sizes = [len(setting.data[scene.client][1]) for scene in scenes]
        shares = [size / sum(sizes) for size in sizes]
        steps = [setting.long_steps(scene.client) for scene in scenes]
        stretch = sum(share * count for share, count in zip(shares, steps, strict=True))
        mix(server, scenes, [stretch * share / count for share, count in zip(shares, steps, strict=True)])


@dataclass
class KeptSam(Sam):
    """FedSAM whose gradient still holds the perturbed one of the client's last step."""

    last: dict[int, Values] = field(default_factory=dict)

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        kept = self.last.get(scene.client) or zeros(scene.net)
        up = [g + k for g, k in zip(slope(scene.net, self.main(scene, x, y)), kept, strict=True)]
        eps = [self.rho * g / length(up) for g in up]
        found = at(scene, eps, lambda: slope(scene.net, self.main(scene, x, y)))
        self.last[scene.client] = found
        return found


class SlowOptimizer(Served):
    """A server optimizer on changes that are multiplied by its learning rate, with a second moment from zero."""

    def serve(self, before: nn.Module, server: nn.Module) -> None:
        with torch.no_grad():
            for old, new in zip(before.parameters(), server.parameters(), strict=True):
                new.copy_(old + self.lr * (new - old))
        self.state = self.state or [(torch.zeros_like(p), torch.zeros_like(p)) for p in server.parameters()]
        super().serve(before, server)


@dataclass
class LateMomentum(Method):
    """FedAvgM that drops the change of the first round."""

    momentum: float = 0.5
    velocity: Values | None = None

    def serve(self, before: nn.Module, server: nn.Module) -> None:
        with torch.no_grad():
            change = [old - new for old, new in zip(before.parameters(), server.parameters(), strict=True)]
            self.velocity = (
                [torch.zeros_like(c) for c in change]
                if self.velocity is None
                else [self.momentum * v + c for v, c in zip(self.velocity, change, strict=True)]
            )
            for old, new, v in zip(before.parameters(), server.parameters(), self.velocity, strict=True):
                new.copy_(old - v)


@dataclass
class ScaledDyn(Extra):
    """FedDyn with alpha divided by relative sizes, a dual variable times alpha twice and of opposite sign.

    The server sends the mean plus the mean dual variable, and reports the mean without it.
    """

    alpha: float
    setting: Setting
    rounds: int
    own: dict[int, Values] = field(default_factory=dict)

    def weight(self, client: int) -> float:
        return self.alpha * self.setting.total() / len(self.setting.data) / len(self.setting.data[client][1])

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        own = self.own.setdefault(scene.client, zeros(scene.net))
        total = torch.zeros((), dtype=torch.float64)
        for p, sent, o in zip(scene.net.parameters(), scene.sent.parameters(), own, strict=True):
            total = total + (p.square() / 2 + p * (o - sent.detach())).sum()
        return self.weight(scene.client) * total

    def after_client(self, scene: Scene, setting: Setting) -> None:
        scale = self.weight(scene.client)
        pairs = zip(self.own[scene.client], scene.moved(), strict=True)
        self.own[scene.client] = [own - scale * moved for own, moved in pairs]

    def after_round(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        if scenes[0].number == self.rounds - 1:
            return
        with torch.no_grad():
            for number, parameter in enumerate(server.parameters()):
                parameter.add_(sum(self.own[scene.client][number] for scene in scenes) / len(scenes))
