"""A cluster of two nodes, one of which is lost on the way: nothing hangs, nothing changes, and the user is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import toy
from fedra.algorithms import scaffold
from fedra.core.job import Job
from fedra.core.tree import flatten
from fedra.runners.base import Runner
from fedra.runners.ray import RayRunner, on_ray

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = [
    pytest.mark.slow,  # starting Ray takes longer than what it is tested with
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # what an earlier Ray left to the garbage collector
]

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

settings = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
nodes = [cluster.add_node(**settings)]
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "add":
        nodes.append(cluster.add_node(**settings, wait=False))
    elif line.strip() == "lose":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray puts clusters on the network; with the switch for systems without clusters, it stays on this machine."""


class Nodes:
    """A cluster in processes of its own."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", CLUSTER]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, **LOOPBACK, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
        self.process = subprocess.Popen(words, **pipes, env=environment, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def order(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@contextmanager
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    constants = pytest.importorskip("ray._private.ray_constants")
    monkeypatch.setattr(constants, "ENABLE_RAY_CLUSTER", False)
    before = signal.getsignal(signal.SIGTERM)
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.close()
        signal.signal(signal.SIGTERM, before)


def train(runner: Runner, job: Job, times: int = 1) -> None:
    """Rounds that count for nothing."""
    for _ in range(times):
        toy.start(job).round(runner, job, 0, range(3))


def test_a_lost_node_changes_nothing_and_a_returned_one_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = toy.job(scaffold(), toy.mlp(torch.float32), toy.clients(sizes=(11, 6, 9, 12, 4, 7)))
    cohorts = [range(6)] * 3
    wanted = toy.run(job, cohorts, "stacked", chunk=2, threads=1)
    lines = list[str]()
    with nodes(monkeypatch) as cluster:
        runner = on_ray(job, address=cluster.address, stack=2)
        assert isinstance(runner, RayRunner)
        runner.report_to(lines.append, tmp_path / "ray.log")
        found = toy.start(job)
        try:
            while len(runner._pool.members) < 2:  # one of them may start later than the first round ends
                train(runner, job)
            lost, kept = (member.place.node for member in reversed(runner._pool.members))
            found.round(runner, job, 0, cohorts[0])
            cluster.order("lose")
            found.round(runner, job, 1, cohorts[1])
            assert len(runner._pool.members) == 1
            cluster.order("add")
            while len(runner._pool.members) < 2:
                train(runner, job)
            found.round(runner, job, 2, cohorts[2])
        finally:
            runner.close()
    assert toy.same_bits(found.params, wanted.params)
    for client in range(6):
        assert toy.same_bits(flatten(found.memory[client]), flatten(wanted.memory[client]))
    reported = [line for line in lines if "lost a worker on node" in line]  # a busy machine also waits for workers
    assert any(lost[:8] in line or kept[:8] in line for line in reported)
    assert lines[-1].endswith("joined, 2 of 2 work")
    written = capfd.readouterr()
    assert "raylet" not in written.out + written.err


def test_without_any_node_the_run_ends_with_a_sentence_and_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").touch()
    settings = ["rounds=1000000", "partition.clients=6", "runner.name=ray", "runner.stack=1", "model.name=mlp"]
    settings += ["local.epochs=100"]  # workers are busy at almost any time
    with nodes(monkeypatch) as cluster:
        to = ["--out", str(tmp_path / "run")]
        words = ["run", str(tmp_path / "c.toml"), *settings, f"runner.address={cluster.address}", *to]
        run = subprocess.Popen(
            [sys.executable, "-m", "fedra.cli", *words],
            env={**os.environ, **LOOPBACK},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.stdout is not None
        printed = next(line for line in run.stdout if "accuracy" in line)
        cluster.process.kill()
        printed += run.stdout.read()
        run.stdout.close()
    assert run.wait(60) == 1
    # If Ray's service dies while an object is stored, Ray ends the process itself; the run can still be resumed.
    assert (tmp_path / "run" / "config.toml").is_file()
    if "accuracy" not in printed.splitlines()[-1]:
        assert "does not answer any more, so all workers are lost" in printed
        assert f"continue with: fedra run --resume {tmp_path / 'run'}" in printed


def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    code = """
import json, os, sys
import ray
from fedra.runners.ray_cluster import RayCluster

cluster = RayCluster(None, 1)
worker = ray.remote(lambda: os.getpid())
print(json.dumps([ray.get(worker.remote()), ray.nodes()[0]["NodeManagerAddress"]]), flush=True)
sys.stdin.read()
"""
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert run.stdout is not None
    assert run.stdin is not None
    worker, address = json.loads(run.stdout.readline())
    assert address == "127.0.0.1"
    tree = [*_descendants(run.pid), worker]
    assert len(tree) > 3
    run.kill()
    run.wait()
    run.stdin.close()
    run.stdout.close()
    for _ in range(300):
        left = [pid for pid in tree if _alive(pid)]
        if not left:
            return
        signal.sigtimedwait([], 0.1)
    pytest.fail(f"still running: {left}")


def _descendants(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for child in map(int, children) for pid in (child, *_descendants(child))]


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
