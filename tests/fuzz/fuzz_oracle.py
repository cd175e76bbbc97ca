"""What a reader of files from outside may do with an input: return, or raise an error of fedra's own.

It must not raise anything else, take long, take much memory, import a name out of a pickle, start a program, open a
connection, or change a file outside of its folder. An audit hook sees the last ones, whatever the reader catches.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fedra.errors import FedraError

SECONDS = 5.0
"""Most processor time of one input; readers need milliseconds. A busy machine changes nothing about it."""
MEMORY = 512 * 2**20
"""Most memory in bytes that an input of some kilobytes may take."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS: dict[str, dict[int, int | None]] = {
    "os.rename": {0: 2, 1: 3},
    "os.remove": {0: 1},
    "os.mkdir": {0: 2},
    "os.rmdir": {0: 1},
    "os.symlink": {1: 2},
    "os.link": {1: 3},
    "os.truncate": {0: None},
}
"""Audit events that change files: which of their arguments are paths, and which are the folders these start from."""
FORBIDDEN = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")


@dataclass(frozen=True)
class Failure:
    """What went wrong with an input; failures of one kind have one `name`."""

    name: str
    report: str


class _Hang(BaseException):
    """An input took too long. Not an `Exception`, so that no reader takes it for a damaged file."""


class Watch:
    """Sees what the code inside `guarding` does. There is one for the process: an audit hook stays."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        folder = self._folder
        if folder is None:
            return
        if event in FORBIDDEN:
            self._report(f"{event} {arguments[:2]!r:.80}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._check(event, arguments[0], None, folder)
        elif event in PATHS:
            for path, start in PATHS[event].items():
                self._check(event, arguments[path], None if start is None else arguments[start], folder)

    def _check(self, event: str, path: Any, start: int | None, folder: str) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        above = os.getcwd() if start is None or start < 0 else os.readlink(f"/proc/self/fd/{start}")
        place = os.path.abspath(os.path.join(above, os.fsdecode(path)))
        if not place.startswith(folder) and place != os.devnull and "__pycache__" not in place:
            self._report(f"{event} outside of its folder ({place})")

    def _report(self, what: str) -> None:
        if len(self.seen) < 10:
            self.seen.append(what)

    @contextlib.contextmanager
    def guarding(self, folder: Path) -> Iterator[None]:
        """Report what the block does to the world outside of `folder`."""
        self.seen, self._folder = [], os.path.abspath(folder)
        try:
            yield
        finally:
            self._folder = None


WATCH = Watch()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise inside the block after some seconds, where Python gets to run; a campaign's parent ends the rest."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise _Hang(f"the reader took more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(extra: int = MEMORY) -> None:
    """Let this process take so much more memory than it has; beyond it allocations fail."""
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + extra, resource.RLIM_INFINITY))


def _status(key: str) -> int:
    """Bytes of this process's memory by the system's name for them; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 0)


def _forget_peak() -> int:
    """Let the peak of this process's memory begin anew, and return its memory now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    return _status("VmRSS")


def examine(read: Callable[[Path], object], folder: Path) -> Failure | None:
    """Call a reader on its folder; returns what went wrong."""
    before = _forget_peak()
    problem: BaseException | None = None
    try:
        with WATCH.guarding(folder), time_limit(SECONDS):
            read(folder)
    except FedraError as error:
        problem = None if str(error).strip() else error
    except (Exception, _Hang) as error:
        problem = error
    grown = _status("VmHWM") - before
    if problem is not None:
        return _describe(problem)
    if WATCH.seen:
        return Failure(WATCH.seen[0].partition(" (")[0], "\n".join(WATCH.seen))
    if grown > MEMORY:
        return Failure("memory", f"the reader took {grown / 2**20:,.0f} MB")
    return None


def _describe(error: BaseException) -> Failure:
    """Name a failure by its type and by the last line of fedra's own code that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}fedra{os.sep}" in frame.filename] or list(frames)
    place = f"{Path(own[-1].filename).stem}.{own[-1].name}" if own else "unknown"
    kind = type(error).__name__.strip("_")
    return Failure(f"{kind} in {place}", "".join(traceback.format_exception(error))[-6000:])


@contextlib.contextmanager
def prepared(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A new folder with these files."""
    with tempfile.TemporaryDirectory(prefix="fedra-fuzz-") as name:
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        yield folder


def digest(data: bytes) -> str:
    """A short name for an input."""
    return hashlib.sha256(data).hexdigest()[:12]
