"""Ray's workers: the reference's bits whatever dies, errors that say where, and nothing of the user's Ray touched."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import moon
from fedra.core.batches import AsIs
from fedra.core.job import Job
from fedra.core.tree import Tree, flatten
from fedra.errors import ConfigError, RunError
from fedra.registry import Registry
from fedra.runners import RUNNERS
from fedra.runners.packing import pack, unpack
from fedra.runners.ray import RayRunner, on_ray
from fedra.runners.ray_cluster import check_reachable, connect, count_workers, import_ray
from fedra.runners.ray_pool import Member, Piece, RayPool
from fedra.runners.ray_worker import Place

pytestmark = [
    pytest.mark.slow,  # starting Ray takes longer than what it is tested with
    pytest.mark.xdist_group("ray"),  # two Rays on one machine would count its cores twice
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # what an earlier Ray left to the garbage collector
]

COHORTS = ((0, 1, 2), (2, 0), (1, 2, 0))


@dataclass(frozen=True)
class Cursed(AsIs):
    """Dies or fails once, where a file asks for it."""

    folder: Path | None = None

    def prepare(self, inputs: Tensor) -> Tensor:
        if self._asked("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._asked("fail"):
            raise ValueError("no such luck")
        return inputs

    def _asked(self, what: str) -> bool:
        if self.folder is None or not (self.folder / what).exists():
            return False
        (self.folder / what).unlink()
        return True


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray of the user's own, with a small object store."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    module = import_ray()
    small = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    before = signal.getsignal(signal.SIGTERM)
    with untidy():
        module.init("local", log_to_driver=False, configure_logging=False, logging_level="ERROR", **small)
    yield module
    with untidy():
        module.shutdown()
        gc.collect()
    signal.signal(signal.SIGTERM, before)


@contextmanager
def untidy() -> Iterator[None]:
    """Ray leaves files and processes to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def work(transform: AsIs | None = None) -> Job:
    job = toy.job(moon(), toy.conv(torch.float32), toy.clients((1, 4, 4), transform=transform))
    return replace(job, test=toy.clients((1, 4, 4), sizes=(2300, 6, 9))[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("curse")


@pytest.fixture(scope="module")
def two(ray: Any, folder: Path) -> Iterator[RayRunner]:
    """Two workers that train MOON, which remembers."""
    runner = on_ray(work(Cursed(folder=folder)), workers=2)
    assert isinstance(runner, RayRunner)
    yield runner
    runner.close()
    assert ray.is_initialized()  # somebody else's, and left alone


def test_equals_sequential_to_the_bit(two: RayRunner) -> None:
    job = work()
    wanted, found = toy.run(job, COHORTS), toy.start(job)
    for number, cohort in enumerate(COHORTS):
        found.round(two, job, number, cohort)
    assert toy.same_bits(found.params, wanted.params)
    assert toy.same_bits(found.server.weights.buffers, wanted.server.weights.buffers)
    for client in range(3):
        assert toy.same_bits(flatten(found.memory[client]), flatten(wanted.memory[client]))
    assert [upload.metrics for upload in found.uploads] == [upload.metrics for upload in wanted.uploads]


def test_stacks_of_a_group_have_the_bits_of_the_stacked_runner(ray: Any) -> None:
    job = toy.job(moon(), toy.mlp(torch.float32), toy.clients(sizes=(11, 6, 9, 12, 4)))
    cohorts = ((0, 1, 2, 3, 4), (4, 2, 0))
    wanted = toy.run(job, cohorts, "stacked", chunk=2, threads=1)
    found = toy.run(job, cohorts, "ray", workers=2, stack=2)
    assert toy.same_bits(found.params, wanted.params)
    for client in range(5):
        assert toy.same_bits(flatten(found.memory[client]), flatten(wanted.memory[client]))
    assert [upload.metrics for upload in found.uploads] == [upload.metrics for upload in wanted.uploads]


def test_groups_of_small_clients_have_the_bits_of_sequential(ray: Any) -> None:
    job = toy.job(moon(), toy.mlp(torch.float32))
    cohorts = ((0, 1, 2),) * 3
    assert toy.same_bits(toy.run(job, cohorts, "ray", stack=1).params, toy.run(job, cohorts).params)


def test_evaluates_as_sequential_does(two: RayRunner) -> None:
    job = work()
    found, wanted = (engine.evaluate(job.initial()) for engine in (two, RUNNERS["sequential"](job)))
    assert torch.equal(found.correct, wanted.correct)
    assert found.loss == wanted.loss
    assert float(found.examples.sum()) == 2300


def test_a_client_whose_worker_dies_is_trained_again(two: RayRunner, ray: Any, folder: Path) -> None:
    def pids() -> set[int]:
        return set(ray.get([member.actor.__ray_call__.remote(lambda _: os.getpid()) for member in two._pool.members]))

    job, found, lines = work(), toy.start(work()), list[str]()
    list(two.train(0, job.initial(), {}, (0, 1, 2), lambda client: {}))
    before = pids()
    two.report_to(lines.append, None)
    (folder / "die").touch()
    found.round(two, job, 0, (0, 1, 2))
    assert re.fullmatch(r"ray: lost a worker on node .* \(\w{8}\): (1|0|none) .*", lines[0])
    while len(pids()) < 2:  # another one joins
        list(two.train(0, job.initial(), {}, (0, 1, 2), lambda client: {}))
    assert len(pids() - before) == 1
    assert lines[-1].endswith("joined, 2 of 2 work")
    assert toy.same_bits(found.params, toy.run(job, ((0, 1, 2),)).params)


def test_an_error_says_where_it_happened(two: RayRunner, folder: Path) -> None:
    (folder / "fail").touch()
    with pytest.raises(ValueError, match="no such luck") as caught:
        list(two.train(0, work().initial(), {}, (1,), lambda client: {}))
    notes = "\n".join(caught.value.__notes__)
    assert "in round 1, client 1" in notes
    assert "in prepare" in notes  # the worker's traceback


def test_goes_on_after_a_round_that_was_broken_off(two: RayRunner) -> None:
    job = work()

    def forgetful(client: int) -> Tree:
        if client == 2:
            raise KeyError("lost")
        return {}

    with pytest.raises(KeyError):
        list(two.train(0, job.initial(), {}, (0, 1, 2), forgetful))
    half = two.train(3, job.initial(), {}, (2, 1, 0), lambda client: {})
    assert next(half).client == 2
    half.close()  # type: ignore[attr-defined]
    found = toy.start(job)
    found.round(two, job, 0, (0, 1, 2))
    assert toy.same_bits(found.params, toy.run(job, ((0, 1, 2),)).params)


def test_few_results_wait_their_turn(two: RayRunner) -> None:
    """A slow consumer is not overrun: tasks are begun only as far ahead as the workers' number allows."""
    job, asked = work(), []

    def memory(client: int) -> Tree:
        asked.append(client)
        return {}

    results = two.train(0, job.initial(), {}, (0, 1, 2) * 8, memory)
    next(results)
    time.sleep(0.3)
    # Three groups ahead for each worker, each at most half of a worker's share of what is left.
    assert len(asked) <= 6 + 5 + 4 + 3 + 2 + 1
    assert len(list(results)) == 23


def test_more_than_the_cluster_has_is_refused(ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"for each of 5 workers, got 4 CPUs and 0 GPUs on 1 nodes: lower workers"):
        on_ray(work(), workers=5)
    assert ray.is_initialized()


@pytest.mark.parametrize(
    ("asked", "threads", "gpus", "count"), [(None, 1, 0.0, 8), (None, 3, 0.0, 2), (3, 2, 0.0, 3), (None, 1, 0.5, 4)]
)
def test_the_number_of_workers(asked: int | None, threads: int, gpus: float, count: int) -> None:
    assert count_workers([{"CPU": 8.0, "GPU": 2.0}], asked, threads, gpus) == count


def test_a_worker_does_not_span_two_nodes() -> None:
    assert count_workers([{"CPU": 3.0}, {"CPU": 1.0}, {}], None, threads=2, gpus=0.0) == 1
    with pytest.raises(ConfigError, match=r"must have 4 CPUs .* got 4 CPUs and 0 GPUs on 2 nodes"):
        count_workers([{"CPU": 3.0}, {"CPU": 1.0}], None, threads=4, gpus=0.0)


def test_without_ray_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray must be installed for the runner 'ray': pip install 'fedra\[ray\]'"):
        on_ray(work())


class Stub:
    """Takes over SIGTERM as Ray does, then answers from an address, or does not."""

    exceptions: Any = type("Exceptions", (), {"RayError": LookupError, "RayTaskError": ArithmeticError})

    def __init__(self, listens: str = "127.0.0.1") -> None:
        self.listens = listens
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.stopped = False
        self._private = SimpleNamespace(ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True))

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **settings: Any) -> None:
        loopback = not self._private.ray_constants.ENABLE_RAY_CLUSTER
        self.asked.append((address, {**settings, "loopback": loopback}))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if address != "local":
            raise ConnectionError("nobody answers\nand more")

    def nodes(self) -> list[dict[str, str]]:
        return [{"NodeManagerAddress": self.listens}]

    def shutdown(self) -> None:
        self.stopped = True

    def kill(self, actor: object) -> None:
        pass


def test_what_ray_changes_is_put_back_and_its_complaints_are_a_sentence() -> None:
    before, environment, stub = signal.getsignal(signal.SIGTERM), dict(os.environ), Stub()
    with pytest.raises(
        ConfigError, match=r"cannot connect to Ray at runner.address = 'auto' \(nobody answers\): check the"
    ):
        connect(stub, "auto", cpus=1)
    assert signal.getsignal(signal.SIGTERM) == before
    assert connect(stub, None, cpus=7)
    assert signal.getsignal(signal.SIGTERM) == before
    assert dict(os.environ) == environment
    assert stub._private.ray_constants.ENABLE_RAY_CLUSTER
    (_, far), (_, near) = stub.asked
    assert "num_cpus" not in far
    assert not far["loopback"]
    assert near["loopback"]
    assert near["num_cpus"] >= 7
    assert not near["include_dashboard"]
    assert not near["log_to_driver"]


def test_a_ray_that_others_could_reach_is_stopped() -> None:
    stub = Stub(listens="192.0.2.7")
    with pytest.raises(ConfigError, match=r"must listen on the loopback address alone, .* listens on 192.0.2.7"):
        connect(stub, None, cpus=1)
    assert stub.stopped


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://localhost:1", "[::1]:1", "127.0.0.1:port"])
def test_an_address_where_nobody_listens_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot connect to Ray at runner.address = .*: check the address"):
        connect(Stub(), address, cpus=1)


def test_a_name_without_a_port_is_left_to_ray() -> None:
    check_reachable("auto")


def test_wrong_settings_are_refused() -> None:
    registry: Registry = RUNNERS
    with pytest.raises(ConfigError, match=r"the field 'gpus' of the runner 'ray' must be .*, got -1"):
        registry.settings("ray", {"gpus": -1})


def test_packing_keeps_every_bit_and_each_tensor_once() -> None:
    shared = torch.arange(6.0).view(2, 3)
    half, kernel = torch.ones(3, dtype=torch.bfloat16), torch.randn(2, 3, 4, 4, generator=torch.Generator())
    module = toy.conv(torch.float32)
    value = {
        "a": shared,
        "b": [shared],
        "half": half,
        "kernel": kernel.to(memory_format=torch.channels_last),
        "m": module,
    }
    packed = pack(value, pickle.Pickler)
    found = unpack(packed)
    assert found["a"] is found["b"][0]
    assert torch.equal(found["a"], shared)
    assert torch.equal(found["half"], half)
    assert torch.equal(found["kernel"], kernel)
    assert toy.same_bits(found["m"].state_dict(), module.state_dict())
    assert len(packed.arrays) == 2 + len(module.state_dict())
    assert len(packed.text) < 10_000


def pool_of(place: Place, lines: list[str]) -> tuple[RayPool, Member]:
    """A pool with one worker and a Ray that is not there."""
    pool, member = object.__new__(RayPool), Member(object(), place)
    pool._ray, pool.members, pool.report = Stub(), [member], lines.append
    pool._wanted, pool._starting, pool._cluster = 0, {}, SimpleNamespace(answers=lambda: True)  # type: ignore[assignment]
    return pool, member


def test_a_task_that_kills_every_worker_is_a_sentence() -> None:
    place, lines = Place("0123456789", "far", ""), list[str]()
    piece = Piece(0, [5])
    for _ in range(2):
        pool, member = pool_of(place, lines)
        pool._lose(member, piece, LookupError("the node is gone\nand more"))
    assert lines == ["ray: lost a worker on node far (01234567): none is left"] * 2
    pool, member = pool_of(place, lines)
    with pytest.raises(RunError, match=r"task \[5\] in 3 attempts \(the node is gone\), .*: use fewer workers"):
        pool._lose(member, piece, LookupError("the node is gone\nand more"))
