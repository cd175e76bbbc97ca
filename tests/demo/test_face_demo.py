"""The faces part of `fedra demo`, at a size that takes a few seconds; at its full size where it is marked slow."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.demo import face_demo as faces
from fedra.demo.demo_folder import MARKER
from fedra.demo.door import Answer
from fedra.demo.face_demo import FaceDemo, FaceDemoResult, Scale, recognize_faces
from fedra.demo.warm_start import WEIGHTS, save_body
from fedra.errors import ConfigError
from fedra.models.pretrained import read_tensors

SMALL = Scale(
    clients=2, people=4, images=3, unseen=4, unseen_images=3, enrolled=3, enrolled_images=2, unknown=1, rounds=1
)
PLOTS = ("draw_worst", "draw_scores", "draw_roc")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, FaceDemoResult]:
    """The folder of a small demo, what it printed and found; pictures, most of its time, are left out."""
    folder = tmp_path_factory.mktemp("demo") / "faces"
    printed = io.StringIO()
    config = FaceDemo.configuration
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("FEDRA_DATA", str(folder.parent / "data"))
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        for plot in PLOTS:
            patch.setattr(f"fedra.faces.metrics.plots.{plot}", lambda *_, **__: None)
        patch.setattr(FaceDemo, "configuration", lambda demo: config(demo) | {"runner": {"name": "sequential"}})
        found = recognize_faces(folder, Console(width=400), scale=SMALL)
    return folder, printed.getvalue(), found


def commands(printed: str) -> list[list[str]]:
    return [shlex.split(line[2:]) for line in printed.splitlines() if line.startswith("$ ")]


def test_the_demo_leaves_all_that_it_names(shown: tuple[Path, str, FaceDemoResult]) -> None:
    folder, printed, found = shown
    for name in (MARKER, "photos/clients/client_001/person_00003/0002.jpg", "crops/door/person_00011/0002.jpg",
                 "faces.toml", "run/summary.json", "run/eval-unseen.json", "run/threshold.json", "staff.gallery",
                 "face.onnx", "face.md"):  # fmt: skip
        assert (folder / name).is_file(), name
    for network in ("untrained network", "warm start", "after federated training"):
        assert re.search(rf"{network}.*%.*0\.\d{{4}}", printed), network
    record = json.loads((folder / "run" / "eval-unseen.json").read_text(encoding="utf-8"))
    assert record["protocols"]["verification"]["table"]["AUROC"] in printed
    assert record["protocols"]["verification"]["metrics"]["accuracy"] == found.after
    assert [answer.enrolled for answer in found.answers] == [True, True, True, False]
    assert f"{sum(answer.is_correct for answer in found.answers)} of 4 answers are correct" in printed
    assert "docs/faces.md" in printed


def test_the_commands_that_it_shows_do_the_same(
    shown: tuple[Path, str, FaceDemoResult],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder, printed, found = shown
    for plot in PLOTS:
        monkeypatch.setattr(f"fedra.faces.metrics.plots.{plot}", lambda *_, **__: None)
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path / "data"))
    again = tmp_path / "again"
    again.mkdir()
    told = (folder / "faces.toml").read_text().replace(str(folder.resolve()), str(again.resolve()))
    (again / "faces.toml").write_text(told)
    early = [("faces", "paint"), ("faces", "align")] * 4
    assert [tuple(words[1:3]) for words in commands(printed)][:8] == early
    assert [words[1] for words in commands(printed)][8:] == ["run", "eval", "faces", "faces", "faces", "export"]
    for words in commands(printed):
        code, out, err = tiny.call(capsys, *(word.replace(str(folder), str(again)) for word in words[1:]))
        assert code == 0, err
        if words[2] == "identify":
            for answer in found.answers:
                assert f"{answer.score:.4f}" in out
    for crop in (folder / "crops").rglob("*.jpg"):
        assert crop.read_bytes() == (again / crop.relative_to(folder)).read_bytes()
    figures = [json.loads((place / "run" / "summary.json").read_text())["final_accuracy"] for place in (folder, again)]
    assert figures[0] == figures[1]


def test_a_demo_replaces_its_own_folder_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").touch()
    with pytest.raises(ConfigError, match="must be new or made by an earlier demo"):
        recognize_faces(tmp_path / "mine", Console(file=io.StringIO()), scale=SMALL)
    assert (tmp_path / "mine" / "photo.jpg").exists()
    old = tmp_path / "old"
    old.mkdir()
    (old / MARKER).touch()
    (old / "stale").touch()
    monkeypatch.setattr(FaceDemo, "make_photos", lambda demo: stop())
    with pytest.raises(InterruptedError):
        recognize_faces(old, Console(file=io.StringIO()), scale=SMALL)
    assert [path.name for path in old.iterdir()] == [MARKER]  # broken off as it is, the next one replaces it


def stop() -> None:
    raise InterruptedError


def test_without_the_extra_no_onnx_file_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(faces, "find_spec", lambda name: None)
    printed = io.StringIO()
    demo = FaceDemo(tmp_path, Console(file=printed, width=400), SMALL)
    demo.export()
    demo.print_next_steps()
    assert "pip install 'fedra[onnx]'" in printed.getvalue()
    assert "staff.gallery" in printed.getvalue()
    assert "face.onnx" not in printed.getvalue()


@pytest.mark.parametrize(
    ("enrolled", "name", "right"),
    [(True, "a", True), (True, "b", False), (True, None, False), (False, None, True), (False, "b", False)],
)
def test_an_answer_is_right_if_it_names_the_enrolled_and_no_other(
    enrolled: bool, name: str | None, right: bool
) -> None:
    assert Answer("a", enrolled, name, 0.5, 0.4).is_correct is right


def test_the_warm_start_holds_a_body_alone(tmp_path: Path) -> None:
    body = read_tensors(WEIGHTS)
    assert all(name.startswith("body.") for name in body)
    assert WEIGHTS.stat().st_size < 1_000_000
    shutil.copy(WEIGHTS, tmp_path / "model.safetensors")
    save_body(tmp_path, tmp_path / "body.safetensors")
    assert (tmp_path / "body.safetensors").read_bytes() == WEIGHTS.read_bytes()


@pytest.mark.slow
def test_the_demo_names_all_enrolled_people_and_no_other(tmp_path: Path) -> None:
    found = recognize_faces(tmp_path / "faces", Console(file=io.StringIO()))
    assert found.after >= 0.95
    assert found.after > found.before + 0.015
    assert len(found.answers) == 10
    assert all(answer.is_correct for answer in found.answers), found.answers


def test_painted_photographs_are_dealt_to_clients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("faces", "paint", tmp_path / "p", "--people", 3, "--images", 1, "--clients", 2, "--size", "48x64")
    assert "3 photos of 3 people" in tiny.call(capsys, *words, "--first-person", 5, "--first-image", 2)[1]
    found = sorted(path.relative_to(tmp_path / "p").as_posix() for path in (tmp_path / "p").rglob("*.jpg"))
    assert found == [f"client_{c:03d}/person_{p:05d}/0002.jpg" for c, p in ((0, 5), (0, 6), (1, 7))]
    assert sorted(json.loads((tmp_path / "p" / "points.json").read_text())) == found
    assert "must be new, but" in tiny.mistake(capsys, *words, code=1)
    assert "clients must be at most" in tiny.mistake(
        capsys, "faces", "paint", tmp_path / "q", "--people", 3, "--clients", 4
    )
    assert "size must be height x width" in tiny.mistake(capsys, "faces", "paint", tmp_path / "q", "--size", "big")


def test_photographs_vary_as_strongly_as_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--people", 1, "--images", 1, "--size", "48x64")
    for name, more in (("usual", ()), ("same", ("--strength", "light=1")), ("calm", ("--strength", "light=0"))):
        assert tiny.call(capsys, "faces", "paint", tmp_path / name, *words, *more)[0] == 0
    usual, same, calm = (next((tmp_path / name).rglob("*.jpg")).read_bytes() for name in ("usual", "same", "calm"))
    assert usual == same
    assert usual != calm
    for wrong in ("lihgt=1", "light", "light=-1", "light=much"):
        told = tiny.mistake(capsys, "faces", "paint", tmp_path / "no", "--strength", wrong)
        assert "light" in told
    assert not (tmp_path / "no").exists()
