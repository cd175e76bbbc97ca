"""A run in which every client's local steps are private: its keys, what each client has spent, its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedra.config.schema import Config
from fedra.core.algorithm import Algorithm
from fedra.core.job import Job, ServerJob
from fedra.core.private_steps import with_key
from fedra.core.secret_numbers import Secret
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server
from fedra.errors import ConfigError
from fedra.experiment.cohort import Expected
from fedra.experiment.plan import Folding, PlainFolding, Plan, RoundFold
from fedra.parts.private_gradient import ROUNDS, PrivateGradient
from fedra.privacy.accounting import accountant_name
from fedra.privacy.compatible import check_delta, check_examples
from fedra.privacy.example_level import ExampleAccount, Exposure, exposure_of, noise_for_examples
from fedra.privacy.statement import PrivacyStatement, example_statement
from fedra.storage.state import State

UNCOVERED = ("train_loss",)
"""Metrics of a round that single examples move."""
DEFAULT_CLIP = 1.0


def add_example_privacy(config: Config, job: ServerJob, numbers: Sequence[int] | None = None) -> Algorithm:
    """Return the algorithm with private local steps, after checking that it can have them.

    `numbers` are those of the clients, by default from 0 on.
    """
    privacy, algorithm = config.privacy, job.algorithm
    check_examples(
        algorithm,
        moves_buffers=job.moves_buffers,
        mixes=not job.model.per_example,
        counts_public=privacy.counts == "public",
        public_data=job.public is not None,
    )
    if job.model.dtype.itemsize < 4:
        raise ConfigError(
            f"private steps need weights of at least 32 bits, got {job.model.dtype}: the clip would be lost in "
            "rounding; set precision to 'float32' or to a mixed one"
        )
    exposures = exposures_of(config, job, numbers)
    delta = check_delta(privacy.delta, max(_sizes(job, numbers)), "examples of its largest client")
    if privacy.noise != "auto":
        noise = privacy.noise
    else:
        assert privacy.epsilon is not None  # check_privacy
        noise = noise_for_examples(privacy.epsilon, delta, exposures, expected_rounds(config))
    part = PrivateGradient(clip=example_clip(config), noise=noise, batch=config.local.batch, clients=len(job.clients))
    return replace(algorithm, gradient=(part, *algorithm.gradient))


def example_clip(config: Config) -> float:
    """Return the norm to which an example's gradient is clipped."""
    clip = config.privacy.clip
    if clip == "adaptive":
        raise ConfigError(
            "privacy.clip must be a norm at the level of examples, got 'adaptive': set a number, such as 1.0"
        )
    return DEFAULT_CLIP if clip is None else clip


def expected_rounds(config: Config) -> int:
    """Return in how many rounds a client is expected to take part."""
    return max(math.ceil(config.rounds * config.cohort.fraction - 1e-9), 1)


def exposures_of(config: Config, job: ServerJob, numbers: Sequence[int] | None = None) -> list[Exposure]:
    """Return every client's exposure in a round; a site may have rounded its number of examples to two digits."""
    amplified = config.privacy.amplification == "auto"
    found = []
    for size in _sizes(job, numbers):
        slack = 0 if isinstance(job, Job) else 10 ** max(len(str(size)) - 2, 0) // 2 + 1
        slack = slack if len(str(size)) > 2 else 0
        found.append(exposure_of(job.local, max(size - slack, 1), size + slack, amplified))
    return found


@dataclass
class ExampleRun:
    """The example-level privacy of one run; `inner` folds the uploads, which are private already."""

    config: Config
    job: ServerJob
    secret: Secret
    secret_path: Path | None = None
    inner: Folding = field(default_factory=PlainFolding)
    _taking_part: set[int] = field(default_factory=set)

    @property
    def part(self) -> PrivateGradient:
        """The rule that makes local steps private."""
        found = self.job.algorithm.gradient[0]
        assert isinstance(found, PrivateGradient)  # add_example_privacy
        return found

    @property
    def least(self) -> int:
        """Fewest uploads of a round: none if all sampled clients have spent their budgets."""
        return self.inner.least if self.config.privacy.epsilon is None else 0

    @cached_property
    def account(self) -> ExampleAccount:
        """What clients lose."""
        assert self.config.privacy.delta is not None  # check_delta
        exposures = tuple(exposures_of(self.config, self.job))
        return ExampleAccount(self.part.noise, self.config.privacy.delta, exposures)

    @cached_property
    def limits(self) -> list[int]:
        """In how many rounds each client may take part."""
        rounds, epsilon = self.config.rounds, self.config.privacy.epsilon
        if epsilon is None:
            return [rounds] * len(self.job.clients)
        found = self.account.limits(epsilon, rounds)
        if not any(found):
            raise ConfigError(
                f"privacy.epsilon = {epsilon:g} must allow at least one round, but one round with noise "
                f"{self.part.noise:g} costs {self.account.largest([1] * len(found)):.2f}: raise noise or epsilon"
            )
        return found

    def change(self, plan: Plan) -> Plan:
        """Return the plan whose rounds count what clients spend."""
        return replace(plan, folding=self)

    def announcement(self, rounds: int) -> str:
        """Return what the screen says before the first round."""
        each = min(expected_rounds(self.config), max(self.limits))
        statement = self._statement([each] * len(self.job.clients))
        until = f" after {each} rounds of a client" if self.config.cohort.fraction < 1 else f" after {each} rounds"
        ends = "; a client that has spent its budget is not asked any more" if min(self.limits) < rounds else ""
        return f"{statement.sentence()}{until}{ends}; not covered: {', '.join(statement.not_covered)}"

    def admit(self, server: Server, cohort: Sequence[int]) -> list[int]:
        """Return the clients of a cohort that have not spent their budget."""
        done = self.rounds_of(server)
        return [client for client in cohort if done[client] < self.limits[client]]

    def prepare(self, job: ServerJob, round: int, client: int, memory: Tree) -> Tree:
        """Return a client's state with its key; a site of a federation has its own keys."""
        self._taking_part.add(client)
        if not isinstance(job, Job):
            return memory
        return with_key(job.algorithm, memory, self.secret.derive("client", round, client))

    def fold(self, job: ServerJob, server: Server, round: int, attempt: int, expected: Expected) -> RoundFold:
        """Open the fold of a round; who was asked in a failed attempt at the same round still counts."""
        if attempt == 0:
            self._taking_part = set()
        return CountingFold(self, self.inner.fold(job, server, round, attempt, expected))

    def rounds_of(self, server: Server) -> list[int]:
        """Return in how many rounds each client took part so far."""
        clients = len(self.job.clients)
        known: list[int] = server.memory[self.part.name][ROUNDS].tolist()
        return known + [0] * (clients - len(known))  # of a federation that grew

    def count(self, server: Server) -> Server:
        """Return the server with one more round for everyone who was asked to train in this one."""
        done = torch.tensor(self.rounds_of(server))
        done[list(self._taking_part)] += 1
        return server.with_memory(self.part.name, {ROUNDS: done})

    def exhausted(self, state: State) -> bool:
        """Return whether no client may take part any more."""
        done = self.rounds_of(state.server)
        return all(count >= limit for count, limit in zip(done, self.limits, strict=True))

    def budget_spent(self, state: State) -> bool:
        """Return whether the run ended because no client may take part any more."""
        return self.exhausted(state)

    def record(self, server: Server, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a round that the guarantee covers, with what was spent so far."""
        privacy = self.config.privacy
        kept = metrics if privacy.figures == "all" else {k: v for k, v in metrics.items() if k not in UNCOVERED}
        tested = metrics["round"] % self.config.evaluation.every == 0 or metrics["round"] == self.config.rounds
        key = "epsilon" if privacy.seed == "secret" else "epsilon_if_secret"
        spent = self.account.largest(self.rounds_of(server)) if tested else math.inf
        return {**kept, key: spent if math.isfinite(spent) else None}

    def may_record_clients(self) -> bool:
        """Return whether clients.jsonl may be written: it has training losses."""
        return self.config.privacy.figures == "all"

    def statement_of(self, state: State) -> PrivacyStatement:
        """Return what is said about the run's privacy."""
        return self._statement(self.rounds_of(state.server), with_kinds=True)

    def _statement(self, rounds: Sequence[int], with_kinds: bool = False) -> PrivacyStatement:
        account, part, privacy = self.account, self.part, self.config.privacy
        spent, sizes = account.largest(rounds), _sizes(self.job)
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        alone = replace(account, exposures=(account.exposures[largest],))
        steps = max(one.after(count).releases for one, count in zip(account.exposures, rounds, strict=True))
        return example_statement(
            spent=spent,
            secret=privacy.seed == "secret",
            delta=account.delta,
            noise=part.noise,
            clip=part.clip,
            rate=max(one.rate for one in account.exposures),
            releases=steps,
            accountant=accountant_name(),
            median=account.median(rounds) if with_kinds else None,
            largest_client=alone.largest([rounds[largest]]) if with_kinds else None,
            counts_public=privacy.counts == "public",
            returns_rows=self.job.algorithm.owns_classes,
            all_figures=privacy.figures == "all",
        )

    def forget(self) -> None:
        """Remove the secret of a finished run, so no one can recompute its noise."""
        if self.secret_path is not None:
            self.secret_path.unlink(missing_ok=True)


class CountingFold:
    """Folds a round and counts it for everyone who was asked to train in it."""

    def __init__(self, run: ExampleRun, inner: RoundFold) -> None:
        self._run, self._inner = run, inner

    @property
    def uploads(self) -> int:
        return self._inner.uploads

    def add_stack(self, uploads: Uploads, clients: Sequence[int] = ()) -> None:
        self._inner.add_stack(uploads, clients)

    @property
    def factors(self) -> Mapping[int, float]:
        return self._inner.factors

    def add_rejected(self, clients: Sequence[int]) -> None:
        self._inner.add_rejected(clients)

    def add_sum(self, total: np.ndarray, clients: int, asked: int) -> None:
        self._inner.add_sum(total, clients, asked)

    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        """Return the server after the round; without uploads its model stays."""
        after = self._inner.finish(server, population, observe) if self.uploads else server
        return self._run.count(after)


def _sizes(job: ServerJob, numbers: Sequence[int] | None = None) -> list[int]:
    return [job.clients.size(client) for client in (range(len(job.clients)) if numbers is None else numbers)]
