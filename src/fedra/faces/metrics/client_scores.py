"""Verification metrics of a federation: per client, their mean, and over all scores pooled."""

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
    """Verification scores of all clients.

    Args:
        clients: The scores of each client; use `ClientScores.of` to build them from tensors.

    Example:
        >>> ClientScores.of({0: (genuine, impostor)}).pooled().auroc()
        0.93
    """

    clients: Mapping[int, Scores]

    @classmethod
    def of(cls, scores: Mapping[int, tuple[Tensor, Tensor]]) -> ClientScores:
        """Build from the genuine and impostor scores of each client.

        Args:
            scores: Genuine scores (G,) and impostor scores (I,) by client.

        Returns:
            The scores, sorted.

        Example:
            >>> ClientScores.of({0: (torch.tensor([0.9, 0.8]), torch.tensor([0.1]))}).pooled().auroc()
            1.0
        """
        if not scores:
            raise DataError("scores must have at least one client, got none")
        found = {}
        for client, (genuine, impostor) in scores.items():
            try:
                found[client] = Scores.of(genuine, impostor)
            except DataError as error:
                raise DataError(f"client {client}: {error}") from None
        return cls(found)

    def pooled(self) -> Scores:
        """Join the scores of all clients, for metrics at one common threshold.

        Returns:
            The joined scores.

        Example:
            >>> found.pooled().eer()
            0.08
        """
        parts = list(self.clients.values())
        genuine, impostor = ([getattr(part, kind) for part in parts] for kind in ("genuine", "impostor"))
        return Scores(np.sort(np.concatenate(genuine)), np.sort(np.concatenate(impostor)))

    def metrics(self, fars: Sequence[float] = FARS) -> dict[str, object]:
        """Return AUROC and EER as the mean over clients, pooled, and of each client.

        Args:
            fars: The FARs at which the pooled TAR is reported.

        Returns:
            A dictionary for JSON.

        Example:
            >>> found.metrics()["auroc_macro"]
            0.95
        """
        auroc = {client: scores.auroc() for client, scores in self.clients.items()}
        eer = {client: scores.eer() for client, scores in self.clients.items()}
        return {
            "auroc_macro": float(np.mean(list(auroc.values()))),
            "auroc_std": float(np.std(list(auroc.values()))),
            "eer_macro": float(np.mean(list(eer.values()))),
            "pooled": self.pooled().metrics(fars),
            "clients": {str(client): {"auroc": auroc[client], "eer": eer[client]} for client in auroc},
        }


def enrolled_scores(enrolled: Tensor, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Compute genuine and impostor scores of a client with one person.

    The template is the normalized sum of the normalized enrolled embeddings.

    Args:
        enrolled: Embeddings (E, d) to enroll.
        own: Probes (P, d) of the same person.
        others: Probes (Q, d) of other people.

    Returns:
        Genuine scores (P,) and impostor scores (Q,).

    Example:
        >>> enrolled_scores(torch.eye(2)[:1], torch.eye(2)[:1], torch.eye(2)[1:])
        (tensor([1.]), tensor([0.]))
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
