"""The server's own update from clean examples, which some combine rules compare the uploads with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.job import Clients, Job, ServerJob, run_client
from fedra.core.robust_fold import RootSelecting
from fedra.core.round import broadcast
from fedra.core.tree import is_finite
from fedra.core.view import Server, Upload
from fedra.errors import RunError


@dataclass(frozen=True)
class WithRoot:
    """The clients, and the server's examples under the number after the last client; it counts as no client."""

    inner: Clients
    root: Examples

    def __len__(self) -> int:
        return len(self.inner)

    def size(self, client: int) -> int:
        return len(self.root) if client == len(self.inner) else self.inner.size(client)

    def __getitem__(self, client: int) -> Examples:
        return self.root if client == len(self.inner) else self.inner[client]

    def joined(self, clients: Sequence[int]) -> Examples | None:
        return None if len(self.inner) in clients else self.inner.joined(clients)

    def tensors(self) -> Iterable[Tensor]:
        return self.inner.tensors()


def train_root(job: ServerJob, server: Server, round: int) -> Upload | None:
    """Train the global model of a round on the server's own examples, as a new client would.

    Args:
        job: The job.
        server: The server at the start of the round.
        round: The round, from 0.

    Returns:
        What this client would upload; None if the combine rule needs none.

    Raises:
        RunError: If training diverges.
    """
    if not isinstance(job.algorithm.combine, RootSelecting):
        return None
    assert isinstance(job, Job), "a federation refuses rules that need clean examples"
    assert job.root is not None, "build holds clean examples out"
    with_root = replace(job, clients=WithRoot(job.clients, job.root))
    origin, received = job.common(server.weights), broadcast(job.algorithm, server)
    _, upload = run_client(with_root, round, len(job.clients), origin, received, {})
    if not is_finite(upload.delta):
        raise RunError(
            f"the root update of the combine rule '{job.algorithm.combine.name}' must be finite, got NaN or infinity "
            f"in round {round + 1}: lower local.lr"
        )
    return upload
