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
LabelSimilarity = Literal["cosine", "dot"]
PredictOver = Literal["nearest", "all"]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Emphasis = Annotated[float, Field(ge=0, le=1)]
Measure = Literal["cosine", "l2", "kl", "contrastive"]

FLATTER = 4.0
"""Default temperature of labels from cosines, in units of the predictions' temperature; above 1 labels are flatter."""


@dataclass(frozen=True)
class IntraSubject(Term, OwnParams, Teachers):
    """Fits each image to a frozen model's features of the same person's images, by adaptive soft labels (FedFS).

    Three models see a batch: the frozen initial one computes p, the received global one g, the trained personal one z;
    a combines g and z. The label of image i is a distribution over its nearest images, itself included. By default it
    is the prediction at a higher temperature, so it is flatter than the prediction: a step moves an image from its own
    frozen feature toward those of its neighbors. No gradient flows through labels.

    Args:
        weight: Weight of the term.
        ratio: The paper's K: k is the number of comparable images divided by K. Below 1 it is a share: 0.25 is the
            same as 4.
        aggregation: How a combines g and z: their "mean", their "sum", a learned linear "projection" of both, or "own"
            for z alone.
        label_source: Labels from the similarities of a and p ("aggregated") or of p and p ("frozen").
        label_temperature: Temperature of the labels' softmax; None (the default) is 4 * temperature for cosines, and
            the square root of the embedding's length for dot products.
        temperature: Temperature of the predictions' softmax.
        emphasis: Additional share of the image itself in its label; None (the default) is 0 for cosines, and 1 / K for
            dot products.
        within: Compare images of one "subject" or of the whole "batch".
        label_similarity: Labels from "cosine" similarities (normalized dot products) or raw "dot" products. Labels of
            raw products are usually sharper than the prediction, which moves a person's images apart.
        predict_over: Images that the prediction is a distribution over: the "nearest" ones, which the label covers, at
            least two; or "all" comparable ones, which moves images apart that are not nearest.
        symmetric: Whether image i is also compared with the images that have i among their k nearest. Otherwise images
            near the center attract more than they are attracted, which moves all people toward a common direction.
        length_gradient: Whether the gradient of a cosine includes that of the length of a. With it, adding a direction
            that all features share also makes them more similar, which moves different people together.
    """

    weight: Strength = 0.7
    ratio: Ratio = 4.0
    aggregation: Aggregation = "mean"
    label_source: LabelSource = "aggregated"
    label_temperature: Positive | None = None
    temperature: Positive = 0.1
    emphasis: Emphasis | None = None
    within: Within = "subject"
    label_similarity: LabelSimilarity = "cosine"
    predict_over: PredictOver = "nearest"
    symmetric: bool = True
    length_gradient: bool = False
    fits_labels: ClassVar[bool] = True
    moves_head: ClassVar[bool] = False
    formula: ClassVar[str] = (
        "weight * mean_i -sum_j y_ij log softmax_j(cos(a_i, p_j) / T),  a = (g + z) / 2, "
        "y_i = (1 - e) softmax_j(cos(a_i, p_j) / T_label) + e [j = i],  j near i: j = i, j among the k nearest of i, "
        "or i among the k nearest of j;  |a_i| is constant in the gradient"
    )

    @property
    def mixes_examples(self) -> bool:
        return True

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
        labels, nearest = self.soft_labels(source, frozen, comparable)
        lengths = combined.norm(dim=1, keepdim=True).clamp(min=1e-12)
        units = combined / (lengths if self.length_gradient else lengths.detach())
        cosines = units @ F.normalize(frozen, dim=1).T
        among = nearest if self.predict_over == "nearest" else comparable
        return self.weight * view.batch.mean(_cross_entropy(labels, cosines / self.temperature, among))

    def soft_labels(self, source: Tensor, frozen: Tensor, comparable: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share (B, B) of every image j in the label of image i, and a mask of the images that it covers.

        Ties at rank k are all included.
        """
        scaled = self._label_logits(source, frozen).masked_fill(~comparable, -torch.inf)
        counts = self.neighbors(comparable.sum(dim=1, keepdim=True))
        smallest = scaled.sort(dim=1, descending=True).values.gather(1, counts - 1)
        itself = torch.eye(len(scaled), dtype=torch.bool, device=scaled.device)
        nearest = (comparable & (scaled >= smallest)) | itself
        if self.symmetric:
            nearest = (nearest | nearest.T) & comparable
        shares = scaled.masked_fill(~nearest, -torch.inf).softmax(dim=1)
        emphasis = self._emphasis
        return (1 - emphasis) * shares + emphasis * itself.to(shares), nearest

    def neighbors(self, comparable: Tensor) -> Tensor:
        """Return k, the number of images that a label covers, of `comparable` ones (the image itself included)."""
        share = self.ratio if self.ratio < 1 else 1 / self.ratio
        least = 2 if self.predict_over == "nearest" else 1  # a distribution over one image has no gradient
        covered = (comparable.float() * share + 1e-4).long()  # 3 * (1 / 3) may round below 1
        return torch.maximum(covered, comparable.clamp(max=least)).clamp(min=1)

    @property
    def _emphasis(self) -> float:
        if self.emphasis is not None:
            return self.emphasis
        return 0.0 if self.label_similarity == "cosine" else min(self.ratio, 1 / self.ratio)

    def _label_logits(self, source: Tensor, frozen: Tensor) -> Tensor:
        if self.label_similarity == "cosine":
            cosines = F.normalize(source, dim=1) @ F.normalize(frozen, dim=1).T
            return cosines / (self.label_temperature or FLATTER * self.temperature)
        return source @ frozen.T / (self.label_temperature or frozen.shape[1] ** 0.5)

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

    @property
    def mixes_examples(self) -> bool:
        return self.measure == "contrastive"

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
    label_similarity: LabelSimilarity = "cosine",
    predict_over: PredictOver = "nearest",
    symmetric: bool = True,
    length_gradient: bool = False,
) -> Algorithm:
    """Self-supervised training on each person's images, close to the global model; clients keep their models.

    The objective is insub * F_insub + (1 - insub) * F_reg. The frozen model is the one that the run starts from
    (`model.weights`). The head is not trained, because it cannot separate anything on a client of one person, and a
    client receives the head's rows of its own people only.

    Args:
        insub: Weight of the self-supervised term; the regularizer has weight 1 - insub.
        ratio: The paper's K: a label covers the nearest 1/K of a person's images in the batch. Below 1 it is that share
            itself: 0.25 is the same as 4.
        aggregation: How the global and the personal features are combined: "mean", "sum", a learned "projection", or
            "own" for the personal ones alone.
        label_source: Soft labels from combined and frozen features ("aggregated") or from frozen ones ("frozen").
        label_temperature: Temperature of the labels' softmax; None (the default) is 4 * temperature for cosines, and
            the square root of the embedding's length for dot products.
        temperature: Temperature of the predictions' softmax.
        emphasis: Additional share of an image itself in its label; None (the default) is 0 for cosines, and 1 / K for
            dot products.
        within: Compare images of one "subject" or of the whole "batch".
        regularizer: Distance to the received model's features: "cosine", "l2", "kl" or "contrastive".
        regularizer_temperature: Temperature of the regularizers "kl" and "contrastive".
        label_similarity: Soft labels from "cosine" similarities or from raw "dot" products, whose labels are usually
            sharper than the prediction and move a person's images apart.
        predict_over: Images that a prediction is a distribution over: the "nearest" ones, which the label covers, or
            "all" of the person's images in the batch.
        symmetric: Whether an image is also compared with the images that have it among their nearest.
        length_gradient: Whether the gradient of a cosine includes that of the combined feature's length, which moves
            different people together.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [(term.name, term.weight) for term in fedfs(insub=0.6).objective]
        [('intra-subject', 0.6), ('feature-tie', 0.4)]
    """
    labels = IntraSubject(
        weight=insub,
        ratio=ratio,
        aggregation=aggregation,
        label_source=label_source,
        label_temperature=label_temperature,
        temperature=temperature,
        emphasis=emphasis,
        within=within,
        label_similarity=label_similarity,
        predict_over=predict_over,
        symmetric=symmetric,
        length_gradient=length_gradient,
    )
    regularization = FeatureTie(round(1 - insub, 12), regularizer, regularizer_temperature)
    return fedavg().plus(Sharing(owned=("head.",), frozen=("head.",)), labels, regularization, KeepLast())
