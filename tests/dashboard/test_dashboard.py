"""The dashboard lists and shows the runs of one folder, and answers nothing else."""

from __future__ import annotations

import asyncio
import html
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import fedra
from fake_runs import round_line, write_lines, write_run
from fedra.dashboard.dashboard_app import build_app
from fedra.dashboard.run_index import RunIndex
from fedra.errors import ConfigError
from fedra.locking import hold_lock
from tiny import mistake

HOST = "127.0.0.1:8765"


class Answer:
    """What the application answered."""

    def __init__(self) -> None:
        self.status, self.body = 0, b""
        self.headers: dict[str, str] = {}

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def runs(self) -> list[str]:
        """The names of the listed runs, in order."""
        return [html.unescape(name) for name in re.findall(r'name="run" value="([^"]*)"', self.text)]

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.body += message.get("body", b"")


def ask(app: Any, url: str, method: str = "GET", **headers: str) -> Answer:
    """Ask the application itself, without a network."""
    parts, answer = urlsplit(url), Answer()
    given = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope, receive, answer.send))
    return answer


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "first", [0.25, 0.5])
    write_run(tmp_path / "runs" / "sweep" / "second", [0.75], seed=4, algorithm={"name": "fedprox", "mu": 0.1})
    write_run(tmp_path / "runs" / "bad", [0.1], status="failed", summary={"failure": "it diverged in round 2"})
    return tmp_path / "runs"


def test_the_list_shows_every_run_with_its_state(runs: Path) -> None:
    answer = ask(build_app(runs), "/")
    assert answer.status == 200
    assert sorted(answer.runs) == ["bad", "first", "sweep/second"]
    for word in ("50.00 %", "75.00 %", "fedprox · synthetic · mlp · seed 4", "it diverged in round 2"):
        assert word in answer.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [("?q=fedprox", ["sweep/second"]), ("?q=seed+4", ["sweep/second"]), ("?status=failed", ["bad"]), ("?q=none", [])],
)
def test_the_list_can_be_searched_without_scripts(runs: Path, query: str, expected: list[str]) -> None:
    assert ask(build_app(runs), f"/{query}").runs == expected


def test_news_are_sent_once(runs: Path) -> None:
    app = build_app(runs)
    (version,) = re.findall(r'data-version="(\w+)"', ask(app, "/").text)
    assert ask(app, f"/?version={version}").status == 204
    write_lines(runs / "first" / "metrics.jsonl", [round_line(n, 0.1 * n) for n in range(1, 4)])
    news = ask(app, f"/?version={version}")
    assert news.status == 200
    assert news.headers["x-version"] != version
    assert not news.text.startswith("<!doctype")  # only the inside of the page


def test_the_index_reads_a_run_again_only_if_it_changed(runs: Path) -> None:
    index = RunIndex(runs)
    before = dict(index.refresh())
    assert all(entry is before[name] for name, entry in index.refresh().items())
    write_lines(runs / "first" / "metrics.jsonl", [round_line(1, 0.9)])
    after = index.refresh()
    assert after["first"] is not before["first"]
    assert after["bad"] is before["bad"]


def test_the_index_notices_that_a_run_was_killed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.2], status=None)
    write_lines(folder / "metrics.jsonl", [round_line(1, 0.1)])
    index = RunIndex(tmp_path)
    with hold_lock(folder / ".lock", "busy"):
        entry = index.refresh()["a"]
        assert (entry.status, entry.rounds, entry.planned, entry.seconds_left) == ("running", 1, 2, 2.0)
    (folder / ".lock").touch()
    assert index.refresh()["a"].status == "stopped"


def test_a_run_has_a_page_as_in_the_report(runs: Path) -> None:
    answer = ask(build_app(runs), "/run?name=first")
    assert answer.status == 200
    assert 'id="curves"' in answer.text
    assert "<svg viewBox" in answer.text
    assert " style=" not in answer.text  # the policy forbids it
    assert "<script>" not in answer.text


def test_runs_are_compared_on_one_page(runs: Path) -> None:
    answer = ask(build_app(runs), "/compare?run=first&run=sweep/second")
    assert answer.status == 200
    assert "data-legend" in answer.text
    assert ask(build_app(runs), "/compare").status == 404


def test_a_folder_that_is_a_run_itself_is_shown(tmp_path: Path) -> None:
    app = build_app(write_run(tmp_path / "only"))
    assert ask(app, "/").runs == ["."]
    assert ask(app, "/run?name=.").status == 200


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    assert "fedra run config.toml --out" in ask(build_app(tmp_path), "/").text


@pytest.mark.parametrize(
    "name",
    ["../secret", "..", "/etc", "first/../../secret", "link", "link/../../secret", "first/", "%2e%2e/secret", ""],
)
def test_no_path_outside_of_the_folder_is_opened(runs: Path, name: str) -> None:
    secret = write_run(runs.parent / "secret", [0.123])
    (runs / "link").symlink_to(secret)
    app = build_app(runs)
    for url in (f"/run?name={quote(name)}", f"/run?name={name}", f"/compare?run=first&run={quote(name)}"):
        answer = ask(app, url)
        assert answer.status == 404
        assert "12.3" not in answer.text
    assert ask(app, f"/static/{name}").status == 404
    assert "link" not in ask(app, "/").runs


def test_a_record_that_links_out_of_the_folder_is_not_shown(runs: Path) -> None:
    (runs.parent / "secret.json").write_text('{"status": "finished", "final_accuracy": 0.123}')
    (runs / "first" / "summary.json").unlink()
    (runs / "first" / "summary.json").symlink_to(runs.parent / "secret.json")
    answer = ask(build_app(runs), "/run?name=first")
    assert "summary.json leads out of the folder and was not read." in answer.text
    assert "12.30" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8765"}, 421),  # a name that was made to resolve to this machine
        ({"host": ""}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "[::1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),  # another server on this machine
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, 200),  # a link
        ({"origin": f"http://{HOST}"}, 200),
        ({"host": "localhost:1234"}, 200),  # through an ssh tunnel
        ({"host": "[::1]:8765"}, 200),
    ],
)
def test_foreign_hosts_and_origins_are_refused(runs: Path, headers: dict[str, str], status: int) -> None:
    answer = ask(build_app(runs), "/", **headers)
    assert answer.status == status
    assert ("first" in answer.text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(runs: Path, method: str) -> None:
    assert ask(build_app(runs), "/", method).status == 405


def test_every_answer_restricts_what_a_page_may_do(runs: Path) -> None:
    app = build_app(runs)
    for url in ("/", "/run?name=first", "/run?name=missing", "/static/page.css", "/nowhere"):
        headers = ask(app, url).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_names_in_the_list_are_escaped(tmp_path: Path) -> None:
    write_run(tmp_path / "<img src=x onerror=alert(1)>")
    answer = ask(build_app(tmp_path), "/")
    assert "<img" not in answer.text
    assert "&lt;img src=x" in answer.text


def test_a_missing_extra_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(
        "fedra.dashboard.dashboard_server.find_spec", lambda name: None if name == "uvicorn" else object()
    )
    assert mistake(capsys, "dashboard", tmp_path) == "the dashboard needs uvicorn: pip install 'fedra[dashboard]'"


def test_a_port_in_use_and_a_missing_folder_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = mistake(capsys, "dashboard", tmp_path, "--port", str(port))
    assert told.startswith(f"the port must be free, got {port} (")
    with pytest.raises(ConfigError, match="must have a folder of runs"):
        fedra.dashboard.build_app(tmp_path / "missing")
