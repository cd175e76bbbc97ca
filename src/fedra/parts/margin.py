"""Angular margins as a term: class vectors of the federation's own, and any margin loss on them."""

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
"""The head's rows, one for each class."""

SPREAD = 0.01
"""Standard deviation of the class vectors at the start, as in FedArc's public code."""


@dataclass(frozen=True)
class MarginSoftmax(Term, OwnParams, ClientState, ServerState, CollectsUploads, StepState, StepDraws):
    """A margin loss between the features and class vectors F, which are trained and averaged like the model.

    F is separate from the classifier: it shapes the features during training and predicts nothing. A loss with
    running state (SphereFace's step, CurricularFace's t, AdaCos's scale, AdaFace's statistics) starts a client's round
    at the server's, advances with every local step and goes up with the upload; the server takes the mean, weighted by
    examples, and of counters the largest, as it does with a model's buffers. UniTSFace's memory of features stays with
    its client.
    """

    margin: AngularLoss = ArcFace(scale=64.0, margin=0.4)  # noqa: RUF009  (frozen)
    weight: Strength = 0.5
    moves_head: ClassVar[bool] = False
    suits_pool: ClassVar[bool] = True
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, F_c), y_i)"

    def __post_init__(self) -> None:
        super().__post_init__()
        # The engine checks labels once per client and losses once per round, not at the device in every step.
        object.__setattr__(self, "margin", replace(self.margin, check=False))

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.owns_classes:
            raise ConfigError(
                f"{self.name} compares features with class vectors that all clients share, but here every client knows "
                "its own classes alone: put the margin on the head instead (margin-head, or fedpe's field margin)"
            )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        vectors = SPREAD * torch.randn(sizes.classes, sizes.features, generator=draw)
        return {"vectors": vectors, **self.margin.init_learned(vectors)}

    def init_server(self, weights: Weights) -> Tree:
        return self._state(weights, private=False)

    def init_client(self, origin: Weights) -> Tree:
        return self._state(origin, private=True)

    def vectors(self, params: Params) -> Tensor:
        """The class vectors that features are compared with."""
        return params[f"{self.name}.vectors"]

    def _state(self, weights: Weights, private: bool) -> Params:
        """The state before the first round: what stays with a client, or the rest."""
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
        if not total["sum"]:
            return server
        return server.with_memory(self.name, tree.scale(total["sum"], 1 / total["examples"]) | total["largest"])


@dataclass(frozen=True)
class HeadMargin(MarginSoftmax, name="margin-head"):
    """A margin loss on the rows of the model's own head in place of cross-entropy, as face recognizers are trained."""

    weight: Strength = 1.0
    fits_labels: ClassVar[bool] = True
    moves_head: ClassVar[bool] = True
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, W_c), y_i)   (W = the head's rows)"

    def check(self, algorithm: Algorithm) -> None:
        some = torch.eye(3)
        if algorithm.owns(HEAD) and (self.margin.init_state(some) or self.margin.init_learned(some)):
            raise ConfigError(
                f"the loss {type(self.margin).__name__} keeps or learns numbers beside the class embeddings, which do "
                "not go with rows that belong to clients: choose one without, such as cosface or arcface"
            )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        return self.margin.init_learned(torch.empty(sizes.classes, sizes.features))

    def init_server(self, weights: Weights) -> Tree:
        return super().init_server(weights) if HEAD in weights.params else {}

    def vectors(self, params: Params) -> Tensor:
        return params[HEAD]


@dataclass(frozen=True)
class PositiveHinge(Term):
    """Pulls features within an angle of their class's row and never pushes: for clients of one class alone.

    FedAwS (Yu et al., ICML 2020) and FedFace (Aggarwal et al., 2021): the pushing is the server's.
    """

    closeness: Annotated[float, Field(gt=-1, le=1)] = 0.9
    fits_labels: ClassVar[bool] = True
    formula: ClassVar[str] = "mean_i relu(closeness - cos(f_i, W_{y_i}))^2"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        likeness = F.cosine_similarity(output.features, params[HEAD][view.batch.targets])
        return view.batch.mean(torch.relu(self.closeness - likeness).square())
