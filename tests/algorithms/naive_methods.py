"""The methods of the papers on top of the plain loop of `naive`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from naive import Method, Scene, Setting, Values, features, length, mix, slope
from naive_extras import zeros
from torch import Tensor, nn


@dataclass
class Nova(Method):
    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        sizes = [len(setting.data[scene.client][1]) for scene in scenes]
        p = [size / sum(sizes) for size in sizes]
        a = [setting.long_steps(scene.client) for scene in scenes]
        stretch = sum(share * steps for share, steps in zip(p, a, strict=True))
        kept = 1 - stretch * sum(share / steps for share, steps in zip(p, a, strict=True))
        before = [parameter.detach().clone() for parameter in server.parameters()]
        mix(server, scenes, [stretch * share / steps for share, steps in zip(p, a, strict=True)])
        with torch.no_grad():
            for parameter, old in zip(server.parameters(), before, strict=True):
                parameter.add_(kept * old)


@dataclass
class Clipped(Method):
    norm: float = 1.0

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        found = super().gradient(scene, x, y)
        size = float(length(found))
        return [g * self.norm / size for g in found] if size > self.norm else found


@dataclass
class Sam(Method):
    """Step up, look, step back; `eta` not None scales the ball by the weights."""

    rho: float = 0.1
    eta: float | None = None
    bias_scaling: bool = True

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        up = slope(scene.net, self.main(scene, x, y))
        if self.eta is None:
            eps = [self.rho * g / length(up) for g in up]
        else:
            sizes = [
                torch.ones_like(p) if "bias" in name and not self.bias_scaling else p.detach().abs() + self.eta
                for name, p in scene.net.named_parameters()
            ]
            size = length([t * g for t, g in zip(sizes, up, strict=True)])
            eps = [self.rho * t**2 * g / size for t, g in zip(sizes, up, strict=True)]
        return at(scene, eps, lambda: slope(scene.net, self.main(scene, x, y)))


@dataclass
class Speed(Sam):
    """The loss's gradient from above, the regularizer's from where we stand."""

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        regular = slope(scene.net, self.extra.value(scene, x, y))
        return [a + b for a, b in zip(super().gradient(scene, x, y), regular, strict=True)]


@dataclass
class Smoo(Speed):
    """Speed whose steps up are drawn to a common one: every client remembers its debt, the server the mean debt."""

    debts: dict[int, Values] = field(default_factory=dict)
    common: Values | None = None

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        debt = self.debts.setdefault(scene.client, zeros(scene.net))
        common = self.common or zeros(scene.net)
        found = slope(scene.net, self.main(scene, x, y))
        wanted = [g - d - c for g, d, c in zip(found, debt, common, strict=True)]
        eps = [self.rho * v / length(wanted) for v in wanted]
        self.debts[scene.client] = [d + e - c for d, e, c in zip(debt, eps, common, strict=True)]
        regular = slope(scene.net, self.extra.value(scene, x, y))
        above = at(scene, eps, lambda: slope(scene.net, self.main(scene, x, y)))
        return [a + b for a, b in zip(above, regular, strict=True)]

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        super().aggregate(server, scenes, setting)
        debts = [self.debts[scene.client] for scene in scenes]
        mean = [sum(values) / len(debts) for values in zip(*debts, strict=True)]
        self.common = [self.rho * value / length(mean) for value in mean]


@dataclass
class Babu(Method):
    """The head is left alone."""

    def step(self, scene: Scene, x: Tensor, y: Tensor) -> Sequence[Tensor | None]:
        names = [name for name, _ in scene.net.named_parameters()]
        found = self.gradient(scene, x, y)
        return [None if name.startswith("head") else g for name, g in zip(names, found, strict=True)]


@dataclass
class Arc(Method):
    """Cross-entropy and ArcFace by its angles; `blend` as FedArc's public code has it: the first round without."""

    weight: float = 0.5
    scale: float = 8.0
    margin: float = 0.4
    blend: bool = False

    def main(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        vectors = dict(scene.net.named_parameters())["margin-softmax.vectors"]
        arc = torch.zeros((), dtype=torch.float64)
        for f, label in zip(features(scene.net, x), y.tolist(), strict=True):
            cosines = [f @ v / (f.norm() * v.norm()) for v in vectors]
            cosines[label] = torch.cos(torch.acos(cosines[label]) + self.margin)
            arc = arc - torch.log_softmax(self.scale * torch.stack(cosines), 0)[label] / len(y)
        entropy = super().main(scene, x, y)
        if not self.blend:
            return entropy + self.weight * arc
        return self.weight * entropy + (1 - self.weight) * arc if scene.number else entropy + 0 * arc


def with_vectors(net: nn.Module, vectors: Tensor) -> nn.Module:
    """The net with class vectors among its parameters."""
    holder = nn.Module()
    holder.register_parameter("vectors", nn.Parameter(vectors.clone()))
    net.add_module("margin-softmax", holder)
    return net


def at(scene: Scene, eps: Values, look: Callable[[], Values]) -> Values:
    """What `look` finds when the weights are moved by eps, running statistics left alone."""
    layers = [m for m in scene.net.modules() if isinstance(m, nn.BatchNorm2d)]
    kept = [(layer.momentum, None if (n := layer.num_batches_tracked) is None else n.clone()) for layer in layers]
    own = [p.detach().clone() for p in scene.net.parameters()]
    with torch.no_grad():
        for p, e in zip(scene.net.parameters(), eps, strict=True):
            p.add_(e)
    for layer in layers:
        layer.momentum = 0.0
    found = look()
    for layer, (momentum, batches) in zip(layers, kept, strict=True):
        layer.momentum, layer.num_batches_tracked = momentum, batches
    with torch.no_grad():
        for p, o in zip(scene.net.parameters(), own, strict=True):
            p.copy_(o)
    return found


@dataclass
class Sol(Method):
    """FedSoL in all its shapes, and the family A0..A6 of its ablation."""

    rho: float = 2.0
    over: str | None = None
    scope: str = "all"
    variant: str = "A1"
    beta: float = 1.0
    floor: float = 1e-6

    def prox(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        return slope(scene.net, self.extra.value(scene, x, y))

    def gradient(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        def ours() -> Values:
            return slope(scene.net, self.main(scene, x, y))

        def theirs() -> Values:
            return [self.beta * g for g in self.prox(scene, x, y)]

        def both() -> Values:
            return [a + b for a, b in zip(ours(), theirs(), strict=True)]

        def plus(a: Values, b: Values) -> Values:
            return [x + y for x, y in zip(a, b, strict=True)]

        eps = self.epsilon(scene, x, y)
        if self.variant == "A4":
            up = both()
            eps = [self.rho * g / length(up) for g in up]
        looks: dict[str, Callable[[], Values]] = {
            "A0": ours,
            "A1": lambda: at(scene, eps, ours),
            "A2": lambda: plus(ours(), at(scene, eps, theirs)),
            "A3": lambda: at(scene, eps, both),
            "A4": lambda: at(scene, eps, both),
            "A5": both,
            "A6": lambda: plus(at(scene, eps, ours), theirs()),
        }
        return looks[self.variant]()

    def epsilon(self, scene: Scene, x: Tensor, y: Tensor) -> Values:
        named = list(scene.net.named_parameters())
        g = [
            slot if self.scope in ("all", name.split(".")[0]) else torch.zeros_like(slot)
            for (name, _), slot in zip(named, self.prox(scene, x, y), strict=True)
        ]
        size = float(length(g))
        if size <= self.floor:
            return zeros(scene.net)
        if self.over is None:
            return [self.rho / size * slot for slot in g]
        scales = self.drift(scene, [name for name, _ in named], size)
        return [scale * slot for scale, slot in zip(scales, g, strict=True)]

    def drift(self, scene: Scene, names: list[str], size: float) -> Values:
        moved = [d.abs() for d in scene.moved()]
        scales = []
        for name, d in zip(names, moved, strict=True):
            if self.over == "dim0":
                norm = d.square().sum(dim=0, keepdim=True).sqrt()
            elif self.over == "tensor":
                norm = d.square().sum().sqrt()
            else:
                layer = name.rsplit(".", 1)[0]
                mates = [m for n, m in zip(names, moved, strict=True) if n.rsplit(".", 1)[0] == layer]
                norm = length(mates)
            scales.append(self.rho / size * torch.where(norm > 0, d / norm, torch.zeros_like(d)))
        return scales


@dataclass
class Served(Method):
    """A server optimizer; `kind` is momentum, adam, yogi or adagrad."""

    kind: str = "momentum"
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    state: list[Any] | None = None

    def serve(self, before: nn.Module, server: nn.Module) -> None:
        first = self.state is None
        self.state = self.state or [None] * len(list(server.parameters()))
        pairs = zip(before.parameters(), server.parameters(), strict=True)
        with torch.no_grad():
            for place, (old, new) in enumerate(pairs):
                d = new - old
                m, v = (torch.zeros_like(d), torch.full_like(d, self.tau**2)) if first else self.state[place]
                if self.kind == "momentum":
                    m = self.beta1 * m + d
                    new.copy_(old + self.lr * m)
                else:
                    m = self.beta1 * m + (1 - self.beta1) * d
                    v = {
                        "adam": self.beta2 * v + (1 - self.beta2) * d**2,
                        "yogi": v - (1 - self.beta2) * d**2 * torch.sign(v - d**2),
                        "adagrad": v + d**2,
                    }[self.kind]
                    new.copy_(old + self.lr * m / (v.sqrt() + self.tau))
                self.state[place] = (m, v)


def calibrated(tau: float) -> Any:
    def loss(z: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        present = [c for c in range(len(counts)) if counts[c] > 0]
        total = torch.zeros((), dtype=torch.float64)
        for row, label in zip(z, y.tolist(), strict=True):
            shifted = {c: row[c] - tau * float(counts[c]) ** -0.25 for c in present}
            total = total - shifted[label] + torch.logsumexp(torch.stack(list(shifted.values())), 0)
        return total / len(y)

    return loss


def restricted(alpha: float) -> Any:
    def loss(z: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        factors = torch.tensor([1.0 if n > 0 else alpha for n in counts.tolist()], dtype=torch.float64)
        probabilities = (z * factors).exp() / (z * factors).exp().sum(dim=1, keepdim=True)
        return -torch.stack([probabilities[i, c].log() for i, c in enumerate(y.tolist())]).mean()

    return loss
