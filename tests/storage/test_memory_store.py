"""The store of what clients remember: what is put is got, and no more of it lies in RAM than is allowed."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedra.core.tree import flatten
from fedra.errors import RunFailed
from fedra.storage.client_state import ClientFiles, ClientStates, group_by_stack, pack
from fedra.storage.client_state import client_files as files
from fedra.storage.client_state.packed_tree import decode, encode, pack_stack
from fedra.storage.client_state.store import MOSTLY_USED
from remembering import MB, SIZE, filled, memory, settle, value_of


@pytest.mark.parametrize("ram", [0.0, 0.5, 1.0, 3.0, 100.0])
def test_what_is_put_is_got_whatever_the_cap(tmp_path: Path, ram: float) -> None:
    store = filled(tmp_path, 8, ram)
    settle(store)
    store.expect(())
    settle(store)
    assert store.resident <= ram * SIZE
    assert [value_of(store.get(client)) for client in range(9)] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert list(store) == list(range(8))
    assert len(list(tmp_path.rglob("*.safetensors"))) == max(8 - int(ram), 0)
    store.close()


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, 3.0)
    store.get(0)
    store.put(9, {5: pack(memory(9))})
    store.expect(())
    settle(store)
    assert [path.name[:7] for path in tmp_path.rglob("*.safetensors")] == ["0000001"]


def test_the_expected_are_read_ahead_and_leave_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 8, 4.0)
    settle(store)
    store.expect([1, 0])
    settle(store)
    read = files.read_packed
    monkeypatch.setattr(files, "read_packed", lambda *_: pytest.fail("it was not read ahead"))
    assert (value_of(store.get(1)), value_of(store.get(0))) == (2, 1)
    monkeypatch.setattr(files, "read_packed", read)
    assert store.resident <= 4 * SIZE
    store.expect(range(8))
    settle(store)
    assert store.resident <= 4 * SIZE, "reading ahead keeps to the cap"
    assert [value_of(store.get(client)) for client in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    store.close()


def test_a_client_that_trains_while_its_old_file_is_read_keeps_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 4, 2.0)
    settle(store)
    real, gate, begun = files.read_packed, threading.Event(), threading.Event()

    def slow(path: Path, digest: str) -> Any:
        begun.set()
        assert gate.wait(30)
        return real(path, digest)

    monkeypatch.setattr(files, "read_packed", slow)
    store.expect([0])
    assert begun.wait(30)
    store.put(9, {0: pack(memory(99))})
    gate.set()
    settle(store)
    assert value_of(store.get(0)) == 99
    store.close()


def test_without_a_folder_the_overflow_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ClientStates(ram=0)
    for round in range(1, 4):
        store.put(round, {0: pack(memory(round)), 1: pack(memory(-round))})
        store.expect(())
        settle(store)
    assert (value_of(store.get(0)), value_of(store.get(1))) == (3, -3)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2, "older files go at once"
    store.close()
    assert list(tmp_path.iterdir()) == []


def stacked(clients: int, first: float) -> dict[str, torch.Tensor]:
    return {"part|w": first + torch.arange(float(clients))[:, None].expand(clients, SIZE // 4)}


def test_states_of_a_stack_stay_together_and_are_not_copied() -> None:
    store = ClientStates()
    values = {path: value.contiguous() for path, value in stacked(4, 1).items()}
    store.put(1, dict(zip((7, 3, 5, 9), store.pack_stack(values, 4), strict=True)))
    ((indices, found),) = group_by_stack(store.find([7, 3, 5, 9]))
    assert (list(indices), found["part|w"].data_ptr()) == ([0, 1, 2, 3], values["part|w"].data_ptr())
    store.put(2, {4: store.pack(memory(10))})
    groups = group_by_stack(store.find([5, 4, 8, 7]))
    assert [(indices, rows["part|w"][:, 0].tolist()) for indices, rows in groups] == [([0, 3], [3, 1]), ([1], [10])]
    assert [value_of(store.get(client)) for client in (3, 4, 5, 6, 7, 9)] == [2, 10, 3, 0, 1, 4]


def test_a_stack_shrinks_when_a_part_of_it_is_replaced() -> None:
    """The memory of a stack cannot be freed row by row."""
    store = ClientStates()
    for round in range(1, 9):
        store.put(round, dict(enumerate(store.pack_stack(stacked(8 - round + 1, 10.0 * round), 8 - round + 1))))
    assert [value_of(store.get(client)) for client in range(8)] == [80, 71, 62, 53, 44, 35, 26, 17]
    stacks = {found.stack for found in store.find(range(8)) if found is not None}
    held = sum(value.untyped_storage().nbytes() for stack in stacks for value in stack.values.values())
    assert held <= 8 / MOSTLY_USED * SIZE
    assert store.resident == 8 * SIZE


@pytest.mark.parametrize("ram", [0.0, 2.0, 5.0])
def test_states_of_a_stack_leave_ram_one_by_one(tmp_path: Path, ram: float) -> None:
    store = ClientStates(ClientFiles(tmp_path), ram * MB)
    for round in range(1, 4):
        store.put(round, dict(enumerate(store.pack_stack(stacked(6 - round, round), 6 - round))))
        store.expect(())
        settle(store)
    assert store.resident <= ram * SIZE
    assert [value_of(store.get(client)) for client in range(6)] == [3, 4, 5, 5, 5, 0]
    store.close()


def test_precision_rounds_vectors_and_nothing_else() -> None:
    values = {"a": torch.tensor([1 / 3]), "b": {"n": torch.tensor(1 / 3), "k": torch.tensor([7])}}
    values["d"] = torch.tensor([1 / 3], dtype=torch.float64)
    for name, kind in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        kept = pack(values, name)  # type: ignore[arg-type]
        for found in (flatten(kept.tree()), flatten(decode(encode(kept)).tree())):
            assert list(found) == ["a", "b|n", "b|k", "d"]
            assert torch.equal(found["a"], values["a"].to(kind).float())
            assert torch.equal(found["d"], values["d"].to(kind).double())
            assert torch.equal(found["b|n"], values["b"]["n"])
            assert torch.equal(found["b|k"], values["b"]["k"])
    assert pack(values, "float16").nbytes == 2 + 4 + 8 + 2
    twice = pack_stack({path: value.expand(2, *value.shape) for path, value in flatten(values).items()}, 2, "float16")
    assert twice.trees()[1].nbytes == 2 + 4 + 8 + 2
    assert twice.take([1])["a"].dtype is torch.float32
    assert torch.equal(flatten(pack(values).tree())["d"], values["d"])


def test_a_number_beyond_float16_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"at most 65504 .*, got more in 'part\|w'.*bfloat16"):
        pack(memory(1e5), "float16")
    assert value_of(pack(memory(1e5), "bfloat16").tree()) == pytest.approx(1e5, rel=0.01)


def test_a_view_does_not_keep_its_storage_and_a_tensor_may_come_twice() -> None:
    whole = torch.arange(100.0)
    kept = pack({"part": whole[3:5], "same": whole, "again": whole})
    assert kept.values["part"].untyped_storage().nbytes() == 8
    found = decode(encode(kept)).values
    assert torch.equal(found["same"], found["again"])
