"""The pool of processes: the reference's bits whatever dies, errors that say where, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import fedavg, moon, scaffold
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs
from fedra.core.job import Job
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params, Tree, flatten
from fedra.core.view import View
from fedra.errors import ConfigError, RunError
from fedra.runners import RUNNERS
from fedra.runners.base import threads
from fedra.runners.processes import ProcessRunner, default_workers, processes


@dataclass(frozen=True)
class Slow(AsIs):
    """Takes its time over every client."""

    def prepare(self, inputs: Tensor) -> Tensor:
        time.sleep(0.3)
        return inputs


@dataclass(frozen=True)
class Deadly(AsIs):
    """Kills the process that looks at it."""

    def prepare(self, inputs: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return inputs


@dataclass(frozen=True)
class ToyBroken(Term):
    """Fails on a batch of that size."""

    size: int = 3
    portable: bool = True
    formula: ClassVar[str] = "none"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        if len(view.batch.targets) == self.size:
            raise ValueError("no such luck") if self.portable else Unportable()
        return output.logits.sum() * 0


class Unportable(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held fast")
        self.hold = lambda: None


def work(algorithm: Algorithm | None = None, transform: AsIs | None = None) -> Job:
    return toy.job(algorithm or fedavg(), toy.mlp(torch.float32), toy.clients(transform=transform))


def pool(job: Job, workers: int = 2, start_method: str = "fork") -> ProcessRunner:
    runner = processes(job, workers=workers, start_method=start_method)  # type: ignore[arg-type]
    assert isinstance(runner, ProcessRunner)
    return runner


@pytest.fixture
def two() -> Iterator[tuple[Job, ProcessRunner]]:
    """A pool of two that trains MOON, which remembers."""
    job = work(moon())
    runner = pool(job)
    yield job, runner
    runner.close()


def one_round(runner: ProcessRunner, job: Job, cohort: Sequence[int] = (0, 1, 2)) -> toy.History:
    history = toy.start(job)
    history.round(runner, job, 0, cohort)
    return history


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("algorithm", [moon(), scaffold()], ids=["moon", "scaffold"])
def test_equals_sequential_to_the_bit(algorithm: Algorithm, workers: int) -> None:
    cohorts = ((0, 1, 2), (2, 0), (1, 2, 0))
    wanted = toy.run(work(algorithm), cohorts)
    found = toy.run(work(algorithm), cohorts, "processes", workers=workers)
    assert toy.same_bits(found.params, wanted.params)
    for client in range(3):
        assert toy.same_bits(flatten(found.memory[client]), flatten(wanted.memory[client]))
    assert [u.metrics for u in found.uploads] == [u.metrics for u in wanted.uploads]
    assert [u.examples for u in found.uploads] == [toy.SIZES[c] for cohort in cohorts for c in cohort]


def test_evaluates_as_sequential_does() -> None:
    job = replace(work(), test=toy.clients(sizes=(2300, 6, 9))[0])
    runner = pool(job)
    found, wanted = (engine.evaluate(job.model.weights()) for engine in (runner, RUNNERS["sequential"](job)))
    runner.close()
    assert torch.equal(found.correct, wanted.correct)
    assert found.loss == wanted.loss
    assert float(found.examples.sum()) == 2300


def test_a_killed_worker_is_replaced_and_the_bits_stay() -> None:
    job = work(moon(), Slow())
    runner = pool(job)
    first = [worker.process.pid for worker in runner._workers]

    def memory(client: int) -> Tree:
        if client == 1:  # worker 0 has its task, and takes its time
            os.kill(first[0], signal.SIGKILL)
        return {}

    results = list(runner.train(0, job.model.weights(), {}, (0, 1, 2), memory))
    now = [worker.process.pid for worker in runner._workers]
    runner.close()
    assert now[0] != first[0]
    assert now[1] == first[1]
    wanted = toy.run(work(moon()), ((0, 1, 2),))
    assert [result.client for result in results] == [0, 1, 2]
    for result, upload in zip(results, wanted.uploads, strict=True):
        assert toy.same_bits(result.upload.delta, upload.delta)


def test_a_worker_that_died_idle_is_replaced(two: tuple[Job, ProcessRunner]) -> None:
    job, runner = two
    victim = runner._workers[1].process
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert toy.same_bits(one_round(runner, job).params, toy.run(job, ((0, 1, 2),)).params)
    assert all(worker.process.is_alive() for worker in runner._workers)


def test_a_task_that_always_kills_ends_the_run_with_a_sentence() -> None:
    job = work(transform=Deadly())
    runner = pool(job)
    with pytest.raises(RunError, match=r"3 worker processes died while running client .*use fewer workers"):
        one_round(runner, job)
    runner.close()


@pytest.mark.parametrize("portable", [True, False])
def test_an_error_says_where_it_happened(portable: bool) -> None:
    job = work(fedavg().plus(ToyBroken(3, portable)))
    runner = pool(job)
    with pytest.raises(ValueError if portable else RuntimeError, match=r"no such luck|Unportable: held fast") as caught:
        one_round(runner, job, (1, 0, 2))
    runner.close()
    notes = "\n".join(caught.value.__notes__)
    assert "at local step 2" in notes  # 11 examples in fours: the third batch has three
    assert "in round 1, client 0" in notes
    assert "in loss" in notes  # the worker's traceback


def test_a_users_mistake_arrives_as_it_is() -> None:
    job = replace(work(scaffold()), local=replace(toy.LOCAL, optimizer="adam"))
    runner = pool(job)
    with pytest.raises(ConfigError, match="divide by the effective number of steps"):
        one_round(runner, job)
    runner.close()


def test_the_pool_goes_on_after_an_error_and_after_a_broken_off_round(two: tuple[Job, ProcessRunner]) -> None:
    job, runner = two
    wanted = toy.run(job, ((0, 1, 2),))

    def forgetful(client: int) -> Tree:
        if client == 2:
            raise KeyError("lost")
        return {}

    with pytest.raises(KeyError):
        list(runner.train(0, job.model.weights(), {}, (0, 1, 2), forgetful))
    half = runner.train(3, job.model.weights(), {}, (2, 1, 0), lambda client: {})
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert toy.same_bits(one_round(runner, job).params, wanted.params)


@pytest.mark.slow
def test_a_spawned_pool_works() -> None:
    found = toy.run(work(moon()), ((0, 1),), "processes", workers=1, start_method="spawn")
    assert toy.same_bits(found.params, toy.run(work(moon()), ((0, 1),)).params)


def test_workers_end_by_themselves_and_closing_may_be_repeated() -> None:
    runner = pool(work(), workers=3)
    children = [worker.process for worker in runner._workers]
    runner.close()
    runner.close()
    assert [child.exitcode for child in children] == [0, 0, 0], "nobody had to be killed"


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """A parent that is killed leaves no process behind."""
    script = (
        "import os, signal, toy\n"
        "from fedra.algorithms import fedavg\n"
        "from fedra.runners.processes import processes\n"
        "runner = processes(toy.job(fedavg()), workers=2, start_method='fork')\n"
        "print(*[worker.process.pid for worker in runner._workers], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = tmp_path / "said"
    with said.open("w") as file:  # not a pipe: workers left behind would hold it open
        subprocess.run([sys.executable, "-c", script], cwd=Path(toy.__file__).parent, stdout=file, check=False)
    pids = [int(word) for word in said.read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def running(pid: int) -> bool:
    """Whether the process lives; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_one_worker_per_core_that_may_be_used() -> None:
    assert 1 <= default_workers() <= (os.cpu_count() or 1)


def test_forks_need_no_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often have 64 MB of it."""

    def full(_: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    expected = toy.run(toy.job(fedavg(), toy.conv(torch.float32)), runner="sequential")
    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    found = toy.run(toy.job(fedavg(), toy.conv(torch.float32)), runner="processes")
    assert toy.same_bits(found.params, expected.params)
    with pytest.raises(RunError, match=r"shared memory must have room .*: enlarge /dev/shm"):
        ProcessRunner(toy.job(fedavg()), 1, 1, "spawn")
