"""A pool of Ray workers that outlives its nodes.

Ray restarts lost actors itself, but waits for ever where no node has room for them. Here, a lost worker's task goes to
the living ones, and a new worker is requested, which joins the pool as soon as a node has room for it.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedra.errors import RunError
from fedra.runners.base import WorkersLost
from fedra.runners.packing import Packed, pack, unpack
from fedra.runners.ray_cluster import RayCluster, fitting_workers
from fedra.runners.ray_worker import GroupAnswer, Place, RayWorker, versions
from fedra.runners.tasks import ATTEMPTS

QUEUED = 2
"""Tasks that a worker has at once: while its answer travels and is combined, it does the next one."""

AHEAD = 3
"""Maximum number of tasks per worker that run, are queued, or whose answers wait for their turn."""

PATIENCE = 1.0
"""Seconds between two looks at the cluster while no answer arrives."""

GRACE = 20.0
"""Seconds without a worker, or without the cluster's head, before the run stops; Ray itself needs that long to find
out that a node is gone.
"""


@dataclass(eq=False)
class Member:
    """A worker that has started."""

    actor: Any
    place: Place


@dataclass
class Piece:
    """An item of a map, its turn, and how many workers were lost with it."""

    turn: int
    item: Any
    losses: int = 0


class RayPool:
    """Workers of a cluster; `report` is called with a line when one is lost or joins again."""

    def __init__(self, cluster: RayCluster, wanted: int, threads: int, gpus: float) -> None:
        self.report: Callable[[str], None] = lambda line: None
        self.members: list[Member] = []
        self._cluster, self._wanted, self._threads, self._gpus = cluster, wanted, threads, gpus
        self._ray = cluster.ray
        self._actor = self._ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0, max_task_retries=0)(RayWorker)
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._lost: Place | None = None
        self._since: float | None = None  # since when there is no worker, or no answer of the head
        self._request()

    def close(self) -> None:
        """End all workers; without the head, Ray would wait a minute for it and then end this process."""
        actors = [*(member.actor for member in self.members), *self._starting.values()]
        for actor in actors if self._cluster.answers() else ():
            self._ray.kill(actor)
        self.members, self._starting = [], {}

    def map(self, take: Callable[[int], Any], task: Callable[[Any], Any], common: tuple[Any, ...]) -> Iterator[Any]:
        """Run tasks and yield (item, answer, seconds) in order; tasks also start in order.

        `take` returns the next item, given the number of workers, and None after the last one; `task` the task of an
        item; `common` are the other arguments of every task. If the caller stops early, workers finish their last task
        before they start one of the next call.
        """
        again, busy = deque[Piece](), dict[Any, tuple[Member, Piece]]()
        answers: dict[int, tuple[Any, Any, float]] = {}
        started = turn = 0
        more = True
        while more or turn < started:
            while turn in answers:
                yield answers.pop(turn)
                turn += 1
            load = Counter(id(member) for member, _ in busy.values())
            for member in [one for queued in range(QUEUED) for one in self.members if load[id(one)] <= queued]:
                if not again and more and started - turn < AHEAD * max(1, len(self.members)):
                    item = take(len(self.members))
                    more = item is not None
                    again.extend([Piece(started, item)] if more else [])
                    started += more
                if again:
                    piece = again.popleft()
                    packed = pack(task(piece.item), pickle.Pickler)
                    busy[member.actor.do.remote(packed, *common)] = member, piece
            for reference in self._wait(busy) if turn < started or not self.members else ():
                member, piece = busy.pop(reference)
                found = self._collect(reference, member, piece)
                if found is None:
                    again.append(piece)
                    again = deque(sorted(again, key=lambda one: one.turn))
                else:
                    answers[piece.turn] = piece.item, *found

    def check(self) -> None:
        """Wait until the head answers, or stop."""
        while not self._cluster.answers():
            self._look()
            time.sleep(PATIENCE)

    def _wait(self, busy: dict[Any, Any]) -> list[Any]:
        """The references of finished tasks, after a wait for one; new workers join the pool."""
        waiting = [*busy, *self._starting]
        if waiting:
            ready, _ = self._ray.wait(waiting, timeout=PATIENCE, fetch_local=False)
        else:  # the head does not answer, so no worker could be requested
            time.sleep(PATIENCE)
            ready = []
        for reference in ready:
            if reference in self._starting:
                self._join(reference)
        if ready:
            self._since = None
        else:
            self._look()
        return [reference for reference in ready if reference in busy]

    def _collect(self, reference: Any, member: Member, piece: Piece) -> tuple[Any, float] | None:
        """The answer to a task and its seconds; None if the worker was lost. Raises the task's own error."""
        try:
            answer: GroupAnswer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # outside of the task: a bug, or a library is missing
            raise RunError(f"a Ray worker failed ({_reason(error)}): is fedra installed on every node?") from error
        except self._ray.exceptions.RayError as error:
            self._lose(member, piece, error)
            return None
        if answer.error is not None:
            raise answer.error
        assert answer.packed is not None
        # Copied, because Ray's memory is read-only and is not freed while an array of it lives.
        return unpack(Packed(answer.packed.text, list(map(np.array, answer.packed.arrays)))), answer.seconds

    def _lose(self, member: Member, piece: Piece, error: Exception) -> None:
        """Remove a lost worker, report it, and request another."""
        if member not in self.members:  # it was lost with an earlier task, before it began this one
            return
        self.members.remove(member)
        if self._cluster.answers():
            self._ray.kill(member.actor)  # if it is only out of reach, it must not go on
        self._lost = member.place
        piece.losses += 1
        if piece.losses >= ATTEMPTS:
            raise RunError(
                f"Ray workers failed at client or task {piece.item} in {ATTEMPTS} attempts ({_reason(error)}), perhaps "
                "for lack of memory: use fewer workers, or the runner 'sequential' to see the cause"
            ) from error
        rest = f"{len(self.members)} left, which take its work" if self.members else "none is left"
        self.report(f"ray: lost a worker on {member.place}: {rest}")
        self._request()

    def _request(self) -> None:
        """Request as many new workers as the pool lacks; Ray starts each when a node has room."""
        path = [os.path.abspath(folder) for folder in sys.path]
        missing = self._wanted - len(self.members) - len(self._starting)
        for _ in range(missing if missing and self._cluster.answers() else 0):
            actor = self._actor.remote(self._threads, path)
            self._starting[actor.place.remote()] = actor

    def _join(self, reference: Any) -> None:
        """Add a worker that has started to the pool; request another one if it did not start."""
        actor = self._starting.pop(reference)
        try:
            place: Place = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS * self._wanted:
                raise WorkersLost(
                    f"Ray could not start a worker in {self._failed_starts} attempts ({_reason(error)}): is fedra "
                    "installed on every node?"
                ) from error
            self._request()
            return
        if place.versions != versions():
            raise RunError(
                f"all nodes of the Ray cluster must have {versions()}, got {place.versions} on {place}: install the "
                "same there"
            )
        self._failed_starts = 0
        self.members.append(Member(actor, place))
        if self._lost is not None:
            self.report(f"ray: a worker on {place} joined, {len(self.members)} of {self._wanted} work")

    def _look(self) -> None:
        """Stop if no worker can be expected: the head does not answer, or no node has room for one."""
        self._request()
        answers = self._cluster.answers()
        if answers and self.members:
            self._since = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since < GRACE:
            return
        last = f", the last one on {self._lost}" if self._lost else ""
        if not answers:
            raise WorkersLost(f"the head of the Ray cluster does not answer any more, so all workers are lost{last}")
        if not fitting_workers(self._cluster.nodes(), self._threads, self._gpus):
            raise WorkersLost(f"all Ray workers are lost{last}, and no node has room for another")
        self.report("ray: waiting for a worker, because other work uses the CPUs of all nodes")
        self._since = now + 3 * GRACE


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
