"""Files that are replaced: whole, private where asked, through no link that was put in the way."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest
import torch

from fedra import writing
from fedra.analysis.embeddings import Embeddings
from fedra.data.cache import cached
from fedra.experiment.embed_run import save_embeddings
from fedra.writing import find_leftovers, replacing, write_atomically

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and owners of POSIX systems")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@posix
def test_modes(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_atomically(tmp_path / "open", b"1")
        write_atomically(tmp_path / "private", b"1", private=True)
        assert (mode(tmp_path / "open"), mode(tmp_path / "private")) == (0o644, 0o600)
        (tmp_path / "open").chmod(0o640)
        (tmp_path / "private").chmod(0o660)
        write_atomically(tmp_path / "open", b"2")
        write_atomically(tmp_path / "private", b"2", private=True)
        assert (mode(tmp_path / "open"), mode(tmp_path / "private")) == (0o640, 0o660)
    finally:
        os.umask(old)


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    os.chown(file, 1234, 2345)
    write_atomically(file, b"2", private=True)
    assert (file.stat().st_uid, file.stat().st_gid, file.read_bytes()) == (1234, 2345, b"2")


@posix
def test_an_owner_that_cannot_be_kept_takes_the_group_s_rights_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    file = tmp_path / "file"
    file.write_bytes(b"1")
    file.chmod(0o664)
    seen = file.lstat()
    other = os.stat_result((*seen[:4], seen.st_uid + 1, *seen[5:]))
    monkeypatch.setattr(Path, "lstat", lambda path: other)
    monkeypatch.setattr(os, "fchown", refused)
    write_atomically(file, b"2")
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


@posix
def test_a_link_in_the_place_of_the_temporary_file_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody could foresee the name."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(writing.secrets, "token_hex", lambda count: "0" * 2 * count)
    (tmp_path / f"file.{'0' * 16}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"new")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").exists()


def test_temporary_names_differ(tmp_path: Path) -> None:
    with replacing(tmp_path / "f") as one, replacing(tmp_path / "f") as two:
        assert one != two
        assert {one, two} == set(find_leftovers(tmp_path, ["f"]))
        assert not any(str(os.getpid()) in path.name.split(".") for path in (one, two))


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def fill() -> None:
        with replacing(tmp_path / "f") as temporary:
            temporary.write_bytes(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fill()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_only_our_own_leftovers_are_found(tmp_path: Path) -> None:
    for name in ("g.backup.tmp", "g.2024.tmp", "other.0123456789abcdef.tmp", "g.0123456789abcdef.tmp.bak"):
        (tmp_path / name).touch()
    (tmp_path / "g.0123456789abcdef.tmp").touch()
    assert [path.name for path in find_leftovers(tmp_path, ["g"])] == ["g.0123456789abcdef.tmp"]


@posix
def test_the_cache_is_private_and_written_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    decoded = {"inputs": torch.arange(4)}
    cached(tmp_path, "set", [], lambda: decoded)
    (entry,) = (tmp_path / ".cache").iterdir()
    assert mode(entry) == 0o600
    monkeypatch.setattr(writing.secrets, "token_hex", lambda count: "0" * 2 * count)
    entry.with_name(f"{entry.name}.{'0' * 16}.tmp").symlink_to(victim)
    entry.unlink()
    assert torch.equal(cached(tmp_path, "set", [], lambda: decoded)["inputs"], decoded["inputs"])
    assert victim.read_bytes() == b"precious"


@posix
@pytest.mark.parametrize("name", ["e.npz", "e.safetensors"])
def test_embeddings_are_private(tmp_path: Path, name: str) -> None:
    save_embeddings(Embeddings(torch.ones(2, 3), torch.arange(2)), tmp_path / name)
    assert mode(tmp_path / name) == 0o600


fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def killed_while_writing(path: Path) -> list[Path]:
    """The temporary files of `path` after a process was killed that had written half of it."""
    child = os.fork()
    if child == 0:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return list(path.parent.glob(f"{path.name}.*.tmp"))


@fork
def test_the_next_write_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "a.json.0123456789abcdef.tmp.txt"
    other.write_text("the user's own")
    assert len(killed_while_writing(path)) == 1
    write_atomically(path, b"whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", other.name]


@fork
def test_a_file_that_another_process_is_writing_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with replacing(path) as temporary:
                os.write(ready[1], b".")
                os.read(go[0], 1)
                temporary.write_bytes(b"theirs")
            code = 0
        finally:
            os._exit(code)
    os.read(ready[0], 1)
    write_atomically(path, b"ours")
    assert len(list(tmp_path.glob("a.json.*.tmp"))) == 1
    os.write(go[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == b"theirs"
