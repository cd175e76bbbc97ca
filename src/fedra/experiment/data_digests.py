"""Digests of a run's data, so it is not resumed on other data by mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from fedra.core.deferred import DeferredInputs
from fedra.core.job import Job
from fedra.data.clients import LocalLabels, PooledClients
from fedra.errors import ConfigError
from fedra.storage.run_folder import RunFolder

BLOCK = 2**26
"""Bytes that are hashed at once, so a memory-mapped data set is never copied as a whole."""

PARTS = {
    "training": "the training examples",
    "clients": "the assignment of examples to clients",
    "test": "the test set",
    "validation": "the validation examples",
    "public": "the public data",
}
"""What each digest covers, for messages."""


def digest_data(job: Job) -> dict[str, str]:
    """Return the digests of the training examples, of each client's share, and of held-out and public data."""
    found = {"training": _digest(job.clients.tensors()), "clients": _digest(_assignment(job))}
    public = None if job.public is None else job.public.examples
    held_out = {"test": job.test, "validation": job.validation, "public": public}
    found |= {name: _digest((own.inputs, own.targets)) for name, own in held_out.items() if own is not None}
    return found


def check_data(folder: RunFolder, job: Job, accept: bool) -> None:
    """Raise if the data are not those that the run was started with; `accept` records the new ones instead."""
    before = folder.data_digests()
    if before is None and folder.checkpoint.exists():
        return  # the run is older than these digests
    found = digest_data(job)
    changed = [PARTS[name] for name in found if before is not None and before.get(name) != found[name]]
    if changed and not accept:
        raise ConfigError(
            f"the data must be those that the run in '{folder.path}' was started with, but {' and '.join(changed)} "
            "changed since: restore the data, start a new run, or resume on the changed data with --accept-data "
            "(accept_data=True)"
        )
    if found != before:
        folder.write_data_digests(found)


def _assignment(job: Job) -> Iterable[Tensor]:
    """Yield the sizes of the clients and, of a shared pool, the rows of each."""
    clients = job.clients.clients if isinstance(job.clients, LocalLabels) else job.clients
    yield torch.tensor([clients.size(client) for client in range(len(clients))])
    if isinstance(clients, PooledClients):
        yield from clients.rows


def _digest(tensors: Iterable[Tensor]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if isinstance(tensor, DeferredInputs):  # more images than memory: their rows stand for them
            tensor = tensor.rows
        rows = max(BLOCK // max(tensor[:1].nbytes, 1), 1)
        for start in range(0, len(tensor), rows):
            block = tensor[start : start + rows].detach().cpu().contiguous()
            hashed.update(block.view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
