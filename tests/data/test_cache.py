from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

import fedra
import tiny
from fedra.data.cache import cache_entries, cached, caching, clear_cache


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


@pytest.mark.parametrize(("mode", "kept"), [(None, False), (True, True), (False, False)])
def test_images_outside_of_the_data_root_are_kept_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: bool | None, kept: bool
) -> None:
    """A clinic's folder: nothing of it is copied elsewhere in silence."""
    draw = np.random.default_rng(3)
    for label in ("ill", "well"):
        (tmp_path / "clinic" / label).mkdir(parents=True)
        for number in range(6):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "clinic" / label / f"{number}.png")
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path / "root"))
    data = {"name": "imagefolder", "path": str(tmp_path / "clinic"), **({} if mode is None else {"cache": mode})}
    table = tiny.table(rounds=1, data=data, partition={"name": "iid", "clients": 2}, model={"name": "logistic"})
    fedra.run(table, console=Console(width=400))
    assert ("remove them: fedra cache clear" in capsys.readouterr().out) == kept
    found = list((tmp_path / "root").rglob("*.safetensors"))
    assert len(found) == int(kept)
    assert f"{len(found)} entr" in tiny.call(capsys, "cache", "list")[1]
    assert "removed 0 entries" in tiny.call(capsys, "cache", "clear", "other")[1]
    assert f"removed {len(found)} entr" in tiny.call(capsys, "cache", "clear", "imagefolder-clinic")[1]
    assert not list((tmp_path / "root").rglob("*.safetensors"))
    assert len(list((tmp_path / "clinic").rglob("*.png"))) == 12


def test_nothing_is_kept_of_official_data_if_told(tmp_path: Path, source: Path) -> None:
    with caching(False):
        cached(tmp_path, "set", [source], lambda: {"x": torch.ones(2)})
    assert not cache_entries(tmp_path)
    cached(tmp_path, "set", [source], lambda: {"x": torch.ones(2)})
    (tmp_path / ".cache" / "notes.txt").write_text("mine")
    assert [entry.name[:4] for entry in clear_cache(tmp_path)] == ["set-"]
    assert (tmp_path / ".cache" / "notes.txt").exists()
