"""BroadFace: class vectors that are also trained on the features of past batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import LOSSES
from fedra.losses.angle import cosine
from fedra.losses.angular_loss import Cosines, Tensors
from fedra.losses.fixed import ArcFace


@LOSSES.add("broadface")
@dataclass(frozen=True, kw_only=True)
class BroadFace(ArcFace):
    """ArcFace whose class vectors learn from a queue of past features too (Kim et al. 2020, arXiv:2008.06674).

    loss = mean_(i in batch) L(x_i, W') + mean_(i in batch and queue) L(x*_i, W),  primes and x* without gradient
    x*   = x + |x| / |w| (W_y - w) for a past feature x, whose class vector was w then

    Features learn from the first mean, class vectors from the second. `compensate = false` uses x as it was.

    State: `queue`, `queue_labels` (-1 where empty) and `queue_vectors`. The queue holds raw embeddings: keep it on its
    client.

    Args:
        margin: Angular margin m, in radians.
        size: Number of past features.
        compensate: Move past features along with their class vectors.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = BroadFace(size=32)
        >>> losses, state = loss.step(features, weight, labels, loss.init_state(weight))
        >>> int((state["queue_labels"] >= 0).sum())
        8
    """

    private: ClassVar[tuple[str, ...]] = ("queue", "queue_labels", "queue_vectors")

    size: Annotated[int, Field(ge=1)] = 1024
    compensate: bool = True

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        if weight is None:
            raise ConfigError("weight must be given for the state of BroadFace, got None: call init_state(weight)")
        rows = weight.detach().new_zeros(self.size, weight.shape[1])
        return {"queue": rows, "queue_labels": rows.new_full((self.size,), -1.0), "queue_vectors": rows.clone()}

    def losses(self, batch: Cosines) -> Tensor:
        features, vectors = batch.require("features"), batch.require("vectors")
        own = self._arcface(batch, features, vectors.detach(), batch.labels)
        past_labels = batch.statistic("queue_labels").long()
        past, current = self._past_features(batch, vectors), features.detach()
        now = self._arcface(batch, current, vectors, batch.labels) * batch.is_real
        before = self._arcface(batch, past, vectors, past_labels.clamp(min=0)) * (past_labels >= 0)
        count = batch.is_real.sum() + (past_labels >= 0).sum()
        return own + (now.sum() + before.sum()) / count.clamp(min=1)

    def _arcface(self, batch: Cosines, features: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        compared = replace(batch, values=cosine(features, vectors), labels=labels, true_cosines=None)
        return F.cross_entropy(self.outputs(compared), labels, reduction="none")

    def _past_features(self, batch: Cosines, vectors: Tensor) -> Tensor:
        queue, then = batch.statistic("queue"), batch.statistic("queue_vectors")
        if not self.compensate:
            return queue
        now = vectors.detach()[batch.statistic("queue_labels").long().clamp(min=0)]
        ratio = queue.norm(dim=1, keepdim=True) / then.norm(dim=1, keepdim=True).clamp(min=1e-12)
        moved: Tensor = queue + ratio * (now - then)
        return moved

    def remember(self, batch: Cosines) -> Mapping[str, Tensor]:
        newest = {
            "queue": batch.require("features"),
            "queue_labels": batch.labels,
            "queue_vectors": batch.require("vectors")[batch.labels],
        }
        joined = {
            name: torch.cat([batch.statistic(name), new.to(batch.statistic(name))]) for name, new in newest.items()
        }
        # Padding goes to the front, where it falls out of the queue or stays behind what was there.
        is_kept = torch.cat([torch.ones(self.size, dtype=torch.bool, device=batch.labels.device), batch.is_real])
        order = is_kept.long().argsort(stable=True)[-self.size :]
        return {**batch.state, **{name: value[order] for name, value in joined.items()}}
