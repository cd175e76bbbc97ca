"""Galleries that several programs change at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from fedra.errors import DataError, RunError
from fedra.faces import (
    Enrolment,
    Gallery,
    ModelSource,
    enrol,
    forget,
)
from fedra.faces.recognition.enrollment import PeoplePhotos
from fedra.faces.recognition.gallery import changing
from fedra.faces.recognition.recognizer import Embedded


class Unhurried:
    """A recogniser whose photographs are all alike."""

    fingerprint, detector, manner = "f", None, "as it is"

    def embed(self, paths: list[Path], done: object) -> Embedded:
        return Embedded(torch.ones(len(paths), 8), tuple(paths), {})


def enrol_one(file: Path, name: str) -> Enrolment:
    people = PeoplePhotos({name: [Path(f"{name}.jpg")]}, ())
    return enrol(file, Unhurried(), ModelSource(path="run"), people)  # type: ignore[arg-type]


def test_people_who_are_enrolled_at_once_are_all_enrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = tmp_path / "g", Gallery.read

    def slow(path: Path) -> Gallery:
        found = read(path)
        time.sleep(0.02)  # long enough for every other thread to read the same
        return found

    enrol_one(file, "first")
    monkeypatch.setattr(Gallery, "read", slow)
    names = [f"p{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names) + 1) as pool:
        gone = pool.submit(forget, file, "first")
        done = list(pool.map(partial(enrol_one, file), names))
    assert gone.result() <= len(names)
    assert sorted(read(file).names) == names
    assert [found.people for found in done] == [{name: 1} for name in names]


def test_who_was_enrolled_while_photographs_were_read_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "g"

    class Overtaken(Unhurried):
        def embed(self, paths: list[Path], done: object) -> Embedded:
            if not file.exists():
                enrol_one(file, "Ada")
            return super().embed(paths, done)

    people = PeoplePhotos({name: [Path(f"{name}.jpg")] for name in ("Ada", "Grace")}, ())
    found = enrol(file, Overtaken(), ModelSource(path="run"), people)  # type: ignore[arg-type]
    assert found.people == {"Grace": 1}
    assert "'Ada' is enrolled already" in found.problems[0]
    assert Gallery.read(file).photographs.tolist() == [1, 1]


def test_a_gallery_that_another_program_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedra.faces.recognition.gallery.PATIENCE", 0.05)
    file = tmp_path / "g"
    enrol_one(file, "Ada")
    with changing(file), pytest.raises(RunError, match="another program has been changing the gallery"):
        forget(file, "Ada")
    assert forget(file, "Ada") == 0


def test_nothing_is_made_beside_a_gallery_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no gallery"):
        forget(tmp_path / "no" / "g", "Ada")
    assert not list(tmp_path.iterdir())
