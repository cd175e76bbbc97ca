"""The engine of a federation's run: the sites train and test, and late sites are taken in between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedra.callbacks.best_model import BestModel
from fedra.callbacks.callback import Callback
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.core.round import broadcast
from fedra.experiment.build import ServerBuilt
from fedra.experiment.plan import Observer
from fedra.federation.federated_runner import FederatedRunner
from fedra.federation.site_tests import accuracy_of, pool_tests, prefix_tests
from fedra.runners import Runner
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State

if TYPE_CHECKING:
    from fedra.federation.serve import Coordinator


def grow_rows(job: ServerJob, weights: Weights) -> Weights:
    """Return the weights with rows for classes that are new; the others stay as they are."""
    if job.owners is None:
        return weights
    fresh = job.initial()
    params = dict(weights.params)
    for name in job.owned:
        if name in params and len(params[name]) < len(fresh.params[name]):
            rows = fresh.params[name].clone()
            rows[: len(params[name])] = params[name]
            params[name] = rows
    return Weights(params, weights.buffers)


class FederatedEngine:
    """The sites train and test; this machine has no client's data."""

    def __init__(self, coordinator: Coordinator, built: ServerBuilt) -> None:
        self._coordinator = coordinator
        self.job, self.built = built.job, built
        self.runner = FederatedRunner(
            coordinator.plan,
            built.job,
            coordinator.roster,
            coordinator.exchange,
            coordinator.inbox,
            coordinator.watch,
            coordinator.open_secure_rounds(),
        )

    def take(self, built: ServerBuilt) -> None:
        """Go on with another job, after the roster grew."""
        self.job, self.built = built.job, built
        self.runner.take(built.job, self._coordinator.roster)

    @contextmanager
    def open_runner(self, console: Console | None) -> Iterator[Runner]:
        yield self.runner

    def observers(self, past: list[dict[str, Any]]) -> tuple[Observer, ...]:
        return ()

    def grow(self, state: State) -> bool:
        return self._coordinator.admit_new(state, self)

    def final_tests(
        self, state: State, folder: RunFolder | None, console: Console | None, best: BestModel | None
    ) -> dict[str, Any]:
        """Let sites save the final model, and test it and their own models on their held-out data."""
        received = broadcast(self.job.algorithm, state.server)
        found = self.runner.ask_tests(state.round, state.server.weights, received, final=True)
        pooled = prefix_tests(pool_tests(found))
        by_site: dict[str, Any] = {}
        for site, tests in found.items():
            if isinstance(tests, str):
                by_site[site] = {"reason": tests}
                continue
            own = [one.own_correct for one in tests if one.own_correct is not None]
            count = sum(one.examples for one in tests)
            by_site[site] = {"examples": count, "accuracy": accuracy_of(tests) if tests else None}
            if own and count:
                by_site[site]["personal_accuracy"] = sum(own) / count
        return {**pooled, "sites": by_site}


class StopWhenAsked(Callback):
    """Ends the process' part after a round if somebody asked for it; the same command goes on later."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def on_round_end(self, run: Any, report: Any) -> None:
        if self._asked() and run.round < run.rounds:
            raise KeyboardInterrupt
