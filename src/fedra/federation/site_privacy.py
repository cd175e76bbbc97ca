"""Example-level privacy at a site: its own secret, and what each of its clients has spent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from fedra.core.private_steps import private_steps, with_key
from fedra.core.secret_numbers import Secret
from fedra.core.tree import Tree
from fedra.errors import RunError
from fedra.experiment.example_run import exposures_of
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.policy import Policy
from fedra.federation.site_job import SiteJob
from fedra.federation.wire import Packet, TrainAsk
from fedra.parts.private_gradient import PrivateGradient
from fedra.privacy.example_level import ExampleAccount
from fedra.privacy.secret import read_secret, write_secret
from fedra.writing import write_atomically

Recall = Callable[[int], Tree]
"""From a client to the state that it trains from."""


class BudgetSpent(RunError):
    """A client of this site has spent its privacy budget; the sentence may leave the site."""


class SitePrivacy:
    """Gives a site's clients their keys, and counts every training on another model as one more release.

    The noise of a training depends on all that the coordinator sent, so no two models are answered with the same
    noise, and the same question again costs nothing.
    """

    def __init__(self, state: Path, plan: FederationPlan, job: SiteJob, policy: Policy) -> None:
        self._state, self._plan, self._job, self._policy = state, plan, job, policy

    def add_keys(self, ask: Packet, words: TrainAsk, recall: Recall) -> Recall:
        """Return `recall` with each client's key, after counting the training of all clients that are asked.

        Args:
            ask: The question, with the model.
            words: Its words.
            recall: Returns a client's state.

        Returns:
            The states with keys; `recall` itself if the plan's local steps are not private.

        Raises:
            BudgetSpent: If one more training would exceed the plan's or the policy's epsilon.
        """
        if private_steps(self._job.algorithm) is None:
            return recall
        marks = {client: self._mark(ask, words, client) for client in words.cohort}
        self._count(marks)
        secret, shown = self._secret(), self._plan.config.privacy.seed == "run"

        def keyed(client: int) -> Tree:
            purpose = "client" if shown else f"client {marks[client]}"
            return with_key(self._job.algorithm, recall(client), secret.derive(purpose, words.round, client))

        return keyed

    def _mark(self, ask: Packet, words: TrainAsk, client: int) -> str:
        """Return a digest of all that a client's training depends on."""
        found = hashlib.sha256(f"{words.plan}/{words.round}/{client}/{words.memory.get(client)}".encode())
        for name in ("shared", "own"):
            found.update(hashlib.sha256(ask.blobs.get(name, b"")).digest())
        return found.hexdigest()

    def _count(self, marks: dict[int, str]) -> None:
        """Write down the trainings before they happen, and raise if a budget does not allow them."""
        path = self._state / "privacy.json"
        known: dict[str, list[str]] = json.loads(path.read_bytes()) if path.exists() else {}
        limits = self._limits()
        for client, mark in marks.items():
            own = known.setdefault(str(client), [])
            if mark in own:
                continue
            if len(own) >= limits[client]:
                raise BudgetSpent(f"client {client} has spent its privacy budget in {len(own)} rounds")
            own.append(mark)
        write_atomically(path, json.dumps(known).encode(), private=True)

    def _limits(self) -> dict[int, int]:
        """Return in how many rounds each client may take part."""
        config, job = self._plan.config, self._job
        part = job.algorithm.gradient[0]
        assert isinstance(part, PrivateGradient)  # build_site_job
        assert config.privacy.delta is not None  # check_delta
        budgets = [one for one in (config.privacy.epsilon, self._policy.privacy.epsilon) if one is not None]
        numbers = list(job.clients.examples)
        account = ExampleAccount(part.noise, config.privacy.delta, tuple(exposures_of(config, job, numbers)))
        limits = account.limits(min(budgets), config.rounds) if budgets else [config.rounds] * len(numbers)
        return dict(zip(numbers, limits, strict=True))

    def _secret(self) -> Secret:
        if self._plan.config.privacy.seed == "run":
            return Secret.from_seed(self._plan.config.seed)
        path = self._state / "secret"
        if not path.exists():
            write_secret(path, Secret.create())
        return read_secret(path)
