"""Serve a federation out of a coordinator's folder: listen, let admitted sites in at once, and run the rounds."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedra.callbacks.callback import Callback
from fedra.console import tell
from fedra.data import Dataset, load
from fedra.errors import ConfigError
from fedra.experiment.execution import Interrupted
from fedra.experiment.result import RunResult
from fedra.federation import keys
from fedra.federation.admissions import admitted_sites
from fedra.federation.federation_plan import FederationPlan, read_plan
from fedra.federation.serve import Coordinator
from fedra.locking import hold_lock
from fedra.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedra.federation.flower.flower_link import FlowerLink

LOOK = 1.0
"""Seconds between two looks at who is admitted."""
STOP = "stop"
"""The file that asks a coordinator to stop after its round."""


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
    with hold_lock(folder / ".lock", busy), open_link(folder, plan, listen) as link:
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
    (folder / STOP).touch()


@contextmanager
def open_link(folder: Path, plan: FederationPlan, listen: str | None = None) -> Iterator[FlowerLink]:
    """Open the link of a federation: it listens, and follows admissions and removals in the folder."""
    from fedra.federation.flower.flower_link import FlowerLink  # flwr takes a second to import

    link = FlowerLink(plan.federation.patience)
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
