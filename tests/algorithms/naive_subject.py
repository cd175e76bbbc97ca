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


def count(images: int, ratio: float, least: int) -> int:
    """The k of so many images: a K-th of them, or that share of them, and no fewer than `least` or than one."""
    exact = images * ratio if ratio < 1 else images / ratio
    return max(1, min(least, images), math.floor(exact + 1e-9))


def top(similar: dict[int, float], k: int) -> set[int]:
    return set(sorted(similar, key=lambda j: -similar[j])[:k])


def label(logits: dict[int, float], near: set[int], itself: int, emphasis: float) -> dict[int, float]:
    """The share of each image: a softmax over those that are near, then the emphasis."""
    total = sum(math.exp(logits[j]) for j in near)
    shares = {j: (1 - emphasis) * math.exp(logits[j]) / total if j in near else 0.0 for j in logits}
    shares[itself] += emphasis
    return shares


OLD: dict[str, Any] = {
    "label_similarity": "dot",
    "predict_over": "all",
    "symmetric": False,
    "length_gradient": True,
}
"""A label of raw dot products, sharper than the prediction."""


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
    label_similarity: str = "cosine",
    predict_over: str = "nearest",
    symmetric: bool = True,
    length_gradient: bool = False,
    projection: Tensor | None = None,
) -> Tensor:
    """F_insub of a batch."""
    joins: dict[str, Any] = {
        "mean": lambda i: (g[i] + z[i]) / 2,
        "sum": lambda i: g[i] + z[i],
        "own": lambda i: z[i],
        "projection": lambda i: projection @ torch.cat([g[i], z[i]]),
    }
    if label_similarity == "cosine":
        scale, added = label_temperature or 4 * temperature, 0.0
    else:
        scale, added = label_temperature or math.sqrt(z.shape[1]), ratio if ratio < 1 else 1 / ratio
    a = [joins[aggregation](i) for i in range(len(z))]
    others = [[j for j in range(len(z)) if within == "batch" or y[j] == y[i]] for i in range(len(z))]
    logits, tops = [], []
    for i in range(len(z)):
        source = p[i] if label_source == "frozen" else a[i].detach()
        similar = {j: float(cosine(source, p[j]) if label_similarity == "cosine" else source @ p[j]) for j in others[i]}
        logits.append({j: value / scale for j, value in similar.items()})
        tops.append(top(similar, count(len(similar), ratio, 2 if predict_over == "nearest" else 1)))
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(z)):
        near = {j for j in others[i] if j == i or j in tops[i] or (symmetric and i in tops[j])}
        shares = label(logits[i], near, i, added if emphasis is None else emphasis)
        among = sorted(near) if predict_over == "nearest" else others[i]
        length = a[i].norm() if length_gradient else a[i].norm().detach()
        guess = torch.stack([a[i] @ p[j] / (length * p[j].norm()) / temperature for j in among])
        logs = guess - torch.logsumexp(guess, dim=0)
        for j, one in zip(among, logs, strict=True):
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
