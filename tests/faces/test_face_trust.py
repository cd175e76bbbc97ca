"""A recognizer imports a run's own network (module:function) only with trust."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedra
import tiny
from fedra.faces import FaceRecognizer, Gallery, ModelSource
from fedra.trust import ImportRefused
from tiny import call, mistake

MODULE = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("imported").touch()

def net(shape, classes, *, width: int = 6):
    body = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * shape[0], width))
    return nn.Sequential(body, nn.Linear(width, classes))
"""


@pytest.fixture
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of a network of the user's own, in a process that has not imported it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("network_of_a_test.py").write_text(MODULE)
    data = {"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [3, 32, 32]}
    fedra.run(tiny.table(data=data, model={"name": "network_of_a_test:net"}, rounds=1), out="run")
    sys.modules.pop("network_of_a_test", None)
    Path("imported").unlink()
    yield tmp_path / "run"
    sys.modules.pop("network_of_a_test", None)


@pytest.mark.usefixtures("without_curves")
def test_recognizers_and_galleries_ask_for_trust(own_run: Path, photographs: Path, detector: object) -> None:
    gallery = own_run.parent / "people.gallery"
    with pytest.raises(ImportRefused, match=r"names 'network_of_a_test:net'.*trust=True"):
        FaceRecognizer(own_run)
    with pytest.raises(ImportRefused, match="network_of_a_test:net"):
        ModelSource(path=str(own_run)).embedder()
    with pytest.raises(ImportRefused, match="network_of_a_test:net"):
        Gallery.open(gallery, model=own_run)
    assert not Path("imported").exists()
    recognizer = FaceRecognizer(own_run, detector, trust=True)  # type: ignore[arg-type]
    photo = photographs / "person_00000/0000.jpg"
    assert recognizer.embed(photo).shape == (6,)
    assert Path("imported").exists()
    Gallery.open(gallery, recognizer).enroll("Ada", photo)
    with pytest.raises(ImportRefused, match="network_of_a_test:net"):
        Gallery.open(gallery, detector="any")


@pytest.mark.usefixtures("without_curves", "known_to_the_commands")
def test_face_commands_ask_for_trust(own_run: Path, photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = photographs / "person_00000/0000.jpg"
    by = ("--model", own_run, "--detector", "any")
    for words in (
        ("verify", photo, photo, *by),
        ("calibrate", *by, "--on", photographs, "--far", "0.2"),
        ("enroll", "people.gallery", photographs, *by),
        ("identify", photo, "--gallery", "people.gallery", "--detector", "any"),
    ):
        Path("imported").unlink(missing_ok=True)
        sys.modules.pop("network_of_a_test", None)
        message = mistake(capsys, "faces", *words)
        assert "names 'network_of_a_test:net'" in message, words
        assert "with --trust" in message
        assert not Path("imported").exists()
        code, _, message = call(capsys, "faces", *words, "--trust")
        assert code == 0, message
        assert Path("imported").exists()
