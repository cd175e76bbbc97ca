"""FedFR: federated face recognition with public images, a contrastive term and a private branch for each client.

Liu et al., "FedFR: joint optimization federated framework for generic and personalized face recognition", AAAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.capabilities import OwnParams, Sizes
from fedra.core.data_rule import DataRule, Supply
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.losses import CosFace
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.margin import HEAD, SPREAD, HeadMargin
from fedra.parts.objective import ModelContrast
from fedra.parts.start import MeanRows, class_means
from fedra.registry import Positive, Share, Strength

BLOCK = 1024
"""Number of public examples that are compared with a client's at once."""

Threshold = Annotated[float, Field(ge=-1, le=1)]


@dataclass(frozen=True)
class PublicMargin(HeadMargin):
    """A margin loss over a client's classes and the public ones (FedFR, Liu et al., AAAI 2022).

    The class vectors of the public classes are averaged like the model. Without public examples it is `margin-head`.

    Args:
        margin: The margin loss.
        weight: Weight of the term.
    """

    margin: AngularLoss = CosFace(scale=30.0, margin=0.4)  # noqa: RUF009  (frozen)
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, [W_own ; W_public]), y_i)"

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        public = {"vectors": SPREAD * torch.randn(sizes.public, sizes.features, generator=draw)} if sizes.public else {}
        return {**super().init_params(sizes, draw), **public}

    def vectors(self, params: Params) -> Tensor:
        public = params.get(PUBLIC_ROWS)
        return params[HEAD] if public is None else torch.cat([params[HEAD], public])


PUBLIC_ROWS = f"{PublicMargin.name}.vectors"
"""Name of the parameter that holds the class vectors of the public classes."""


@dataclass(frozen=True)
class SimilarPublic(DataRule):
    """Trains on the client's examples and on similar public ones (FedFR, Liu et al., AAAI 2022).

    In every round a client selects the public images whose feature under the received model has a cosine above
    `threshold` with the feature of any of its own images. The class vectors of the public classes start at their mean
    features.

    Args:
        threshold: Cosine above which a public image is selected.
    """

    threshold: Threshold = 0.4
    formula: ClassVar[str] = "D_k + {x in D_public: max_{x' in D_k} cos(f_g(x), f_g(x')) > threshold}"

    def check_public(self, algorithm: Algorithm) -> None:
        for term in algorithm.objective:
            if term.fits_labels and not isinstance(term, PublicMargin):
                raise ConfigError(
                    f"with public examples the loss must cover their classes, got '{term.name}': use 'public-margin', "
                    "or remove the section [public]"
                )

    def first_public(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        return {PUBLIC_ROWS: class_means(features, targets, classes)}

    def examples(self, supply: Supply) -> Examples:
        own, public = supply.own, supply.public.examples
        similar = self.select_similar(supply.own_features(), supply.public_features())
        targets = public.targets[similar] + supply.classes
        return replace(
            own, inputs=torch.cat([own.inputs, public.inputs[similar]]), targets=torch.cat([own.targets, targets])
        )

    def select_similar(self, own: Tensor, public: Tensor) -> Tensor:
        """Return a mask (N,) of the public examples, by features (n, d) and (N, d), that are similar to a client's."""
        directions = F.normalize(own, dim=1)
        nearest = [(F.normalize(block, dim=1) @ directions.T).amax(dim=1) for block in torch.split(public, BLOCK)]
        return torch.cat(nearest) > self.threshold


@dataclass(frozen=True)
class PersonalBranch(Term, OwnParams):
    """A private linear map of the features, with a binary classifier for each class on top of it.

    This is FedFR's decoupled feature customization (Liu et al., AAAI 2022): the map, initially the identity, and the
    classifiers stay with the client, and the mapped features are its personal embeddings. An image of none of the
    client's classes is a negative for all of them. The loss is SphereFace2's with a bias for each class.

    Args:
        weight: Weight of the term.
        scale: Scale r of the logits.
        margin: Margin m on the cosines.
        power: Exponent t of the similarity adjustment.
        positive_share: Weight a of the positive pair; negative pairs have weight 1 - a.
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
        if algorithm.owns(HEAD) and not algorithm.owns(f"{self.name}.class_rows"):
            raise ConfigError(
                "the rows of personal-branch must be owned by clients as the head's are, got a sharing that owns "
                "'head.' alone: add 'personal-branch.class_' to its `owned`, or start from fedfr"
            )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        return {
            "map": torch.eye(sizes.features),
            "shift": torch.zeros(sizes.features),
            "class_rows": SPREAD * torch.randn(sizes.classes, sizes.features, generator=draw),
            "class_bias": torch.zeros(sizes.classes),
        }

    def embed(self, features: Tensor, params: Params) -> Tensor:
        """Return the client's personal embeddings of the body's features."""
        return F.linear(features, params[f"{self.name}.map"], params[f"{self.name}.shift"])

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        rows, bias = (params[f"{self.name}.class_{kind}"] for kind in ("rows", "bias"))
        cosines = F.normalize(self.embed(output.features, params), dim=1) @ F.normalize(rows, dim=1).T
        adjusted = 2 * ((cosines + 1) / 2) ** self.power - 1
        true = (view.batch.targets[:, None] == torch.arange(len(rows), device=rows.device)).to(cosines)
        sign = 1 - 2 * true
        logits = self.scale * (adjusted + sign * self.margin) + bias
        shares = (1 - self.positive_share) + (2 * self.positive_share - 1) * true
        losses = (shares * F.softplus(sign * logits)).sum(dim=1) / self.scale
        return self.weight * view.batch.mean(losses)


def fedfr(
    *,
    margin: AngularLoss = CosFace(scale=30.0, margin=0.4),  # noqa: B008  (frozen)
    threshold: Threshold = 0.4,
    contrast: Strength = 5.0,
    temperature: Positive = 0.5,
    branch: Strength = 10.0,
) -> Algorithm:
    """Trains on public images too, with a margin loss, a contrastive term and a private branch.

    `[public]` in the configuration names the public images. Clients are weighted by the number of all images that they
    train on. It needs a pre-trained start (`model.weights`).

    Args:
        margin: The margin loss over the client's and the public classes.
        threshold: Cosine with one of the client's own images above which a public image is used.
        contrast: Weight of the contrastive term.
        temperature: Temperature of the contrastive term.
        branch: Weight of the private branch's loss.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in fedfr(contrast=1.0).objective]
        ['public-margin', 'model-contrast', 'personal-branch']
    """
    sharing = Sharing(private=("personal-branch.",), owned=("head.", "personal-branch.class_"))
    terms = (PublicMargin(margin), ModelContrast(contrast, temperature), PersonalBranch(branch))
    return fedpe().plus(sharing, SimilarPublic(threshold), *terms, MeanRows())
