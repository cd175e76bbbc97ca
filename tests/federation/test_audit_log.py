"""The log of what left: every change to it is found, and it is readable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedra.errors import DataError
from fedra.federation.audit_log import AuditLog, format_log, read_log, verify_log


@pytest.fixture
def written(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "log.jsonl")
    for round in range(4):
        log.record_tensors(
            "train", {"delta|head.weight": torch.zeros(3, 2), "steps": torch.tensor(1)}, round=round, digest=f"d{round}"
        )
    return log.path


def test_a_log_verifies_and_goes_on_in_another_process(written: Path) -> None:
    assert verify_log(written)[0] == 4
    AuditLog(written).record("finish", reason="over")
    assert verify_log(written)[0] == 5
    assert read_log(written)[-1]["event"] == "finish"


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "edited": lambda lines: [lines[0].replace("d0", "d9"), *lines[1:]],
    "removed": lambda lines: [lines[0], *lines[2:]],
    "removed first": lambda lines: lines[1:],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "doubled": lambda lines: [lines[0], lines[0], *lines[1:]],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_log_is_found(written: Path, change: Callable[[list[str]], list[str]]) -> None:
    written.write_text("\n".join(change(written.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match="break before line"):
        verify_log(written)


def test_a_log_cut_at_its_end_has_another_last_hash(written: Path) -> None:
    before = verify_log(written)
    written.write_text("".join(line + "\n" for line in written.read_text().splitlines()[:-1]))
    assert verify_log(written) != before


def test_an_incomplete_last_line_is_cut_off_and_recorded(written: Path) -> None:
    with written.open("ab") as file:
        file.write(b'{"before": "12')
    AuditLog(written).record("train")
    assert [entry["event"] for entry in read_log(written)][-2:] == ["cut", "train"]
    assert verify_log(written)[0] == 6


def test_values_of_tensors_are_not_in_the_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    log.record_tensors("train", {"delta|w": torch.tensor([0.123456])})
    (entry,) = read_log(log.path)
    assert entry["tensors"] == [["delta|w", [1], "float32", 4]]
    assert "123456" not in json.dumps({key: value for key, value in entry.items() if key != "before"})


def test_the_readable_form_names_each_tensor(written: Path) -> None:
    lines = list(format_log(read_log(written), tensors=True))
    assert "2 tensors, 0.000 MB" in lines[0]
    assert lines[1].split() == ["delta|head.weight", "3", "x", "2", "float32", "24", "bytes"]
    assert len(list(format_log(read_log(written)))) == 4


def test_the_readable_form_lists_the_numbers_that_left(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    log.record_tensors("sent", {}, words={"trained": [{"client": 0, "examples": 480}], "fedra": "0.2.0"})
    lines = list(format_log(read_log(log.path), tensors=True))
    assert lines[1:] == ["    trained  client 0, examples 480", "    fedra  0.2.0"]


@pytest.mark.parametrize(
    "change",
    [{"bytes": "many"}, {"bytes": 10**400}, {"tensors": [["w", [2]]]}, {"words": "text"}, {"event": None}, {"time": 3}],
    ids=str,
)
def test_a_line_of_another_form_is_a_sentence(change: dict[str, Any], tmp_path: Path) -> None:
    line = {"before": "0" * 64, "time": "2026-01-01", "event": "sent", "tensors": [], "bytes": 0, **change}
    (tmp_path / "log.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"line 1 of .* must be a line of the log"):
        list(format_log(read_log(tmp_path / "log.jsonl"), tensors=True))


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    log.record("sent", number=1)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:10]))  # as a file system does that has 10 bytes
        with pytest.raises(OSError, match="No space left"):
            log.record("sent", number=2)
        log.record_later("refused", number=3)
    assert verify_log(log.path)[0] == 1
    log.record("sent", number=4)
    assert verify_log(log.path)[0] == 3
    assert [line["number"] for line in read_log(log.path)] == [1, 3, 4]
