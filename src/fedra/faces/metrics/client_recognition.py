"""Every client as a recognizer of its own people: some held-out images enroll them, the others are probes.

A client knows one person (or several) and meets strangers, who are the other clients' people. Whoever embeds, the
client's own model or a shared one, embeds the client's enrolled images, its probes and its impostors alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedra.core.random import key
from fedra.errors import DataError
from fedra.faces.metrics.client_scores import ClientScores
from fedra.faces.metrics.embedding_checks import check_table, directions, sorted_scores
from fedra.faces.metrics.error_rates import OperatingPoint, operating_point, threshold_at

FIGURES = ("auroc", "auroc_macro", "auroc_macro_std", "eer", "tpir", "fpir", "fpir_smallest")
"""What `Recognition.figures` holds."""


@dataclass(frozen=True)
class Device:
    """What a client is tested on, as rows of the held-out images: whom it enrolls, its probes, its impostors."""

    client: int
    enrolled: Tensor
    probes: Tensor
    impostors: Tensor

    @property
    def rows(self) -> Tensor:
        """All of them, in this order."""
        return torch.cat([self.enrolled, self.probes, self.impostors])


def draw_devices(
    people: Tensor,
    holdings: Mapping[int, Tensor],
    *,
    enroll: int,
    clients: int | None,
    impostors: int | None,
    seed: int,
) -> list[Device]:
    """Which held-out images each client enrolls, is probed by, and meets as impostors; all drawn by the seed.

    `people` is whom each held-out image shows and `holdings` the people of each client. Of each person `enroll` images
    are enrolled, though one at least stays a probe; a client none of whose people has two images is not tested, nor are
    others beyond `clients`, drawn. Impostors are images of the people of the other tested clients, at most `impostors`.
    """
    images = _images(people, seed)
    split = {
        client: _enrolled([images[one] for one in own.tolist() if one in images], enroll)
        for client, own in holdings.items()
    }
    able = [client for client, (enrolled, _) in split.items() if len(enrolled)]
    if len(able) < 2:
        raise DataError(
            f"{len(able)} clients have two held-out images of a person, one to enroll and one to probe: a test among "
            "clients needs two such clients, so raise data.test_fraction"
        )
    drawn = np.random.default_rng(key(seed, "tested clients")).permutation(len(able))[:clients]
    tested = [able[place] for place in np.sort(drawn)]
    shown = torch.cat([rows for client in tested for rows in split[client]])
    devices = []
    for client in tested:
        strangers = torch.unique(shown[~torch.isin(people[shown], holdings[client])])
        if not len(strangers):
            raise DataError(f"client {client} meets nobody but its own people: give people to one client each")
        chosen = np.random.default_rng(key(seed, "impostors", client)).permutation(len(strangers))[:impostors]
        devices.append(Device(client, *split[client], strangers[torch.from_numpy(np.sort(chosen))]))
    return devices


def _images(people: Tensor, seed: int) -> dict[int, Tensor]:
    """Everybody's held-out images, in an order drawn by the seed."""
    order = torch.from_numpy(np.random.default_rng(key(seed, "enrolled")).permutation(len(people)))
    order = order[people[order].argsort(stable=True)]
    numbers, counts = torch.unique_consecutive(people[order], return_counts=True)
    return dict(zip(numbers.tolist(), torch.split(order, counts.tolist()), strict=True))


def _enrolled(images: Sequence[Tensor], enroll: int) -> tuple[Tensor, Tensor]:
    """The enrolled rows and the probes of a client's people, those with one image left out."""
    nothing = torch.empty(0, dtype=torch.int64)
    enrolled, probes = [nothing], [nothing]
    for rows in images:
        if len(rows) > 1:
            cut = min(enroll, len(rows) - 1)
            enrolled.append(rows[:cut].sort().values)
            probes.append(rows[cut:].sort().values)
    return torch.cat(enrolled), torch.cat(probes)


@dataclass(frozen=True)
class Found:
    """One client's scores: probes against their own template, impostors against every one of the client's templates.

    `best` is the best score of each impostor, and `right` that of each probe whose own person comes first.
    """

    genuine: Tensor
    impostor: Tensor
    best: Tensor
    right: Tensor


def search(device: Device, people: Tensor, features: Tensor) -> Found:
    """The client's scores; `features` are the embeddings of `device.rows`, `people` of all held-out images.

    A template is the direction of the sum of a person's enrolled unit embeddings. Another person with an equal score is
    a miss.
    """
    check_table("the embeddings of a client", features)
    enrolled, probes, impostors = torch.split(
        directions("the embeddings of a client", features),
        [len(device.enrolled), len(device.probes), len(device.impostors)],
    )
    known, place = torch.unique(people[device.enrolled], return_inverse=True)
    sums = enrolled.new_zeros(len(known), enrolled.shape[1]).index_add_(0, place.to(enrolled.device), enrolled)
    templates = directions("the enrolled templates", sums)
    own, strange = probes @ templates.T, impostors @ templates.T
    mine = (people[device.probes, None] == known).to(own.device)
    genuine = own[mine]
    rivals = own.masked_fill(mine, -torch.inf).amax(dim=1)
    return Found(genuine, strange.flatten(), strange.amax(dim=1), genuine[genuine > rivals])


@dataclass(frozen=True)
class Recognition:
    """What all tested clients found, each by its own model or all by one; and why some found nothing.

    `collapsed` are the clients to whose model all faces are alike: they have no scores.
    """

    found: Mapping[int, Found]
    collapsed: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[tuple[int, Found | str]]) -> Recognition:
        """From one client after the other, each with its scores or the reason why its embeddings have collapsed."""
        scores: dict[int, Found] = {}
        reasons: dict[int, str] = {}
        for client, one in found:
            if isinstance(one, str):
                reasons[client] = one
            else:
                scores[client] = one
        return cls(scores, reasons)

    def collapse_of_all(self) -> str | None:
        """Why no client found anything, if that is so."""
        return None if self.found else next(iter(self.collapsed.values()), None)

    def scores(self) -> ClientScores:
        """Genuine and impostor scores by client."""
        return ClientScores.of({client: (one.genuine, one.impostor) for client, one in self.found.items()})

    def tpir(self, fpir: float) -> OperatingPoint:
        """The share of probes that are recognized at one threshold for all clients, which so many impostors pass."""
        strangers = sorted_scores("impostors", torch.cat([one.best for one in self.found.values()]))
        reached = np.sort(torch.cat([one.right for one in self.found.values()]).cpu().numpy())
        probes = sum(len(one.genuine) for one in self.found.values())
        return operating_point(threshold_at(fpir, strangers, len(strangers)), reached, probes)

    def aurocs(self) -> dict[int, float]:
        """AUROC of every client."""
        return {client: scores.auroc() for client, scores in self.scores().clients.items()}

    def figures(self, fpir: float) -> dict[str, float | None]:
        """AUROC over all scores and as the mean over clients with its deviation, EER, and TPIR at the FPIR.

        None each where no client has scores.
        """
        if not self.found:
            return dict.fromkeys(FIGURES)
        pooled, own, point = self.scores().pooled(), np.array(list(self.aurocs().values())), self.tpir(fpir)
        return {
            "auroc": pooled.auroc(),
            "auroc_macro": float(own.mean()),
            "auroc_macro_std": float(own.std()),
            "eer": pooled.eer(),
            "tpir": point.rate,
            "fpir": point.threshold.attained,
            "fpir_smallest": point.threshold.smallest,
        }
