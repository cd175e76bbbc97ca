"""Spreading class embeddings of different clients apart on the server, which alone sees the rows of all.

The server's matrix W has one row per class; a class belongs to the clients that hold it. Only rows of classes without
a common owner push each other: within a client its own softmax does so already. Every penalty gives the gradient in
closed form, block of rows by block of rows, so that no C x C matrix is ever made.
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
"""The largest block of similarities that is made at once."""

Reduction = Literal["sum", "mean"]


class Block(NamedTuple):
    """Some anchors against some rows: `related` is true where both belong to a common client, the anchor included."""

    anchors: Tensor
    columns: Tensor | None
    related: Tensor


class Penalty(Part, abstract=True):
    """What rows of different clients pay for being alike; primes mark what is held constant."""

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        """The gradient of the penalty with respect to all rows."""
        raise TypeError(f"{type(self).__name__} must define gradient")

    def refuse_margins(self) -> None:
        """Refuse a margin that has no meaning between class embeddings."""


@dataclass(frozen=True)
class CrossClientSoftmax(Penalty):
    """FedGC's regularizer (Niu and Deng, AAAI 2022, eq. 5): each row in a softmax against all rows of other clients.

    Without a `margin` the rows are taken as they are. With one they are unit vectors times its scale, and the margin
    lies on a row's likeness to itself; `scale` replaces the margin's own, which at 64 lets only rows within sixty
    degrees of each other matter. `self_term` false leaves out a row's pull along itself, which only
    lengthens it and which the paper's analysis does not have.
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
            # The positive stands apart from the block, so that it is there whatever columns were drawn.
            own = self._own_logit(anchors, draw)
            powers = (anchors @ others.T).mul_(self._scale).masked_fill_(block.related, -torch.inf)
            largest = torch.maximum(powers.amax(dim=1), own)
            powers.sub_(largest[:, None]).exp_()
            positive = (own - largest).exp()
            normalizer = powers.sum(dim=1) + positive
            _add_push(total, block, powers, anchors * (self._scale / normalizer)[:, None])
            if self.self_term and self.margin is None:
                total.index_add_(0, block.anchors, (positive / normalizer - 1)[:, None] * anchors)
        if self.margin is not None:
            total = through_normalization(total, rows)
        return total / len(rows) if self.reduction == "mean" else total

    @property
    def _scale(self) -> float:
        return 1.0 if self.margin is None else self.scale or self.margin.scale

    def refuse_margins(self) -> None:
        if self.margin is None:
            return
        try:
            own, other = self._powers(1, generator(0, self.name), other=0.5)[0].tolist()
        except (FedraError, ValueError) as error:
            reason = str(error).partition(":")[0]
        else:
            reason = f"it makes {other:.2f} of a row's cosine of 0.5 with another"
            if abs(other - 0.5) < 1e-6 and own <= 1:
                return
        raise ConfigError(
            f"the server cannot correct class embeddings with the margin '{type(self.margin).__name__}' ({reason}), "
            "because there a margin lies on a row's likeness to itself alone: take cosface or arcface"
        )

    def _own_logit(self, anchors: Tensor, draw: torch.Generator) -> Tensor:
        """What stands in the place of the true class: W_a W'_a, or the margin's logit at an angle of zero."""
        if self.margin is None:
            return anchors.square().sum(dim=1)
        return (self._powers(len(anchors), draw)[:, 0] * self._scale).to(anchors)

    def _powers(self, count: int, draw: torch.Generator, other: float = 0.0) -> Tensor:
        """(count, 2): what the margin, drawn for each where it is random, makes of likenesses of 1 and of `other`."""
        assert self.margin is not None, "there is no margin"
        alike = torch.tensor([[1.0, other]], dtype=torch.float64).repeat(count, 1)
        own = torch.zeros(count, dtype=torch.int64)
        return self.margin.logits(alike, own, generator=draw) / self.margin.scale


@dataclass(frozen=True)
class Hinge(Penalty):
    """FedAwS's spread-out (Yu et al., ICML 2020) in its cosine form: rows closer than `threshold` push each other.

    `nearest` keeps that many most alike rows for each (stochastic negative mining).
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
            likeness = (anchors @ others.T).masked_fill_(block.related, -1.0)
            pairs += block.related.numel() - int(block.related.sum())
            if self.nearest is not None and self.nearest < likeness.shape[1]:
                least = likeness.topk(self.nearest, dim=1).values[:, -1:]
                likeness.masked_fill_(likeness < least, -1.0)
            excess = likeness.sub_(self.threshold).relu_().mul_(2.0)
            total.index_add_(0, block.anchors, excess @ others)
            _add_push(total, block, excess, anchors)
        total = through_normalization(total, rows)
        return total / max(pairs, 1) if self.reduction == "mean" else total


@dataclass(frozen=True)
class SpreadOut(ServerRule, ServerState):
    """The server's gradient steps on the class embeddings after every round: W <- W - strength lr grad penalty(W).

    `sample` draws that many rows as negatives for each block where all would be too many; `active_only` leaves out
    rows that no client of the round returned; `renormalize` gives every row length one after the step.
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
                f"spread-out moves the class embeddings '{self.rows}', which this algorithm does not give to classes: "
                "begin with fedpe, or with another sharing that owns it"
            )
        self.penalty.refuse_margins()

    def init_server(self, weights: Weights) -> Tree:
        return {"rounds": next(iter(weights.params.values())).new_zeros(1)}

    def update(self, before: Server, server: Server, population: Population) -> Server:
        assert population.owners is not None, "owned rows have owners"
        done = before.memory[self.name]["rounds"]
        rows, owners = server.weights.params[self.rows], population.owners
        if self.active_only:
            moved = (rows != before.weights.params[self.rows]).any(dim=1).nonzero()[:, 0]
            if not len(moved):
                return server.with_memory(self.name, {"rounds": done + 1})
            rows, owners = rows[moved], owners.among(moved)
        draw = generator(population.seed, self.name, int(done))
        for _ in range(self.steps):
            rows = rows - self.strength * self.lr * self.penalty.gradient(rows, owners, draw, self.sample)
        rows = F.normalize(rows, dim=1) if self.renormalize else rows
        if self.active_only:
            rows = server.weights.params[self.rows].index_copy(0, moved, rows)
        result = server.with_params({**server.weights.params, self.rows: rows})
        return result.with_memory(self.name, {"rounds": done + 1})


def blocks(rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Iterator[Block]:
    """All anchors in blocks whose similarities fit into BLOCK_BYTES, each against all rows or a sample of them."""
    count = len(rows)
    width = count if sample is None else min(sample, count)
    height = max(1, BLOCK_BYTES // (width * rows.element_size()))
    for start in range(0, count, height):
        anchors = torch.arange(start, min(start + height, count), device=rows.device)
        columns = None
        if width < count:
            columns = torch.randperm(count, generator=draw)[:width].sort().values.to(rows.device)
        yield Block(anchors, columns, owners.related(anchors, columns))


def _add_push(total: Tensor, block: Block, strengths: Tensor, anchors: Tensor) -> None:
    """Add strengths^T anchors to the rows that stand in the block's columns."""
    if block.columns is None:
        total.addmm_(strengths.T, anchors)
    else:
        total.index_add_(0, block.columns, strengths.T @ anchors)


def through_normalization(gradient: Tensor, rows: Tensor) -> Tensor:
    """A gradient at unit vectors as one at the rows themselves: (I - u u^T) g / ||W||."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)
    unit = rows / lengths
    along = (gradient * unit).sum(dim=1, keepdim=True)
    turned: Tensor = (gradient - along * unit) / lengths
    return turned
