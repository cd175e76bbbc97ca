"""The cohort of a round: sampling, simulated faults, and checks of uploads."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.job import Roster, ServerJob
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.core.round import broadcast
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Local, Server
from fedra.privacy.secret import Secret

FIGURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}")
"""Names of figures that a client may report."""

NOT_NEGATIVE = ("running_var", "num_batches_tracked")
"""Last words of running statistics that cannot be negative."""


@dataclass(frozen=True)
class CohortRule:
    """Samples a share of the clients for each round, and for each repetition of a round."""

    fraction: float = 1.0
    sampling: Literal["keyed", "legacy", "poisson", "rotation"] = "keyed"
    secret: Secret | None = None  # where private cohorts come from, in place of the seed

    def size(self, clients: int) -> int:
        """Return the size of the cohort, at least 1."""
        return max(int(self.fraction * clients + 1e-9), 1)

    def sample(self, clients: Roster, seed: int, round: int, attempt: int) -> list[int]:
        """Sample the clients of a round, largest first: every runner starts and combines them in this order."""
        count = len(clients)
        size = self.size(count)
        if self.sampling == "poisson":
            drawn = self._sample_independently(count, seed, round, attempt)
        elif self.sampling == "rotation":
            drawn = self._take_turns(count, seed, round)
        elif size == count:
            drawn = list(range(count))
        elif self.sampling == "legacy":
            drawn = np.random.RandomState(round + attempt * 100_003).choice(count, size, replace=False).tolist()
        else:
            drawn = torch.randperm(count, generator=generator(seed, "cohort", round, attempt))[:size].tolist()
        found, sizes = np.array(drawn, dtype=np.int64), np.fromiter(map(clients.size, drawn), np.int64)
        ordered: list[int] = found[np.lexsort((found, -sizes))].tolist()
        return ordered

    def rounds_apart(self, clients: int) -> int:
        """Return the fewest rounds from one turn of a client to its next: more than 1 in rotation alone."""
        return clients // self.size(clients) if self.sampling == "rotation" else 1

    def _take_turns(self, clients: int, seed: int, round: int) -> list[int]:
        """Return the next clients of one endless row; a repeated round asks the same ones, so turns stay apart."""
        order: list[int] = torch.randperm(clients, generator=generator(seed, "rotation")).tolist()
        size = self.size(clients)
        return [order[place % clients] for place in range(round * size, (round + 1) * size)]

    def _sample_independently(self, clients: int, seed: int, round: int, attempt: int) -> list[int]:
        """Sample each client with probability `fraction`; the cohort may be empty."""
        if self.secret is not None:
            uniforms = self.secret.uniforms(clients, "cohort", round, attempt)
        else:
            uniforms = torch.rand(clients, generator=generator(seed, "cohort", round, attempt)).numpy()
        found: list[int] = np.flatnonzero(uniforms < self.fraction).tolist()
        return found


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

    def absent(self, cohort: Sequence[int], job: ServerJob, round: int, attempt: int) -> dict[int, str]:
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

    def enough(self, answers: int, sampled: int, least: int = 1) -> bool:
        """Return whether the quorum is reached; at least `least` responses are always needed."""
        return answers >= max(self.quorum * sampled, least)


def _median_steps(job: ServerJob) -> float:
    sizes = [job.clients.size(client) for client in range(len(job.clients))]
    return float(np.median([job.local.steps(size) for size in sizes]))


class Form(NamedTuple):
    """The shape and the number type of a tensor."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, value: Tensor) -> Form:
        """Return the form of a tensor."""
        return cls(value.shape, value.dtype)


Forms = dict[str, Form]


@dataclass(frozen=True)
class Expected:
    """The names, shapes and types of a valid upload; extras by their paths, such as 'scaffold|rate'."""

    delta: Forms
    buffers: Forms
    extras: Forms

    @classmethod
    def of(cls, job: ServerJob, server: Server) -> Expected:
        """Determine what a client sends to this server."""
        return cls.of_weights(job, server.weights, broadcast(job.algorithm, server))

    @classmethod
    @torch.no_grad()
    def of_weights(cls, job: ServerJob, weights: Weights, received: Tree) -> Expected:
        """Determine what a client sends, by computing the extras of its parts for unchanged weights."""
        program = job.program(0, weights, received)
        counts = torch.ones(job.classes, dtype=torch.long, device=job.model.device)
        client = program.client(program.memory({}), job.classes, counts)
        carried = program.init(client)["carried"]
        _, extras = program.finish(Local(client=client, weights=client.origin, steps=1, carried=carried))
        if job.algorithm.upload is not None:
            del extras[job.algorithm.upload.name]  # the change itself
        sent = job.algorithm.sharing.traveling(program.origin)
        groups = (sent.params, sent.buffers, tree.flatten(extras))
        return cls(*({name: Form.of(value) for name, value in group.items()} for group in groups))

    def holding(self, classes: int) -> Expected:
        """Return the forms for a client with `classes` classes, which sends only the rows of those classes."""
        rows = {
            path: form._replace(shape=torch.Size((classes, *form.shape[1:])))
            if path.startswith(f"{Sharing.name}|")
            else form
            for path, form in self.extras.items()
        }
        return replace(self, extras=rows)


def rejection_reasons(uploads: Uploads, expected: Expected, sizes: Sequence[range] = ()) -> list[str | None]:
    """Return why each upload must be rejected, or None: wrong names, shapes, types or counts, or impossible numbers.

    `sizes` are the numbers of examples that each client may have trained on; without them, any positive number is
    accepted. The number is the upload's weight in the mean.
    """
    mismatch = (
        _find_mismatch("parameter", uploads.delta, expected.delta)
        or _find_mismatch("buffer", uploads.buffers, expected.buffers)
        or _find_mismatch("extra", tree.flatten(uploads.extras), expected.extras)
        or _find_foreign_figure(uploads.metrics)
    )
    if mismatch:
        return [mismatch] * len(uploads)
    impossible = _impossible_statistics(uploads.buffers, len(uploads))
    if _are_plausible(uploads, sizes) and not any(impossible):
        return [None] * len(uploads)
    return [
        _miscounted(uploads, index, sizes[index] if sizes else None)
        or _misreported(uploads.metrics, index)
        or impossible[index]
        or (None if step is None and finite else _describe_divergence(uploads.metrics, index, step))
        for index, (step, finite) in enumerate(zip(uploads.broken_step, uploads.finite, strict=True))
    ]


def possible_sizes(job: ServerJob, clients: Sequence[int]) -> list[range]:
    """Return how many examples each client may train on: its own, and public ones if there are any."""
    public = 0 if job.public is None else len(job.public.examples)
    sizes = list(map(job.clients.size, clients))
    each = {size: range(size, size + public + 1) for size in set(sizes)}
    return list(map(each.__getitem__, sizes))


def _are_plausible(uploads: Uploads, sizes: Sequence[range]) -> bool:
    """Return whether all uploads of a stack pass all checks, without a look at each."""
    numbers = {kind for values in uploads.metrics.values() for kind in set(map(type, values))}
    return (
        min(uploads.examples) >= 1
        and all(map(operator.contains, sizes, uploads.examples))
        and min(uploads.steps) >= 1
        and all(0 < effective < math.inf for effective in set(uploads.effective_steps))
        and numbers <= {int, float}
        and set(uploads.broken_step) == {None}
        and all(uploads.finite)
    )


def _miscounted(uploads: Uploads, index: int, size: range | None) -> str | None:
    """Describe a number of examples or steps that cannot be right."""
    examples, steps, effective = uploads.examples[index], uploads.steps[index], uploads.effective_steps[index]
    if examples < 1 or (size is not None and examples not in size):
        known = "at least 1" if size is None else f"{size[0]}" if len(size) == 1 else f"{size[0]} to {size[-1]}"
        return f"sent {examples} examples instead of {known}"
    if steps < 1 or not 0 < effective < math.inf:
        return f"sent {steps} local steps (effectively {effective:g}) instead of at least 1"
    return None


def _find_mismatch(kind: str, sent: Params, expected: Forms) -> str | None:
    """Describe the first wrong name, shape or type in a stack of tensors."""
    for name, value in sent.items():
        if name not in expected:
            return f"sent the unknown {kind} '{name}'"
        shape, dtype = expected[name]
        if value.shape[1:] != shape:
            return f"sent '{name}' with shape {tuple(value.shape[1:])} instead of {tuple(shape)}"
        if value.dtype != dtype:
            return f"sent '{name}' as {value.dtype} instead of {dtype}".replace("torch.", "")
    missing = expected.keys() - sent.keys()
    return f"did not send the {kind} '{min(missing)}'" if missing else None


def is_figure(name: object) -> bool:
    """Return whether a name of a client's figure can be written to files and terminals."""
    return isinstance(name, str) and FIGURE.fullmatch(name) is not None


def _find_foreign_figure(metrics: Mapping[str, Sequence[float]]) -> str | None:
    """Describe the first figure whose name is not a plain word, and missing ones."""
    for name in metrics:
        if not is_figure(name):
            return f"sent a figure named {str(name)[:40]!a}, which is not a plain name"
    return None if "train_loss" in metrics else "did not send the figure 'train_loss'"


def _misreported(metrics: Mapping[str, Sequence[float]], index: int) -> str | None:
    """Describe a figure that is not a number."""
    for name, values in metrics.items():
        if isinstance(values[index], bool) or not isinstance(values[index], int | float):
            return f"sent the figure '{name}' as {type(values[index]).__name__} instead of a number"
    return None


def _impossible_statistics(buffers: Params, clients: int) -> list[str | None]:
    """Describe for each client a running statistic that no data can have: a negative variance or count."""
    found: list[str | None] = [None] * clients
    for name, value in buffers.items():
        if name.rpartition(".")[2] in NOT_NEGATIVE and value.numel():
            for index, low in enumerate(value.reshape(clients, -1).amin(dim=1).tolist()):
                if low < 0:
                    found[index] = f"sent '{name}' with the negative value {low:g}"
    return found


def _diverged_terms(metrics: Mapping[str, Sequence[float]], index: int) -> str:
    """Name the objective terms whose mean loss is not finite, if the objective has several."""
    prefix = "train_loss/"
    terms = [name for name in metrics if name.startswith(prefix) and not math.isfinite(metrics[name][index])]
    return f" in {' and '.join(name.removeprefix(prefix) for name in terms)}" if terms else ""


def _describe_divergence(metrics: Mapping[str, Sequence[float]], index: int, broken_step: int | None) -> str:
    if broken_step is None:
        return "its update was not finite"
    return f"its loss was not finite at local step {broken_step}{_diverged_terms(metrics, index)}"
