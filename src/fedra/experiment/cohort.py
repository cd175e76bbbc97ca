"""The cohort of a round: sampling, simulated faults, and checks of uploads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fedra.core import tree
from fedra.core.job import Clients, Job
from fedra.core.random import generator
from fedra.core.round import broadcast
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.core.uploads import Uploads
from fedra.core.view import Local, Server


@dataclass(frozen=True)
class CohortRule:
    """Samples a share of the clients for each round, and for each repetition of a round."""

    fraction: float = 1.0
    sampling: Literal["keyed", "legacy"] = "keyed"

    def size(self, clients: int) -> int:
        """Return the size of the cohort, at least 1."""
        return max(int(self.fraction * clients + 1e-9), 1)

    def sample(self, clients: Clients, seed: int, round: int, attempt: int) -> list[int]:
        """Sample the clients of a round, largest first: every runner starts and combines them in this order."""
        count = len(clients)
        size = self.size(count)
        if self.sampling == "legacy":
            drawn = np.random.RandomState(round + attempt * 100_003).choice(count, size, replace=False).tolist()
        else:
            drawn = torch.randperm(count, generator=generator(seed, "cohort", round, attempt))[:size].tolist()
        return sorted(drawn, key=lambda client: (-clients.size(client), client))


@dataclass(frozen=True)
class FaultRule:
    """Simulated faults, and the quorum of a round.

    A client's time is its number of local steps relative to the median client; a straggler takes `slowdown` times that.
    """

    dropout: float = 0.0
    straggler: float = 0.0
    slowdown: float = 5.0
    deadline: float | None = None
    quorum: float = 0.5
    retries: int = 3

    def absent(self, cohort: Sequence[int], job: Job, round: int, attempt: int) -> dict[int, str]:
        """Return the clients that will not respond in time, with the reason for each."""
        reasons: dict[int, str] = {}
        if not self.dropout and self.deadline is None:
            return reasons
        typical = _median_steps(job)
        for client in cohort:
            drops, slow = torch.rand(2, generator=generator(job.seed, "faults", round, attempt, client)).tolist()
            steps = job.local.steps(job.clients.size(client))
            time = steps / typical * (self.slowdown if slow < self.straggler else 1.0)
            if drops < self.dropout:
                reasons[client] = "dropped out"
            elif self.deadline is not None and time > self.deadline:
                reasons[client] = f"missed the deadline: {time:.1f} > {self.deadline:g} times the median client's time"
        return reasons

    def enough(self, answers: int, sampled: int) -> bool:
        """Return whether the quorum is reached; at least one response is always needed."""
        return answers >= max(self.quorum * sampled, 1)


def _median_steps(job: Job) -> float:
    sizes = [job.clients.size(client) for client in range(len(job.clients))]
    return float(np.median([job.local.steps(size) for size in sizes]))


Shapes = dict[str, torch.Size]


@dataclass(frozen=True)
class Expected:
    """The names and shapes of a valid upload; extras by their paths, such as 'scaffold|rate'."""

    delta: Shapes
    buffers: Shapes
    extras: Shapes

    @classmethod
    @torch.no_grad()
    def of(cls, job: Job, server: Server) -> Expected:
        """Determine what a client sends, by computing the extras of its parts for unchanged weights."""
        program = job.program(0, server.weights, broadcast(job.algorithm, server))
        counts = torch.ones(job.classes, dtype=torch.long, device=job.model.device)
        client = program.client(program.memory({}), job.classes, counts)
        carried = program.init(client)["carried"]
        _, extras = program.finish(Local(client=client, weights=client.origin, steps=1, carried=carried))
        sent = job.algorithm.sharing.traveling(program.origin)
        return cls(
            {name: value.shape for name, value in sent.params.items()},
            {name: value.shape for name, value in sent.buffers.items()},
            {path: value.shape for path, value in tree.flatten(extras).items()},
        )

    def holding(self, classes: int) -> Expected:
        """Return the shapes for a client with `classes` classes, which sends only the rows of those classes."""
        rows = {
            path: torch.Size((classes, *shape[1:])) if path.startswith(f"{Sharing.name}|") else shape
            for path, shape in self.extras.items()
        }
        return replace(self, extras=rows)


def rejection_reasons(uploads: Uploads, expected: Expected) -> list[str | None]:
    """Return why each upload must be rejected (wrong names, wrong shapes, not finite), or None."""
    mismatch = (
        _find_mismatch("parameter", uploads.delta, expected.delta)
        or _find_mismatch("buffer", uploads.buffers, expected.buffers)
        or _find_mismatch("extra", tree.flatten(uploads.extras), expected.extras)
    )
    if mismatch:
        return [mismatch] * len(uploads)
    return [
        None if step is None and finite else _describe_divergence(uploads.metrics, index, step)
        for index, (step, finite) in enumerate(zip(uploads.broken_step, uploads.finite, strict=True))
    ]


def _find_mismatch(kind: str, sent: Params, expected: Shapes) -> str | None:
    """Describe the first wrong name or shape in a stack of tensors."""
    for name, value in sent.items():
        if name not in expected:
            return f"sent the unknown {kind} '{name}'"
        if value.shape[1:] != expected[name]:
            return f"sent '{name}' with shape {tuple(value.shape[1:])} instead of {tuple(expected[name])}"
    missing = expected.keys() - sent.keys()
    return f"did not send the {kind} '{min(missing)}'" if missing else None


def _diverged_terms(metrics: Mapping[str, Sequence[float]], index: int) -> str:
    """Name the objective terms whose mean loss is not finite, if the objective has several."""
    prefix = "train_loss/"
    terms = [name for name in metrics if name.startswith(prefix) and not math.isfinite(metrics[name][index])]
    return f" in {' and '.join(name.removeprefix(prefix) for name in terms)}" if terms else ""


def _describe_divergence(metrics: Mapping[str, Sequence[float]], index: int, broken_step: int | None) -> str:
    if broken_step is None:
        return "its update was not finite"
    return f"its loss was not finite at local step {broken_step}{_diverged_terms(metrics, index)}"
