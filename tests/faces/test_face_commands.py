"""The road of a user on the command line: align, calibrate, verify, enrol, identify, forget."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tiny import call, mistake

pytestmark = pytest.mark.usefixtures("known_to_the_commands")


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Path:
    """A run's folder of our own, for its threshold."""
    shutil.copytree(model, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["paint", "align", "calibrate", "verify", "enrol", "identify", "gallery"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, shown, _ = call(capsys, command, "--help")
    assert code == 0
    assert f"fedra {command}" in shown or f"{command} [OPTIONS]" in shown


def test_the_whole_road(capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path) -> None:
    first, second = photographs / "person_00001/0000.jpg", photographs / "person_00001/0001.jpg"
    by = ("--model", run, "--detector", "any")
    crops, gallery = tmp_path / "crops", tmp_path / "people.gallery"
    told = call(capsys, "align", photographs, crops, "--points", photographs / "points.json", "--size", "32")[1]
    assert told == f"12 faces aligned; crops in {crops}\n"
    assert (
        "12 were there already"
        in call(capsys, "align", photographs, crops, "--points", photographs / "points.json", "--size", "32")[1]
    )

    told = call(capsys, "verify", first, second, *by)[1]
    assert "each photograph was aligned to 32x32 by acquainted" in told
    assert "no threshold is kept with the model, so nothing is decided" in told
    told = call(capsys, "calibrate", *by, "--on", photographs, "--far", "0.2")[1]
    assert "of 54 pairs of different people pass" in told
    assert (run / "threshold.json").exists()
    assert "the same person" in call(capsys, "verify", first, first, *by)[1]
    shown = json.loads(call(capsys, "verify", first, second, *by, "--json")[1])
    assert shown["accepted"] == (shown["score"] >= shown["threshold"])
    assert (
        "taken as an aligned crop"
        in call(capsys, "verify", crops / "person_00001/0000.jpg", crops / "person_00001/0001.jpg", "--model", run)[1]
    )

    told = call(capsys, "enrol", gallery, photographs, *by)[1]
    assert told == "4 people enrolled from 12 photographs, each aligned to 32x32 by acquainted\n"
    told = call(capsys, "enrol", gallery, first, "--name", "Ada")[1]
    assert "1 person enrolled (1 of them by a single photograph) from 1 photograph," in told
    told = call(capsys, "identify", first, "--gallery", gallery, "--top", "2")[1].splitlines()
    assert told[0] == "the photograph was aligned to 32x32 by acquainted"
    assert told[1].split() == ["1", "1.0000", "Ada"]
    assert told[2].split()[0] == "2"
    assert told[3].endswith(f"on {photographs}): it is Ada")
    assert "a stranger passes with up to 1" in told[4]
    shown = json.loads(call(capsys, "identify", first, "--gallery", gallery, "--json")[1])
    assert [len(shown["matches"]), shown["enrolled"], shown["accepted"]] == [5, 5, True]
    assert shown["matches"][0]["name"] == "Ada"
    assert "Ada" in call(capsys, "gallery", "list", gallery)[1]
    assert "4 people are enrolled" in call(capsys, "gallery", "remove", gallery, "Ada")[1]
    assert "Ada" not in call(capsys, "gallery", "list", gallery)[1]

    moved = tmp_path / "elsewhere"
    shutil.move(run, moved)
    assert "say where it is with --model" in mistake(capsys, "identify", first, "--gallery", gallery, code=1)
    assert "person_00001" in call(capsys, "identify", first, "--gallery", gallery, "--model", moved)[1]


def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path
) -> None:
    photograph, gallery = photographs / "person_00000/0000.jpg", tmp_path / "g"
    (tmp_path / "broken.jpg").write_bytes(b"broken")
    assert "either a --detector" in mistake(capsys, "align", photographs, tmp_path / "c")
    assert "cannot be written as 'bmp'" in mistake(
        capsys, "align", photographs, tmp_path / "c", "--detector", "x", "--format", "bmp"
    )
    assert "overlaps" in mistake(capsys, "align", photographs, photographs, "--detector", "x")
    assert "say which model makes its templates" in mistake(capsys, "enrol", gallery, photograph, "--name", "Ada")
    assert "no folders with photographs" in mistake(
        capsys, "enrol", gallery, photographs / "person_00000", "--model", run, code=1
    )
    assert "nobody was enrolled: the photograph" in mistake(
        capsys, "enrol", gallery, tmp_path / "broken.jpg", "--name", "Ada", "--model", run, code=1
    )
    assert not gallery.exists()
    call(capsys, "enrol", gallery, photograph, "--name", "Ada", "--model", run, "--detector", "x")
    before = gallery.read_bytes()
    assert "'Ada' is enrolled already" in mistake(capsys, "enrol", gallery, photograph, "--name", "Ada", code=1)
    assert "exclude each other" in mistake(capsys, "enrol", gallery, photograph, "--name", "Ada", "--add", "--replace")
    assert "is not enrolled: did you mean 'Ada'" in mistake(capsys, "gallery", "remove", gallery, "Adaa")
    assert "there is no gallery" in mistake(capsys, "identify", photograph, "--gallery", tmp_path / "no", code=1)
    assert "broken.jpg' cannot be read" in mistake(
        capsys, "identify", tmp_path / "broken.jpg", "--gallery", gallery, code=1
    )
    other = tmp_path / "other"
    shutil.copytree(run, other)
    changed = bytearray((other / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (other / "model.safetensors").write_bytes(changed)
    assert "made by another model" in mistake(capsys, "identify", photograph, "--gallery", gallery, "--model", other)
    assert gallery.read_bytes() == before


def test_a_detector_that_changed_since_is_refused(
    capsys: pytest.CaptureFixture[str],
    photographs: Path,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    detector: object,
) -> None:
    photograph, gallery = photographs / "person_00000/0000.jpg", tmp_path / "g"
    call(capsys, "enrol", gallery, photographs, "--model", run, "--detector", "x")
    monkeypatch.setattr(type(detector), "fingerprint", "another 2")
    assert "is not what it was at enrolment" in mistake(capsys, "identify", photograph, "--gallery", gallery)
    assert "person_00000" in call(capsys, "identify", photograph, "--gallery", gallery, "--detector", "y")[1]
