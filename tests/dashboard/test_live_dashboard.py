"""The dashboard in Chromium, over a run that trains meanwhile: rounds arrive without reloading."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import tiny
from browser import PATIENCE, Watched, chromium
from fake_runs import write_run

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`fedra WORDS` in another process, stopped as Ctrl-C stops it."""
    command = [sys.executable, "-m", "fedra.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert found
    return found[0]


def status_of(url: str, **headers: str) -> int:
    try:
        with urlopen(Request(url, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


def wait_for_more(page: Any, expression: str) -> None:
    """Wait until a number on the page grows; asked from here, because the page's policy forbids to evaluate strings."""
    before, end = int(page.evaluate(expression)), time.monotonic() + PATIENCE / 1000
    while int(page.evaluate(expression) or 0) <= before:
        assert time.monotonic() < end, "no round arrived"
        page.wait_for_timeout(200)


def test_a_round_arrives_without_reloading(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    write_run(tmp_path / "runs" / "older")
    secret = write_run(tmp_path / "secret")
    (tmp_path / "runs" / "link").symlink_to(secret)
    out = tmp_path / "runs" / "training"
    train = ["run", str(tmp_path / "c.toml"), *tiny.WORDS, "rounds=1000000", "--out", str(out)]
    with chromium() as browser, running("dashboard", str(tmp_path / "runs"), "--port", "0") as dashboard:
        address = address_of(dashboard)
        page = browser.new_page()
        watched = Watched(page)
        page.goto(address)
        assert page.locator("tbody tr").count() == 1
        page.evaluate("window.untouched = true")
        with running(*train):
            row = page.locator("tr[data-status=running]")
            row.wait_for()  # the new run appears by itself
            wait_for_more(page, "document.querySelector('tr[data-status=running] td.bar')?.dataset.order")
            page.locator("input[type=search]").fill("training")
            assert page.locator("tbody tr:visible").count() == 1
            assert page.evaluate("window.untouched") is True

            page.goto(f"{address}/run?name=training")
            page.evaluate("window.untouched = true")
            page.get_by_role("tab", name="by time").click()
            wait_for_more(page, "document.querySelector('.notice.info')?.textContent.match(/([0-9]+) of/)?.[1]")
            assert page.evaluate("window.untouched") is True
            assert page.get_by_role("tab", name="by time").get_attribute("aria-selected") == "true"
        page.locator(".notice.warn", has_text="Not finished").wait_for()  # it was interrupted
        assert watched.complaints == []
        assert watched.foreign(address) == []

        assert status_of(f"{address}/run?name=older") == 200
        assert status_of(f"{address}/run?name=../secret") == 404
        assert status_of(f"{address}/run?name=link") == 404
        assert status_of(address, Origin="http://evil.example") == 403
        assert status_of(address, Host="evil.example") == 421
        page.close()
    assert dashboard.returncode == 0
