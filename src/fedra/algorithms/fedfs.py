"""FedFS: clients of one person each learn from their own images, guided by a frozen model and the global model.

Kim, Choi and Kwak, "Federated learning for face recognition via intra-subject self-supervised learning", 2024 (arXiv
2407.16289).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, OwnParams, Sizes, Teachers
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.personalizer import Personalizer
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.core.view import Batch, Client, Local, View
from fedra.parts.objective import kl_divergence
from fedra.registry import Positive, Strength

Aggregation = Literal["mean", "sum", "projection", "own"]
LabelSource = Literal["aggregated", "frozen"]
Within = Literal["subject", "batch"]
Ratio = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Emphasis = Annotated[float, Field(ge=0, le=1)]
Measure = Literal["cosine", "l2", "kl", "contrastive"]


@dataclass(frozen=True)
class IntraSubject(Term, OwnParams, Teachers):
    """Fits each image to a frozen model's features of the same person's images, by adaptive soft labels (FedFS).

    Three models see a batch: the frozen initial one computes p, the received global one g, the trained personal one z;
    a combines g and z. The label of image i is a distribution over itself and its k most similar images, where k is the
    number of comparable images divided by `ratio`. No gradient flows through labels.

    Args:
        weight: Weight of the term.
        ratio: The paper's K: an image is compared with its nearest 1/K of the comparable images.
        aggregation: How a combines g and z: their "mean", their "sum", a learned linear "projection" of both, or "own"
            for z alone.
        label_source: Labels from the products of a and p ("aggregated") or of p and p ("frozen").
        label_temperature: Temperature of the labels' softmax; None (the default) is the square root of the embedding's
            length.
        temperature: Temperature of the predictions' softmax.
        emphasis: Additional share of the image itself in its label; None (the default) is 1 / ratio.
        within: Compare images of one "subject" or of the whole "batch".
    """

    weight: Strength = 0.7
    ratio: Ratio = 4.0
    aggregation: Aggregation = "mean"
    label_source: LabelSource = "aggregated"
    label_temperature: Positive | None = None
    temperature: Positive = 0.1
    emphasis: Emphasis | None = None
    within: Within = "subject"
    fits_labels: ClassVar[bool] = True
    moves_head: ClassVar[bool] = False
    formula: ClassVar[str] = (
        "weight * mean_i -sum_j y_ij log softmax_j(cos(a_i, p_j) / T),  a = (g + z) / 2, "
        "y_i = (1 - e) softmax_top-k(a_i.p_j / T_label) + e [j = i]"
    )

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        """Return the learned projection, which starts as the mean; without one, nothing."""
        if self.aggregation != "projection":
            return {}
        return {"projection": torch.eye(sizes.features).repeat(1, 2) / 2}

    def teachers(self, client: Client) -> dict[str, Weights]:
        frozen = {"frozen": client.start}
        return frozen if self.aggregation == "own" else {**frozen, "received": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        frozen = view.teachers[self.name]["frozen"].features
        combined = self._aggregate(output.features, params, view)
        comparable = _comparable_mask(view.batch, self.within)
        source = frozen if self.label_source == "frozen" else combined.detach()
        labels = self.soft_labels(source @ frozen.T, comparable, frozen.shape[1])
        cosines = F.normalize(combined, dim=1) @ F.normalize(frozen, dim=1).T
        return self.weight * view.batch.mean(_cross_entropy(labels, cosines / self.temperature, comparable))

    def soft_labels(self, products: Tensor, comparable: Tensor, length: int) -> Tensor:
        """Return the share (B, B) of every image j in the label of image i; ties at rank k are all included."""
        scaled = (products / (self.label_temperature or length**0.5)).masked_fill(~comparable, -torch.inf)
        neighbors = (comparable.sum(dim=1, keepdim=True) / self.ratio).long().clamp(min=1)
        smallest = scaled.sort(dim=1, descending=True).values.gather(1, neighbors - 1)
        itself = torch.eye(len(scaled), dtype=torch.bool, device=scaled.device)
        shares = scaled.masked_fill((scaled < smallest) & ~itself, -torch.inf).softmax(dim=1)
        emphasis = 1 / self.ratio if self.emphasis is None else self.emphasis
        return (1 - emphasis) * shares + emphasis * itself.to(shares)

    def _aggregate(self, own: Tensor, params: Params, view: View) -> Tensor:
        if self.aggregation == "own":
            return own
        received = view.teachers[self.name]["received"].features
        if self.aggregation == "projection":
            return torch.cat([received, own], dim=1) @ params[f"{self.name}.projection"].T
        return (received + own) / (2 if self.aggregation == "mean" else 1)


@dataclass(frozen=True)
class FeatureTie(Term, Teachers):
    """Keeps features close to the received model's, so one person's images do not distort the model (FedFS's F_reg).

    Args:
        weight: Weight of the term.
        measure: The distance. "cosine" is the paper's; "l2" compares raw features; "kl" compares their softmax over the
            embedding's coordinates; "contrastive" distinguishes an image's received feature from those of the batch's
            other images.
        temperature: Temperature of "kl" and "contrastive".
    """

    weight: Strength = 0.3
    measure: Measure = "cosine"
    temperature: Positive = 0.5
    moves_head: ClassVar[bool] = False
    formula: ClassVar[str] = (
        "weight * mean_i 1 - cos(z_i, g_i);  l2: |z_i - g_i|^2 / d;  kl: KL(softmax(g_i / T) || softmax(z_i / T));  "
        "contrastive: -log softmax_j(cos(z_i, g_j) / T)[i]"
    )

    def teachers(self, client: Client) -> dict[str, Weights]:
        return {"received": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        own, received = output.features, view.teachers[self.name]["received"].features
        return self.weight * view.batch.mean(self._distances(own, received, view.batch))

    def _distances(self, own: Tensor, received: Tensor, batch: Batch) -> Tensor:
        if self.measure == "cosine":
            return 1 - F.cosine_similarity(own, received)
        if self.measure == "l2":
            return (own - received).square().mean(dim=1)
        if self.measure == "kl":
            return kl_divergence(received, own, self.temperature)
        cosines = F.normalize(own, dim=1) @ F.normalize(received, dim=1).T
        itself = torch.eye(len(own), dtype=own.dtype, device=own.device)
        return _cross_entropy(itself, cosines / self.temperature, _comparable_mask(batch, "batch"))


def _comparable_mask(batch: Batch, within: Within) -> Tensor:
    """Return a mask (B, B) of the images that each is compared with: itself, and others that are not padding."""
    targets = batch.targets
    itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    others = targets[:, None] == targets if within == "subject" else torch.ones_like(itself)
    return itself | (others if batch.mask is None else others & (batch.mask > 0))


def _cross_entropy(labels: Tensor, logits: Tensor, comparable: Tensor) -> Tensor:
    """Return -sum_j y_ij log softmax_j(logits_i) over the comparable images, per image."""
    shares = logits.masked_fill(~comparable, -torch.inf).log_softmax(dim=1)
    return -(labels * shares.masked_fill(~comparable, 0.0)).sum(dim=1)


@dataclass(frozen=True)
class KeepLast(Personalizer, ClientState):
    """The model as the client last trained it; a client that never took part uses the global model."""

    formula: ClassVar[str] = "w_k = the client's weights at the end of its last round"

    def init_client(self, origin: Weights) -> Tree:
        return origin._asdict()

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return local.weights._asdict(), {}

    def own(self, weights: Weights, memory: Tree) -> Weights:
        last = memory.get(self.name, {})
        return Weights({**weights.params, **last.get("params", {})}, {**weights.buffers, **last.get("buffers", {})})


def fedfs(
    *,
    insub: Emphasis = 0.7,
    ratio: Ratio = 4.0,
    aggregation: Aggregation = "mean",
    label_source: LabelSource = "aggregated",
    label_temperature: Positive | None = None,
    temperature: Positive = 0.1,
    emphasis: Emphasis | None = None,
    within: Within = "subject",
    regularizer: Measure = "cosine",
    regularizer_temperature: Positive = 0.5,
) -> Algorithm:
    """Self-supervised training on each person's images, close to the global model; clients keep their models.

    The objective is insub * F_insub + (1 - insub) * F_reg. The frozen model is the one that the run starts from
    (`model.weights`). The head is not trained, because it cannot separate anything on a client of one person, and a
    client receives the head's rows of its own people only.

    Args:
        insub: Weight of the self-supervised term; the regularizer has weight 1 - insub.
        ratio: The paper's K: an image is compared with its nearest 1/K of the comparable images.
        aggregation: How the global and the personal features are combined: "mean", "sum", a learned "projection", or
            "own" for the personal ones alone.
        label_source: Soft labels from combined and frozen features ("aggregated") or from frozen ones ("frozen").
        label_temperature: Temperature of the labels' softmax; None (the default) is the square root of the embedding's
            length.
        temperature: Temperature of the predictions' softmax.
        emphasis: Additional share of an image itself in its label; None (the default) is 1 / ratio.
        within: Compare images of one "subject" or of the whole "batch".
        regularizer: Distance to the received model's features: "cosine", "l2", "kl" or "contrastive".
        regularizer_temperature: Temperature of the regularizers "kl" and "contrastive".

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [(term.name, term.weight) for term in fedfs(insub=0.6).objective]
        [('intra-subject', 0.6), ('feature-tie', 0.4)]
    """
    labels = IntraSubject(insub, ratio, aggregation, label_source, label_temperature, temperature, emphasis, within)
    regularization = FeatureTie(round(1 - insub, 12), regularizer, regularizer_temperature)
    return fedavg().plus(Sharing(owned=("head.",), frozen=("head.",)), labels, regularization, KeepLast())
