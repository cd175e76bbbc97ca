"""Serve a federation out of a coordinator's folder: listen, let admitted sites in at once, and run the rounds."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedra.callbacks.callback import Callback
from fedra.console import format_duration, tell
from fedra.data import Dataset, load
from fedra.errors import ConfigError, RunError
from fedra.experiment.execution import Interrupted
from fedra.experiment.result import RunResult
from fedra.federation import keys
from fedra.federation.admissions import admitted_sites
from fedra.federation.federation_plan import FederationPlan, read_plan
from fedra.federation.serve import Coordinator
from fedra.federation.status import status_line
from fedra.locking import hold_lock, is_held
from fedra.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedra.federation.flower.flower_link import FlowerLink

LOOK = 1.0
"""Seconds between two looks at who is admitted."""
STOP = "stop"
"""The file that asks a coordinator to stop after its round."""
SPOOL = "spool"
"""The folder of tensors that are on their way to or from sites."""


OUTPUT = "output.txt"
"""What a detached coordinator says, in its folder."""
LISTENS_WITHIN = 120.0
"""Seconds within which a detached coordinator must listen."""
STEP = 0.1
TELL_EVERY = 5.0
"""Seconds between two lines about a process that is waited for."""


def serve_folder(
    folder: Path,
    console: Console | None = None,
    *,
    run_folder: Path | None = None,
    listen: str | None = None,
    test: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Run the federation of a folder, from its start or from where it stopped, to its end.

    Args:
        folder: The coordinator's folder.
        console: Where progress is shown.
        run_folder: The folder of the run's record, by default `run` in the folder.
        listen: Address to listen on; by default the plan's port on all addresses of this machine.
        test: The coordinator's own data set, if it tests the model too.
        callbacks: Callbacks that run in addition to the built-in ones.

    Returns:
        The result of the run.
    """
    plan = read_plan(folder)
    busy = f"'{folder}' is in use: another process serves this federation"
    with hold_lock(lock_file(folder), busy), open_link(folder, plan, listen, lambda line: tell(console, line)) as link:
        tell(console, f"listening on {link.address}; {len(admitted_sites(folder))} sites are admitted")
        (folder / STOP).unlink(missing_ok=True)
        own = test if test is not None else _own_test(plan)
        coordinator = Coordinator(
            plan,
            link,
            folder,
            RunFolder(run_folder or folder / "run"),
            test=own,
            console=console,
            stop=(folder / STOP).exists,
        )
        try:
            return coordinator.run(callbacks)
        except Interrupted:
            raise Interrupted(f"stopped; go on with: fedra federate serve {folder}") from None


def _own_test(plan: FederationPlan) -> Dataset | None:
    """Return the coordinator's own data set, if the plan has it test the model."""
    rules = plan.federation
    if rules.evaluation not in ("server", "both"):
        return None
    if not rules.test:
        raise ConfigError(
            f"federation.test must name the coordinator's own data set for evaluation = '{rules.evaluation}', got "
            "none: name one from `fedra list datasets`, or let the sites test (evaluation = 'sites')"
        )
    found = load(rules.test, trust=True)
    if found.shape != tuple(plan.schema.shape):
        raise ConfigError(
            f"the images of federation.test must have the plan's shape {tuple(plan.schema.shape)}, got {found.shape}"
        )
    return found


def ask_to_stop(folder: Path) -> None:
    """Ask the coordinator of a folder to stop after its present round."""
    read_plan(folder)
    if not is_held(lock_file(folder)):
        raise RunError(f"'{folder}' must be served by a process to be stopped, got none: nothing to do")
    (folder / STOP).touch()


@contextmanager
def open_link(
    folder: Path, plan: FederationPlan, listen: str | None = None, tell: Callable[[str], None] = lambda line: None
) -> Iterator[FlowerLink]:
    """Open the link of a federation: it listens, and follows admissions and removals in the folder."""
    from fedra.federation.flower.flower_link import FlowerLink  # flwr takes a second to import

    link = FlowerLink(folder / SPOOL, plan.federation.patience, tell)
    context = keys.server_context(folder, [one.certificate for one in admitted_sites(folder).values()])
    host, _, port = (listen or f"0.0.0.0:{plan.federation.address.rpartition(':')[2]}").rpartition(":")
    _follow(folder, link, context)
    link.start(host.strip("[]"), int(port), context)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(folder, link, context, done), name="fedra-admit", daemon=True)
    watcher.start()
    try:
        yield link
    finally:
        done.set()
        watcher.join()
        link.close()


def _watch(folder: Path, link: FlowerLink, context: ssl.SSLContext, done: threading.Event) -> None:
    while not done.wait(LOOK):
        _follow(folder, link, context)


def _follow(folder: Path, link: FlowerLink, context: ssl.SSLContext) -> None:
    """Let newly admitted sites in, and removed ones out."""
    admitted = admitted_sites(folder)
    for name in set(link.sites()) - admitted.keys():
        link.remove(name)
    for name in admitted.keys() - set(link.sites()):
        context.load_verify_locations(cadata=admitted[name].certificate)
        link.admit(name, keys.parse_certificate(admitted[name].certificate, f"the record of '{name}'"))


def lock_file(folder: Path) -> Path:
    """Return the file that the process of a coordinator locks."""
    return folder / ".lock"


def serve_detached(folder: Path, options: Sequence[str] = ()) -> int:
    """Start a coordinator that does not belong to this terminal, and wait until it listens.

    Args:
        folder: The coordinator's folder.
        options: Options of `fedra federate serve`.

    Returns:
        The number of its process. If it ends before it listens, an error says what it said last.
    """
    if is_held(lock_file(folder)):
        raise RunError(f"'{folder}' is in use: another process serves this federation")
    path = folder / OUTPUT
    start = path.stat().st_size if path.exists() else 0
    words = [sys.executable, "-m", "fedra.cli", "federate", "serve", str(folder.absolute()), *options]
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(opened, "ab") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + LISTENS_WITHIN
    while not _said(path, start, "listening on"):
        if (code := process.poll()) is not None:
            last = _read(path, start).strip().rpartition("\n")[2]
            raise RunError(f"the coordinator ended with code {code} before it listened; it said: {last}")
        if time.monotonic() > until:
            process.terminate()
            raise RunError(f"the coordinator must listen within {LISTENS_WITHIN:g} s, got nothing: see '{path}'")
        time.sleep(STEP)
    process.returncode = 0  # it is left running on purpose, which Python would warn of
    return process.pid


def wait_for_end(folder: Path, console: Console | None = None) -> None:
    """Wait until no process serves a federation; the status says every few seconds what it does."""
    told = time.monotonic()
    while is_held(lock_file(folder)):
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            tell(console, status_line(json.loads((folder / "status.json").read_text(encoding="utf-8"))))
        time.sleep(STEP)


def describe_process(folder: Path, status: Mapping[str, Any]) -> str:
    """Return what to say first of a status that no process keeps up to date; nothing if one does."""
    if is_held(lock_file(folder)) or status.get("phase") in ("finished", "failed", "interrupted"):
        return ""
    age = (datetime.now(UTC) - datetime.fromisoformat(status["time"])).total_seconds()
    return f"no process serves this federation now; {format_duration(max(age, 0.0))} ago it was "


def _said(path: Path, start: int, words: str) -> bool:
    return words in _read(path, start)


def _read(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(1 << 20).decode(errors="replace")
