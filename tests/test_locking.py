"""Locks on files: one holder at a time, none after a kill."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from fedra.errors import RunError
from fedra.locking import hold_lock

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def test_one_at_a_time_and_no_file_is_left(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    for _ in range(2):
        with hold_lock(file, "taken"):
            assert file.exists()
            with pytest.raises(RunError, match="taken"), hold_lock(file, "taken"):
                pass
            assert file.exists()
        assert not list(tmp_path.iterdir())


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path / ".lock", "taken"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_file_that_a_kill_left_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with hold_lock(tmp_path / ".lock", "taken"):
        pass
    assert not list(tmp_path.iterdir())


def test_patience_is_rewarded_and_all_changes_count(tmp_path: Path) -> None:
    """The file is removed and made anew all the time, and still no two are inside at once."""
    total = 0

    def change() -> None:
        nonlocal total
        for _ in range(5):
            with hold_lock(tmp_path / ".lock", "taken", patience=60):
                before = total
                time.sleep(0.001)
                total = before + 1

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 20


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_neither_keeps_nor_opens_the_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    looked, looking = os.pipe()
    with hold_lock(tmp_path / ".lock", "taken"):
        child = os.fork()
        if child == 0:
            os.close(writing)
            try:
                with pytest.raises(RunError), hold_lock(tmp_path / ".lock", "taken"):
                    pass
                os.write(looking, b"1")
                os.read(reading, 1)  # lives until the parent lets it go
            except BaseException:
                os._exit(1)
            os._exit(0)
        with pytest.raises(RunError), hold_lock(tmp_path / ".lock", "taken"):
            pass
        os.close(looking)
        assert os.read(looked, 1) == b"1"  # the child looked while we held it; nothing comes of one that failed
    with hold_lock(tmp_path / ".lock", "taken"):
        pass
    for end in (writing, reading, looked):
        os.close(end)
    assert os.waitpid(child, 0)[1] == 0
