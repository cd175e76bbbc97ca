"""Simulated malicious clients, to see what robust rules withstand: their uploads, or their examples, are replaced.

The malicious clients are drawn by the run's seed. They know all honest uploads of their round, which is the worst case
that papers on robust rules assume. Every draw is keyed, so an attacked run repeats to the bit on every runner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from fedra.config.privacy_sections import AttackSection
from fedra.core.batches import Examples
from fedra.core.evaluate import Counts
from fedra.core.job import Clients, Job
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.core.tree import Params, Tree
from fedra.core.view import Server, Upload
from fedra.errors import ConfigError
from fedra.experiment.backdoor import Backdoor, Trigger, TriggerTest
from fedra.runners.base import Absent, Evaluation, Result, Results, Runner, Summed, iterate_results

BISECTIONS = 50


def choose_malicious(section: AttackSection, clients: int, seed: int) -> tuple[int, ...]:
    """Return the malicious clients of a run, at least one if there is an attack.

    Args:
        section: The attack.
        clients: Number of clients.
        seed: The run's seed.
    """
    if section.name == "none" or section.share == 0:
        return ()
    count = max(round(section.share * clients), 1)
    return tuple(sorted(torch.randperm(clients, generator=generator(seed, "attack"))[:count].tolist()))


def check_attack(section: AttackSection, *, centralized: bool, owned: bool) -> None:
    """Raise for settings that an attack does not fit."""
    if section.name != "none" and centralized:
        raise ConfigError("[attack] needs clients, got mode = 'centralized': train federated, or remove the section")
    if section.name in ("label-flip", "backdoor") and owned:
        raise ConfigError(
            f"attack.name = '{section.name}' needs classes that clients share, but here each client has its own "
            "people: use another attack"
        )


def poison_data(job: Job, section: AttackSection) -> Job:
    """Return the job with the examples of malicious clients poisoned, if the attack does that."""
    poison: Poison
    if section.name == "label-flip":
        poison = FlipLabels(job.classes)
    elif section.name == "backdoor" and job.evaluated_examples is not None:
        poison = Backdoor(Trigger.of(section, job.evaluated_examples), section.poisoned, job.seed)
    else:
        return job
    bad = frozenset(choose_malicious(section, len(job.clients), job.seed))
    return replace(job, clients=PoisonedClients(job.clients, bad, poison))


Poison = Callable[[Examples, int], Examples]
"""From the examples of a malicious client, and its number, to those that it trains on."""


@dataclass(frozen=True)
class FlipLabels:
    """Gives examples the label C - 1 - y in place of y."""

    classes: int

    def __call__(self, own: Examples, client: int) -> Examples:
        return replace(own, targets=self.classes - 1 - own.targets)


@dataclass(frozen=True)
class PoisonedClients:
    """Clients of which some train on other examples than they have."""

    inner: Clients
    malicious: frozenset[int]
    poison: Poison

    def __len__(self) -> int:
        return len(self.inner)

    def size(self, client: int) -> int:
        return self.inner.size(client)

    def __getitem__(self, client: int) -> Examples:
        own = self.inner[client]
        return self.poison(own, client) if client in self.malicious else own

    def joined(self, clients: Sequence[int]) -> Examples | None:
        return None if self.malicious.intersection(clients) else self.inner.joined(clients)

    def tensors(self) -> Iterable[Tensor]:
        return self.inner.tensors()


class AttackedRunner:
    """A runner whose malicious clients replace their updates once all honest ones of the round are there."""

    def __init__(self, runner: Runner, job: Job, section: AttackSection) -> None:
        self._runner, self._job, self._section = runner, job, section
        self._malicious = frozenset(choose_malicious(section, len(job.clients), job.seed))

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result | Results | Absent | Summed]:
        found = list(iterate_results(self._runner.train(round, origin, received, cohort, memory)))
        honest = [one.upload.delta for one in found if one.client not in self._malicious]
        bad = len(found) - len(honest)
        for one in found:
            if one.client in self._malicious and self._section.name != "label-flip":
                draw = generator(self._job.seed, "attack", round, one.client)
                delta = forge(self._section, one.upload.delta, honest or [one.upload.delta], bad, draw)
                one = one._replace(upload=replace(one.upload, delta=delta))
            yield one

    def evaluate(self, weights: Weights) -> Counts:
        return self._runner.evaluate(weights)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return self._runner.start_evaluation(weights)

    def close(self) -> None:
        self._runner.close()


class AttackObserver:
    """Records how many uploads of a round came from malicious clients, and what became of them.

    Args:
        malicious: The malicious clients.
        test: Tests the trigger of a backdoor.
    """

    def __init__(self, malicious: Iterable[int], test: TriggerTest | None = None) -> None:
        self._malicious, self._test = frozenset(malicious), test
        self.begin()

    def begin(self) -> None:
        self._count = 0
        self._weighed: dict[str, float] = {}

    def see_factors(self, factors: Mapping[int, float]) -> None:
        """Measure the choice of a robust rule: how many malicious uploads it left out, and the weight of the others."""
        bad = [factor for client, factor in factors.items() if client in self._malicious]
        if bad:
            total = sum(map(abs, factors.values()))
            self._weighed = {
                "malicious_left_out": sum(factor == 0 for factor in bad),
                "malicious_weight": sum(map(abs, bad)) / total if total else 0.0,
            }

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        self._count += client in self._malicious
        return {"malicious": 1.0} if client in self._malicious else {}

    def server_step(self, combined: Server, server: Server) -> None:
        """Look at nothing."""

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        tested = {} if self._test is None or counts is None else self._test.rates(server.weights)
        return {"malicious": self._count, **self._weighed, **tested}


def forge(
    section: AttackSection, own: Params, honest: Sequence[Params], malicious: int, draw: torch.Generator
) -> Params:
    """Return the update that a malicious client sends.

    Args:
        section: The attack.
        own: Its own update, as it would be if it were honest.
        honest: The updates of the round's honest clients.
        malicious: Number of malicious clients in the round.
        draw: Where random numbers come from.
    """
    rows = torch.stack([_flatten(one) for one in honest])
    vector = _forge(section, _flatten(own), rows, malicious, draw)
    sizes = [value.numel() for value in own.values()]
    parts = torch.split(vector, sizes)
    return {name: part.view_as(value).to(value) for (name, value), part in zip(own.items(), parts, strict=True)}


def _forge(section: AttackSection, own: Tensor, honest: Tensor, malicious: int, draw: torch.Generator) -> Tensor:
    mean: Tensor = honest.mean(dim=0)
    if section.name == "sign-flip":
        return -section.scale * mean
    if section.name in ("scaled", "backdoor"):
        return section.scale * own
    if section.name == "noise":
        drawn: Tensor = torch.randn(len(own), generator=draw, dtype=torch.float64)
        return drawn * float(section.scale * mean.norm() / math.sqrt(len(own)))
    if section.name == "not-finite":
        return torch.full_like(own, math.nan)
    if section.name == "alie":
        return mean - alie_factor(len(honest) + malicious, malicious) * honest.std(dim=0, correction=0)
    return _min_max(mean, honest)


def alie_factor(clients: int, malicious: int) -> float:
    """Return how many deviations a little is enough (Baruch et al., NeurIPS 2019).

    Args:
        clients: Number of clients in the round.
        malicious: Number of malicious ones.

    Returns:
        The factor; 0 if honest clients cannot be won over.

    Example:
        >>> round(alie_factor(20, 4), 4)
        0.1573
    """
    honest = clients - malicious
    needed = math.floor(clients / 2 + 1) - malicious
    share = (honest - needed) / honest if honest else 0.0
    return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


def _min_max(mean: Tensor, honest: Tensor) -> Tensor:
    """Go as far against the mean as no distance exceeds the largest one of honest clients (Shejwalkar, NDSS 2021)."""
    away: Tensor = -mean / mean.norm().clamp(min=1e-30)
    most = torch.cdist(honest, honest).max()
    low, high = 0.0, float(most + mean.norm() + 1.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reached = (honest - (mean + middle * away)).norm(dim=1).max()
        low, high = (middle, high) if reached <= most else (low, middle)
    return mean + low * away


def _flatten(update: Params) -> Tensor:
    return torch.cat([value.detach().reshape(-1).double().cpu() for value in update.values()])
