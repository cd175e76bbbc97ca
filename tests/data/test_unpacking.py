"""Archives from elsewhere: what is plain is unpacked, and what is hostile writes nothing outside its folder."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedra.data.unpacking import unpack_tar
from fedra.errors import DataError

Fill = Callable[[tarfile.TarFile], None]


def plain(name: str, content: bytes = b"x") -> Fill:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

    return add


def special(name: str, kind: bytes, target: str = "") -> Fill:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)

    return add


def both(*parts: Fill) -> Fill:
    def add(archive: tarfile.TarFile) -> None:
        for part in parts:
            part(archive)

    return add


def unpack(base: Path, fill: Fill, limit: int = 1000, mode: str = "w:gz") -> Path:
    archive = base / "some.tar.gz"
    with tarfile.open(archive, mode) as made:
        fill(made)
    folder = base / "into"
    folder.mkdir()
    unpack_tar(archive, folder, limit=limit)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_files_and_folders_come_out_as_they_went_in(tmp_path: Path, mode: str) -> None:
    names = ("./a/one.png", "a/two.png", "b/c/größe 3.png", ".hidden")
    fill = both(special("a", tarfile.DIRTYPE), *(plain(name, name.encode()) for name in names))
    found = everything(unpack(tmp_path, fill, mode=mode))
    assert found == {name.removeprefix("./"): name.encode() for name in names}


def test_modes_and_owners_of_an_archive_are_left_out(tmp_path: Path) -> None:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("a.sh")
        member.mode, member.uid = 0o6777, 12345
        archive.addfile(member)

    before = os.umask(0o022)
    try:
        found = (unpack(tmp_path, add) / "a.sh").stat()
    finally:
        os.umask(before)
    assert found.st_mode & 0o7777 == 0o644
    assert found.st_uid == os.getuid()


HOSTILE = {
    "up": (plain("../escaped"), "has a path outside of the folder"),
    "up inside": (plain("a/../../escaped"), "has a path outside of the folder"),
    "up and back": (plain("a/../b"), "has a path outside of the folder"),
    "root": (plain("/tmp/escaped"), "has an absolute path"),
    "two slashes": (plain("//server/escaped"), "has an absolute path"),
    "drive": (plain("C:/escaped"), "has an absolute path"),
    "drive without slash": (plain("C:escaped"), "has an absolute path"),
    "share": (plain("\\\\server\\share\\escaped"), "has an absolute path"),
    "backslash": (plain("a\\..\\..\\escaped"), "has an invalid path"),
    "folder above": (special("../made", tarfile.DIRTYPE), "has a path outside of the folder"),
    "symbolic link": (special("a", tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file or folder"),
    "link to a folder, then through it": (
        both(special("a", tarfile.SYMTYPE, ".."), plain("a/escaped")),
        "is not a regular file or folder",
    ),
    "hard link": (special("a", tarfile.LNKTYPE, "../some.tar.gz"), "is not a regular file or folder"),
    "device": (special("null", tarfile.CHRTYPE), "is not a regular file or folder"),
    "disk": (special("sda", tarfile.BLKTYPE), "is not a regular file or folder"),
    "pipe": (special("pipe", tarfile.FIFOTYPE), "is not a regular file or folder"),
    "long name": (plain("n" * 256), "has an invalid path"),
    "long name in bytes": (plain("ü" * 128), "has an invalid path"),
    "long path": (plain("/".join(["folder"] * 200)), "has an invalid path"),
    "line break": (plain("a\nb"), "has an invalid path"),
    "escape sequence": (plain("a\x1b[2Jb"), "has an invalid path"),
    "right to left": (plain("a\u202egnp.exe"), "has an invalid path"),
    "not UTF-8": (plain("a\udcff"), "has an invalid path"),
    "twice": (both(plain("a"), plain("a")), "contains 'a' twice"),
    "twice by another spelling": (both(plain("a"), plain("./a")), "twice"),
    "a file, then a folder": (both(plain("a"), plain("a/b")), "as a file and as a folder"),
    "a folder, then a file": (both(plain("a/b"), plain("a")), "twice"),
    "no name": (plain("."), "twice"),
    "too much": (plain("a", b"x" * 1001), "more bytes than"),
    "too much in all": (both(plain("a", b"x" * 600), plain("b", b"x" * 600)), "more bytes than"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_members_are_refused_and_write_nothing_outside(tmp_path: Path, case: str) -> None:
    fill, reason = HOSTILE[case]
    with pytest.raises(DataError, match=rf"some\.tar\.gz cannot be unpacked \(.*{reason}.*\): delete it and"):
        unpack(tmp_path, fill)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["into", "some.tar.gz"]
    assert not Path("/tmp/escaped").exists()
    assert not any(path.is_symlink() for path in (tmp_path / "into").rglob("*"))


def raw(header: tarfile.TarInfo, size: bytes) -> bytes:
    """A header whose size is other bytes than tarfile would write, with its checksum put right."""
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


@pytest.mark.parametrize(
    "content",
    {
        "nothing": b"",
        "not an archive": b"\x1f\x8b nothing",
        "negative size": raw(tarfile.TarInfo("a"), b"\xff" * 11 + b"\x00") + b"\0" * 2048,
        "half a file": raw(tarfile.TarInfo("a"), b"00000000100\0") + b"x" * 9,
    }.values(),
    ids=["nothing", "not an archive", "negative size", "half a file"],
)
def test_damaged_archives_are_told_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some.tar").write_bytes(content)
    (tmp_path / "into").mkdir()
    with pytest.raises(DataError, match=r"some\.tar cannot be unpacked .*: delete it and download it again"):
        unpack_tar(tmp_path / "some.tar", tmp_path / "into", limit=1000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_not_the_archives_fault(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as made:
        plain("a")(made)
    (tmp_path / "into").mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"cannot be unpacked \(.*Permission denied.*\): check"):
        unpack_tar(tmp_path / "some.tar", tmp_path / "into", limit=1000)


@pytest.mark.parametrize("length", range(12))
def test_an_archive_that_ends_in_its_first_bytes_is_a_sentence(length: int, tmp_path: Path) -> None:
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(bytes(2048), mtime=0)[:length])
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack_tar(tmp_path / "cut.tar.gz", tmp_path / "folder", limit=2**20)
