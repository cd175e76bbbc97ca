"""Execute a run from its first round or its last checkpoint to the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console

from fedra.analysis.diagnostics import add_proximal_diagnostics, observers
from fedra.callbacks.best_model import BestModel
from fedra.callbacks.callback import Callback, CallbackFailed, Callbacks, RunContext
from fedra.callbacks.curves import Curves
from fedra.callbacks.recorder import Recorder
from fedra.callbacks.screen import Screen
from fedra.callbacks.tensorboard import TensorBoard
from fedra.config.mode import is_centralized, title
from fedra.config.schema import Config
from fedra.console import steps, tell
from fedra.core.job import Job
from fedra.core.round_zero import examples_in_round_zero
from fedra.errors import FedraError, RunError, RunFailed
from fedra.experiment.build import Built, build_runner
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.final_test import run_final_tests
from fedra.experiment.evaluators.round_summary import one_class_hint
from fedra.experiment.interrupt import Interruption
from fedra.experiment.plan import Plan
from fedra.experiment.pooling import ticks, watch_steps
from fedra.experiment.result import RunResult
from fedra.experiment.rounds import rounds
from fedra.experiment.summary import summarize
from fedra.runners import Runner
from fedra.storage.checkpoint import save_model
from fedra.storage.client_state import ClientStates
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State


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
    return add_proximal_diagnostics(job) if config.diagnostics.proximal else job


def execute(
    config: Config,
    built: Built,
    folder: RunFolder | None,
    state: State,
    standing: Sequence[Callback],
    callbacks: Sequence[Callback],
    console: Console | None,
) -> RunResult:
    """Train from `state` to the end, run the final tests, and write the summary last."""
    job = add_diagnostics(config, built.job)
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
    best = None if job.validation is None else BestModel(built.measures.best, built.about(config))
    notify = Callbacks([*standing, *([best] if best else [])], callbacks, run)
    summary: dict[str, Any] = {"status": "interrupted"}
    with Interruption() as signals:
        try:
            _train(config, built, job, notify, signals)
            if folder:
                _save(config, built, folder, state, signals)
            notify.call("on_training_end")
            tell(console, one_class_hint(run.metrics, built.dataset.classes))
            tested = run_final_tests(config, built, job, state, folder, console, best)
            summary = summarize(config, built, run.metrics) | tested
            if run.stop_reason is not None:
                summary["stopped_early"] = run.stop_reason
            notify.call("on_run_end", summary)
        except BaseException as error:
            if isinstance(error, RunFailed):
                summary = summarize(config, built, run.metrics, failure=error)
            if summary["status"] != "finished":  # otherwise on_run_end itself failed
                with suppress(FedraError):
                    notify.call("on_run_end", summary)
            if isinstance(error, RunFailed) and folder:
                folder.write_summary(summary)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(_save_progress(folder, state, "interrupted after")) from None
            if isinstance(error, CallbackFailed):
                raise CallbackFailed(f"{error}; {_save_progress(folder, state, 'the run is saved up to')}") from error
            raise
        finally:
            if folder:
                folder.close()
            state.memory.close()
    if folder:
        folder.write_summary(summary)
    return RunResult(built.module_with(state.server.weights), run.metrics, summary, run.folder)


def _train(config: Config, built: Built, job: Job, notify: Callbacks, signals: Interruption) -> None:
    """Run the remaining rounds, unless a callback stops them."""
    run, plan = notify.run, _plan(config, built, job, notify.run.metrics)
    with _runner(config, job, run.console) as runner:
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
        for report in rounds(job, runner, plan, run.state, round_start, client_end, signals.held):
            notify.round_end(report)
            if run.stop_reason is not None:
                return


def _plan(config: Config, built: Built, job: Job, past: list[dict[str, Any]]) -> Plan:
    wanted = config.diagnostics
    return Plan(
        rounds=config.rounds,
        cohort=CohortRule(config.cohort.fraction, config.cohort.sampling),
        faults=FaultRule(**config.faults.model_dump()),
        evaluate_every=config.evaluation.every,
        observers=observers(
            wanted.classes,
            wanted.preservation,
            wanted.divergence,
            job,
            past,
            class_vectors=wanted.class_vectors,
        ),
        traffic=not is_centralized(config),
        evaluator=built.evaluator,
    )


@contextmanager
def _runner(config: Config, job: Job, console: Console | None) -> Iterator[Runner]:
    if config.runner.name == "ray":
        tell(console, "ray: starting the workers, which takes a few seconds")
    runner = build_runner(config, job)
    try:
        yield runner
    finally:
        runner.close()


def _save(config: Config, built: Built, folder: RunFolder, state: State, signals: Interruption) -> None:
    """Save the state and the model before the final tests, which may fail."""
    with signals.held():
        folder.checkpoint.save(state)
    folder.checkpoint.wait()
    folder.claim("model.safetensors")
    save_model(folder.path / "model.safetensors", state.server.weights, built.about(config))


def _save_progress(folder: RunFolder | None, state: State, prefix: str) -> str:
    """Save the last finished round, and return a message that says how to continue."""
    if folder is None:
        return f"{prefix} round {state.round}"
    folder.checkpoint.save(state)
    folder.checkpoint.wait()
    return f"{prefix} round {state.round}; continue with: fedra run --resume {folder.path}"
