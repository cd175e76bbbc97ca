"""Validation examples, held out of every client's training examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.random import key
from fedra.data.clients import PooledClients, Rows, SeparateClients
from fedra.errors import ConfigError


def hold_out(
    clients: PooledClients | SeparateClients, share: float, seed: int, what: str = "evaluation.validation"
) -> tuple[PooledClients | SeparateClients, Examples]:
    """Split every client's examples into training and validation examples.

    Args:
        clients: The clients' training examples.
        share: Fraction of every client's examples to hold out, between 0 and 1.
        seed: The seed of the partition, so the validation examples do not depend on training.
        what: The setting that asks for them, for the error message.

    Returns:
        The clients with the remaining examples, and the validation examples of all clients in client order.
    """
    split = [held_out_rows(clients.labels(client), share, seed, client) for client in range(len(clients))]
    if not any(len(held) for _, held in split):
        raise ConfigError(
            f"{what} must hold out at least one example, got {share:g}, which holds out none of "
            f"{len(clients)} clients' examples: increase it"
        )
    if isinstance(clients, PooledClients):
        return _hold_out_of_pool(clients, split)
    own, held_out = [], []
    for examples, (remaining, held) in zip(clients.examples, split, strict=True):
        own.append(Examples(examples.inputs[remaining], examples.targets[remaining], examples.transform))
        held_out.append(Examples(examples.inputs[held], examples.targets[held], examples.transform))
    return SeparateClients(own), _joined([one for one in held_out if len(one)])


def _joined(parts: Sequence[Examples]) -> Examples:
    """Concatenate examples; if the clients' transforms differ, apply them first."""
    joined = SeparateClients(parts).joined(range(len(parts)))
    if joined is not None:
        return joined
    ready = torch.cat([part.transform.prepare(part.inputs).cpu() for part in parts])
    return Examples(ready, torch.cat([part.targets.cpu() for part in parts]))


def _hold_out_of_pool(clients: PooledClients, split: list[tuple[Tensor, Tensor]]) -> tuple[PooledClients, Examples]:
    pairs = list(zip(clients.rows, split, strict=True))
    remaining = [rows[left].numpy() for rows, (left, _) in pairs]
    held = torch.cat([rows[out] for rows, (_, out) in pairs])
    pool = clients.pool
    return PooledClients(pool, Rows(remaining)), Examples(pool.inputs[held], pool.targets[held], pool.transform)


def held_out_rows(labels: Tensor, share: float, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return the training and the validation rows of a client, both sorted; at least one row is for training.

    This is a systematic sample of the shuffled rows sorted by class, so the share of every class is exact up to
    rounding. The total is rounded randomly, so small clients contribute their share on average.
    """
    rng = np.random.default_rng(key(seed, "validation", client))
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels.cpu().numpy()[order], kind="stable")]
    count = min(int(share * len(labels) + rng.random()), len(labels) - 1)
    positions = ((np.arange(count) + rng.random()) * len(labels) / max(count, 1)).astype(np.int64)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order[positions]] = True
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))
