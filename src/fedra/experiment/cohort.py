"""Who takes part in a round, who fails in it, and whose answer is refused."""

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
            steps = job.local.steps(job.clients.size(client))
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
    return float(np.median([job.local.steps(size) for size in sizes]))


Shapes = dict[str, torch.Size]


@dataclass(frozen=True)
class Expected:
    """The names and shapes of an honest upload; extras by their paths, such as 'scaffold|rate'."""

    delta: Shapes
    buffers: Shapes
    extras: Shapes

    @classmethod
    @torch.no_grad()
    def of(cls, job: Job, server: Server) -> Expected:
        """What a client sends in this round: its parts are asked for their extras as if it had not moved."""
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
        """The same of a client that holds so many classes: of parameters that belong to classes it sends its rows."""
        rows = {
            path: torch.Size((classes, *shape[1:])) if path.startswith(f"{Sharing.name}|") else shape
            for path, shape in self.extras.items()
        }
        return replace(self, extras=rows)


def refusals(uploads: Uploads, expected: Expected) -> list[str | None]:
    """Why each upload must not be folded in, or None: wrong names, wrong shapes, or not finite."""
    misfit = (
        _misfit("parameter", uploads.delta, expected.delta)
        or _misfit("buffer", uploads.buffers, expected.buffers)
        or _misfit("extra", tree.flatten(uploads.extras), expected.extras)
    )
    if misfit:
        return [misfit] * len(uploads)
    return [
        None if step is None and finite else _unsound(uploads.figures, place, step)
        for place, (step, finite) in enumerate(zip(uploads.broken_step, uploads.finite, strict=True))
    ]


def _misfit(kind: str, sent: Params, expected: Shapes) -> str | None:
    """What is wrong with the names or the shapes of a stack of tensors."""
    for name, value in sent.items():
        if name not in expected:
            return f"sent the unknown {kind} '{name}'"
        if value.shape[1:] != expected[name]:
            return f"sent '{name}' with shape {tuple(value.shape[1:])} instead of {tuple(expected[name])}"
    missing = expected.keys() - sent.keys()
    return f"did not send the {kind} '{min(missing)}'" if missing else None


def _blamed(figures: Mapping[str, Sequence[float]], place: int) -> str:
    """The terms of the objective whose mean loss is not finite, where there are several."""
    prefix = "train_loss/"
    terms = [name for name in figures if name.startswith(prefix) and not math.isfinite(figures[name][place])]
    return f" in {' and '.join(name.removeprefix(prefix) for name in terms)}" if terms else ""


def _unsound(figures: Mapping[str, Sequence[float]], place: int, broken_step: int | None) -> str:
    if broken_step is None:
        return "its update was not finite"
    return f"its loss was not finite at local step {broken_step}{_blamed(figures, place)}"
