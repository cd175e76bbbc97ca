"""Who takes part in a round, who fails in it, and whose answer is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedra.core import tree
from fedra.core.job import Clients, Job
from fedra.core.random import generator
from fedra.core.view import Server, Upload


@dataclass(frozen=True)
class CohortRule:
    """A share of the clients, drawn anew each round (and each time a round is repeated)."""

    fraction: float = 1.0
    sampling: Literal["keyed", "legacy"] = "keyed"

    def size(self, clients: int) -> int:
        """How many of so many clients take part; at least one does."""
        return max(int(self.fraction * clients + 1e-9), 1)

    def sample(self, clients: Clients, seed: int, round: int, attempt: int) -> list[int]:
        """The round's clients, largest first: the order in which every runner begins them and folds their answers."""
        count = len(clients)
        size = self.size(count)
        if self.sampling == "legacy":
            drawn = np.random.RandomState(round + attempt * 100_003).choice(count, size, replace=False).tolist()
        else:
            drawn = torch.randperm(count, generator=generator(seed, "cohort", round, attempt))[:size].tolist()
        return sorted(drawn, key=lambda client: (-clients.size(client), client))


@dataclass(frozen=True)
class FaultRule:
    """Simulated failures, and how many answers a round needs.

    A client's time is its number of local steps over the median client's; a straggler takes `slowdown` times that.
    """

    dropout: float = 0.0
    straggler: float = 0.0
    slowdown: float = 5.0
    deadline: float | None = None
    quorum: float = 0.5
    retries: int = 3

    def absent(self, cohort: Sequence[int], job: Job, round: int, attempt: int) -> dict[int, str]:
        """The clients that will not answer in time, each with the reason."""
        reasons: dict[int, str] = {}
        if not self.dropout and self.deadline is None:
            return reasons
        typical = _median_steps(job)
        for client in cohort:
            drops, slow = torch.rand(2, generator=generator(job.seed, "faults", round, attempt, client)).tolist()
            steps = job.local.schedule.steps(job.clients.size(client))
            time = steps / typical * (self.slowdown if slow < self.straggler else 1.0)
            if drops < self.dropout:
                reasons[client] = "dropped out"
            elif self.deadline is not None and time > self.deadline:
                reasons[client] = f"missed the deadline: {time:.1f} > {self.deadline:g} times the median client's time"
        return reasons

    def enough(self, answers: int, sampled: int) -> bool:
        """Whether the quorum is reached; at least one answer is always needed."""
        return answers >= max(self.quorum * sampled, 1)


def _median_steps(job: Job) -> float:
    sizes = [job.clients.size(client) for client in range(len(job.clients))]
    return float(np.median([job.local.schedule.steps(size) for size in sizes]))


def refusal(upload: Upload, server: Server) -> str | None:
    """Why an upload must not be folded in, or None: wrong names, wrong shapes, or not finite."""
    expected = server.weights.params
    for name, value in upload.delta.items():
        if name not in expected:
            return f"sent the unknown parameter '{name}'"
        if value.shape != expected[name].shape:
            return f"sent '{name}' with shape {tuple(value.shape)} instead of {tuple(expected[name].shape)}"
    if upload.broken_step is not None:
        return f"its loss was not finite at local step {upload.broken_step}"
    extras = {name: value for name, value in tree.flatten(upload.extras).items() if value.is_floating_point()}
    tracked = {name: value for name, value in upload.buffers.items() if value.is_floating_point()}
    if not (tree.is_finite(upload.delta) and tree.is_finite(extras) and tree.is_finite(tracked)):
        return "its update was not finite"
    return None
