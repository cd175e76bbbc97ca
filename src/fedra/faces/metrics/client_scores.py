"""Verification figures of a federation: of every client, their mean, and of all scores pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import check_same_length, check_table, directions
from fedra.faces.metrics.error_rates import FARS, Scores


@dataclass(frozen=True, eq=False)
class ClientScores:
    """The scores of every client under its own model, and all of them together."""

    clients: Mapping[int, Scores]

    @classmethod
    def of(cls, scores: Mapping[int, tuple[Tensor, Tensor]]) -> ClientScores:
        """From each client's genuine and impostor scores."""
        if not scores:
            raise DataError("no client has scores: there is nothing to evaluate")
        found = {}
        for client, (genuine, impostor) in scores.items():
            try:
                found[client] = Scores.of(genuine, impostor)
            except DataError as error:
                raise DataError(f"client {client}: {error}") from None
        return cls(found)

    def pooled(self) -> Scores:
        """All clients' scores as one set: one threshold has to serve them all."""
        parts = list(self.clients.values())
        genuine, impostor = ([getattr(part, kind) for part in parts] for kind in ("genuine", "impostor"))
        return Scores(np.sort(np.concatenate(genuine)), np.sort(np.concatenate(impostor)))

    def figures(self, fars: Sequence[float] = FARS) -> dict[str, object]:
        """AUROC and EER as the mean over clients and pooled, and the clients' own."""
        auroc = {client: scores.auroc() for client, scores in self.clients.items()}
        eer = {client: scores.eer() for client, scores in self.clients.items()}
        return {
            "auroc_macro": float(np.mean(list(auroc.values()))),
            "auroc_std": float(np.std(list(auroc.values()))),
            "eer_macro": float(np.mean(list(eer.values()))),
            "pooled": self.pooled().figures(fars),
            "clients": {str(client): {"auroc": auroc[client], "eer": eer[client]} for client in auroc},
        }


def enrolled_scores(enrolled: Tensor, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Genuine and impostor scores of a client with one subject: probes against its enrolled template.

    The template is the direction of the sum of the enrolled unit embeddings.
    """
    parts = []
    names = ("the enrolled embeddings", "the client's probes", "the other clients' probes")
    for name, rows in zip(names, (enrolled, own, others), strict=True):
        check_table(name, rows)
        check_same_length(names[0], enrolled, name, rows)
        parts.append(directions(name, rows))
    template = directions("the enrolled template", parts[0].sum(dim=0, keepdim=True))[0]
    genuine, impostor = (torch.mv(rows.to(template), template) for rows in parts[1:])
    return genuine, impostor
