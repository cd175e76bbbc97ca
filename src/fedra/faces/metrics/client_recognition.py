"""Each client as a recognizer of its own people: some of their held-out images are enrolled, the others are probes.

A client has one person or several; its impostors are the people of other clients. The same model, the client's personal
one or the global one, embeds the client's enrolled images, probes and impostors.
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
"""The keys of `Recognition.metrics`."""


@dataclass(frozen=True)
class Device:
    """The test images of a client, as rows of the held-out images: enrolled images, probes and impostors."""

    client: int
    enrolled: Tensor
    probes: Tensor
    impostors: Tensor

    @property
    def rows(self) -> Tensor:
        """All rows, in this order."""
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
    """Choose at random the enrolled images, probes and impostors of each client.

    `people` is the person of each held-out image and `holdings` the people of each client. Of each person `enroll`
    images are enrolled, but at least one remains as a probe. Clients without a person with two images are not tested;
    at most `clients` are. Impostors are images of the people of the other tested clients, at most `impostors`.
    """
    images = _images_by_person(people, seed)
    split = {
        client: _split_enrolled([images[person] for person in own.tolist() if person in images], enroll)
        for client, own in holdings.items()
    }
    able = [client for client, (enrolled, _) in split.items() if len(enrolled)]
    if len(able) < 2:
        raise DataError(
            "at least 2 clients must have 2 held-out images of a person (one to enroll, one to probe), got "
            f"{len(able)}: raise data.test_fraction"
        )
    drawn = np.random.default_rng(key(seed, "tested clients")).permutation(len(able))[:clients]
    tested = [able[index] for index in np.sort(drawn)]
    shown = torch.cat([rows for client in tested for rows in split[client]])
    devices = []
    for client in tested:
        others = torch.unique(shown[~torch.isin(people[shown], holdings[client])])
        if not len(others):
            raise DataError(
                f"client {client} needs impostors, but all tested images show its own people: assign each person to "
                "one client"
            )
        chosen = np.random.default_rng(key(seed, "impostors", client)).permutation(len(others))[:impostors]
        devices.append(Device(client, *split[client], others[torch.from_numpy(np.sort(chosen))]))
    return devices


def _images_by_person(people: Tensor, seed: int) -> dict[int, Tensor]:
    """Return the rows of each person's held-out images in random order."""
    order = torch.from_numpy(np.random.default_rng(key(seed, "enrolled")).permutation(len(people)))
    order = order[people[order].argsort(stable=True)]
    numbers, counts = torch.unique_consecutive(people[order], return_counts=True)
    return dict(zip(numbers.tolist(), torch.split(order, counts.tolist()), strict=True))


def _split_enrolled(images: Sequence[Tensor], enroll: int) -> tuple[Tensor, Tensor]:
    """Return the enrolled rows and the probes of a client's people, skipping people with one image."""
    empty = torch.empty(0, dtype=torch.int64)
    enrolled, probes = [empty], [empty]
    for rows in images:
        if len(rows) > 1:
            cut = min(enroll, len(rows) - 1)
            enrolled.append(rows[:cut].sort().values)
            probes.append(rows[cut:].sort().values)
    return torch.cat(enrolled), torch.cat(probes)


@dataclass(frozen=True)
class Found:
    """Scores of one client: probes against the template of their person, impostors against all templates.

    `best` has the best score of each impostor, `right` that of each probe whose person ranks first.
    """

    genuine: Tensor
    impostor: Tensor
    best: Tensor
    right: Tensor


def search(device: Device, people: Tensor, features: Tensor) -> Found:
    """Compute a client's scores from the embeddings of `device.rows` and the person of each held-out image.

    A template is the normalized sum of a person's normalized enrolled embeddings. A tie with another person counts as a
    miss.
    """
    check_table("the embeddings of a client", features)
    enrolled, probes, impostors = torch.split(
        directions("the embeddings of a client", features),
        [len(device.enrolled), len(device.probes), len(device.impostors)],
    )
    known, index = torch.unique(people[device.enrolled], return_inverse=True)
    sums = enrolled.new_zeros(len(known), enrolled.shape[1]).index_add_(0, index.to(enrolled.device), enrolled)
    templates = directions("the enrolled templates", sums)
    probe_scores, impostor_scores = probes @ templates.T, impostors @ templates.T
    is_own = (people[device.probes, None] == known).to(probe_scores.device)
    genuine = probe_scores[is_own]
    rivals = probe_scores.masked_fill(is_own, -torch.inf).amax(dim=1)
    return Found(genuine, impostor_scores.flatten(), impostor_scores.amax(dim=1), genuine[genuine > rivals])


@dataclass(frozen=True)
class Recognition:
    """Scores of all tested clients, with personal models or the global one.

    `collapsed` has the clients whose embeddings have collapsed, with the reason; they have no scores.
    """

    found: Mapping[int, Found]
    collapsed: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[tuple[int, Found | str]]) -> Recognition:
        """Collect the results of clients: scores, or the reason why the embeddings have collapsed."""
        scores: dict[int, Found] = {}
        reasons: dict[int, str] = {}
        for client, result in found:
            if isinstance(result, str):
                reasons[client] = result
            else:
                scores[client] = result
        return cls(scores, reasons)

    def collapse_of_all(self) -> str | None:
        """Return the reason if the embeddings of all clients have collapsed, else None."""
        return None if self.found else next(iter(self.collapsed.values()), None)

    def scores(self) -> ClientScores:
        """Return genuine and impostor scores by client."""
        return ClientScores.of({client: (found.genuine, found.impostor) for client, found in self.found.items()})

    def tpir(self, fpir: float) -> OperatingPoint:
        """Return the share of probes identified at the one threshold that gives this FPIR over all clients."""
        impostors = sorted_scores("impostors", torch.cat([found.best for found in self.found.values()]))
        identified = np.sort(torch.cat([found.right for found in self.found.values()]).cpu().numpy())
        probes = sum(len(found.genuine) for found in self.found.values())
        return operating_point(threshold_at(fpir, impostors, len(impostors)), identified, probes)

    def aurocs(self) -> dict[int, float]:
        """Return the AUROC of each client."""
        return {client: scores.auroc() for client, scores in self.scores().clients.items()}

    def metrics(self, fpir: float) -> dict[str, float | None]:
        """Return AUROC over all scores, its mean and standard deviation over clients, EER, and TPIR at the FPIR.

        All values are None if no client has scores.
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
