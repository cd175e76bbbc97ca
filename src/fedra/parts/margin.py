"""Margin losses as terms of the objective, on separate class vectors or on the head's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import (
    ClientState,
    CollectsUploads,
    OwnParams,
    ServerState,
    Sizes,
    StepDraws,
    StepState,
)
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, Population, Server, Upload, View
from fedra.errors import ConfigError
from fedra.losses import ArcFace
from fedra.losses.angular_loss import AngularLoss
from fedra.registry import Strength

HEAD = "head.weight"
"""Name of the parameter that holds the head's class vectors, one row for each class."""

SPREAD = 0.01
"""Initial standard deviation of the class vectors, as in FedArc's public code."""


@dataclass(frozen=True)
class MarginSoftmax(Term, OwnParams, ClientState, ServerState, CollectsUploads, StepState, StepDraws):
    """A margin loss between features and class vectors F, which are trained and averaged like the model.

    F is separate from the classifier: it shapes the features during training and is not used for predictions. The
    running state of a loss (SphereFace's step, CurricularFace's t, AdaCos's scale, AdaFace's statistics) starts at the
    server's in every round, advances with every local step and is uploaded; the server takes its mean, weighted by
    examples, and the maximum of counters, as for a model's buffers. UniTSFace's memory of features stays on its client.

    Args:
        margin: The margin loss.
        weight: Weight of the term.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> from fedra.losses import CosFace
        >>> [term.name for term in fedavg().plus(MarginSoftmax(CosFace(scale=30.0), weight=0.3)).objective]
        ['cross-entropy', 'margin-softmax']
    """

    margin: AngularLoss = ArcFace(scale=64.0, margin=0.4)  # noqa: RUF009  (frozen)
    weight: Strength = 0.5
    moves_head: ClassVar[bool] = False
    works_centralized: ClassVar[bool] = True
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, F_c), y_i)"

    def __post_init__(self) -> None:
        super().__post_init__()
        # The engine checks labels once per client and losses once per round: a check in every step would wait for the
        # device.
        object.__setattr__(self, "margin", replace(self.margin, check=False))

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.owns_classes:
            raise ConfigError(
                f"all clients must share the class vectors of the part '{self.name}', got a sharing in which "
                "clients own their classes: put the margin on the head instead (margin-head, or fedpe's field margin)"
            )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        vectors = SPREAD * torch.randn(sizes.classes, sizes.features, generator=draw)
        return {"vectors": vectors, **self.margin.init_learned(vectors)}

    def init_server(self, weights: Weights) -> Tree:
        return self._state(weights, private=False)

    def init_client(self, origin: Weights) -> Tree:
        return self._state(origin, private=True)

    def vectors(self, params: Params) -> Tensor:
        """Return the class vectors that features are compared with.

        Args:
            params: All parameters of the client.

        Returns:
            The class vectors (C, d).
        """
        return params[f"{self.name}.vectors"]

    def _state(self, weights: Weights, private: bool) -> Params:
        """Return the initial state: either what stays on a client, or the rest."""
        vectors = self.vectors(weights.params)
        state = self.margin.init_state(vectors)
        return {n: value.to(vectors) for n, value in state.items() if (n in self.margin.private) is private}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def init_steps(self, client: Client) -> Tree:
        return {**client.received.get(self.name, {}), **client.memory.get(self.name, {})}

    def draw(self, examples: int, generator: torch.Generator) -> Tree:
        return dict(self.margin.draw(examples, generator))

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        own = {name.partition(".")[2]: value for name, value in params.items() if name.startswith(f"{self.name}.")}
        own.pop("vectors", None)
        vectors, batch = self.vectors(params), view.batch
        state, drawn = view.carried.get(self.name, {}), batch.drawn.get(self.name, {})
        losses, after = self.margin.step(
            output.features, vectors, batch.targets, state, mask=batch.mask, learned=own, drawn=drawn
        )
        if after:
            view.carry(self.name, after)
        return self.weight * batch.mean(losses)

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        state = local.carried.get(self.name, {})
        own = {name: value for name, value in state.items() if name in self.margin.private}
        return own, {name: value for name, value in state.items() if name not in own}

    @property
    def has_step_state(self) -> bool:
        return bool(self.margin.init_state(torch.eye(3)))

    @property
    def collects(self) -> bool:
        return bool(self.margin.init_state(torch.eye(3)).keys() - set(self.margin.private))

    def collect(self, total: Tree, upload: Upload) -> Tree:
        sent = upload.extras.get(self.name, {})
        counts = {name: value for name, value in sent.items() if name in self.margin.counters}
        largest = total.get("largest", counts)
        return {
            "sum": tree.accumulate(total.get("sum", {}), sent, upload.examples),
            "largest": {name: torch.maximum(largest[name], value) for name, value in counts.items()},
            "examples": total.get("examples", 0) + upload.examples,
        }

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        if not total.get("sum"):
            return server
        return server.with_memory(self.name, tree.scale(total["sum"], 1 / total["examples"]) | total["largest"])


@dataclass(frozen=True)
class HeadMargin(MarginSoftmax, name="margin-head"):
    """A margin loss on the rows of the model's head instead of cross-entropy, as is usual in face recognition.

    Args:
        margin: The margin loss.
        weight: Weight of the term.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> [term.name for term in fedavg().plus(HeadMargin(ArcFace(scale=32.0))).objective]
        ['margin-head']
    """

    weight: Strength = 1.0
    fits_labels: ClassVar[bool] = True
    moves_head: ClassVar[bool] = True
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, W_c), y_i)   (W = the head's rows)"

    def check(self, algorithm: Algorithm) -> None:
        weight = torch.eye(3)
        if algorithm.owns(HEAD) and (self.margin.init_state(weight) or self.margin.init_learned(weight)):
            raise ConfigError(
                "a margin loss on class vectors that clients own must have no running state and no learned parameters, "
                f"got {type(self.margin).__name__}: use a loss such as cosface or arcface"
            )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        return self.margin.init_learned(torch.empty(sizes.classes, sizes.features))

    def init_server(self, weights: Weights) -> Tree:
        return super().init_server(weights) if HEAD in weights.params else {}

    def vectors(self, params: Params) -> Tensor:
        return params[HEAD]


@dataclass(frozen=True)
class PositiveHinge(Term):
    """Pulls features within an angle of their class vector and never pushes: for clients of one class.

    FedAwS (Yu et al., ICML 2020) and FedFace (Aggarwal et al., 2021) use it; there the server separates the classes.

    Args:
        closeness: Cosine from which the loss is zero.

    Example:
        >>> from fedra.algorithms import fedpe
        >>> fedpe().plus(PositiveHinge(closeness=0.8)).objective[0].closeness
        0.8
    """

    closeness: Annotated[float, Field(gt=-1, le=1)] = 0.9
    fits_labels: ClassVar[bool] = True
    formula: ClassVar[str] = "mean_i relu(closeness - cos(f_i, W_{y_i}))^2"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        similarity = F.cosine_similarity(output.features, params[HEAD][view.batch.targets])
        return view.batch.mean(torch.relu(self.closeness - similarity).square())
