"""Errors that were not foreseen: a sentence, a report, and a traceback only on request."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from tiny import call, mistake


@pytest.fixture(autouse=True)
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the middle of every run."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug\nof two lines")

    monkeypatch.setattr("fedra.experiment.run.run", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "reports"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "c.toml").write_text("rounds = 7\n")


def test_one_sentence_with_the_place_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = mistake(capsys, "run", tmp_path / "c.toml", "seed=3", code=1)
    assert "KeyError" in told
    found = re.search(r"a report is in '([^']+)'", told)
    assert found
    report = Path(found[1])
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    for expected in ("== command\nfedra run", "seed=3", "\ntorch ", "rounds = 7", "Traceback", "a bug"):
        assert expected in text


@pytest.mark.parametrize("first", [False, True])
def test_the_traceback_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str], first: bool) -> None:
    words = ["run", str(tmp_path / "c.toml")]
    code, _, told = call(capsys, *(["--debug", *words] if first else [*words, "--debug"]))
    assert code == 1
    assert "Traceback" in told
    assert told.splitlines()[-1].startswith("fedra: an error that was not foreseen")


def test_a_foreseen_error_has_its_traceback_on_request_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = call(capsys, "show", str(tmp_path / "missing.toml"), "--debug")
    assert code == 2
    assert "Traceback" in told
    assert "does not exist" in told.splitlines()[-1]
    assert not list((tmp_path / "reports").iterdir())


def test_a_report_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert "no report could be saved" in mistake(capsys, "run", tmp_path / "c.toml", code=1)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),  # of a fork
    ],
)
def test_a_lack_of_memory_is_a_sentence_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fedra.experiment.run.run", fail)
    assert "there is not enough memory" in mistake(capsys, "run", tmp_path / "c.toml", code=1)
    assert not list((tmp_path / "reports").iterdir())
    from fedra.cli.failure_report import is_memory

    assert is_memory(MemoryError())
    assert not is_memory(RuntimeError("a memory of mine"))
