"""A full disk on either side: nothing is half-written, and the federation goes on when there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rehearsing import Rehearsed
from test_coordinator import same_model

import fedra
import tiny
from fedra.federation.audit_log import read_log, verify_log
from fedra.federation.wire import Packet

pytestmark = pytest.mark.usefixtures("without_curves")


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A function that fills the disk, or makes room: messages cannot be flushed to it while it is full."""
    full, flush = [False], os.fsync

    def fsync(file: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    monkeypatch.setattr("fedra.federation.packet_files.os.fsync", fsync)
    return lambda value: full.__setitem__(0, value)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "tmp" in path.suffix]


def test_a_site_whose_disk_is_full_is_absent_until_there_is_room(
    tmp_path: Path, fill_disk: Callable[[bool], None]
) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2, faults={"quorum": 0.0}))
    rounds = 0

    def answer(packet: Packet) -> Packet:
        nonlocal rounds
        rounds += packet.kind == "train"
        fill_disk(packet.kind == "train" and rounds == 1)
        try:
            return rehearsed.nodes["site-2"].answer(packet)
        finally:
            fill_disk(False)

    rehearsed.link.sites["site-2"] = answer
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-2"]
    assert [line.get("dropped") for line in lines] == ["its disk is full", None]
    assert leftovers(tmp_path / "site-2") == []
    verify_log(tmp_path / "site-2" / "log.jsonl")  # no half line
    refused = [line for line in read_log(tmp_path / "site-2" / "log.jsonl") if line["event"] == "refused"]
    assert [line["reason"] for line in refused] == ["its disk is full"]  # written when there was room


def test_a_coordinator_whose_disk_is_full_stops_and_goes_on_to_the_same_bits(
    tmp_path: Path, fill_disk: Callable[[bool], None]
) -> None:
    table = tiny.table(algorithm={"name": "scaffold"})
    rehearsed = Rehearsed(tmp_path, table)
    rounds = 0

    def answer(packet: Packet) -> Packet:
        nonlocal rounds
        rounds += packet.kind == "train"
        found = rehearsed.nodes["site-1"].answer(packet)
        fill_disk(packet.kind == "train" and rounds == 2)
        return found

    rehearsed.link.sites["site-1"] = answer
    with pytest.raises(OSError, match="No space left"):
        rehearsed.run()
    assert leftovers(tmp_path / "coordinator") == []
    fill_disk(False)
    rehearsed.run()
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(tmp_path / "run", tmp_path / "simulator")
