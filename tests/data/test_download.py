from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedra.data import download
from fedra.data.download import RemoteFile, locate
from fedra.errors import DataError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


ODD = {
    "to-garbage": {"Location": "http://[::1"},
    "to-a-file": {"Location": "file:///etc/passwd"},
    "to-nowhere": {"Location": "http://"},
    "words": {"Content-Length": "many"},
    "many": {"Content-Length": "9" * 5000},
    "drips": {"Content-Length": str(10**9)},
}
"""Headers of hostile answers."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT at /good (ranges), /plain (no ranges), /breaks (ends early), /wrong; 404 elsewhere."""

    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self) -> None:
        kind = self.path.strip("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((kind, wanted))  # type: ignore[attr-defined]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and kind != "plain" else 0
        content = {"wrong": b"x" * len(CONTENT)}.get(kind, CONTENT)
        self.close_connection = True
        if kind in ODD:
            self._answer_oddly(kind)
        elif kind not in ("good", "plain", "breaks", "wrong"):
            self._answer(404, 0)
        elif start >= len(content):
            self._answer(416, 0, f"bytes */{len(content)}")
        else:
            body = content[start:]
            place = f"bytes {start}-{len(content) - 1}/{len(content)}" if start else None
            self._answer(206 if start else 200, len(body), place)
            self.wfile.write(body[: 300_000 if kind == "breaks" else None])

    def _answer_oddly(self, kind: str) -> None:
        self.send_response(302 if kind.startswith("to") else 200)
        for name, value in ODD[kind].items():
            self.send_header(name, value)
        self.end_headers()
        for _ in range(50 if kind == "drips" else 0):
            time.sleep(0.02)
            self.wfile.write(b"x")
            self.wfile.flush()
        if kind in ("many", "words"):
            self.wfile.write(CONTENT)

    def _answer(self, status: int, length: int, place: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if place:
            self.send_header("Content-Range", place)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{kind}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("FEDRA_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote(server: Server, *kinds: str, md5: str | None = MD5, size: int | None = None) -> RemoteFile:
    return RemoteFile("set.bin", tuple(server.url(kind) for kind in kinds), md5=md5, size=size)


def fetch(file: RemoteFile, folder: Path) -> Path:
    return locate(file, (folder,), timeout=5)


def check(path: Path) -> None:
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["set.bin"]


def test_plain_download_into_a_new_folder(server: Server, tmp_path: Path) -> None:
    check(fetch(remote(server, "good", size=len(CONTENT)), tmp_path / "deep" / "folder"))
    assert server.asked == [("good", None)]


def test_a_file_that_is_there_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "set.raw").write_bytes(b"mine")
    path = locate(remote(server, "good"), (tmp_path / "first", other), ("set.raw",))
    assert path == other / "set.raw"
    assert server.asked == []


def test_an_interrupted_transfer_is_resumed(server: Server, tmp_path: Path) -> None:
    check(fetch(remote(server, "breaks", "good"), tmp_path))
    assert server.asked == [
        ("breaks", None),
        ("breaks", "bytes=300000-"),
        ("breaks", "bytes=600000-"),
        ("good", "bytes=900000-"),
    ]


def test_a_part_of_an_earlier_run_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    check(fetch(remote(server, "good"), tmp_path))
    assert server.asked == [("good", "bytes=1000-")]


def test_a_server_that_cannot_resume_sends_it_all(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    check(fetch(remote(server, "plain"), tmp_path))
    assert server.asked == [("plain", "bytes=1000-")]


def test_a_part_that_is_already_whole(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    check(fetch(remote(server, "good"), tmp_path))
    assert server.asked == [("good", f"bytes={len(CONTENT)}-")]


@pytest.mark.parametrize("part", [b"garbage", CONTENT + b"more"])
def test_a_part_of_something_else_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "set.bin.part").write_bytes(part)
    check(fetch(remote(server, "good"), tmp_path))
    assert server.asked == [("good", f"bytes={len(part)}-"), ("good", None)]


def test_a_wrong_checksum_turns_to_the_next_mirror(server: Server, tmp_path: Path) -> None:
    check(fetch(remote(server, "wrong", "good"), tmp_path))
    assert server.asked == [("wrong", None), ("good", None)]


def test_sha256_is_checked_too(server: Server, tmp_path: Path) -> None:
    urls = (server.url("wrong"), server.url("good"))
    check(fetch(RemoteFile("set.bin", urls, sha256=SHA256), tmp_path))


def test_a_wrong_size_is_refused_without_a_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set.bin .*must have 99 bytes, got more"):
        fetch(remote(server, "good", md5=None, size=99), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_mirror_then_a_good_one(server: Server, tmp_path: Path) -> None:
    with Server() as dead:
        gone = dead.url("good")
    file = RemoteFile("set.bin", (gone, server.url("missing"), server.url("good")), md5=MD5)
    check(fetch(file, tmp_path))
    assert server.asked == [("missing", None), ("good", None)]


def test_when_every_mirror_fails_the_error_tells_all(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(remote(server, "missing", "wrong"), tmp_path)
    message = str(caught.value)
    assert f"set.bin must be in {tmp_path}, but it is missing" in message
    assert "Not Found" in message
    assert f"must be {MD5}, got" in message
    assert f"put it into {tmp_path}" in message
    assert len(server.asked) == 2


def test_attempts_are_bounded(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="900000 of 1024000 bytes"):
        fetch(remote(server, "breaks"), tmp_path)
    assert len(server.asked) == download.ATTEMPTS
    assert (tmp_path / "set.bin.part").stat().st_size == 900_000


def test_offline_asks_nobody(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    with pytest.raises(DataError, match=r"set.bin must be in .*FEDRA_OFFLINE is set"):
        fetch(remote(server, "good"), tmp_path)
    assert server.asked == []
    monkeypatch.setenv("FEDRA_OFFLINE", "0")
    check(fetch(remote(server, "good"), tmp_path))


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"set.bin .*cannot be created"):
        fetch(remote(server, "good"), tmp_path / "file" / "folder")


def test_a_slow_transfer_shows_a_bar(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(remote(server, "good"), tmp_path / "fast")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("fedra.console.PATIENCE", -1.0)
    fetch(remote(server, "good"), tmp_path / "slow")
    assert "set.bin" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["to-garbage", "to-a-file", "to-nowhere"])
def test_a_redirect_to_garbage_is_told(server: Server, tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="the download failed"):
        fetch(remote(server, kind), tmp_path)
    check(fetch(remote(server, kind, "good"), tmp_path))


@pytest.mark.parametrize("kind", ["words", "many"])
def test_a_length_that_is_none_is_ignored(server: Server, tmp_path: Path, kind: str) -> None:
    check(fetch(remote(server, kind), tmp_path))


def test_a_server_that_drips_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PERIOD", 0.2)
    with pytest.raises(DataError, match="it sends less than 1 kB per second"):
        fetch(remote(server, "drips"), tmp_path)
    assert server.asked == [("drips", None)]


def test_more_than_the_known_size_is_not_kept(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it must have 1000 bytes, got more"):
        fetch(remote(server, "good", size=1000), tmp_path)


def test_mirrors_without_tls_come_last() -> None:
    from fedra.data.sets import mnist, svhn

    for mirrors in (mnist.MNIST_MIRRORS, mnist.FASHION_MIRRORS, svhn.TRAIN.urls, svhn.TEST.urls):
        plain = [url.startswith("http:") for url in mirrors]
        assert plain == sorted(plain)
        assert not plain[0]
