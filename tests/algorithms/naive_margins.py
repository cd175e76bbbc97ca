"""FedArc with heads that keep a state or draw at random: what a client carries, and what the server keeps of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from naive import Method, Scene, Setting, features
from torch import Tensor, nn

from fedra.core.random import generator

State = dict[str, float]


@dataclass
class Head(Method):
    """Cross-entropy plus half a margin loss; `kept` is the server's state, from which every client begins."""

    kept: State = field(default_factory=dict)
    carried: dict[int, State] = field(default_factory=dict)

    def main(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        state = self.carried.setdefault(scene.client, dict(self.kept))
        vectors = dict(scene.net.named_parameters())["margin-softmax.vectors"]
        f = features(scene.net, x)
        cosines = torch.stack([torch.stack([row @ v / (row.norm() * v.norm()) for v in vectors]) for row in f])
        self.advance(state, f.detach(), cosines.detach(), y, scene)
        total = torch.zeros((), dtype=torch.float64)
        for place, label in enumerate(y.tolist()):
            logits = self.logits(state, f[place], cosines[place], label, place)
            total = total - torch.log_softmax(torch.stack(logits), 0)[label]
        return super().main(scene, x, y) + 0.5 * total / len(y)

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        pass

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        raise TypeError

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        super().aggregate(server, scenes, setting)
        sizes = {scene.client: len(setting.data[scene.client][1]) for scene in scenes}
        for name in self.kept:
            values = {client: self.carried[client][name] for client in sizes}
            mean = sum(sizes[client] * value for client, value in values.items()) / sum(sizes.values())
            self.kept[name] = max(values.values()) if name == "step" else mean
        self.carried = {}


@dataclass
class Sphere(Head):
    kept: State = field(default_factory=lambda: {"step": 0.0})

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        state["step"] += 1

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        lam = max(0.5, 3.0 / (1 + 0.12 * state["step"]))
        logits = [f.norm() * c for c in cosines]
        angle = 4 * torch.acos(cosines[label])
        k = int(angle / math.pi)
        psi = (-1) ** k * torch.cos(angle) - 2 * k
        logits[label] = f.norm() * (cosines[label] + (psi - cosines[label]) / (1 + lam))
        return logits


@dataclass
class Curricular(Head):
    kept: State = field(default_factory=lambda: {"t": 0.0})

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        state["t"] = 0.8 * state["t"] + 0.2 * float(sum(row[c] for row, c in zip(cosines, y, strict=True)) / len(y))

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        own = torch.cos(torch.acos(cosines[label]) + 0.4)
        logits = [8 * c * (state["t"] + c) if c > own else 8 * c for c in cosines]
        logits[label] = 8 * own
        return logits


@dataclass
class Dynamic(Head):
    """AdaCos; a scale of zero is the fixed one."""

    kept: State = field(default_factory=lambda: {"scale": 0.0})

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        classes = cosines.shape[1]
        before = state["scale"] or math.sqrt(2) * math.log(classes - 1)
        rivals = [
            sum(math.exp(before * row[j]) for j in range(classes) if j != c)
            for row, c in zip(cosines.tolist(), y.tolist(), strict=True)
        ]
        angles = sorted(math.acos(row[c]) for row, c in zip(cosines.tolist(), y.tolist(), strict=True))
        median = angles[(len(angles) - 1) // 2]
        state["scale"] = max(1.0, math.log(sum(rivals) / len(rivals)) / math.cos(min(math.pi / 4, median)))

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        return [state["scale"] * c for c in cosines]


@dataclass
class Ada(Head):
    """AdaFace: statistics of the features' lengths."""

    kept: State = field(default_factory=lambda: {"mean": 20.0, "std": 100.0})

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        lengths = [float(row.norm()) for row in f]
        mean = sum(lengths) / len(lengths)
        state["mean"] = 0.7 * state["mean"] + 0.3 * mean
        if len(lengths) > 1:
            spread = math.sqrt(sum((n - mean) ** 2 for n in lengths) / (len(lengths) - 1))
            state["std"] = 0.7 * state["std"] + 0.3 * spread

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        z = 0.333 * (float(f.detach().norm()) - state["mean"]) / (state["std"] + 1e-3)
        z = max(-1.0, min(1.0, z))
        logits = [8 * c for c in cosines]
        logits[label] = 8 * (torch.cos(torch.acos(cosines[label]) - 0.4 * z) - 0.4 * (1 + z))
        return logits


@dataclass
class Elastic(Head):
    """Margins drawn for each example and step from the client's own stream; `ordered` gives the near ones the small."""

    ordered: bool = False
    streams: dict[tuple[int, int], torch.Generator] = field(default_factory=dict)
    margins: list[float] = field(default_factory=list)

    def advance(self, state: State, f: Tensor, cosines: Tensor, y: Tensor, scene: Scene) -> None:
        where = scene.number, scene.client
        stream = self.streams.setdefault(where, generator(7, "draw margin-softmax", *where))
        drawn = (0.4 + 0.2 * torch.randn(len(y), generator=stream).double()).tolist()
        if self.ordered:
            near_first = sorted(range(len(y)), key=lambda place: -float(cosines[place, y[place]]))
            drawn = [sorted(drawn)[near_first.index(place)] for place in range(len(y))]
        self.margins = drawn

    def logits(self, state: State, f: Tensor, cosines: Tensor, label: int, place: int) -> list[Tensor]:
        logits = [8 * c for c in cosines]
        logits[label] = 8 * torch.cos(torch.acos(cosines[label]) + self.margins[place])
        return logits
