from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedra.data.cache import cached


class Decoder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return {"inputs": torch.arange(60, dtype=torch.uint8).view(5, 12), "targets": torch.arange(5)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"12345")
    return path


def the_entry(root: Path) -> Path:
    (entry,) = (root / ".cache").iterdir()
    return entry


def check(kept: dict[str, Tensor]) -> None:
    expected = Decoder()()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)
    assert kept["inputs"].dtype == torch.uint8


def test_decodes_once(tmp_path: Path, source: Path) -> None:
    decode = Decoder()
    check(cached(tmp_path, "set", [source], decode))
    check(cached(tmp_path, "set", [source], decode))
    assert decode.calls == 1


def test_another_source_or_field_is_another_entry(tmp_path: Path, source: Path) -> None:
    decode = Decoder()
    cached(tmp_path, "set", [source], decode, {"size": 8})
    cached(tmp_path, "set", [source], decode, {"size": 9})
    assert decode.calls == 2
    cached(tmp_path, "set", [source], decode, {"size": 8})
    assert decode.calls == 2
    os.utime(source, ns=(1, 1))
    cached(tmp_path, "set", [source], decode, {"size": 8})
    assert decode.calls == 3
    source.write_bytes(b"123456")
    os.utime(source, ns=(1, 1))
    cached(tmp_path, "set", [source], decode, {"size": 8})
    assert decode.calls == 4
    assert len(list((tmp_path / ".cache").iterdir())) == 2


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, source: Path, keep: int) -> None:
    decode = Decoder()
    cached(tmp_path, "set", [source], decode)
    entry = the_entry(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    check(cached(tmp_path, "set", [source], decode))
    assert decode.calls == 2
    assert entry.read_bytes() == whole


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path, source: Path) -> None:
    (tmp_path / ".cache").write_text("a file where the folder should be")
    decode = Decoder()
    check(cached(tmp_path, "set", [source], decode))
    check(cached(tmp_path, "set", [source], decode))
    assert decode.calls == 2


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    check(cached(tmp_path, "set", [source], Decoder()))
    assert list((tmp_path / ".cache").iterdir()) == []


def test_what_is_read_can_be_written_to_without_changing_the_entry(tmp_path: Path, source: Path) -> None:
    decode = Decoder()
    cached(tmp_path, "set", [source], decode)
    cached(tmp_path, "set", [source], decode)["inputs"].zero_()
    check(cached(tmp_path, "set", [source], decode))
    assert decode.calls == 1
