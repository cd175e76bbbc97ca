"""Server steps that push the class vectors of different clients apart; only the server has the rows of all.

The server's matrix W has one row per class, and a class is owned by the clients that hold it. Only rows without a
common owner push each other: within a client its softmax does that already. Every penalty computes its gradient in
closed form, one block of rows at a time, so no C x C matrix is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ServerState
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.core.part import Part, ServerRule
from fedra.core.random import generator
from fedra.core.tree import Tree
from fedra.core.view import Population, Server
from fedra.errors import ConfigError, FedraError
from fedra.losses.angular_loss import ScaledLoss
from fedra.registry import Positive, Strength

BLOCK_BYTES = 2**27
"""The largest block of similarities, in bytes."""

Reduction = Literal["sum", "mean"]


class Block(NamedTuple):
    """Anchor rows against other rows; `related` is True where both have a common owner or are the same row."""

    anchors: Tensor
    columns: Tensor | None
    related: Tensor


class Penalty(Part, abstract=True):
    """Base class: a penalty on similar rows of different clients. A subclass defines `gradient`.

    In formulas, primes mark what is held constant.

    Example:
        >>> class PullToMean(Penalty):
        ...     def gradient(self, rows, owners, draw, sample):
        ...         return rows - rows.mean(dim=0)
        >>> SpreadOut(penalty=PullToMean()).penalty.name
        'pull-to-mean'
    """

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        """Return the gradient of the penalty with respect to all rows.

        Args:
            rows: The class vectors (C, d).
            owners: Which clients own which rows.
            draw: The generator for random draws.
            sample: Number of rows to draw as negatives; None for all.

        Returns:
            The gradient (C, d).
        """
        raise TypeError(f"{type(self).__name__} must define gradient")

    def check_margin(self) -> None:
        """Raise an error for a margin that has no meaning between class vectors."""


@dataclass(frozen=True)
class CrossClientSoftmax(Penalty):
    """FedGC's regularizer (Niu and Deng, AAAI 2022, eq. 5): a softmax of each row against all rows of other clients.

    Args:
        margin: A margin loss: rows are then unit vectors times its scale, and the margin applies to a row's similarity
            to itself. None (the default) uses the rows as they are.
        scale: Replaces the margin's scale; None (the default) keeps it. At 64 only rows within sixty degrees of each
            other have an effect.
        self_term: Keep the gradient along the row itself, which only lengthens it and is not in the paper's analysis.
        reduction: "sum" over rows, or "mean".

    Example:
        >>> from fedra.losses import CosFace
        >>> CrossClientSoftmax(margin=CosFace(), scale=16.0).scale
        16.0
    """

    margin: ScaledLoss | None = None
    scale: Positive | None = None
    self_term: bool = True
    reduction: Reduction = "sum"
    formula: ClassVar[str] = "sum_a -log( e^{W_a W'_a} / (e^{W_a W'_a} + sum_{b: no owner of a} e^{W_b W'_a}) )"

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        unit = rows if self.margin is None else F.normalize(rows, dim=1)
        total = torch.zeros_like(rows)
        for block in blocks(rows, owners, draw, sample):
            anchors = unit[block.anchors]
            others = unit if block.columns is None else unit[block.columns]
            # The positive is kept out of the block, so it is present whichever columns were drawn.
            own = self._own_logit(anchors, draw)
            powers = (anchors @ others.T).mul_(self._scale).masked_fill_(block.related, -torch.inf)
            largest = torch.maximum(powers.amax(dim=1), own)
            powers.sub_(largest[:, None]).exp_()
            positive = (own - largest).exp()
            normalizer = powers.sum(dim=1) + positive
            _add_to_columns(total, block, powers, anchors * (self._scale / normalizer)[:, None])
            if self.self_term and self.margin is None:
                total.index_add_(0, block.anchors, (positive / normalizer - 1)[:, None] * anchors)
        if self.margin is not None:
            total = through_normalization(total, rows)
        return total / len(rows) if self.reduction == "mean" else total

    @property
    def _scale(self) -> float:
        return 1.0 if self.margin is None else self.scale or self.margin.scale

    def check_margin(self) -> None:
        if self.margin is None:
            return
        try:
            own, other = self._unscaled_logits(1, generator(0, self.name), other=0.5)[0].tolist()
        except (FedraError, ValueError) as error:
            reason = str(error).partition(":")[0]
        else:
            reason = f"it turns a cosine of 0.5 with another row into {other:.2f}"
            if abs(other - 0.5) < 1e-6 and own <= 1:
                return
        raise ConfigError(
            "the margin of a server step on class vectors must change only a row's similarity to itself, got "
            f"{type(self.margin).__name__} ({reason}): use cosface or arcface"
        )

    def _own_logit(self, anchors: Tensor, draw: torch.Generator) -> Tensor:
        """Return the true-class logit: W_a W'_a, or the margin's logit at angle zero."""
        if self.margin is None:
            return anchors.square().sum(dim=1)
        return (self._unscaled_logits(len(anchors), draw)[:, 0] * self._scale).to(anchors)

    def _unscaled_logits(self, count: int, draw: torch.Generator, other: float = 0.0) -> Tensor:
        """Return (count, 2): the margin's logits, without scale, at cosines of 1 (true class) and `other`."""
        assert self.margin is not None, "there is no margin"
        cosines = torch.tensor([[1.0, other]], dtype=torch.float64).repeat(count, 1)
        labels = torch.zeros(count, dtype=torch.int64)
        return self.margin.logits(cosines, labels, generator=draw) / self.margin.scale


@dataclass(frozen=True)
class Hinge(Penalty):
    """FedAwS's spread-out penalty (Yu et al., ICML 2020) on cosines: rows closer than a threshold push each other.

    Args:
        threshold: Cosine above which two rows push each other.
        nearest: Use this many most similar rows of each (stochastic negative mining); None (the default) uses all.
        reduction: "sum" over pairs, or "mean".

    Example:
        >>> Hinge(threshold=0.3, nearest=10).nearest
        10
    """

    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.4
    nearest: Annotated[int, Field(ge=1)] | None = None
    reduction: Reduction = "sum"
    formula: ClassVar[str] = "sum_a sum_{b: no owner of a} relu(cos(W_a, W_b) - threshold)^2"

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        unit = F.normalize(rows, dim=1)
        total, pairs = torch.zeros_like(rows), 0
        for block in blocks(rows, owners, draw, sample):
            anchors = unit[block.anchors]
            others = unit if block.columns is None else unit[block.columns]
            similarity = (anchors @ others.T).masked_fill_(block.related, -1.0)
            pairs += block.related.numel() - int(block.related.sum())
            if self.nearest is not None and self.nearest < similarity.shape[1]:
                smallest = similarity.topk(self.nearest, dim=1).values[:, -1:]
                similarity.masked_fill_(similarity < smallest, -1.0)
            excess = similarity.sub_(self.threshold).relu_().mul_(2.0)
            total.index_add_(0, block.anchors, excess @ others)
            _add_to_columns(total, block, excess, anchors)
        total = through_normalization(total, rows)
        return total / max(pairs, 1) if self.reduction == "mean" else total


@dataclass(frozen=True)
class SpreadOut(ServerRule, ServerState):
    """Server gradient steps on the class vectors after every round: W <- W - strength lr grad penalty(W).

    Args:
        penalty: The penalty on similar rows.
        strength: Weight of the penalty.
        lr: Learning rate.
        steps: Number of steps per round.
        renormalize: Scale every row to unit length after the steps.
        active_only: Update only rows that a client of the round returned.
        sample: Number of rows drawn as negatives for each block; None (the default) uses all.
        rows: Name of the parameter whose rows are the class vectors.

    Example:
        >>> from fedra.algorithms import fedpe
        >>> fedpe().plus(SpreadOut(Hinge(), strength=10.0)).server[0].strength
        10.0
    """

    penalty: Penalty = field(default_factory=CrossClientSoftmax)
    strength: Strength = 20.0
    lr: Positive = 0.1
    steps: Annotated[int, Field(ge=1)] = 1
    renormalize: bool = False
    active_only: bool = False
    sample: Annotated[int, Field(ge=1)] | None = None
    rows: str = "head.weight"
    formula: ClassVar[str] = "W <- W - strength lr grad penalty(W)"

    def check(self, algorithm: Algorithm) -> None:
        if not algorithm.owns(self.rows):
            raise ConfigError(
                f"the class vectors '{self.rows}' must be owned by clients for the part 'spread-out', got a "
                "sharing that does not own them: start from fedpe, or add them to the sharing's `owned`"
            )
        self.penalty.check_margin()

    def init_server(self, weights: Weights) -> Tree:
        return {"rounds": next(iter(weights.params.values())).new_zeros(1)}

    def update(self, before: Server, server: Server, population: Population) -> Server:
        assert population.owners is not None, "owned rows have owners"
        rounds = before.memory[self.name]["rounds"]
        rows, owners = server.weights.params[self.rows], population.owners
        if self.active_only:
            moved = (rows != before.weights.params[self.rows]).any(dim=1).nonzero()[:, 0]
            if not len(moved):
                return server.with_memory(self.name, {"rounds": rounds + 1})
            rows, owners = rows[moved], owners.among(moved)
        draw = generator(population.seed, self.name, int(rounds))
        for _ in range(self.steps):
            rows = rows - self.strength * self.lr * self.penalty.gradient(rows, owners, draw, self.sample)
        rows = F.normalize(rows, dim=1) if self.renormalize else rows
        if self.active_only:
            rows = server.weights.params[self.rows].index_copy(0, moved, rows)
        result = server.with_params({**server.weights.params, self.rows: rows})
        return result.with_memory(self.name, {"rounds": rounds + 1})


def blocks(rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Iterator[Block]:
    """Yield all anchors in blocks whose similarities fit into BLOCK_BYTES, each with all rows or a sample of them."""
    count = len(rows)
    width = count if sample is None else min(sample, count)
    height = max(1, BLOCK_BYTES // (width * rows.element_size()))
    for start in range(0, count, height):
        anchors = torch.arange(start, min(start + height, count), device=rows.device)
        columns = None
        if width < count:
            columns = torch.randperm(count, generator=draw)[:width].sort().values.to(rows.device)
        yield Block(anchors, columns, owners.related(anchors, columns))


def _add_to_columns(total: Tensor, block: Block, factors: Tensor, anchors: Tensor) -> None:
    """Add factors^T anchors to the rows of the block's columns."""
    if block.columns is None:
        total.addmm_(factors.T, anchors)
    else:
        total.index_add_(0, block.columns, factors.T @ anchors)


def through_normalization(gradient: Tensor, rows: Tensor) -> Tensor:
    """Turn a gradient at unit vectors into one at the rows: (I - u u^T) g / ||W||."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)
    unit = rows / lengths
    along = (gradient * unit).sum(dim=1, keepdim=True)
    tangential: Tensor = (gradient - along * unit) / lengths
    return tangential
