"""Robust combine rules: weights of the uploads that a minority of malicious clients cannot move at will.

A rule chooses one weight per client, from the inner products of the updates. The fold then adds up whole uploads with
these weights, so control variates, FedDyn's state and buffers follow the same choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CollectsUploads
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.private_steps import private_steps
from fedra.core.robust_fold import RootSelecting, Selecting, inner_products
from fedra.core.tree import Tree
from fedra.core.view import Upload
from fedra.errors import ConfigError, RunError
from fedra.parts.combine import combine_each, sort_clients
from fedra.registry import Positive

Malicious = Annotated[float, Field(ge=0, lt=0.5)]
"""Share of the cohort that may be malicious."""
WEISZFELD_STEPS = 8
CLIP_STEPS = 3


def count_malicious(share: float, clients: int) -> int:
    """Return the number of malicious clients to withstand.

    Args:
        share: Their share.
        clients: Size of the cohort.

    Returns:
        The number, rounded up.

    Example:
        >>> count_malicious(0.2, 11)
        3
    """
    return int(-(-share * clients // 1))


@dataclass(frozen=True)
class NormBound(Selecting):
    """The plain mean of updates whose norm is bounded: a replaced model counts no more than an honest one.

    Args:
        bound: Longest norm of an update.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(NormBound(bound=2.0)).combine.name
        'norm-bound'
    """

    bound: Positive = 1.0
    formula: ClassVar[str] = "w_g + 1/n sum_k d_k min(1, bound / ||d_k||)"

    def choose_weights(self, gram: Tensor, examples: Sequence[int]) -> Tensor:
        norms = gram.diagonal().clamp(min=0).sqrt()
        return (self.bound / norms.clamp(min=1e-30)).clamp(max=1.0) / len(gram)


@dataclass(frozen=True)
class MultiKrum(Selecting):
    """The mean of the updates closest to their neighbors (Blanchard et al., NeurIPS 2017).

    Args:
        malicious: Share of the cohort that may be malicious.
        keep: Number of updates to average; None keeps all but the malicious share, 1 is Krum.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(MultiKrum(malicious=0.2)).combine.name
        'multi-krum'
    """

    malicious: Malicious = 0.2
    keep: Annotated[int, Field(ge=1)] | None = None
    formula: ClassVar[str] = "mean of the d_k with the least sum of squared distances to their n - f - 2 nearest"

    def choose_weights(self, gram: Tensor, examples: Sequence[int]) -> Tensor:
        clients = len(gram)
        bad = count_malicious(self.malicious, clients)
        require_clients(self.name, clients, 2 * bad + 3, bad)
        chosen = krum_scores(squared_distances(gram), bad).argsort(stable=True)[: self.keep or clients - bad]
        weights = torch.zeros(clients, dtype=gram.dtype)
        weights[chosen] = 1 / len(chosen)
        return weights


@dataclass(frozen=True)
class GeometricMedian(Selecting):
    """The point with the least sum of distances to all updates, smoothed (RFA, Pillutla et al., IEEE TSP 2022).

    Args:
        smoothing: Distances below this count as this.
        weighted: Weight clients by their number of examples; a liar may then claim many.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(GeometricMedian()).combine.name
        'geometric-median'
    """

    smoothing: Positive = 1e-6
    weighted: bool = False
    formula: ClassVar[str] = "argmin_z sum_k ||d_k - z||, by eight smoothed Weiszfeld steps"

    def choose_weights(self, gram: Tensor, examples: Sequence[int]) -> Tensor:
        base = torch.tensor(examples, dtype=gram.dtype) if self.weighted else torch.ones(len(gram), dtype=gram.dtype)
        base = base / base.sum()
        weights = base
        for _ in range(WEISZFELD_STEPS):
            weights = base / distances_to(gram, weights).clamp(min=self.smoothing)
            weights = weights / weights.sum()
        return weights


@dataclass(frozen=True)
class CenteredClip(Selecting):
    """The mean of updates clipped around a center that moves toward it (Karimireddy et al., ICML 2021).

    The center starts at zero, the server's own model, in every round.

    Args:
        radius: Longest distance from the center.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(CenteredClip(radius=2.0)).combine.name
        'centered-clip'
    """

    radius: Positive = 1.0
    formula: ClassVar[str] = "v <- v + 1/n sum_k (d_k - v) min(1, radius / ||d_k - v||), three times from v = 0"

    def choose_weights(self, gram: Tensor, examples: Sequence[int]) -> Tensor:
        weights = torch.zeros(len(gram), dtype=gram.dtype)
        for _ in range(CLIP_STEPS):
            factors = (self.radius / distances_to(gram, weights).clamp(min=1e-30)).clamp(max=1.0) / len(gram)
            weights = weights * (1 - factors.sum()) + factors
        return weights


@dataclass(frozen=True)
class RootTrust(RootSelecting):
    """FLTrust: updates scaled to the length of the server's own and weighted by their cosine with it, if positive.

    Cao et al., NDSS 2021. The server trains on clean examples in every round, as a client does. If no update points
    its way, the model does not change.

    Args:
        share: Share of every client's examples that the server gets in a simulation; the clients lose them.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(RootTrust(share=0.02)).combine.name
        'root-trust'
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    formula: ClassVar[str] = "w_g + sum_k t_k d_k ||d_0|| / ||d_k|| / sum_k t_k,  t_k = relu(cos(d_k, d_0))"

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.sharing.kept:
            raise ConfigError(
                "root-trust needs a model that all clients share, so the server can train it too, got layers or class "
                "vectors that belong to clients: use geometric-median"
            )
        if private_steps(algorithm):
            raise ConfigError(
                "root-trust trains on the server too, which has no account of its examples: remove [privacy], or use "
                "geometric-median"
            )

    def trust(self, gram: Tensor) -> Tensor:
        norms = gram.diagonal().clamp(min=0).sqrt()
        lengths = (norms[1:] * norms[0]).clamp(min=1e-30)
        trust = (gram[0, 1:] / lengths).clamp(min=0)
        if not trust.any():
            return trust
        return trust / trust.sum() * norms[0] / norms[1:].clamp(min=1e-30)


@dataclass(frozen=True)
class Bulyan(Combine):
    """Krum without replacement, then the mean of the values nearest to each median (El Mhamdi et al., ICML 2018).

    It works per coordinate, so parts that collect updates do not combine with it.

    Args:
        malicious: Share of the cohort that may be malicious.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(Bulyan(malicious=0.1)).combine.name
        'bulyan'
    """

    malicious: Malicious = 0.1
    formula: ClassVar[str] = "n - 2f updates by Krum, then per coordinate the mean of the n - 4f nearest to the median"

    def check(self, algorithm: Algorithm) -> None:
        for name, part in algorithm.with_capability(CollectsUploads).items():
            if part.collects and name != algorithm.sharing.name:
                raise ConfigError(
                    f"bulyan combines coordinate by coordinate, so the part '{name}' cannot follow its choice: use "
                    "multi-krum or geometric-median"
                )

    def add(self, total: Tree, upload: Upload) -> Tree:
        return {"uploads": [*total.get("uploads", []), upload]}

    def finish(self, total: Tree) -> Weights:
        uploads: list[Upload] = total["uploads"]
        clients = len(uploads)
        bad = count_malicious(self.malicious, clients)
        require_clients(self.name, clients, 4 * bad + 3, bad)
        chosen = _choose_by_krum(squared_distances(inner_products([one.delta for one in uploads])), bad)
        kept = [uploads[index] for index in chosen]
        rule = partial(_around_median, count=clients - 4 * bad)
        return Weights(
            combine_each([one.delta for one in kept], rule), combine_each([one.buffers for one in kept], rule)
        )


def _choose_by_krum(squared: Tensor, malicious: int) -> list[int]:
    """Choose n - 2f vectors, each the best by Krum among those left."""
    left = list(range(len(squared)))
    chosen: list[int] = []
    while len(chosen) < len(squared) - 2 * malicious:
        rest = squared[left][:, left]
        scores = krum_scores(rest, min(malicious, max(len(left) - 3, 0))).tolist()
        # Two mutual neighbors have equal scores if one neighbor counts; the sum of all distances decides then.
        sums = rest.sum(dim=1).tolist()
        best = left[min(range(len(left)), key=lambda index: (scores[index], sums[index]))]
        chosen.append(best)
        left.remove(best)
    return chosen


def _around_median(values: Tensor, count: int) -> Tensor:
    """Per coordinate the mean of the `count` values nearest to the median, whatever the order of the clients."""
    ordered = sort_clients(values)
    distances = (ordered - ordered[(len(ordered) - 1) // 2]).abs().T.contiguous()
    # Distances fall, then rise: NumPy's stable sort merges the two, torch's starts from nothing.
    nearest = torch.from_numpy(np.argsort(distances.cpu().numpy(), axis=1, kind="stable")[:, :count].T)
    return ordered.gather(0, nearest.to(values.device)).mean(dim=0)


def squared_distances(gram: Tensor) -> Tensor:
    """Return the squared distances (n, n) of vectors from their inner products.

    Args:
        gram: Inner products (n, n).

    Returns:
        The squared distances, zero on the diagonal.

    Example:
        >>> squared_distances(torch.eye(2))[0, 1].item()
        2.0
    """
    squares = gram.diagonal()
    found = (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * gram).clamp(min=0)
    return found.fill_diagonal_(0)


def distances_to(gram: Tensor, weights: Tensor) -> Tensor:
    """Return the distances (n,) of vectors to the sum of the vectors with these weights.

    Args:
        gram: Inner products (n, n) of the vectors.
        weights: A weight (n,) for each vector.

    Returns:
        ||x_k - sum_j w_j x_j|| for each k.

    Example:
        >>> distances_to(torch.eye(2), torch.zeros(2)).tolist()
        [1.0, 1.0]
    """
    along = gram @ weights
    return (gram.diagonal() - 2 * along + weights @ along).clamp(min=0).sqrt()


def krum_scores(squared: Tensor, malicious: int) -> Tensor:
    """Return the sum of squared distances of each vector to its n - f - 2 nearest others.

    Args:
        squared: Squared distances (n, n).
        malicious: The number f of malicious clients.

    Returns:
        The scores (n,); small is good.

    Example:
        >>> krum_scores(torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]), 0).tolist()
        [1.0, 1.0, 4.0]
    """
    nearest = len(squared) - malicious - 2
    ordered = squared.sort(dim=1).values
    return ordered[:, 1 : nearest + 1].sum(dim=1)


def require_clients(name: str, clients: int, least: int, malicious: int) -> None:
    """Raise unless a round has enough clients for a rule.

    Args:
        name: The rule.
        clients: Number of uploads.
        least: Fewest uploads for which the rule holds.
        malicious: The number of malicious clients to withstand.

    Example:
        >>> require_clients("multi-krum", 10, 7, 2)
    """
    if clients < least:
        raise RunError(
            f"the combine rule '{name}' needs at least {least} uploads to withstand {malicious} malicious clients, got "
            f"{clients}: raise cohort.fraction, or lower its field malicious"
        )
