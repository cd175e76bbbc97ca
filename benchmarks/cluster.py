"""Many small clients on a Ray cluster of two nodes, one of which is killed on the way.

An MLP of 64-64-10 on clients of 20 examples, batch 10, plain SGD; the examples are a pool that all clients share, so
that their number costs rows alone. The cluster runs on this machine in processes of its own. First 100 clients on a Ray
of fedra's against `processes` and `stacked`, and some thousand against `stacked`; then a round of many on the cluster:
one node is killed in its middle.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from bare import CLASSES, SMALL, WIDTH
from measure import Row, in_turns, main, parser
from stacked import job_of

from federation import Federation
from fedra.core.batches import AsIs
from fedra.core.job import Job
from fedra.core.round import broadcast, init_server
from fedra.data.clients import PooledClients
from fedra.runners.base import iterate_results
from fedra.runners.ray import RayRunner, on_ray
from runners import small_clients

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

settings = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
node = cluster.add_node(**settings)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(node, allow_graceful=False)
sys.stdin.read()
cluster.shutdown()
"""


def measure(quick: bool) -> list[Row]:
    """Ray against runners of one machine, then the cluster."""
    os.environ.update(LOOPBACK)  # before Ray is imported: the cluster and this process stay on this machine
    few, repeats = (12, 2) if quick else (100, 15)
    some, fewer = (60, 2) if quick else (SOME, 7)
    return [
        *_one_machine(few, repeats, {"processes": 1.2, "stacked": None}),
        *_one_machine(some, fewer, {"stacked": 1.2}),
        *_cluster(*((200, 400) if quick else SIZES)),
    ]


SOME = 4000
"""Clients of a round that takes long enough for messages not to count."""

STACK = 250
"""Clients of a stack, the same for both numbers: its memory depends on it."""

SIZES = (10_000, 100_000)
"""Clients of the rounds whose memory is compared."""


def _one_machine(clients: int, repeats: int, targets: dict[str, float | None]) -> list[Row]:
    job = small_clients(clients)
    rivals = {name: Federation(job, name) for name in (*targets, "ray")}
    try:
        timings = in_turns(rivals, repeats)
    finally:
        for rival in rivals.values():
            rival.close()
    return [
        Row(
            f"{clients:,} clients: ray against {name}, round time",
            timings.ratio("ray", name),
            target=target,
            note=timings.note(name, "ray"),
        )
        for name, target in targets.items()
    ]


def _cluster(few: int, many: int) -> list[Row]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    cluster = subprocess.Popen([sys.executable, "-c", CLUSTER], **pipes, stderr=subprocess.DEVNULL)  # type: ignore[call-overload]
    address = cluster.stdout.readline().strip()
    lines: list[str] = []
    resident = {}
    seconds = {}
    try:
        for clients in (few, many):
            job = pooled(clients)
            runner = on_ray(job, address=address, stack=STACK)
            assert isinstance(runner, RayRunner)
            runner.report_to(lines.append, None)
            kill = cluster.stdin if clients == many else None
            started = time.perf_counter()
            resident[clients] = _round(job, runner, clients, kill)
            seconds[clients] = time.perf_counter() - started
            runner.close()
    finally:
        cluster.stdin.close()
        cluster.wait()
    told = lines[0] if lines else "the round ended before the loss was noticed"
    return [
        Row(f"{many:,} clients, one of two nodes killed: lost workers reported", len(lines), "lines", note=told),
        Row(f"{many:,} clients, a round", seconds[many], "s", note=f"{few:,} clients {seconds[few]:.1f} s"),
        Row(
            f"{many:,} clients against {few:,}, resident memory",
            resident[many] / resident[few],
            target=1.1,
            note=f"{resident[many]:.0f} MiB, {resident[few]:.0f} MiB",
        ),
    ]


def _round(job: Job, runner: RayRunner, clients: int, kill: object) -> float:
    """Train all clients once and add up their changes; returns the largest resident memory in MiB meanwhile."""
    server = init_server(job.algorithm, job.initial())
    total = {name: torch.zeros_like(value) for name, value in server.weights.params.items()}
    largest = 0.0
    results = runner.train(0, job.common(server.weights), broadcast(job.algorithm, server), range(clients), _nothing)
    for number, result in enumerate(iterate_results(results)):
        for name, value in result.upload.delta.items():
            total[name] += value
        if number == clients // 2 and kill is not None:
            kill.write("kill\n")  # type: ignore[attr-defined]
            kill.flush()  # type: ignore[attr-defined]
        if number % 1000 == 0:
            largest = max(largest, _resident())
    return largest


def _nothing(client: int) -> dict[str, object]:
    return {}


def _resident() -> float:
    """MiB of this process's own; pages of the object store, which is limited, belong to all."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 2**10


def pooled(clients: int) -> Job:
    """The job of `stacked.py` with many clients that share one pool of examples."""
    draw = torch.Generator().manual_seed(0)
    pool = torch.randn(10_000, WIDTH, generator=draw), torch.randint(CLASSES, (10_000,), generator=draw)
    rows = np.random.default_rng(0).integers(10_000, size=(clients, SMALL.images))
    job = job_of(pool[0][None, :2], pool[1][None, :2])
    return Job(
        algorithm=job.algorithm,
        model=job.model,
        clients=PooledClients.split(*pool, AsIs(), list(rows)),
        local=job.local,
        classes=CLASSES,
        seed=0,
    )


if __name__ == "__main__":
    main(measure, parser(__doc__))
