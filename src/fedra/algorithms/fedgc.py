"""FedGC: FedPE with a server step that separates the class vectors of different clients.

Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, ReleaseTerms, ServerState, SumsUploads
from fedra.core.model import Output, Weights
from fedra.core.ownership import Owners
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Local, Population, Server, Upload, View
from fedra.errors import ConfigError
from fedra.losses.angular_loss import ScaledLoss
from fedra.parts.spread import CrossClientSoftmax, Penalty, Reduction, SpreadOut, through_normalization
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class CrossClientCosine(Penalty):
    """FedCos: the sum of all similarities between class vectors of different clients, in O(C d).

    Args:
        normalized: Normalize the class vectors first. The penalty is unbounded below on raw ones.
        reduction: "sum" over all class vectors, or "mean".
    """

    normalized: bool = True
    reduction: Reduction = "sum"
    formula: ClassVar[str] = "sum_a sum_{b: no owner of a} W_b W'_a"

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        unit = F.normalize(rows, dim=1) if self.normalized else rows
        push = unit.sum(dim=0).expand_as(unit).clone()
        for members, related in owners.groups():
            push[members] -= unit[related].sum(dim=0)
        if self.normalized:
            push = through_normalization(push, rows)
        return push / len(rows) if self.reduction == "mean" else push


@dataclass(frozen=True)
class PushApart(Term, ClientState, ServerState, SumsUploads):
    """FedCos for class vectors that stay with their clients: they push theirs away from the sum of all others'.

    A client k uploads one vector, the sum r_k of its unit class vectors, which privacy clips together with the update.
    The server broadcasts N / n times the sum over the n clients of a round, an estimate of the sum s over all N. The
    first round has no push. With secure aggregation alone, the sum is weighted by numbers of examples, as the updates.

    Args:
        strength: Weight of the term.
        factor: Factor of r_k in the vector that privacy clips. The length of r_k is at most the number of the client's
            people; a small factor leaves most of the clip norm to the update, with more noise on the sum.
        rows: Name of the parameter whose rows are the class vectors.
    """

    strength: Strength = 20.0
    factor: Positive = 1.0
    rows: str = "head.weight"
    formula: ClassVar[str] = (
        "strength / C sum_a u_a (s - r_k),  u_a = W_a / ||W_a||;  r_k = sum_a u_a at the start of the round;  "
        "s <- N / n sum_k r_k"
    )
    closed_form: ClassVar[bool] = True
    sees_rows: ClassVar[bool] = True  # for their length

    def check(self, algorithm: Algorithm) -> None:
        if not algorithm.owns(self.rows) or not algorithm.sharing.is_private(self.rows):
            raise ConfigError(
                f"the class vectors '{self.rows}' must stay with their clients for the part '{self.name}', got a "
                "sharing that does not keep them: start from fedpe with kept = true"
            )

    def init_server(self, weights: Weights) -> Tree:
        rows = weights.params[self.rows]
        return {"mean": torch.zeros_like(rows[0]), "share": rows.new_zeros(1)}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {}, {"sum": F.normalize(local.weights.params[self.rows], dim=1).sum(dim=0)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return self.strength * (F.normalize(params[self.rows], dim=1) * self._push(view)).sum()

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        if self.rows in gradient:
            rows = params[self.rows].detach()
            push = self._push(view).expand_as(rows)
            gradient[self.rows].add_(through_normalization(push, rows), alpha=self.strength)

    def _push(self, view: View) -> Tensor:
        """(s - r_k) / C; zero before the first sum is known."""
        known = view.client.received[self.name]
        own = F.normalize(view.client.origin.params[self.rows], dim=1).sum(dim=0)
        push: Tensor = known["mean"] - known["share"] * own
        return push

    def collect(self, total: Tree, upload: Upload) -> Tree:
        own = upload.extras[self.name]["sum"]
        return {"sum": total["sum"] + own if total else own, "clients": total.get("clients", 0) + 1}

    def summands(self, uploads: Uploads, terms: ReleaseTerms) -> Tree:
        return {"sum": uploads.extras[self.name]["sum"] * self.factor}

    def released_total(self, update: Params, sums: Tree, clients: float, terms: ReleaseTerms) -> Tree:
        return {"sum": sums["sum"] / self.factor, "clients": clients}

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        rows = server.weights.params[self.rows]
        share = rows.new_full((1,), 1 / len(rows))
        mean = total["sum"].to(rows) * (population.clients / total["clients"] / len(rows))
        return server.with_memory(self.name, {"mean": mean, "share": share})


def fedgc(
    *,
    margin: ScaledLoss | None = None,
    strength: Strength = 20.0,
    lr: Positive = 0.1,
    scale: Positive | None = None,
    self_term: bool = True,
    reduction: Reduction = "sum",
    renormalize: bool = False,
    active_only: bool = False,
    sample: Annotated[int, Field(ge=1)] | None = None,
) -> Algorithm:
    """Class vectors owned by clients, separated by a softmax across clients after every round.

    Args:
        margin: The margin loss of clients and server; None (the default) is cross-entropy and raw class vectors.
        strength: Weight of the server's penalty.
        lr: Learning rate of the server's step.
        scale: Scale of the server's softmax; None (the default) is the margin loss's own.
        self_term: Keep the part of the gradient that only lengthens a class vector, as equation 5 does. Without it the
            step is the one that the paper analyzes.
        reduction: "sum" the penalty over class vectors, or take the "mean".
        renormalize: Scale every class vector to unit length after the step.
        active_only: Update only class vectors that a client of the round returned.
        sample: Number of class vectors drawn as negatives; None (the default) uses all.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> from fedra.losses import CosFace
        >>> fedgc(margin=CosFace(), strength=10).server[0].strength
        10
    """
    penalty = CrossClientSoftmax(margin, scale, self_term, reduction)
    rule = SpreadOut(penalty, strength, lr, renormalize=renormalize, active_only=active_only, sample=sample)
    return fedpe(margin=margin).plus(rule)


def fedcos(
    *,
    margin: ScaledLoss | None = None,
    strength: Strength = 20.0,
    lr: Positive = 0.1,
    normalized: bool = True,
    kept: bool = False,
    factor: Positive = 1.0,
) -> Algorithm:
    """Class vectors owned by clients, separated by the mean cosine between those of different clients.

    Args:
        margin: The clients' margin loss; None (the default) is cross-entropy.
        strength: Weight of the server's penalty. At 1 the result equals FedPE's to four digits. With `kept`, weight of
            the term in every local step.
        lr: Learning rate of the server's step. With `kept` there is none, and the local learning rate applies.
        normalized: Normalize the class vectors in the penalty, which is unbounded below otherwise.
        kept: Let class vectors stay with their clients: each uploads the sum of its unit class vectors and pushes them
            away from the sum of all others'. Privacy and secure aggregation apply.
        factor: With `kept`, factor of that sum in the vector that privacy clips.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedcos(lr=0.01).server[0].penalty.name
        'cross-client-cosine'
        >>> fedcos(kept=True).objective[1].name
        'push-apart'
    """
    if kept:
        if not normalized:
            raise ConfigError(
                "fedcos with kept = true adds up class vectors of unit length, got normalized = false: leave it out"
            )
        return fedpe(margin=margin, kept=True).plus(PushApart(strength, factor))
    penalty = CrossClientCosine(normalized, reduction="mean")
    return fedpe(margin=margin).plus(SpreadOut(penalty, strength, lr))
