"""How the update of class vectors agrees with that of a softmax over all classes, with and without the correction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedra.analysis.diagnostics import TINY, Measurement, class_vectors_of
from fedra.core.evaluate import Counts, embed
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.core.view import Server, Upload


@torch.no_grad()
def softmax_step(rows: Tensor, features: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the negative gradient of the cross-entropy over all classes with respect to the class vectors.

    Niu and Deng, AAAI 2022, equations 8 and 9: the mean over examples of (1[y = j] - p_j) x for class vector j.

    Args:
        rows: Class vectors (C, d).
        features: Features (N, d).
        targets: Classes (N).
        bias: Biases (C) of the classes, if there are any.

    Returns:
        The step (C, d) of gradient descent with rate 1.
    """
    return _step(rows, features, targets, bias).T @ features / max(1, len(features))


@torch.no_grad()
def missing_step(rows: Tensor, features: Tensor, targets: Tensor, owned: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the part of `softmax_step` that a client's own softmax lacks: on class vectors of other clients.

    Args:
        rows: Class vectors (C, d).
        features: Features (N, d).
        targets: Classes (N).
        owned: (N, C), whether the client of an example owns the class.
        bias: Biases (C) of the classes, if there are any.

    Returns:
        The step (C, d): the mean over examples of -p_j x for classes j that the example's client does not own.
    """
    weights = _step(rows, features, targets, bias).masked_fill(owned, 0.0)
    return weights.T @ features / max(1, len(features))


def _step(rows: Tensor, features: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
    logits = features @ rows.T + (0.0 if bias is None else bias)
    return torch.nn.functional.one_hot(targets, len(rows)) - torch.softmax(logits, dim=1)


def cosine(left: Tensor, right: Tensor) -> float | None:
    """Return the cosine of two tensors as vectors; None if one of them is zero."""
    lengths = float(left.norm()), float(right.norm())
    return float((left * right).sum()) / (lengths[0] * lengths[1]) if min(lengths) > TINY else None


@dataclass
class SoftmaxAgreement(Measurement):
    """Cosines of the class vectors' change in a round with the step of a softmax over all classes.

    The step is taken at the weights that the round starts from, on the examples of the clients of the round.
    `softmax_cosine_local` is that of the change before the server rules, `softmax_cosine` that after them, and
    `correction_cosine` that of the server's change with the part that the clients' own softmax lacks.
    """

    job: Job
    owners: Owners
    rows: str = "head.weight"
    _before: Server | None = None
    _clients: list[int] = field(default_factory=list)
    _found: dict[str, float | None] = field(default_factory=dict)

    def begin(self) -> None:
        self._before, self._clients, self._found = None, [], {}

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        self._before = before
        self._clients.append(client)
        return {}

    def server_step(self, combined: Server, server: Server) -> None:
        if self._before is None:
            return
        start = self._before.weights
        rows = start.params[self.rows].double().cpu()
        features, targets, owned = self._examples(start)
        bias = start.params.get(self.rows.replace("weight", "bias"))
        bias = None if bias is None else bias.double().cpu()
        wanted = softmax_step(rows, features, targets, bias)
        local = combined.weights.params[self.rows].double().cpu() - rows
        corrected = server.weights.params[self.rows].double().cpu() - rows
        self._found = {
            "softmax_cosine_local": cosine(local, wanted),
            "softmax_cosine": cosine(corrected, wanted),
            "correction_cosine": cosine(corrected - local, missing_step(rows, features, targets, owned, bias)),
        }

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        return dict(self._found)

    def _examples(self, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """Return features and classes of the round's clients, and which classes their clients own."""
        model = self.job.model
        arranged = Weights(model.arrange(weights.params), model.arrange(weights.buffers))
        features, targets, owned = [], [], []
        for client in self._clients:
            own = self.job.clients[client]
            holding = self.owners.holdings[client].cpu()
            features.append(embed(model, arranged, own).double())
            targets.append(holding[own.targets.cpu()])
            mask = torch.zeros(self.owners.classes, dtype=torch.bool)
            mask[holding] = True
            owned.append(mask.expand(len(own), -1))
        return torch.cat(features), torch.cat(targets), torch.cat(owned)


def softmax_agreement(job: Job) -> SoftmaxAgreement:
    """Return the measurement for a job whose clients own their class vectors.

    Args:
        job: The job of a run.

    Returns:
        The measurement; an algorithm that averages class vectors raises a `ConfigError`.
    """
    rows = class_vectors_of(job.algorithm, "diagnostics.softmax_agreement")
    assert job.owners is not None, "owned rows have owners"
    return SoftmaxAgreement(job, job.owners, rows)
