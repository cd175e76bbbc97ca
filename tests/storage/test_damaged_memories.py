"""Damaged memories of clients: reported, restarted from the global model, and found by the doctor."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedra
import tiny
from fedra.experiment import run as experiment
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.client_state import DamagedFile, pack
from fedra.storage.client_state import client_files as files
from fedra.storage.state import State
from remembering import config, longer, manifest_of, memory
from tiny import call, mistake

pytestmark = pytest.mark.usefixtures("without_curves")


def _half(folder: Path, **sections: Any) -> list[Path]:
    """A run that stopped after two rounds, and its clients' files."""
    fedra.run({**config(**sections), "rounds": 2}, out=folder)
    longer(folder)
    return sorted(folder.glob("checkpoint/clients/*/*.safetensors"))


def test_a_resume_reads_what_it_needs_when_it_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _half(tmp_path)
    read: list[Path] = []
    real = files.read_packed
    monkeypatch.setattr(files, "read_packed", lambda path, digest: (read.append(path), real(path, digest))[1])
    state = Checkpoint(tmp_path / "checkpoint").load(_server(tmp_path))
    assert len(state.memory) == len(held) > 1
    assert read == []
    client = next(iter(state.memory))
    assert state.memory.get(client)
    assert read == [held[0]]


def _server(folder: Path) -> Any:
    from fedra.experiment.build import build
    from fedra.storage.run_folder import RunFolder

    return State.fresh(build(RunFolder(folder).config()).job).server


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "other"])
def test_a_damaged_file_restarts_its_client_and_the_run_goes_on(tmp_path: Path, harm: str) -> None:
    """The same as if the checkpoint had never known the client, but for what is said about it."""
    victim = _half(tmp_path / "run", cohort={"fraction": 1.0})[0]
    client = int(victim.name[:7])
    shutil.copytree(tmp_path / "run", tmp_path / "without")
    manifest = manifest_of(tmp_path / "without" / "checkpoint")
    del manifest["clients"][str(client)]
    (tmp_path / "without" / "checkpoint" / "manifest.json").write_text(json.dumps(manifest))
    experiment.resume(tmp_path / "without")
    _harm(victim, harm)
    shown = io.StringIO()
    experiment.resume(tmp_path / "run", console=Console(file=shown, width=300))
    found, wanted = tiny.record(tmp_path / "run"), tiny.record(tmp_path / "without")
    assert found["model"] == wanted["model"]
    noted = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if "restarted" in line]
    assert [(line["round"], line["client"]) for line in noted] == [(3, client)]
    assert str(victim) in noted[0]["restarted"]
    assert [line.get("restarted") for line in found["metrics"]] == [None, None, 1, None, None]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarted"] == 1
    assert f"warning: client {client} restarts from the global model: the file '{victim}'" in shown.getvalue()
    assert "restarted" not in json.loads((tmp_path / "without" / "summary.json").read_text())


def _harm(victim: Path, harm: str) -> None:
    content = victim.read_bytes()
    if harm == "remove":
        victim.unlink()
    elif harm == "other":
        files.write_packed(victim, pack(memory(1.0)))
    else:
        victim.write_bytes(content[:-5] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))


def test_a_file_that_is_no_safetensors_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"no tensors")
    with pytest.raises(DamagedFile, match="is damaged"):
        files.read_packed(path, files.digest_of(b"no tensors"))


def test_the_doctor_verifies_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held = _half(tmp_path)
    code, shown, _ = call(capsys, "doctor", tmp_path)
    assert code == 0
    assert f"all files are intact in the checkpoint of '{tmp_path}' after round 2" in shown
    assert f"{len(held)} clients" in shown
    _harm(held[0], "flip")
    held[1].unlink()
    code, shown, told = call(capsys, "doctor", tmp_path)
    assert code == 1
    assert told.startswith("fedra: all files must be intact in the checkpoint of")
    assert told.count("\n") == 1
    assert f"client {int(held[0].name[:7])}: the file '{held[0]}' is damaged (its checksum differs)" in shown
    assert f"client {int(held[1].name[:7])}: the file '{held[1]}' cannot be read" in shown
    server = next(tmp_path.glob("checkpoint/server-*"))
    _harm(server, "cut")
    assert "the run cannot be resumed" in call(capsys, "doctor", tmp_path)[1]


def test_the_doctor_has_nothing_to_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "must contain a run" in mistake(capsys, "doctor", tmp_path)
    fedra.run(config(), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    code, shown, _ = call(capsys, "doctor", tmp_path / "run")
    assert (code, "has no checkpoint" in shown) == (0, True)
