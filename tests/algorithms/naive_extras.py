"""The papers' proximal terms and correction terms, each with the state it keeps, for the plain loop of `naive`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from naive import Extra, Scene, Setting, Values, features, inner, logits
from torch import Tensor, nn
from torch.nn import functional as F


def zeros(net: nn.Module) -> Values:
    return [torch.zeros_like(p) for p in net.parameters()]


@dataclass
class Distance(Extra):
    mu: float

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        moved = [p - q.detach() for p, q in zip(scene.net.parameters(), scene.sent.parameters(), strict=True)]
        return self.mu / 2 * inner(moved, moved)


@dataclass
class Kd(Extra):
    temperature: float = 3.0
    squared: bool = False
    weight: float = 1.0

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        teacher = (logits(scene.sent, x).detach() / self.temperature).softmax(dim=1)
        student = (logits(scene.net, x) / self.temperature).softmax(dim=1)
        kl = (teacher * (teacher / student).log()).sum() / len(y)
        return self.weight * kl * (self.temperature**2 if self.squared else 1)


@dataclass
class Ntd(Extra):
    beta: float = 1.0
    temperature: float = 1.0

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, label in enumerate(y.tolist()):
            others = [c for c in range(scene.counts.numel()) if c != label]
            p = (logits(scene.sent, x).detach()[row, others] / self.temperature).softmax(dim=0)
            q = (logits(scene.net, x)[row, others] / self.temperature).softmax(dim=0)
            total = total + (p * (p / q).log()).sum()
        return self.beta * self.temperature**2 * total / len(y)


@dataclass
class Contrast(Extra):
    mu: float = 0.1
    temperature: float = 0.5
    previous: dict[int, nn.Module] = field(default_factory=dict)

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        z, z_g = features(scene.net, x), features(scene.sent, x).detach()
        z_p = features(self.previous.get(scene.client, scene.sent), x).detach()
        near = (F.cosine_similarity(z, z_g) / self.temperature).exp()
        far = (F.cosine_similarity(z, z_p) / self.temperature).exp()
        return self.mu * -(near / (near + far)).log().mean()

    def after_client(self, scene: Scene, setting: Setting) -> None:
        self.previous[scene.client] = scene.net


@dataclass
class Dyn(Extra):
    alpha: float
    own: dict[int, Values] = field(default_factory=dict)
    h: Values | None = None

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        own = self.own.setdefault(scene.client, zeros(scene.net))
        return Distance(self.alpha).value(scene, x, y) - inner(own, scene.net.parameters())

    def after_client(self, scene: Scene, setting: Setting) -> None:
        pairs = zip(self.own[scene.client], scene.moved(), strict=True)
        self.own[scene.client] = [own - self.alpha * moved for own, moved in pairs]

    def after_round(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        self.h = self.h or zeros(server)
        for scene in scenes:
            self.h = [h - self.alpha / len(setting.data) * d for h, d in zip(self.h, scene.moved(), strict=True)]
        with torch.no_grad():
            for parameter, h in zip(server.parameters(), self.h, strict=True):
                parameter.sub_(h / self.alpha)


@dataclass
class Variates(Extra):
    momentum_aware: bool = True
    size_aware: bool = False
    own: dict[int, Values] = field(default_factory=dict)
    c: Values | None = None
    change: Values = field(default_factory=list)

    def ratio(self, client: int, setting: Setting) -> float:
        return len(setting.data[client][1]) * len(setting.data) / setting.total() if self.size_aware else 1.0

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        assert self.setting is not None
        self.c = self.c or zeros(scene.net)
        own = self.own.setdefault(scene.client, zeros(scene.net))
        r = self.ratio(scene.client, self.setting)
        return inner([c / r - o for c, o in zip(self.c, own, strict=True)], scene.net.parameters())

    setting: Setting | None = None

    def after_client(self, scene: Scene, setting: Setting) -> None:
        assert self.c is not None
        r = self.ratio(scene.client, setting)
        steps = setting.long_steps(scene.client) if self.momentum_aware else setting.steps(scene.client)
        old, self.change = self.own[scene.client], self.change or zeros(scene.net)
        pairs = zip(old, self.c, scene.moved(), scene.rates, strict=True)
        new = [o - c / r - d / (steps * lr) for o, c, d, lr in pairs]
        self.change = [t + r * (n - o) for t, n, o in zip(self.change, new, old, strict=True)]
        self.own[scene.client] = new

    def after_round(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        assert self.c is not None
        self.c = [c + t / len(setting.data) for c, t in zip(self.c, self.change, strict=True)]
        self.change = []


@dataclass
class NovaControl(Extra):
    refresh: bool
    own: dict[int, Values] = field(default_factory=dict)
    mean: Values | None = None

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        self.mean = self.mean or zeros(scene.net)
        own = self.own.setdefault(scene.client, zeros(scene.net))
        return inner([d - o for d, o in zip(self.mean, own, strict=True)], scene.net.parameters())

    def after_client(self, scene: Scene, setting: Setting) -> None:
        steps, pairs = setting.long_steps(scene.client), zip(scene.moved(), scene.rates, strict=True)
        self.own[scene.client] = [-d / (lr * steps) for d, lr in pairs]

    def after_round(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        if not self.refresh:
            return
        sizes = {scene.client: len(setting.data[scene.client][1]) for scene in scenes}
        kept = 1 - sum(sizes.values()) / setting.total()
        mean = [kept * d for d in self.mean or []]
        for client, size in sizes.items():
            mean = [m + size / setting.total() * d for m, d in zip(mean, self.own[client], strict=True)]
        self.mean = mean


@dataclass
class Decorrelate(Extra):
    beta: float

    def value(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        z = features(scene.net, x)
        z = (z - z.mean(dim=0)) / (z.var(dim=0, unbiased=False) + 1e-8).sqrt()
        k = torch.stack([torch.outer(row, row) for row in z]).mean(dim=0)
        return self.beta * (k**2).sum() / k.shape[0] ** 2
