"""Rehearse a federation on one machine: real site processes over loopback TLS, compared with the simulator."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from fedra.config.reading import read
from fedra.config.resolve import resolve_defaults
from fedra.config.schema import Config
from fedra.console import tell
from fedra.core.tree import Params
from fedra.errors import ConfigError, RunError
from fedra.experiment.build import Built, build
from fedra.experiment.experiment import Experiment
from fedra.experiment.result import RunResult
from fedra.experiment.secure_run import is_secure
from fedra.federation.admissions import admit_site
from fedra.federation.coordinator_folder import create_federation, make_plan, read_settings
from fedra.federation.invitation import Invitation
from fedra.federation.local_data.site_cache import keep_data
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.policy import Policy
from fedra.federation.roster import FederationRoster, RosterClient, write_roster
from fedra.federation.serving import serve_folder
from fedra.federation.site_config import ResourcesSection, SiteConfig, SiteDataSection
from fedra.federation.site_folder import create_site_folder
from fedra.privacy.secure.secure_messages import FEWEST
from fedra.storage.claims import open_list
from fedra.storage.run_folder import RunFolder
from fedra.trust import allow_imports

REHEARSAL = Policy(
    approve="within-policy",
    class_embeddings=True,
    match_identities=True,
    counts="exact",
    metrics=("*",),
    epochs=10**6,
    rounds=10**6,
    upload_mb=10**6,
    attempts=10**6,
    examples=1,
    test_examples=1,
    other_sites=0,
)
"""The policy of rehearsed sites, which allows everything: their data are the configuration's own."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal: the federation's run, and how it compares with the simulator.

    Args:
        result: The run of the federation.
        equal: Whether all parameters and buffers have the simulator's bits; None if it was not compared.
        difference: The largest difference of any entry.
        simulated_seconds: Seconds that the simulator took for the same rounds.
    """

    result: RunResult
    equal: bool | None
    difference: float | None
    simulated_seconds: float | None


@allow_imports()
def rehearse(
    config: Path,
    overrides: Sequence[str] = (),
    *,
    sites: int = 3,
    out: Path,
    compare: bool = True,
    console: Console | None = None,
) -> Rehearsal:
    """Run a configuration as a federation of site processes on this machine, and compare it with the simulator.

    Args:
        config: The configuration; the clients of its partition are dealt to the sites.
        overrides: Settings such as `rounds=5`.
        sites: Number of sites.
        out: Folder of the run, which must be new or empty.
        compare: Whether to run the simulator too.
        console: Where progress is shown.

    Returns:
        The run, and the comparison.
    """
    port = find_free_port()
    settings, rules = read_settings(
        config, overrides, name="rehearsal", address=f"127.0.0.1:{port}", sites=sites, least=min(2, sites)
    )
    rules = rules.model_copy(update={"bound": 0.0}) if "federation.bound" not in " ".join(overrides) else rules
    settings = simulated(settings)
    if is_secure(settings):
        rules = rules.model_copy(update={"least": max(rules.least, FEWEST)})
    built = build(settings)
    places = deal_clients(len(built.job.clients), sites)
    plan = make_plan(settings, rules.model_copy(update={"evaluation": "both" if built.job.test else "none"}))
    folder = RunFolder(out)
    folder.check_available()
    out.mkdir(parents=True, exist_ok=True)
    open_list(out)
    base = out / "federation"
    tell(console, f"{sites} sites, {len(built.job.clients)} clients, port {port}, folders in {base}")
    invitation = create_federation(base / "coordinator", plan)
    for name, clients in places.items():
        create_rehearsed_site(base / name, name, clients, built, invitation, base / "coordinator")
    write_roster(base / "coordinator" / "roster.json", rehearsed_roster(built, places))
    with site_processes(base, list(places)) as processes:
        watch = _ProcessWatch(processes)
        try:
            result = serve_folder(
                base / "coordinator", console, run_folder=out, listen=f"127.0.0.1:{port}", test=built.dataset
            )
        except RunError as error:
            raise RunError(f"{error}{watch.ended()}") from None
        for process in processes.values():
            process.wait(timeout=30)
    if not compare:
        return Rehearsal(result, None, None, None)
    tell(console, "now the simulator, with the same configuration")
    started = time.perf_counter()
    simulator = Experiment.from_config(settings).run(console=console)
    seconds = time.perf_counter() - started
    one, other = (dict(found.model.state_dict()) for found in (result, simulator))
    equal = one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
    return Rehearsal(result, equal, largest_difference(one, other), seconds)


def simulated(config: Config) -> Config:
    """Return the configuration as the simulator runs it for a comparison: one client after the other."""
    table = resolve_defaults(config).model_dump()
    return read({**table, "runner": {"name": "sequential"}})


def deal_clients(clients: int, sites: int) -> dict[str, list[int]]:
    """Deal clients to sites in blocks."""
    if not 1 <= sites <= clients:
        raise ConfigError(f"sites must be between 1 and {clients} (the number of clients), got {sites}")
    parts = np.array_split(np.arange(clients), sites)
    return {f"site-{number}": part.tolist() for number, part in enumerate(parts, 1)}


def create_rehearsed_site(
    folder: Path, name: str, clients: Sequence[int], built: Built, invitation: Invitation, coordinator: Path
) -> None:
    """Create a site's folder with some clients' examples, and admit it."""
    site = SiteConfig(
        name=name,
        data=SiteDataSection(name="rehearsal"),
        policy=REHEARSAL,
        resources=ResourcesSection(runner="sequential", nice=0),
    )
    admit_site(coordinator, create_site_folder(folder, invitation, site))
    keep_data(folder, site, invitation.plan.schema, rehearsed_data(built, clients))


def rehearsed_data(built: Built, clients: Sequence[int]) -> SiteData:
    """Return the examples of some clients, and as their held-out data a share of the test set."""
    job = built.job
    inputs, targets, numbers, held_out = [], [], [], []
    for index, client in enumerate(clients):
        own = job.clients[client]
        tests = _tests(built, client)
        inputs += [own.inputs, tests[0]]
        targets += [own.targets, tests[1]]
        numbers += [torch.full((len(own) + len(tests[1]),), index)]
        held_out += [torch.zeros(len(own), dtype=torch.bool), torch.ones(len(tests[1]), dtype=torch.bool)]
    return SiteData(
        inputs=torch.cat(inputs),
        targets=torch.cat(targets),
        client=torch.cat(numbers),
        held_out=torch.cat(held_out),
        clients=tuple(f"client-{client}" for client in clients),
        classes=tuple(job.classes_of(client) for client in clients),
    )


def _tests(built: Built, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's share of the test set: every so many examples, or those of its own people."""
    job, known = built.job, built.dataset.known_test
    if job.owners is None:
        return known.inputs[client :: len(job.clients)], known.targets[client :: len(job.clients)]
    own = job.owners.holdings[client]
    rows = torch.isin(known.targets, own)
    return known.inputs[rows], torch.searchsorted(own, known.targets[rows])


def rehearsed_roster(built: Built, places: dict[str, list[int]]) -> FederationRoster:
    """Return the roster in which clients have the simulator's numbers and classes."""
    job, site = built.job, {client: name for name, clients in places.items() for client in clients}
    holdings = None if job.owners is None else job.owners.holdings
    return FederationRoster(
        clients=tuple(
            RosterClient(
                site=site[client],
                examples=job.clients.size(client),
                holds=None if holdings is None else tuple(holdings[client].tolist()),
            )
            for client in range(len(job.clients))
        ),
        classes=job.classes,
    )


@contextmanager
def site_processes(base: Path, names: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start a process for each site, and end those that are left."""
    processes = {name: start_site(base / name) for name in names}
    try:
        yield processes
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
        for process in processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def start_site(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of a site; what it says goes to `output.txt` in its folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / "output.txt", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "fedra.cli", "site", "join", str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )


class _ProcessWatch:
    def __init__(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def ended(self) -> str:
        """Say which processes ended."""
        names = [name for name, one in self._processes.items() if one.poll() not in (None, 0)]
        return f" (ended: {', '.join(names)}; see output.txt in their folders)" if names else ""


def find_free_port() -> int:
    """Return a port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def largest_difference(one: Params, other: Params) -> float:
    """Return the largest difference of any entry; infinity if names differ."""
    if one.keys() != other.keys():
        return float("inf")
    pairs = [(value.double(), other[name].double()) for name, value in one.items() if value.numel()]
    return max((float((left - right).abs().max()) for left, right in pairs), default=0.0)
