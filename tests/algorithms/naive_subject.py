"""FedFS written the plain way: images one by one, labels as lists of shares."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from naive import Scene, features
from naive_methods import Babu
from torch import Tensor, nn


def cosine(left: Tensor, right: Tensor) -> Tensor:
    return left @ right / (left.norm() * right.norm())


def label(products: dict[int, float], itself: int, ratio: float, emphasis: float) -> dict[int, float]:
    """The share of each image: top k and itself, softmax, then the emphasis."""
    k = max(1, math.floor(len(products) / ratio))
    kept = {*sorted(products, key=lambda j: -products[j])[:k], itself}
    total = sum(math.exp(products[j]) for j in kept)
    shares = {j: (1 - emphasis) * math.exp(products[j]) / total if j in kept else 0.0 for j in products}
    shares[itself] += emphasis
    return shares


def insub(
    z: Tensor,
    g: Tensor,
    p: Tensor,
    y: list[int],
    *,
    ratio: float = 4.0,
    aggregation: str = "mean",
    label_source: str = "aggregated",
    label_temperature: float | None = None,
    temperature: float = 0.1,
    emphasis: float | None = None,
    within: str = "subject",
    projection: Tensor | None = None,
) -> Tensor:
    """F_insub of a batch."""
    joins: dict[str, Any] = {
        "mean": lambda i: (g[i] + z[i]) / 2,
        "sum": lambda i: g[i] + z[i],
        "own": lambda i: z[i],
        "projection": lambda i: projection @ torch.cat([g[i], z[i]]),
    }
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(z)):
        a = joins[aggregation](i)
        others = [j for j in range(len(z)) if within == "batch" or y[j] == y[i]]
        source = p[i] if label_source == "frozen" else a
        scale = label_temperature or math.sqrt(z.shape[1])
        products = {j: float(source @ p[j]) / scale for j in others}
        shares = label(products, i, ratio, 1 / ratio if emphasis is None else emphasis)
        logits = torch.stack([cosine(a, p[j]) / temperature for j in others])
        logs = logits - torch.logsumexp(logits, dim=0)
        for j, one in zip(others, logs, strict=True):
            total = total - shares[j] * one / len(z)
    return total


def tie(z: Tensor, g: Tensor, measure: str = "cosine", temperature: float = 0.5) -> Tensor:
    """F_reg of a batch, by any of its measures."""
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(z)):
        if measure == "cosine":
            one = 1 - cosine(z[i], g[i])
        elif measure == "l2":
            one = sum(((a - b) ** 2 for a, b in zip(z[i], g[i], strict=True)), torch.zeros(())) / len(z[i])
        elif measure == "kl":
            before, after = (g[i] / temperature).softmax(0), (z[i] / temperature).softmax(0)
            one = sum((b * (b / a).log() for b, a in zip(before, after, strict=True)), torch.zeros(()))
        else:
            logits = torch.stack([cosine(z[i], other) / temperature for other in g])
            one = torch.logsumexp(logits, dim=0) - logits[i]
        total = total + one / len(z)
    return total


@dataclass
class Subject(Babu):
    """lambda F_insub + (1 - lambda) F_reg; the frozen net is the one that the first client was sent."""

    share: float = 0.7
    settings: dict[str, Any] = field(default_factory=dict)
    measure: str = "cosine"
    frozen: nn.Module | None = None

    def main(self, scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        self.frozen = self.frozen or deepcopy(scene.sent)
        z, g, p = features(scene.net, x), features(scene.sent, x).detach(), features(self.frozen, x).detach()
        first = insub(z, g, p, y.tolist(), **self.settings)
        return self.share * first + (1 - self.share) * tie(z, g, self.measure)
