"""The state of a run between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedra.core.evaluate import ignore_progress
from fedra.core.job import Job
from fedra.core.round import init_server
from fedra.core.round_zero import round_zero
from fedra.core.view import Server
from fedra.storage.client_state import ClientStates, PackedTree


@dataclass
class State:
    """The state of a run: number of rounds done, the server, and the clients' states."""

    round: int
    server: Server
    memory: ClientStates = field(default_factory=ClientStates)

    @classmethod
    def fresh(
        cls, job: Job, done: Callable[[int], None] = ignore_progress, memory: ClientStates | None = None
    ) -> State:
        """The state after round zero, before the first round; `done` receives the number of processed examples."""
        server = init_server(job.algorithm, round_zero(job, job.initial(), done))
        return cls(0, server) if memory is None else cls(0, server, memory)

    def advance(self, server: Server, memory: Mapping[int, PackedTree]) -> None:
        """Store the result of a round."""
        self.round, self.server = self.round + 1, server
        self.memory.put(self.round, memory)
