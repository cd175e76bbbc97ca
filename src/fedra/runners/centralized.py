"""Centralized training: one model on the pooled examples of all clients, the usual baseline.

The pool is trained as the only client of a federation, so objective, gradient rules, checkpoints and metrics work as in
any run. A round is one epoch; the optimizer's state is kept as client state, so it lasts from epoch to epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, ComparesWithOrigin
from fedra.core.evaluate import Counts
from fedra.core.job import Job, run_client
from fedra.core.local_training import LocalTraining
from fedra.core.model import Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import Part
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError
from fedra.runners import RUNNERS
from fedra.runners.base import MOST_WORKERS, Done, Evaluation, Result, Runner, threads
from fedra.runners.processes import default_workers
from fedra.runners.sequential import SequentialRunner

OPTIMIZER = "optimizer"
"""Key of the optimizer's state in the client state; no part has this name."""


class PersistentOptimizer(Optimizer):
    """The optimizer of one epoch: continues from the last epoch's state; its learning rate changes with every step."""

    def __init__(self, local: LocalTraining, epoch: int, steps: int, state: Tree, on_step: Callable[[], None]) -> None:
        first = local.at(epoch)
        super().__init__(first.lr, factors=first.factors)
        self._local, self._epoch, self._steps = local, epoch, steps
        self._done, self._on_step = 0, on_step
        self.state = state

    def init(self, params: Params) -> Tree:
        # A copy: an interrupted epoch must not change the state of the previous one.
        self.state = tree.each(self.state, torch.clone) or self._local.at(self._epoch).init(params)
        return self.state

    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        now = self._local.at(self._epoch + self._done / self._steps)
        self.state = now.step(params, gradient, state)
        self._done += 1
        self._on_step()
        return self.state


class CentralizedRunner:
    """See `centralized`; `on_step` is called after every step."""

    def __init__(self, job: Job, threads: int) -> None:
        check_centralized(job.algorithm)
        if len(job.clients) != 1 or job.local.epochs != 1:
            raise ConfigError(
                "the centralized runner must have one client and epochs = 1, got "
                f"{len(job.clients)} clients and epochs = {job.local.epochs}: put all examples into one client"
            )
        self._job = job
        self._threads = threads
        self._sequential = SequentialRunner(job, threads)
        self.steps = job.local.steps(job.clients.size(0))
        self.on_step: Callable[[], None] = lambda: None

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        job = self._job
        for client in cohort:
            stored = dict(memory(client))
            state = job.model.arrange_tree(stored.pop(OPTIMIZER, {}))
            optimizer = PersistentOptimizer(job.local, round, self.steps, state, self.on_step)
            with threads(self._threads):
                new_memory, upload = run_client(job, round, client, origin, received, stored, optimizer)
            yield Result(client, new_memory | ({OPTIMIZER: optimizer.state} if optimizer.state else {}), upload)

    def evaluate(self, weights: Weights) -> Counts:
        return self._sequential.evaluate(weights)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        """Do nothing."""


def check_centralized(algorithm: Algorithm) -> None:
    """Raise if a part makes no sense without clients, such as a proximal term, client state or a server rule."""
    for part in algorithm.all_parts():
        reason = _reason(part, algorithm)
        if reason is not None:
            raise ConfigError(
                f"centralized training cannot use the part '{part.name}', which {reason}: remove it, or use fedavg "
                "for plain training on the pooled examples"
            )


def _reason(part: Part, algorithm: Algorithm) -> str | None:
    if isinstance(part, Sharing):
        return "keeps parameters with clients" if part.has_state else None
    if part == algorithm.combine:
        return None if algorithm.combine.is_plain else "combines the uploads of several clients"
    if part == algorithm.personalize:
        return "trains a personal model for every client"
    if part in algorithm.server:
        return "changes the average of several clients"
    if isinstance(part, ComparesWithOrigin):
        return "compares with the model at the start of a round"
    if isinstance(part, ClientState) and not part.works_centralized:
        return "keeps client state"
    return None


@RUNNERS.add("centralized")
def centralized(job: Job, *, threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None) -> Runner:
    """Centralized training on the pooled examples of all clients, as a baseline; a round is one epoch.

    The optimizer's state lasts from epoch to epoch, and a learning-rate schedule advances with every step. Partition
    and objective come from the configuration. local.epochs, cohort, faults and client diagnostics do not apply, and
    the run says so. Parts that make no sense without clients are rejected. A batch uses all cores unless `threads` is
    set; the number of threads affects rounding.
    """
    return CentralizedRunner(job, threads or default_workers())
