"""FedFR's two losses: one that also looks at public examples, and a branch of the client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.core.algorithm import Algorithm
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.losses import CosFace
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.margin import HEAD, SPREAD, MarginHead
from fedra.parts.spread import class_means
from fedra.registry import Positive, Share, Strength

BLOCK = 1024
"""Public examples that are compared with a client's own at once."""


@dataclass(frozen=True)
class PublicMargin(MarginHead):
    """A margin loss over a client's classes and the public ones (FedFR, Liu et al., AAAI 2022).

    In every round a client chooses the public images that look like one of its own: those whose feature under the
    received model has a cosine above `threshold` with any of its own images' features. The rows of the public
    classes begin at their mean features and are averaged like the model. Without public examples it is `margin-head`.
    """

    margin: AngularLoss = CosFace(scale=30.0, margin=0.4)  # noqa: RUF009  (frozen)
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.4
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, [W_own ; W_public]), y_i)"

    def init_public(self, features: int, classes: int, draw: torch.Generator) -> Params:
        return {"vectors": SPREAD * torch.randn(classes, features, generator=draw)}

    def first_public(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        return {self._public: class_means(features, targets, classes)}

    def choose_public(self, own: Tensor, public: Tensor) -> Tensor:
        mine = F.normalize(own, dim=1)
        near = [(F.normalize(some, dim=1) @ mine.T).amax(dim=1) for some in torch.split(public, BLOCK)]
        return torch.cat(near) > self.threshold

    def vectors(self, params: Params) -> Tensor:
        public = params.get(self._public)
        return params[HEAD] if public is None else torch.cat([params[HEAD], public])

    @property
    def _public(self) -> str:
        return f"{self.name}.vectors"


@dataclass(frozen=True)
class PersonalBranch(Term):
    """A linear map of the features, the identity at the start, and a binary classifier for each class behind it.

    FedFR's decoupled feature customisation (Liu et al., AAAI 2022): the map and the classifiers stay with the client,
    and the mapped features are its personal embeddings. An image of none of the client's classes is a negative for
    all of them. The loss is SphereFace2's with a bias for each class.
    """

    weight: Strength = 10.0
    scale: Positive = 30.0
    margin: Strength = 0.4
    power: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0
    positive_share: Share = 0.7
    moves_head: ClassVar[bool] = False
    formula: ClassVar[str] = (
        "weight * mean_i (a softplus(-z_y) + (1 - a) sum_{j != y} softplus(z_j)) / r,  "
        "z_j = r (g(cos(A f_i + b, V_j)) -+ m) + b_j,  g(c) = 2 ((c + 1) / 2)^t - 1"
    )

    def check(self, algorithm: Algorithm) -> None:
        sharing = algorithm.sharing
        if sharing.is_owned(HEAD) and not sharing.is_owned(f"{self.name}.class_rows"):
            raise ConfigError(
                "personal-branch has rows for classes, and this algorithm gives classes to clients: let it give them "
                "these rows too (sharing.owned = ['head.', 'personal-branch.class_']), or begin with fedfr"
            )

    def init_params(self, features: int, classes: int, draw: torch.Generator) -> Params:
        return {
            "map": torch.eye(features),
            "shift": torch.zeros(features),
            "class_rows": SPREAD * torch.randn(classes, features, generator=draw),
            "class_bias": torch.zeros(classes),
        }

    def embed(self, features: Tensor, params: Params) -> Tensor:
        """The client's personal embeddings of the body's features."""
        return F.linear(features, params[f"{self.name}.map"], params[f"{self.name}.shift"])

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        rows, bias = (params[f"{self.name}.class_{kind}"] for kind in ("rows", "bias"))
        cosines = F.normalize(self.embed(output.features, params), dim=1) @ F.normalize(rows, dim=1).T
        spread = 2 * ((cosines + 1) / 2) ** self.power - 1
        true = (view.batch.targets[:, None] == torch.arange(len(rows), device=rows.device)).to(cosines)
        sign = 1 - 2 * true
        logits = self.scale * (spread + sign * self.margin) + bias
        shares = (1 - self.positive_share) + (2 * self.positive_share - 1) * true
        losses = (shares * F.softplus(sign * logits)).sum(dim=1) / self.scale
        return self.weight * view.batch.mean(losses)
