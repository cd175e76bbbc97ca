"""Validation examples: a stratified share of every client, the same for one seed, never trained on."""

from __future__ import annotations

import pytest
import torch

from fedra.core.batches import AsIs, Examples
from fedra.data.clients import PooledClients, SeparateClients
from fedra.data.validation import held_out_rows, hold_out
from fedra.errors import ConfigError

LABELS = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)


def pool(parts: list[torch.Tensor]) -> PooledClients:
    inputs = torch.arange(len(LABELS)).float()[:, None]
    return PooledClients.split(inputs, LABELS, AsIs(), [part.numpy() for part in parts])


def test_every_class_gives_its_share() -> None:
    for client in range(5):
        kept, held = held_out_rows(LABELS, 0.2, 0, client)
        assert torch.cat([kept, held]).sort().values.tolist() == list(range(100))
        counts = torch.bincount(LABELS[held], minlength=3).tolist()
        assert all(abs(count - wanted) <= 1 for count, wanted in zip(counts, (12, 6, 2), strict=True))
        assert counts[2] >= 1


def test_small_clients_give_their_share_on_average_and_keep_an_example() -> None:
    rows = [held_out_rows(torch.tensor([0, 1]), 0.3, 0, client) for client in range(1000)]
    assert sum(len(held) for _, held in rows) / 2000 == pytest.approx(0.3, abs=0.03)
    assert all(len(kept) >= 1 for kept, _ in rows)
    assert all(len(held_out_rows(torch.tensor([0]), 0.9, 0, client)[1]) == 0 for client in range(20))


def test_own_and_pooled_clients_hold_out_the_same_rows() -> None:
    parts = [torch.arange(0, 100, 2), torch.arange(1, 100, 2)]
    pooled = pool(parts)
    own = SeparateClients([pooled[0], pooled[1]])
    for clients in (pooled, own):
        left, held = hold_out(clients, 0.1, 3)
        seen = torch.cat([left[0].inputs, left[1].inputs, held.inputs]).flatten().sort().values
        assert torch.equal(seen, torch.arange(100).float())
        assert abs(len(held) - 10) <= 2
        assert torch.equal(held.targets, LABELS[held.inputs.flatten().long()])
    first, second = (hold_out(clients, 0.1, 3)[1].inputs for clients in (pooled, own))
    assert torch.equal(first, second)
    assert not torch.equal(first, hold_out(pooled, 0.1, 4)[1].inputs)


def test_a_share_that_holds_out_nothing_is_refused() -> None:
    clients = SeparateClients([Examples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))])
    with pytest.raises(ConfigError, match=r"at least one example, got 0.5, which holds out none of 1 clients"):
        hold_out(clients, 0.5, 0)
