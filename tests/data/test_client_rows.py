"""The rows of many clients, kept as one tensor."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from fedra.core.batches import Examples
from fedra.data.clients import LocalLabels, PooledClients, Rows, SeparateClients
from fedra.data.dataset import Split

PARTS = [np.array([3, 1]), np.array([], dtype=np.int64), np.array([0, 2, 4])]


def test_rows_are_a_sequence_of_tensors() -> None:
    for rows in (Rows(PARTS), pickle.loads(pickle.dumps(Rows(PARTS)))):
        assert [own.tolist() for own in rows] == [[3, 1], [], [0, 2, 4]]
        assert rows[-1].tolist() == [0, 2, 4]
        assert [own.tolist() for own in rows[1:]] == [[], [0, 2, 4]]
        with pytest.raises(IndexError):
            rows[3]


def test_clients_of_a_pool_share_one_tensor_of_rows() -> None:
    split = Split(torch.arange(5.0)[:, None], torch.arange(5))
    clients = PooledClients.split(split.inputs, split.targets, None, PARTS)  # type: ignore[arg-type]
    assert [clients.size(client) for client in range(len(clients))] == [2, 0, 3]
    assert clients[2].targets.tolist() == [0, 2, 4]
    assert clients.joined([2, 0]).targets.tolist() == [0, 2, 4, 3, 1]
    first, last = clients.rows[0], clients.rows[2]
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def test_labels_may_be_a_column_of_a_table() -> None:
    """Torch warns of such labels once per process, and warnings are errors here."""
    table = torch.tensor([[5, 7], [9, 7], [5, 8]])
    own = [Examples(torch.zeros(3, 2), table[:, column], None) for column in (0, 1)]  # type: ignore[arg-type]
    clients = LocalLabels.of(SeparateClients(own), 10)
    assert clients[0].targets.tolist() == [0, 1, 0]
    assert clients[1].targets.is_contiguous()
    assert clients[1].targets.tolist() == [0, 0, 1]
