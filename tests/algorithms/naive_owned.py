"""FedPE and what is built on it, written the plain way: a whole net per client, of which only its own rows count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from naive import Method, Scene, Setting, features, logits
from torch import Tensor, nn
from torch.nn import functional as F

ServerLoss = Callable[[Tensor, Tensor, list[set[int]]], Tensor]
"""Of rows, the same rows held constant, and the classes of every client."""


@dataclass
class Owned(Method):
    """The body is averaged; a row is the plain mean over those who hold it and took part; then the server's step."""

    server_loss: ServerLoss | None = None
    rate: float = 0.0
    local_loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    fixed: bool = False
    server_steps: int = 1

    def main(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        own = scene.counts.nonzero()[:, 0]
        local = torch.tensor([own.tolist().index(label) for label in y.tolist()])
        if self.local_loss is not None:
            return self.local_loss(features(scene.net, x), scene.net.head.weight[own], local)  # type: ignore
        return F.cross_entropy(logits(scene.net, x)[:, own], local)

    def step(self, scene: Scene, x: Tensor, y: Tensor) -> list[Tensor | None]:
        found = self.gradient(scene, x, y)
        head = {id(p) for p in scene.net.head.parameters()} if self.fixed else set()  # type: ignore[operator]
        return [None if id(p) in head else g for p, g in zip(scene.net.parameters(), found, strict=True)]

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        before = {name: value.clone() for name, value in server.head.named_parameters()}  # type: ignore[operator]
        super().aggregate(server, scenes, setting)
        held = [set(targets.tolist()) for _, targets in setting.data]
        with torch.no_grad():
            for name, value in server.head.named_parameters():  # type: ignore[operator]
                for label in range(len(value)):
                    rows = [dict(s.net.head.named_parameters())[name][label] for s in scenes if label in held[s.client]]  # type: ignore
                    value[label] = torch.stack(rows).mean(dim=0) if rows else before[name][label]
        for _ in range(0 if self.server_loss is None else self.server_steps):
            assert self.server_loss is not None
            weight: Tensor = server.head.weight  # type: ignore[assignment, union-attr]
            (slope,) = torch.autograd.grad(self.server_loss(weight, weight.detach().clone(), held), weight)
            with torch.no_grad():
                weight -= self.rate * slope


def apart(held: list[set[int]], a: int, b: int) -> bool:
    return a != b and not any(a in own and b in own for own in held)


def softmax_across(rows: Tensor, kept: Tensor, held: list[set[int]]) -> Tensor:
    """FedGC's eq. 5 on rows as they are."""
    total = rows.new_zeros(())
    for a in range(len(rows)):
        others = [rows[b] @ kept[a] for b in range(len(rows)) if apart(held, a, b)]
        own = rows[a] @ kept[a]
        total = total - own + torch.logsumexp(torch.stack([own, *others]), dim=0)
    return total


def cosface_across(scale: float, margin: float) -> ServerLoss:
    def loss(rows: Tensor, kept: Tensor, held: list[set[int]]) -> Tensor:
        rows, kept = F.normalize(rows, dim=1), F.normalize(kept, dim=1)
        total = rows.new_zeros(())
        own = rows.new_tensor(scale * (1 - margin))
        for a in range(len(rows)):
            others = [scale * (rows[b] @ kept[a]) for b in range(len(rows)) if apart(held, a, b)]
            total = total - own + torch.logsumexp(torch.stack([own, *others]), dim=0)
        return total

    return loss


def cosine_across(rows: Tensor, kept: Tensor, held: list[set[int]]) -> Tensor:
    """FedCos, divided by the number of classes."""
    rows, kept = F.normalize(rows, dim=1), F.normalize(kept, dim=1)
    pairs = [(a, b) for a in range(len(rows)) for b in range(len(rows)) if apart(held, a, b)]
    return sum((rows[b] @ kept[a] for a, b in pairs), rows.new_zeros(())) / len(rows)


def hinge_across(threshold: float) -> ServerLoss:
    def loss(rows: Tensor, kept: Tensor, held: list[set[int]]) -> Tensor:
        rows = F.normalize(rows, dim=1)
        pairs = [(a, b) for a in range(len(rows)) for b in range(len(rows)) if apart(held, a, b)]
        return sum((torch.relu(rows[a] @ rows[b] - threshold) ** 2 for a, b in pairs), rows.new_zeros(()))

    return loss


def mean_hinge_across(threshold: float) -> ServerLoss:
    """FedFace's: the mean over all pairs."""

    def loss(rows: Tensor, kept: Tensor, held: list[set[int]]) -> Tensor:
        pairs = sum(apart(held, a, b) for a in range(len(rows)) for b in range(len(rows)))
        return hinge_across(threshold)(rows, kept, held) / pairs

    return loss


def cosface(scale: float, margin: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def loss(found: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        cosines = F.normalize(found, dim=1) @ F.normalize(rows, dim=1).T
        return F.cross_entropy(scale * (cosines - margin * F.one_hot(labels, len(rows)).double()), labels)

    return loss


def pull(found: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    return torch.relu(0.9 - F.cosine_similarity(found, rows[labels])).square().mean()
