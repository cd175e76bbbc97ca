"""Galleries that several programs read and change at once, behind links, and after kills."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedra.errors import DataError, RunError
from fedra.faces import Enrollment, FaceRecognizer, Gallery, remove_person
from fedra.faces.recognition.gallery_changes import lock_gallery, replace_file
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata
from fedra.faces.recognition.recognizer import Embedded

WRITER = """
import sys
from pathlib import Path
import torch
from fedra.faces.recognition.gallery_changes import lock_gallery, replace_file
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata

path = Path(sys.argv[1])
def version(people):
    features = {f"p{number}": torch.full((1, 64), float(people)) for number in range(people)}
    return GalleryContent.empty(GalleryMetadata(fingerprint="f")).with_people(features)
versions = [version(people) for people in (1, 400, 3, 900)]
print("ready", flush=True)
while True:
    for one in versions:
        with lock_gallery(path) as file:
            replace_file(file, one)
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="links and modes of POSIX systems")


class Unhurried:
    """A recognizer whose photographs are all alike."""

    fingerprint, detector_fingerprint, detector_name, source, manner = "f", None, None, None, "as it is"

    def embed_usable(self, photos: Sequence[object], done: object) -> Embedded:
        return Embedded(torch.ones(len(photos), 8), tuple(range(len(photos))), {}, {})


def opened(file: Path, recognizer: Any = None) -> Gallery:
    return Gallery(file, cast(FaceRecognizer, recognizer or Unhurried()))


def enroll_one(file: Path, name: str) -> Enrollment:
    return opened(file).enroll(name, [f"{name}.jpg"])


def names(file: Path) -> list[str]:
    return sorted(GalleryContent.read(file).names)


def test_people_who_are_enrolled_at_once_are_all_enrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = tmp_path / "g", GalleryContent.read

    def slow(path: Path) -> GalleryContent:
        found = read(path)
        time.sleep(0.02)  # long enough for every other thread to read the same
        return found

    enroll_one(file, "first")
    monkeypatch.setattr(GalleryContent, "read", slow)
    wanted = [f"p{number}" for number in range(6)]
    with ThreadPoolExecutor(len(wanted) + 1) as pool:
        gone = pool.submit(remove_person, file, "first")
        done = list(pool.map(partial(enroll_one, file), wanted))
    assert gone.result().left <= len(wanted)
    assert names(file) == wanted
    assert [found.people for found in done] == [{name: 1} for name in wanted]


def test_who_was_enrolled_while_photographs_were_read_is_left_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "g"
    for name in ("Ada", "Grace"):
        (tmp_path / "people" / name).mkdir(parents=True)
        (tmp_path / "people" / name / "a.jpg").touch()

    class Overtaken(Unhurried):
        def embed_usable(self, photos: Sequence[object], done: object) -> Embedded:
            if not file.exists():
                enroll_one(file, "Ada")
            return super().embed_usable(photos, done)

    found = opened(file, Overtaken()).enroll_folder(tmp_path / "people")
    assert (found.people, found.existing) == ({"Grace": 1}, ("Ada",))
    assert GalleryContent.read(file).photographs.tolist() == [1, 1]


def test_a_reader_sees_the_changes_of_others(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "g"), opened(tmp_path / "g")
    one.enroll("Ada", ["a.jpg"])
    assert other.names == ("Ada",)
    one.enroll("Grace", ["b.jpg"])
    assert other.names == ("Ada", "Grace")
    assert other._content() is other._content()  # read once for as long as it stays


def test_reads_beside_a_writer_are_whole(tmp_path: Path) -> None:
    """Another process replaces the file as fast as it can: every read sees one of its versions."""
    file = tmp_path / "g"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while not file.exists():
            time.sleep(0.01)
        seen = set()
        for _ in range(3000):
            found = GalleryContent.read(file)
            assert bool((found.templates == float(len(found))).all())
            seen.add(len(found))
        assert len(seen) > 1
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
        if writer.stdout is not None:
            writer.stdout.close()


def test_a_gallery_that_another_program_holds_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedra.faces.recognition.gallery_changes.LOCK_TIMEOUT", 0.05)
    file = tmp_path / "g"
    enroll_one(file, "Ada")
    with lock_gallery(file), pytest.raises(RunError, match="another program has held the lock"):
        remove_person(file, "Ada")
    assert remove_person(file, "Ada").left == 0


def test_nothing_is_made_beside_a_gallery_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the gallery '.*' does not exist"):
        remove_person(tmp_path / "no" / "g", "Ada")
    assert not list(tmp_path.iterdir())


@posix
def test_the_file_behind_a_symbolic_link_is_changed(tmp_path: Path) -> None:
    file, link = tmp_path / "store" / "g", tmp_path / "link"
    enroll_one(file, "Ada")
    link.symlink_to(file)
    enroll_one(link, "Grace")
    enroll_one(file, "Emmy")
    remove_person(link, "Ada")
    assert link.is_symlink()
    assert names(file) == names(link) == ["Emmy", "Grace"]
    assert [path.name for path in file.parent.iterdir()] == ["g"]  # no lock and no temporary file is left


@posix
def test_both_names_of_a_link_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedra.faces.recognition.gallery_changes.LOCK_TIMEOUT", 0.05)
    enroll_one(tmp_path / "g", "Ada")
    (tmp_path / "link").symlink_to("g")
    with lock_gallery(tmp_path / "g"), pytest.raises(RunError, match="another program"):
        enroll_one(tmp_path / "link", "Grace")


@posix
def test_what_becomes_of_hard_links_is_reported(tmp_path: Path) -> None:
    file, other = tmp_path / "g", tmp_path / "other"
    enroll_one(file, "Ada")
    os.link(file, other)
    with pytest.warns(UserWarning, match="had 1 other hard link, which still has the old content"):
        assert "hard link" in enroll_one(file, "Grace").notes[0]
    assert (names(file), names(other)) == (["Ada", "Grace"], ["Ada"])
    assert enroll_one(file, "Emmy").notes == ()


@posix
def test_a_gallery_is_private_and_keeps_the_mode_it_was_given(tmp_path: Path) -> None:
    file, old = tmp_path / "g", os.umask(0o022)
    try:
        enroll_one(file, "Ada")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        enroll_one(file, "Grace")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o640)
        remove_person(file, "Ada")
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    finally:
        os.umask(old)


def test_leftovers_of_a_kill_are_removed_at_the_next_change(tmp_path: Path) -> None:
    file = tmp_path / "g"
    enroll_one(file, "Ada")
    left = tmp_path / "g.0123456789abcdef.tmp"
    left.write_bytes(file.read_bytes())
    mine = tmp_path / "g.notes.tmp"
    mine.touch()
    assert remove_person(file, "Ada").elsewhere == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "g.notes.tmp"]


@posix
def test_a_removal_says_what_else_holds_the_person(tmp_path: Path) -> None:
    file = tmp_path / "g"
    for name in ("Ada", "Grace"):
        enroll_one(file, name)
    (tmp_path / "g.bak").write_bytes(file.read_bytes())
    (tmp_path / "readme.txt").write_text("Ada")
    people = GalleryContent.empty(GalleryMetadata(fingerprint="f")).with_people({"Emmy": torch.ones(1, 8)})
    replace_file(tmp_path / "others", people)
    os.link(file, tmp_path / "linked")
    found = remove_person(str(file), "Ada")
    assert found.left == 1
    assert len(found.elsewhere) == 3
    assert "had 1 other hard link" in found.elsewhere[0]
    assert found.elsewhere[1:] == (
        f"'{tmp_path / 'g.bak'}' still contains 'Ada'",
        f"'{tmp_path / 'linked'}' still contains 'Ada'",
    )
