"""Execute a run from its first round or its last checkpoint to the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from rich.console import Console

from fedra.callbacks.best_model import BestModel
from fedra.callbacks.callback import Callback, CallbackFailed, Callbacks, RunContext
from fedra.callbacks.curves import Curves
from fedra.callbacks.recorder import Recorder
from fedra.callbacks.screen import Screen
from fedra.callbacks.tensorboard import TensorBoard
from fedra.config.mode import is_centralized, title
from fedra.config.schema import Config
from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.job import Job, ServerJob
from fedra.core.round_zero import examples_in_round_zero
from fedra.errors import FedraError, RunError, RunFailed
from fedra.experiment import optional
from fedra.experiment.attacks import AttackedRunner, AttackObserver, check_attack, choose_malicious, poison_data
from fedra.experiment.backdoor import Trigger, TriggerTest, check_backdoor
from fedra.experiment.build import Built, ServerBuilt, build_runner
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.final_test import run_final_tests
from fedra.experiment.evaluators.round_summary import one_class_hint
from fedra.experiment.interrupt import Interruption
from fedra.experiment.plan import Observer, Plan
from fedra.experiment.pooling import ticks, watch_steps
from fedra.experiment.result import RunResult
from fedra.experiment.rounds import rounds
from fedra.experiment.summary import summarize
from fedra.runners import Runner
from fedra.runners.base import ReportsLosses, WorkersLost
from fedra.storage.checkpoint import save_model
from fedra.storage.claims import claim
from fedra.storage.client_state import ClientStates
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State

RAY_LOG = "ray.log"
"""What Ray says during a run, such as the last lines of a lost node's log."""


class Interrupted(RunError):
    """The run was stopped by Ctrl-C or SIGTERM, after its checkpoint was written."""

    exit_code = 130


def builtin_callbacks(config: Config, folder: RunFolder | None) -> list[Callback]:
    """Create the callbacks of every run; called before the folder is created, so a missing extra leaves no folder."""
    recorders = [Recorder(folder, config.checkpoint.seconds)] if folder else []
    return [*recorders, Screen(), *([TensorBoard()] if config.log.tensorboard else []), Curves()]


def create_state(config: Config, job: Job, folder: RunFolder | None, console: Console | None) -> State:
    """Create the state before the first round."""
    settings = config.memory.model_dump()
    memory = folder.checkpoint.memories(**settings) if folder else ClientStates(**settings)
    with steps(console, "round zero", examples_in_round_zero(job)) as done:
        return State.fresh(job, done, memory)


def add_diagnostics(config: Config, job: Job) -> Job:
    """Add the parts that measure the configured diagnostics."""
    return optional.add_proximal_diagnostics(job) if config.diagnostics.proximal else job


class Engine(Protocol):
    """Who trains the clients and tests them at the end: this machine, or the sites of a federation."""

    @property
    def job(self) -> ServerJob:
        """The job of the rounds."""
        ...

    @property
    def built(self) -> ServerBuilt:
        """What the job was built with, after all clients joined."""
        ...

    def open_runner(self, console: Console | None) -> AbstractContextManager[Runner]:
        """Open the runner of the rounds."""
        ...

    def observers(self, past: list[dict[str, Any]]) -> tuple[Observer, ...]:
        """Return the observers of the rounds, given the metrics of past rounds."""
        ...

    def grow(self, state: State) -> bool:
        """Take in clients that joined, between two rounds; returns whether the job changed."""
        ...

    def final_tests(
        self, state: State, folder: RunFolder | None, console: Console | None, best: BestModel | None
    ) -> dict[str, Any]:
        """Run the tests after the last round, and return their part of the summary."""
        ...


class LocalEngine:
    """Trains and tests on this machine, which has the data of all clients: the simulator."""

    def __init__(self, config: Config, built: Built) -> None:
        self._config, self.built = config, built
        check_attack(config.attack, centralized=is_centralized(config), owned=built.job.owners is not None)
        if config.attack.name == "backdoor":
            tested = built.protocol == "classification" and built.job.evaluated_examples is not None
            check_backdoor(config.attack, built.dataset.shape, built.job.classes, tested)
        self.job = poison_data(add_diagnostics(config, built.job), config.attack)

    @property
    def malicious(self) -> tuple[int, ...]:
        """The clients that are malicious in a simulated attack."""
        return choose_malicious(self._config.attack, len(self.job.clients), self.job.seed)

    @contextmanager
    def open_runner(self, console: Console | None) -> Iterator[Runner]:
        if self._config.runner.name == "ray":
            tell(console, "ray: starting the workers, which takes a few seconds")
        if (name := self._config.attack.name) != "none":
            bad, clients = len(self.malicious), len(self.job.clients)
            tell(console, f"attack: {bad} of {clients:,} clients are malicious in a simulation of '{name}'")
        runner = build_runner(self._config, self.job)
        try:
            yield AttackedRunner(runner, self.job, self._config.attack) if self.malicious else runner
        finally:
            runner.close()

    def observers(self, past: list[dict[str, Any]]) -> tuple[Observer, ...]:
        wanted = self._config.diagnostics
        found: tuple[Observer, ...] = ()
        if any(wanted.model_dump().values()):
            found = optional.observers(
                wanted.classes,
                wanted.preservation,
                wanted.divergence,
                self.job,
                past,
                class_vectors=wanted.class_vectors,
            )
        test = self._trigger_test(self.job.evaluated_examples)
        if self.malicious or test is not None:
            found = (*found, AttackObserver(self.malicious, test))
        return (*found, optional.softmax_agreement(self.job)) if wanted.softmax_agreement else found

    def grow(self, state: State) -> bool:
        return False

    def final_tests(
        self, state: State, folder: RunFolder | None, console: Console | None, best: BestModel | None
    ) -> dict[str, Any]:
        tested = run_final_tests(self._config, self.built, self.job, state, folder, console, best)
        if self._config.attack.name == "none":
            return tested
        test = self._trigger_test(self.job.test)
        rates = {} if test is None else test.rates(state.server.weights)
        return {**tested, "attack": {**self._config.attack.settings(), "clients": list(self.malicious), **rates}}

    def _trigger_test(self, examples: Examples | None) -> TriggerTest | None:
        """Return the test of a backdoor's trigger; None without one."""
        if self._config.attack.name != "backdoor" or examples is None or self.job.evaluated_examples is None:
            return None
        return TriggerTest(self.job, Trigger.of(self._config.attack, self.job.evaluated_examples), examples)


def execute(
    config: Config,
    built: ServerBuilt,
    engine: Engine,
    folder: RunFolder | None,
    state: State,
    standing: Sequence[Callback],
    callbacks: Sequence[Callback],
    console: Console | None,
) -> RunResult:
    """Train from `state` to the end, run the final tests, and write the summary last."""
    job = engine.job
    run = RunContext(
        title=title(config),
        config=config.model_dump(),
        algorithm=built.job.algorithm,
        rounds=config.rounds,
        metrics=folder.metrics() if folder else [],
        state=state,
        folder=folder.path if folder else None,
        console=console,
    )
    best = (
        None
        if job.validation is None
        else BestModel(built.measures.best, built.about(config), private=job.algorithm.owns_classes)
    )
    notify = Callbacks([*standing, *([best] if best else [])], callbacks, run)
    summary: dict[str, Any] = {"status": "interrupted"}
    started = state.round > 0
    private = optional.open_private_run(config, job, folder, started=started) if config.is_protected else None
    with Interruption() as signals:
        try:
            _train(config, built, engine, notify, signals, private)
            built = engine.built
            digest = _save(config, built, folder, state, signals) if folder else None
            notify.call("on_training_end")
            tell(console, one_class_hint(run.metrics, built.dataset.classes))
            tested = engine.final_tests(state, folder, console, best)
            summary = summarize(config, built, run.metrics, state.round) | tested
            summary |= {} if digest is None else {"model_digest": digest}
            if run.stop_reason is not None:
                summary["stopped_early"] = run.stop_reason
            summary |= _conclude(private, state, console)
            notify.call("on_run_end", summary)
        except BaseException as error:
            _end_early(error, summary, config, built, state, folder, notify)
            raise
        finally:
            if folder:
                folder.close()
            state.memory.close()
    if folder:
        folder.write_summary(summary)
    if private is not None:
        private.forget()  # last: a run that is killed before has to resume with the same noise
    return RunResult(built.module_with(state.server.weights), run.metrics, summary, run.folder)


def _end_early(
    error: BaseException,
    summary: dict[str, Any],
    config: Config,
    built: ServerBuilt,
    state: State,
    folder: RunFolder | None,
    notify: Callbacks,
) -> None:
    """Save what a run has when an error ends it; raise another error if that says more."""
    metrics = notify.run.metrics
    if isinstance(error, RunFailed):
        summary = summarize(config, built, metrics, state.round, failure=error)
    if summary["status"] != "finished":  # otherwise on_run_end itself failed
        with suppress(FedraError):
            notify.call("on_run_end", summary)
    if isinstance(error, RunFailed) and folder:
        folder.write_summary(summary)
    if isinstance(error, KeyboardInterrupt):
        so_far = summarize(config, built, metrics, state.round, status="interrupted")
        _save_interim(config, built, folder, state, so_far)
        raise Interrupted(_save_progress(folder, state, "interrupted after")) from None
    if isinstance(error, CallbackFailed | WorkersLost):
        saved = "nothing was saved, because the run has no folder: set out to be able to resume"
        if folder:
            saved = _save_progress(folder, state, "the run is saved up to")
        raise type(error)(f"{error}; {saved}") from error


def _conclude(
    private: optional.PrivateRun | optional.ExampleRun | None, state: State, console: Console | None
) -> dict[str, Any]:
    """Print what a finished run spent, and return the privacy statement of its summary."""
    statement = None if private is None else private.statement_of(state)
    if private is None or statement is None:
        return {}
    tell(console, statement.sentence())
    found = statement.as_dict() | {"secret": "removed" if private.secret_path else "never written"}
    stopped = {"stopped": "budget"} if state.round < private.config.rounds and private.budget_spent(state) else {}
    return {"privacy": found, **stopped}


def _train(
    config: Config,
    built: ServerBuilt,
    engine: Engine,
    notify: Callbacks,
    signals: Interruption,
    private: optional.PrivateRun | optional.ExampleRun | None,
) -> None:
    """Run the remaining rounds, unless a callback stops them."""
    run, job = notify.run, engine.job
    plan = _plan(config, built, engine.observers(run.metrics))
    if private is not None:
        plan = private.change(plan)
        tell(run.console, private.announcement(plan.rounds))
        if isinstance(private, optional.PrivateRun) and run.state.round < plan.rounds:
            private.recompute_noise(run.state.server, run.state.round, run.console)
    with engine.open_runner(run.console) as runner:
        _report_losses(runner, run)
        run.ticks = ticks(runner, plan.cohort.size(len(job.clients)))
        tick = watch_steps(runner, lambda: notify.call("on_progress"))

        def client_end(line: dict[str, Any]) -> None:
            notify.call("on_client_end", line)
            tick()

        def round_start(round: int) -> None:
            notify.call("on_round_start", round)

        notify.call("on_run_start")
        if run.stop_reason is not None:
            return
        while run.state.round < plan.rounds:
            for report in rounds(engine.job, runner, plan, run.state, round_start, client_end, signals.held):
                notify.round_end(report)
                if run.stop_reason is not None or (private is not None and private.exhausted(run.state)):
                    return
                if engine.grow(run.state):
                    break  # the next rounds have another job


def _report_losses(runner: Runner, run: RunContext) -> None:
    """Print which workers of a cluster are lost; what Ray itself says about it goes into the run's folder."""
    if isinstance(runner, ReportsLosses):
        if run.folder is not None:
            claim(run.folder, RAY_LOG)
        runner.report_to(partial(tell, run.console), None if run.folder is None else run.folder / RAY_LOG)


def _plan(config: Config, built: ServerBuilt, observers: tuple[Observer, ...]) -> Plan:
    return Plan(
        rounds=config.rounds,
        cohort=CohortRule(config.cohort.fraction, config.cohort.sampling),
        faults=FaultRule(**config.faults.model_dump()),
        evaluate_every=config.evaluation.every,
        observers=observers,
        traffic=not is_centralized(config),
        evaluator=built.evaluator,
    )


def _save(config: Config, built: ServerBuilt, folder: RunFolder, state: State, signals: Interruption) -> str:
    """Save the state and the model before the final tests, which may fail; returns the digest of the model."""
    with signals.held():
        folder.save(state)
    folder.checkpoint.wait()
    folder.claim("model.safetensors")
    private = built.job.algorithm.owns_classes
    return save_model(folder.path / "model.safetensors", state.server.weights, built.about(config), private)


def _save_interim(
    config: Config, built: ServerBuilt, folder: RunFolder | None, state: State, summary: dict[str, Any]
) -> None:
    """Save the model and the summary so far, so an interrupted run can be evaluated and exported."""
    if folder is not None and state.round:
        folder.claim("model.safetensors")
        about = {**built.about(config), "round": state.round}
        private = built.job.algorithm.owns_classes
        save_model(folder.path / "model.safetensors", state.server.weights, about, private)
        folder.write_interim(summary)


def _save_progress(folder: RunFolder | None, state: State, prefix: str) -> str:
    """Save the last finished round, and return a message that says how to continue."""
    if folder is None:
        return f"{prefix} round {state.round}"
    folder.save(state)
    folder.checkpoint.wait()
    return f"{prefix} round {state.round}; continue with: {folder.how_to_resume()}"
