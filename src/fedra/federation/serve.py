"""Run a federation: ask the sites what they have, send the start, then the same rounds as the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

import fedra
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.callbacks.recorder import Recorder
from fedra.callbacks.screen import Screen
from fedra.config.schema import Config
from fedra.console import tell
from fedra.core import tree
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.core.round import init_server
from fedra.core.round_zero import has_round_zero, take_first_rows
from fedra.core.tree import Params
from fedra.data import Dataset
from fedra.errors import ConfigError, RunError
from fedra.experiment.build import ServerBuilt
from fedra.experiment.execution import execute
from fedra.experiment.result import RunResult
from fedra.experiment.secure_run import is_secure
from fedra.federation import wire
from fedra.federation.admissions import admitted_sites
from fedra.federation.exchange import Exchange, SiteState, Watch
from fedra.federation.federated_engine import FederatedEngine, StopWhenAsked, grow_rows
from fedra.federation.federated_runner import CLIENTS_PER_MESSAGE, version_of
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.link import Link
from fedra.federation.packet_files import Inbox
from fedra.federation.roster import read_roster, write_roster
from fedra.federation.secure.secure_rounds import SecureRounds
from fedra.federation.server_build import build_server, check_plan
from fedra.federation.site_descriptions import describe_changes, describe_sites, description_notes, description_table
from fedra.federation.site_tests import SiteEvaluator
from fedra.federation.status import SiteRecorder, StatusFile
from fedra.storage.client_state.client_files import digest_of
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State
from fedra.writing import write_atomically

START = "start.safetensors"
PER_CLIENT = 4
"""Most that a client's answer holds, in models: its change, and what the method sends in addition or masks."""
STEP = 0.2
ASK_AGAIN = 10.0
"""Seconds after which a site that refused the plan is asked again: its people may have changed their policy."""


@dataclass
class Coordinator:
    """A federation in a coordinator's folder; `run_folder` holds the record of its run.

    Args:
        plan: The plan.
        link: The link to the sites.
        folder: Where roster, start model, inbox and status are.
        run_folder: The folder of the run, with metrics, checkpoint and model.
        test: The coordinator's own data set, if it tests the model too.
        console: Where progress is shown.
        stop: Whether the run shall stop after the current round.
    """

    plan: FederationPlan
    link: Link
    folder: Path
    run_folder: RunFolder
    test: Dataset | None = None
    console: Console | None = None
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.watch = Watch(tell=lambda line: tell(self.console, line), stop=self.stop)
        self.status = StatusFile(
            self.folder / "status.json", self.watch.sites, self.link.last_seen, self.plan.config.rounds
        )
        self.watch.changed = self.status.write
        self.roster = read_roster(self.folder / "roster.json")
        self._algorithm = check_plan(self.plan)
        self._described: dict[str, wire.SiteWords] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        self._starts: dict[str, str | None] = {}  # the digest of the start model that each site says it has
        checkpoint = self.run_folder.checkpoint
        self._round = checkpoint.done() if checkpoint.exists() else 0
        self.inbox = Inbox(self.folder / "inbox")
        self.exchange = Exchange(self.plan.federation, self.link, self.inbox, self.watch)

    @property
    def config(self) -> Config:
        """The configuration of the run: as planned, with a checkpoint after every round and no limit of repetitions."""
        config = self.plan.config
        faults = config.faults.model_copy(update={"retries": 10**6})
        return config.model_copy(
            update={"checkpoint": config.checkpoint.model_copy(update={"seconds": 0.0}), "faults": faults}
        )

    def open_secure_rounds(self) -> SecureRounds | None:
        """Return what runs secure rounds, if the plan asks for them."""
        if not is_secure(self.plan.config):
            return None

        def certificates() -> dict[str, str]:
            return {name: one.certificate for name, one in admitted_sites(self.folder).items()}

        return SecureRounds(self.plan, self.exchange, self.inbox, self.watch, self.folder, certificates)

    def run(self, callbacks: Sequence[Callback] = ()) -> RunResult:
        """Run the federation from its start or its last checkpoint to the end.

        If its rounds are done, sites that do not know it yet receive the final model, and nothing is trained.
        """
        if self.run_folder.failure() is not None:
            raise ConfigError(
                f"the run in '{self.run_folder.path}' {self.run_folder.ending()}: nothing is left to resume"
            )
        if self._round < self.plan.config.rounds and not self.run_folder.finished:
            self._gather()
        else:
            self.watch.sites |= {site: SiteState() for site in self.roster.sites()}
        built = self._build()
        engine = FederatedEngine(self, built)
        self._limit_answers(built.job)
        self.watch.durable = self.run_folder.checkpoint.saved_round
        if self.run_folder.finished:
            return self._finish_again(built, engine)
        resumed = self.run_folder.has_run
        opened = self.run_folder.open_to_resume() if resumed else self.run_folder.create(self.config, False)
        with opened:
            if resumed and self.run_folder.checkpoint.exists():
                state = self._load_state(built, engine)
                self._send_start(self._start_blob(None))
                self.watch.tell(f"resumed after round {state.round}")
            else:
                state = self._first_state(built)
            if warning := self.run_folder.truncate(state.round):
                self.watch.tell(warning)
            recorder = SiteRecorder(engine.runner, self.status, self.run_folder)
            self.watch.changed = recorder.refresh
            standing: list[Callback] = [recorder, Recorder(self.run_folder, 0.0), StopWhenAsked(self.stop), Curves()]
            if self.console is None or not self.console.is_terminal:
                standing.insert(2, Screen())
            return execute(self.config, built, engine, self.run_folder, state, standing, callbacks, self.console)

    def _load_state(self, built: ServerBuilt, engine: FederatedEngine) -> State:
        """Load the last checkpoint; the runner learns which version of its state each client has."""
        fresh = init_server(built.job.algorithm, built.job.initial())
        state = self.run_folder.checkpoint.load(fresh, grow=lambda weights: grow_rows(built.job, weights))
        engine.runner.versions |= {
            client: version for client in state.memory if (version := version_of(state.memory.get(client))) is not None
        }
        return state

    def _finish_again(self, built: ServerBuilt, engine: FederatedEngine) -> RunResult:
        """Give the final model to sites that were away when the run finished; its record stays as it is."""
        with self.run_folder.open_to_change():
            state = self._load_state(built, engine)
            self.watch.tell(f"this federation is finished after {state.round} rounds: nothing is left to train")
            tested = engine.final_tests(state, None, None, None)
            state.memory.close()
        for site, told in tested["sites"].items():
            reason = told.get("reason")
            self.watch.sites[site] = SiteState("absent" if reason else "finished", state.round, reason=reason)
        metrics = self.run_folder.metrics()
        self.status.round, self.status.accuracy = state.round, metrics[-1].get("accuracy")
        self.status.set_phase("finished")
        module = built.module_with(state.server.weights)
        return RunResult(module, metrics, self.run_folder.summary(), self.run_folder.path)

    def _limit_answers(self, job: ServerJob) -> None:
        """Refuse answers larger than the largest message needs: an update and what the method sends with it."""
        clients = max(len(self.roster.numbers(site)) for site in self.roster.sites())
        model = sum(map(tree.size_in_bytes, job.initial()))
        self.link.limit(PER_CLIENT * min(clients, CLIENTS_PER_MESSAGE) * model)

    # before the rounds

    def _gather(self) -> None:
        """Wait for the sites and ask each what it has, until enough take part."""
        self.status.set_phase("waiting for sites")
        needed = self.plan.federation.sites
        told: set[str] = set()
        described = self._described
        while len(described) < needed:
            for site in self._newcomers():
                self._describe(site)
            missing = f"{len(described)} of {needed} sites are there"
            if missing not in told:
                told.add(missing)
                self.status.set_phase(missing)
            if len(described) < needed:
                if self.stop():
                    self.status.set_phase("interrupted")
                    raise RunError("stopped while waiting for sites: go on with the same command")
                self.status.write()
                time.sleep(STEP)
        write_roster(self.folder / "roster.json", self.roster)
        self._show_sites()

    def _show_sites(self) -> None:
        """Show what the sites said of themselves, and mark those whose images differ from the others'."""
        refused = {site: reason for site, (reason, _) in self._refused.items()}
        self.status.described = describe_sites(self._described, self.roster, refused, self.plan.schema)
        self.status.write(now=True)
        if self.console is not None:
            self.console.print(description_table(self.status.described))
        for line in description_notes(self.status.described):
            self.watch.tell(line)

    def _describe(self, site: str) -> str | None:
        """Ask a site what it has and add it to the roster; returns why it cannot take part."""
        words = wire.DescribeAsk(fedra=fedra.__version__, wire=wire.WIRE, plan=self.plan.public)
        answer = self.exchange.ask_all({site: wire.packet("describe", words)})[site]
        reason = self._take_description(site, answer)
        if reason is None:
            self._refused.pop(site, None)
            return None
        if self._refused.get(site, ("", 0.0))[0] != reason:
            self.watch.tell(f"{site} does not take part: {reason}")
        self._refused[site] = (reason, time.monotonic())
        self.watch.sites.setdefault(site, SiteState()).state = "refused"
        self.watch.sites[site].reason = reason
        return reason

    def _newcomers(self) -> list[str]:
        """Return the present sites that did not describe themselves yet; one that refused is asked again later."""
        now = time.monotonic()
        waiting = {site for site, (_, when) in self._refused.items() if now - when < ASK_AGAIN}
        return [site for site in self.link.present() if site not in self._described and site not in waiting]

    def _take_description(self, site: str, answer: wire.Packet | str) -> str | None:
        if isinstance(answer, str):
            return answer
        try:
            words = wire.read_answer(answer, "describe")
            if isinstance(words, wire.Refusal):
                return words.reason
            if tuple(words.shape) != tuple(self.plan.schema.shape):
                return f"its examples have shape {tuple(words.shape)}, the plan {tuple(self.plan.schema.shape)}"
            if words.fedra != fedra.__version__:
                return f"it has fedra {words.fedra}, this federation needs {fedra.__version__}: pip install -U"
            self.roster = self.roster.with_site(
                site,
                words,
                owned=self._algorithm.owns_classes,
                equal=self.plan.federation.weighting == "equal",
                matched=self.plan.schema.match == "secret",
                round=self._round,
            )
        except RunError as error:
            return str(error)
        self._starts[site], self._described[site] = words.start, words
        self.watch.sites.setdefault(site, SiteState()).state = "ready"
        return None

    def _build(self) -> ServerBuilt:
        rule = self.plan.federation.evaluation
        test = self.test if rule in ("server", "both") else None
        built = build_server(self.plan, self.roster, test)
        if rule in ("sites", "both"):
            own = built.evaluator if rule == "both" and test is not None else None
            return replace(built, evaluator=SiteEvaluator(own))
        return built

    def _first_state(self, built: ServerBuilt) -> State:
        """Send the start, let clients compute the first rows of their classes, and return the state before round 1."""
        self.status.set_phase("sending the start")
        job = built.job
        weights = job.initial()
        rows: dict[int, Params] = {}
        if has_round_zero(job):
            self._send_start(self._start_blob(job.common(weights)))
            self.status.set_phase("round zero")
            for site, answer in self.exchange.ask_all({s: self._round_zero(s) for s in self.roster.sites()}).items():
                rows |= self._first_rows(job, site, answer)
        weights = take_first_rows(job, weights, {client: rows[client] for client in sorted(rows)})
        self._send_start(self._start_blob(job.common(weights)))
        memory = self.run_folder.checkpoint.memories()
        return State(0, init_server(job.algorithm, weights), memory)

    def _round_zero(self, site: str) -> wire.Packet:
        return wire.packet("round-zero", wire.RoundZeroAsk(plan=self.plan.digest, cohort=self.roster.numbers(site)))

    def _first_rows(self, job: ServerJob, site: str, answer: wire.Packet | str) -> dict[int, Params]:
        """Return the checked rows of a site's clients; all must be there, because server rules need all classes."""
        reason = answer if isinstance(answer, str) else None
        if isinstance(answer, wire.Packet):
            words = wire.read_answer(answer, "round-zero")
            reason = words.reason if isinstance(words, wire.Refusal) else None
        if reason is not None or not isinstance(answer, wire.Packet):
            raise RunError(f"{site} must take part in round zero, but: {reason}")
        sent, weights = answer.tree("own"), job.initial()
        for client in self.roster.numbers(site):
            wanted = job.rows_for(client, weights)
            for name, value in sent.get(str(client), {}).items():
                if name not in wanted or value.shape != wanted[name].shape or not bool(value.isfinite().all()):
                    raise RunError(f"{site} sent first rows that do not fit: '{name[:80]}' of client {client}")
        return {client: sent.get(str(client), {}) for client in self.roster.numbers(site)}

    def _start_blob(self, common: Weights | None) -> bytes:
        """Return the start model as sites receive it, kept in the folder; None reads the kept one."""
        path = self.folder / START
        if common is not None:
            write_atomically(path, wire.encode_tree({"params": common.params, "buffers": common.buffers}))
        return path.read_bytes()

    def _send_start(self, blob: bytes, sites: Sequence[str] | None = None) -> None:
        digest = digest_of(blob)
        questions = {}
        for site in sorted(self._described) if sites is None else sites:
            words = wire.StartAsk(plan=self.plan.digest, numbers=self.roster.numbers(site), start=digest)
            sent = {} if self._starts.get(site) == digest else {"shared": blob}
            questions[site] = wire.packet("start", words, sent)
        for site, answer in self.exchange.ask_all(questions).items():
            words_or_refusal = answer if isinstance(answer, str) else wire.read_answer(answer, "start")
            if isinstance(words_or_refusal, str | wire.Refusal):
                reason = words_or_refusal if isinstance(words_or_refusal, str) else words_or_refusal.reason
                raise RunError(f"{site} must have the model that the run starts from, but: {reason}")
            self._starts[site] = digest

    def admit_new(self, state: State, engine: FederatedEngine) -> bool:
        """Take in sites that came since the start; returns whether the roster grew."""
        before, self._round = self.roster, state.round
        while engine.runner.changed:
            self._described.pop(engine.runner.changed.pop(), None)
        described = [site for site in self._newcomers() if self._describe(site) is None]
        if not described:
            return False
        write_roster(self.folder / "roster.json", self.roster)
        self._send_start(self._start_blob(None), described)
        if self.roster == before:
            return False
        built = self._build()
        self._limit_answers(built.job)
        engine.take(built)
        grown = grow_rows(built.job, state.server.weights)
        state.server = replace(state.server, weights=grown)
        self._show_sites()
        for line in describe_changes(before, self.roster, described, state.round + 1):
            self.watch.tell(line)
        return True
