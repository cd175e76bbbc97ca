"""Workers that know their next client before they are asked for the answer of this one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import fedavg, scaffold
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs
from fedra.core.job import Job
from fedra.core.tree import Tree
from fedra.runners.base import Results
from fedra.runners.handover import Channel
from fedra.runners.processes import ProcessRunner, processes

SIZES = (11, 6, 9, 8, 5, 7, 10, 4, 6)
COHORT = tuple(range(len(SIZES)))


@dataclass(frozen=True)
class Slow(AsIs):
    """Takes its time over every client."""

    def prepare(self, inputs: Tensor) -> Tensor:
        time.sleep(0.1)
        return inputs


def work(algorithm: Algorithm, transform: AsIs | None = None) -> Job:
    return toy.job(algorithm, toy.mlp(torch.float32), toy.clients(sizes=SIZES, transform=transform))


def pool(job: Job) -> ProcessRunner:
    runner = processes(job, workers=2, start_method="fork")
    assert isinstance(runner, ProcessRunner)
    return runner


def nothing(client: int) -> Tree:
    return {}


def deltas(results: Iterator[Results]) -> list[dict[str, Tensor]]:
    return [result.uploads[0].delta for result in results]


def wanted(algorithm: Algorithm) -> list[dict[str, Tensor]]:
    return [upload.delta for upload in toy.run(work(algorithm), (COHORT,)).uploads]


def same(found: list[dict[str, Tensor]], others: list[dict[str, Tensor]]) -> bool:
    return all(toy.same_bits(one, other) for one, other in zip(found, others, strict=True))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each message could be sent ahead, as a round goes on."""
    found: list[bool] = []
    send_if_short = Channel.send_if_short

    def noted(self: Channel, message: Any) -> bool:
        found.append(send_if_short(self, message))
        return found[-1]

    monkeypatch.setattr(Channel, "send_if_short", noted)
    return found


@pytest.mark.parametrize("algorithm", [fedavg(), scaffold()], ids=["fedavg", "scaffold"])
def test_the_bits_are_those_of_sequential(algorithm: Algorithm, told: list[bool]) -> None:
    runner = pool(work(algorithm))
    history = toy.start(work(algorithm))
    history.round(runner, work(algorithm), 0, COHORT)
    runner.close()
    assert toy.same_bits(history.params, toy.run(work(algorithm), (COHORT,)).params)
    assert told.count(True) >= 3


def test_two_answers_may_wait_to_be_read(told: list[bool]) -> None:
    """The second must not be written over the first."""
    runner = pool(work(fedavg()))
    found = []
    for result in runner.train(0, work(fedavg()).model.weights(), {}, COHORT, nothing):
        time.sleep(0.2)  # meanwhile both workers answer all that they were told
        found.append(result.uploads[0].delta)
    runner.close()
    assert any(told)
    assert same(found, wanted(fedavg()))


def test_a_killed_worker_loses_neither_of_its_clients(told: list[bool]) -> None:
    job = work(fedavg(), Slow())
    runner = pool(job)
    victim = runner._workers[0].process.pid
    asked: list[int] = []

    def memory(client: int) -> Tree:
        asked.append(client)
        if len(asked) == 4:  # both workers are at work, and the first knows its next client
            assert runner._workers[0].next is not None
            os.kill(victim, signal.SIGKILL)
        return {}

    found = deltas(runner.train(0, job.model.weights(), {}, COHORT, memory))
    runner.close()
    assert any(told)
    assert runner._workers == []
    assert same(found, wanted(fedavg()))


def test_a_round_that_is_broken_off_leaves_nothing_for_the_next() -> None:
    job = work(fedavg(), Slow())
    runner = pool(job)
    half = runner.train(3, job.model.weights(), {}, COHORT, nothing)
    next(half)
    half.close()  # type: ignore[attr-defined]
    found = deltas(runner.train(0, job.model.weights(), {}, COHORT, nothing))
    runner.close()
    assert same(found, wanted(fedavg()))


def test_what_no_pipe_holds_is_not_told_ahead(told: list[bool]) -> None:
    job = work(fedavg())
    runner = pool(job)
    asked: list[int] = []

    def memory(client: int) -> Tree:
        asked.append(client)
        return {"toy": {"long": torch.zeros(10_000)}}

    found = deltas(runner.train(0, job.model.weights(), {}, COHORT, memory))
    runner.close()
    assert told == [False]  # once a round, and not again
    assert sorted(asked) == sorted([*COHORT, 2])
    assert same(found, wanted(fedavg()))
