"""The road of a user on the command line: align, calibrate, verify, enroll, identify, remove."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from fedra.data.decoding import Bytes
from tiny import call, mistake

pytestmark = pytest.mark.usefixtures("known_to_the_commands")


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Path:
    """A run's folder of our own, for its threshold."""
    shutil.copytree(model, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["paint", "align", "calibrate", "verify", "enroll", "identify", "gallery"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, shown, _ = call(capsys, "faces", command, "--help")
    assert code == 0
    assert f"faces {command} [OPTIONS]" in shown
    assert command in call(capsys, "faces", "--help")[1]
    assert call(capsys, command, "--help")[0] == 2  # not at the top level


def test_the_whole_road(capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path) -> None:
    first, second = photographs / "person_00001/0000.jpg", photographs / "person_00001/0001.jpg"
    by = ("--model", run, "--detector", "any")
    crops, gallery = tmp_path / "crops", tmp_path / "people.gallery"

    def faces(*words: str | Path) -> str:
        code, shown, told = call(capsys, "faces", *words)
        assert code == 0, told
        return shown

    align = ("align", photographs, crops, "--points", photographs / "points.json", "--size", "32")
    assert faces(*align) == f"12 faces aligned; crops in {crops}\n"
    assert "12 already done" in faces(*align)

    told = faces("verify", first, second, *by)
    assert "each photo was aligned to 32x32 by acquainted" in told
    assert "no decision, because the model has no threshold" in told
    told = faces("calibrate", *by, "--on", photographs, "--far", "0.2")
    assert "of 54 pairs of different people" in told
    assert "the rate was measured on 4 people" in told
    assert (run / "threshold.json").exists()
    assert "the same person" in faces("verify", first, first, *by)
    shown = json.loads(faces("verify", first, second, *by, "--json"))
    assert shown["accepted"] == (shown["score"] >= shown["threshold"])
    assert [face["detection_score"] for face in shown["faces"]] == [0.9, 0.9]
    told = faces("verify", crops / "person_00001/0000.jpg", crops / "person_00001/0001.jpg", "--model", run)
    assert "used as an aligned crop" in told

    told = faces("enroll", gallery, photographs, *by)
    assert told == "4 people enrolled from 12 photos, each aligned to 32x32 by acquainted\n"
    told = faces("enroll", gallery, first, "--name", "Ada")
    assert "1 person enrolled (1 from a single photo) from 1 photo," in told
    told = faces("identify", first, "--gallery", gallery, "--top", "2").splitlines()
    assert told[0].startswith(f"{first}, ")
    assert told[0].endswith("detection score 0.90")
    assert told[1].split() == ["1", "1.0000", "Ada"]
    assert told[2].split()[0] == "2"
    assert told[3].endswith(f"on {photographs.name}): Ada")
    assert told[4] == "each photo was aligned to 32x32 by acquainted"
    assert "with 5 people enrolled, an unknown person is falsely accepted with a probability of about " in told[5]
    assert not any("up to" in line for line in told)
    shown = json.loads(faces("identify", first, "--gallery", gallery, "--json"))
    (photo,) = shown["photos"]
    (face,) = photo["faces"]
    assert [len(face["matches"]), shown["enrolled"], face["accepted"], face["name"]] == [5, 5, True, "Ada"]
    assert face["false_accept"]["value"] > 0.2
    assert "Ada" in faces("gallery", "list", gallery)
    assert "removed 'Ada'; 4 people still enrolled" in faces("gallery", "remove", gallery, "Ada")
    assert "Ada" not in faces("gallery", "list", gallery)

    moved = tmp_path / "elsewhere"
    shutil.move(run, moved)
    told = mistake(capsys, "faces", "identify", first, "--gallery", gallery, code=1)
    assert "give the current path of the model" in told
    assert "person_00001" in faces("identify", first, "--gallery", gallery, "--model", moved)


def test_folders_groups_and_unusable_photographs_are_identified(
    capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path, group: Bytes
) -> None:
    gallery, picture, broken = tmp_path / "g", tmp_path / "group.png", tmp_path / "broken.jpg"
    Image.fromarray(group).save(picture)
    broken.write_bytes(b"broken")
    call(capsys, "faces", "enroll", gallery, photographs, "--model", run, "--detector", "x")
    code, shown, told = call(capsys, "faces", "identify", picture, "--gallery", gallery)
    assert (code, shown.count("group.png")) == (0, 1)
    assert "group.png' shows 4 faces; the largest near the center was used, at 223, 23 to 259, 61" in told
    code, shown, told = call(capsys, "faces", "identify", picture, "--all", "--gallery", gallery, "--top", "1")
    assert (code, told) == (0, "")
    assert [f"face {number} of 4" in shown for number in (1, 4, 5)] == [True, True, False]
    words = (photographs / "person_00000", broken, picture, "--gallery", gallery)
    code, shown, told = call(capsys, "faces", "identify", *words)
    assert code == 1
    assert shown.count("person_00000/000") == 3
    assert "broken.jpg' cannot be read" in told
    code, shown, _ = call(capsys, "faces", "identify", *words, "--all", "--json")
    assert code == 1
    answers = json.loads(shown)["photos"]
    assert [len(answer["faces"]) for answer in answers] == [1, 1, 1, 0, 4]
    assert [answer["problem"] is None for answer in answers] == [True, True, True, False, True]
    told = call(capsys, "faces", "enroll", gallery, picture, "--name", "Group")[2]
    assert "shows 4 faces" in told


def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path
) -> None:
    photograph, gallery = photographs / "person_00000/0000.jpg", tmp_path / "g"
    (tmp_path / "broken.jpg").write_bytes(b"broken")

    def wrong(*words: str | Path, code: int = 2) -> str:
        return mistake(capsys, "faces", *words, code=code)

    assert "exactly one of --detector and --points must be given, got neither" in wrong(
        "align", photographs, tmp_path / "c"
    )
    align = ("align", photographs, tmp_path / "c", "--detector", "x")
    assert "format must be one of jpg, png, got 'bmp'" in wrong(*align, "--format", "bmp")
    assert "must not overlap" in wrong("align", photographs, photographs, "--detector", "x")
    assert "model must be set for the new gallery" in wrong("enroll", gallery, photograph, "--name", "Ada")
    enroll = ("enroll", gallery)
    assert "one subfolder of photos per person" in wrong(*enroll, photographs / "person_00000", "--model", run, code=1)
    assert "no person could be enrolled: the photo" in wrong(
        *enroll, tmp_path / "broken.jpg", "--name", "Ada", "--model", run, code=1
    )
    assert not gallery.exists()
    call(capsys, "faces", *enroll, photograph, "--name", "Ada", "--model", run, "--detector", "x")
    before = gallery.read_bytes()
    assert "'Ada' is already enrolled" in wrong(*enroll, photograph, "--name", "Ada")
    assert "at most one of --add and --replace may be given" in wrong(
        *enroll, photograph, "--name", "Ada", "--add", "--replace"
    )
    assert "is not enrolled: did you mean 'Ada'" in wrong("gallery", "remove", gallery, "Adaa")
    assert "does not exist: enroll a person" in wrong("identify", photograph, "--gallery", tmp_path / "no", code=1)
    assert "broken.jpg' cannot be read" in wrong("identify", tmp_path / "broken.jpg", "--gallery", gallery, code=1)
    other = tmp_path / "other"
    shutil.copytree(run, other)
    changed = bytearray((other / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (other / "model.safetensors").write_bytes(changed)
    assert "created with another model" in wrong("identify", photograph, "--gallery", gallery, "--model", other)
    assert gallery.read_bytes() == before


def test_who_is_enrolled_already_is_left_with_a_sentence(
    capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path
) -> None:
    words = ("faces", "enroll", tmp_path / "g", photographs, "--model", run, "--detector", "x")
    call(capsys, *words)
    code, shown, told = call(capsys, *words)
    assert (code, shown.split()[0]) == (0, "0")
    assert "already enrolled and left unchanged (use --add or --replace to change them): person_00000, " in told


def test_a_removal_says_what_else_holds_the_person(
    capsys: pytest.CaptureFixture[str], photographs: Path, run: Path, tmp_path: Path
) -> None:
    call(capsys, "faces", "enroll", tmp_path / "g", photographs, "--model", run, "--detector", "x")
    shutil.copy(tmp_path / "g", tmp_path / "g.bak")
    _, shown, told = call(capsys, "faces", "gallery", "remove", tmp_path / "g", "person_00001")
    assert shown == "removed 'person_00001'; 3 people still enrolled\n"
    assert told == f"'{tmp_path / 'g.bak'}' still contains 'person_00001'\n"


def test_a_detector_that_changed_since_is_refused(
    capsys: pytest.CaptureFixture[str],
    photographs: Path,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    detector: object,
) -> None:
    identify = ("faces", "identify", photographs / "person_00000/0000.jpg", "--gallery", tmp_path / "g")
    call(capsys, "faces", "enroll", tmp_path / "g", photographs, "--model", run, "--detector", "x")
    monkeypatch.setattr(type(detector), "fingerprint", "another 2")
    assert "has changed since the gallery was created" in mistake(capsys, *identify)
    assert "person_00000" in call(capsys, *identify, "--detector", "y")[1]
