"""`fedra demo`: which parts it shows, and the road of faces at a size that takes a few seconds."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.cli import face_demo
from fedra.cli.face_demo import MARK, Scale, walk
from fedra.errors import ConfigError
from fedra.experiment import demo

SMALL = Scale(clients=2, people=4, images=3, strangers=4, strangers_images=3, staff=3, staff_images=2, rounds=1)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a small walk, and all that it printed; pictures, most of its time, are left out."""
    folder = tmp_path_factory.mktemp("demo") / "faces"
    printed = io.StringIO()
    config = face_demo.configuration
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("FEDRA_DATA", str(folder.parent / "data"))
        patch.setenv("COLUMNS", "400")
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        patch.setattr("fedra.faces.metrics.plots.draw_worst", lambda *_: None)
        patch.setattr("fedra.faces.metrics.plots.draw_scores", lambda *_, **__: None)
        patch.setattr("fedra.faces.metrics.plots.draw_roc", lambda *_: None)
        patch.setattr("fedra.faces.metrics.plots.draw_cmc", lambda *_: None)
        patch.setattr(face_demo, "configuration", lambda *given: config(*given) | {"runner": {"name": "sequential"}})
        walk(folder, Console(width=400), SMALL)
    return folder, printed.getvalue()


def test_the_road_leaves_all_that_it_tells_of(walked: tuple[Path, str]) -> None:
    folder, printed = walked
    for name in (MARK, "photos/clients/client_001/person_00003/0002.jpg", "crops/door/person_00011/0002.jpg",
                 "run/summary.json", "run/eval-strangers.json", "run/threshold.json", "staff.gallery",
                 "face.onnx", "face.md"):  # fmt: skip
        assert (folder / name).is_file(), name
    assert "3 people enrolled from 6 photographs" in printed
    assert "from PyTorch" in printed
    for by in ("raw pixels", "the untrained network", "the trained network"):
        assert re.search(rf"{by} .*%.*0\.\d{{4}}", printed), by
    assert "person_00011, is not enrolled" in printed


def test_every_step_is_the_command_that_is_shown(walked: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, printed = walked
    commands = [shlex.split(line[2:]) for line in printed.splitlines() if line.startswith("$ ")]
    names = [words[2] if words[1] == "faces" else words[1] for words in commands]
    early = ["paint", "align"] * 4 + ["run", "eval", "calibrate", "enroll"]
    assert names == [*early, *["identify"] * 4, "export"]
    identify = next(words for words in commands if words[2] == "identify")
    shown = tiny.call(capsys, *identify[1:])[1]
    assert shown in printed
    record = json.loads((folder / "run" / "eval-strangers.json").read_text(encoding="utf-8"))
    assert record["protocols"]["verification"]["table"]["AUROC"] in printed


def test_a_demonstration_replaces_its_own_folder_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").touch()
    with pytest.raises(ConfigError, match="no demonstration made it"):
        walk(tmp_path / "mine", Console(file=io.StringIO()), SMALL)
    assert (tmp_path / "mine" / "photo.jpg").exists()
    old = tmp_path / "old"
    old.mkdir()
    (old / MARK).touch()
    (old / "stale").touch()
    monkeypatch.setattr(face_demo.Road, "photograph", lambda road, scale: stop())
    with pytest.raises(InterruptedError):
        walk(old, Console(file=io.StringIO()), SMALL)
    assert [path.name for path in old.iterdir()] == [MARK]  # broken off as it is, the next one replaces it


def stop() -> None:
    raise InterruptedError


@pytest.mark.parametrize(("part", "shown"), [("digits", ["digits"]), ("faces", ["faces"]), (None, ["digits", "faces"])])
def test_one_part_alone_can_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str | None, shown: object
) -> None:
    done: list[str] = []
    monkeypatch.setattr(demo, "demo", lambda out, console: done.append("digits"))
    monkeypatch.setattr(face_demo, "walk", lambda folder, console: done.append(folder.name))
    tiny.call(capsys, "demo", "--out", tmp_path, *([] if part is None else ["--part", part]))
    assert done == shown


def test_without_the_extra_the_export_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(face_demo, "find_spec", lambda name: None)
    printed = io.StringIO()
    face_demo.Road(tmp_path, Console(file=printed, width=200)).hand_on()
    assert "pip install 'fedra[onnx]'" in printed.getvalue()


def test_painted_photographs_are_dealt_to_clients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("faces", "paint", tmp_path / "p", "--people", 3, "--images", 1, "--clients", 2, "--size", "48x64")
    assert "3 photographs of 3 people" in tiny.call(capsys, *words, "--first-person", 5, "--first-image", 2)[1]
    found = sorted(path.relative_to(tmp_path / "p").as_posix() for path in (tmp_path / "p").rglob("*.jpg"))
    assert found == [f"client_{c:03d}/person_{p:05d}/0002.jpg" for c, p in ((0, 5), (0, 6), (1, 7))]
    assert sorted(json.loads((tmp_path / "p" / "points.json").read_text())) == found
    assert "is there already" in tiny.mistake(capsys, *words, code=1)
    assert "cannot be dealt to 4 clients" in tiny.mistake(
        capsys, "faces", "paint", tmp_path / "q", "--people", 3, "--clients", 4
    )
    assert "a size must be height x width" in tiny.mistake(capsys, "faces", "paint", tmp_path / "q", "--size", "big")
