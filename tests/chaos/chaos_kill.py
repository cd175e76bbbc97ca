"""Run a function in a process of its own and kill it: before its n-th change of a file, or after some time.

The first kind repeats exactly; the second also meets code that changes no file, and other processes than the first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link", "os.chmod")
PAUSE = 0.002
LONGEST = 300.0
"""Seconds after which an undisturbed process counts as hanging."""
FAILED, KILLED = 3, -signal.SIGKILL


@dataclass(frozen=True)
class Kill:
    """When to kill: before a change of a file, counted from 1, or after some seconds; with neither, not at all."""

    change: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"before change {self.change}" if self.change else f"after {self.seconds:.3f} s"


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code, the changes of files that it made, and its time."""

    code: int
    changes: int
    seconds: float
    report: str

    @property
    def killed(self) -> bool:
        return self.code == KILLED


def run_killed(action: Callable[[], None], scratch: Path, kill: Kill) -> Ending:
    """Run an action in a process and a session of its own, which `kill` may end."""
    report, count = scratch / "report.txt", scratch / "count"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_child(action, report, count, kill.change)
    limit = started + (LONGEST if kill.seconds is None else kill.seconds)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            if kill.seconds is None:
                report.write_text(f"it did not end within {LONGEST:g} s")
                os.waitpid(child, 0)
                status = FAILED << 8
                break
        time.sleep(PAUSE)
    left = _wait_for_session(child)
    told = report.read_text(errors="replace") if report.exists() else ""
    told += f"\nprocesses {left} outlived the killed one" if left else ""
    code = FAILED if left else os.waitstatus_to_exitcode(status)
    changes = int(count.read_text()) if code == 0 else 0  # a killed process may have written half of it
    return Ending(code, changes, time.monotonic() - started, told)


def _run_child(action: Callable[[], None], report: Path, count: Path, last: int | None) -> None:
    code = FAILED
    try:
        os.setsid()
        # Workers that are forked count by themselves, and only the first process is killed at a change.
        own, changes = os.getpid(), 0

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
            if (opens or event in CHANGES) and os.getpid() == own:
                changes += 1
                if changes == last:
                    os.kill(own, signal.SIGKILL)

        sys.addaudithook(audit)
        action()
        made = changes
        count.write_text(str(made))
        code = 0
    except BaseException:
        report.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _wait_for_session(session: int, patience: float = 10.0) -> list[int]:
    """Wait until all processes of a session have ended; returns and kills those that do not."""
    end = time.monotonic() + patience
    while left := _members(session):
        if time.monotonic() > end:
            for process in left:
                os.kill(process, signal.SIGKILL)
            return left
        time.sleep(0.02)
    return []


def _members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def leftovers_in_shared_memory(before: set[str]) -> list[str]:
    """Segments that torch made since `before` and whose process is gone."""
    found = []
    for name in set(os.listdir("/dev/shm")) - before:
        owner = name.split("_")[1] if name.startswith("torch_") and name.count("_") > 1 else ""
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            found.append(name)
    return found
