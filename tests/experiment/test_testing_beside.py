"""Tests that go on beside the next round's training: the same figures, and no round lost with the one after it."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import toy
from fedra.algorithms import moon
from fedra.callbacks.callback import RoundReport
from fedra.core.job import Job
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds
from fedra.runners import RUNNERS, Result, Runner
from fedra.runners.processes import ProcessRunner, processes
from fedra.storage.state import State


@pytest.fixture
def job() -> Job:
    """A job whose test is several portions long; MOON remembers from round to round."""
    whole = toy.job(moon(), toy.mlp(torch.float32), toy.clients())
    return replace(whole, test=toy.clients(sizes=(6300, 6, 9))[0])


@pytest.fixture
def pool(job: Job) -> Iterator[ProcessRunner]:
    runner = processes(job, workers=2)
    assert isinstance(runner, ProcessRunner)
    yield runner
    runner.close()


def told(job: Job, runner: Runner, plan: Plan) -> tuple[State, list[RoundReport]]:
    state = State.fresh(job)
    return state, list(rounds(job, runner, plan, state))


def metrics(reports: list[RoundReport]) -> list[dict[str, Any]]:
    return [{name: value for name, value in report.metrics.items() if name != "seconds"} for report in reports]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_same_rounds_as_in_one_process(job: Job, pool: ProcessRunner, every: int) -> None:
    plan = Plan(5, evaluate_every=every)
    alone, wanted = told(job, RUNNERS["sequential"](job), plan)
    state, found = told(job, pool, plan)
    assert metrics(found) == metrics(wanted)
    assert [report.clients for report in found] == [report.clients for report in wanted]
    assert state.round == alone.round == 5
    assert toy.same_bits(state.server.weights.params, alone.server.weights.params)
    assert all(
        toy.same_bits(state.memory.get(client)["moon"], alone.memory.get(client)["moon"])  # type: ignore[union-attr, index]
        for client in range(3)
        if "moon" in (state.memory.get(client) or {})
    )


def test_the_next_round_trains_while_a_test_goes_on(job: Job, pool: ProcessRunner) -> None:
    """The first round is told when the second is trained; the last waits for nothing."""
    trained: list[int] = []
    begin = pool.train
    pool.train = lambda round, *words: (trained.append(round), begin(round, *words))[1]  # type: ignore[method-assign, func-returns-value]
    seen = [(report.metrics["round"], len(trained)) for report in rounds(job, pool, Plan(3), State.fresh(job))]
    assert seen == [(1, 2), (2, 3), (3, 3)]


class Watching:
    """An observer that counts what it saw of a round."""

    def __init__(self) -> None:
        self.uploads = 0

    def begin(self) -> None:
        self.uploads = 0

    def upload(self, client: int, upload: object, before: object) -> dict[str, float]:
        self.uploads += 1
        return {}

    def server_step(self, combined: object, server: object) -> None: ...

    def round(self, server: object, counts: object) -> dict[str, Any]:
        return {"seen": self.uploads}


def test_an_observer_sees_its_own_round_alone(job: Job, pool: ProcessRunner) -> None:
    trained: list[int] = []
    begin = pool.train
    pool.train = lambda round, *words: (trained.append(round), begin(round, *words))[1]  # type: ignore[method-assign, func-returns-value]
    plan = Plan(2, observers=(Watching(),))
    seen = [(report.metrics["seen"], len(trained)) for report in rounds(job, pool, plan, State.fresh(job))]
    assert seen == [(3, 1), (3, 2)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_round_is_not_lost_with_the_next(job: Job, pool: ProcessRunner, error: type[BaseException]) -> None:
    """Round 3 breaks in the middle of its training, while round 2 is being tested: round 2 is told and kept."""
    _, wanted = told(job, RUNNERS["sequential"](job), Plan(4))
    begin = pool.train

    def broken(round: int, *words: Any) -> Iterator[Result]:
        for place, result in enumerate(begin(round, *words)):
            if (round, place) == (2, 1):
                raise error("enough")
            yield result

    pool.train = broken  # type: ignore[method-assign, assignment]
    state, found = State.fresh(job), list[RoundReport]()
    with pytest.raises(error, match="enough"):
        found.extend(rounds(job, pool, Plan(4), state))
    assert metrics(found) == metrics(wanted[:2])
    assert state.round == 2


def test_a_worker_killed_over_a_test_is_replaced(job: Job, pool: ProcessRunner) -> None:
    weights = job.initial()
    test = pool.start_evaluation(weights)
    assert not test.ready
    pool._assign(deque(), lambda task: task)
    os.kill(pool._workers[0].process.pid, signal.SIGKILL)
    found, wanted = test.counts(), RUNNERS["sequential"](job).evaluate(weights)
    assert torch.equal(found.correct, wanted.correct)
    assert found.loss == wanted.loss
    assert all(worker.process.is_alive() for worker in pool._workers)


def test_a_second_test_waits_for_the_first(job: Job, pool: ProcessRunner) -> None:
    """Both use the one place where workers look for the model that is tested."""
    weights = job.initial()
    other = weights._replace(params={name: value + 1 for name, value in weights.params.items()})
    first, second = pool.start_evaluation(weights), pool.start_evaluation(other)
    assert first.ready
    alone = RUNNERS["sequential"](job)
    assert first.counts().loss == alone.evaluate(weights).loss
    assert second.counts().loss == alone.evaluate(other).loss
