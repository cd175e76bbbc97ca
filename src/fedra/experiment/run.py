"""A run from its configuration to its folder."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import fedra
from fedra.analysis.diagnostics import observers, with_proximal_diagnostics
from fedra.callbacks.screen import screen, warn_of_restarts
from fedra.callbacks.tensorboard import Events
from fedra.config import reading as configuration
from fedra.config.mode import is_centralized, notice
from fedra.config.mode import title as title_of
from fedra.config.resolve import mark_weights, resolve_defaults
from fedra.config.schema import Config
from fedra.console import steps, tell
from fedra.core.job import Job
from fedra.core.round import init_server
from fedra.core.round_zero import looked_at
from fedra.errors import RunError, RunFailed
from fedra.experiment.build import Built, build, build_runner, settle_runner
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.evaluator import Judge
from fedra.experiment.evaluators.final_test import last_test
from fedra.experiment.interrupt import Interruption
from fedra.experiment.plan import Plan
from fedra.experiment.pooling import ticks, watch_steps
from fedra.experiment.rounds import rounds
from fedra.models import parameters_of
from fedra.runners import Runner
from fedra.storage.checkpoint import save_model
from fedra.storage.client_state import Memories
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State
from fedra.storage.trained_model import describe_input
from fedra.trust import importing


@dataclass(frozen=True)
class RunResult:
    """What a run gives: the trained module, a line per round, the summary, and the folder if there is one."""

    model: nn.Module
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


class Interrupted(RunError):
    """Ctrl-C or a termination signal; the checkpoint is written."""

    exit_code = 130


@importing()
def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    force: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Run a configuration (an object, a dict or a TOML file); with `out`, keep its record in that folder."""
    given = config if isinstance(config, Config) else configuration.read(config)
    checked = mark_weights(resolve_defaults(given))
    folder = None if out is None else RunFolder(out)
    if folder and not force:
        folder.refuse()
    built = build(checked)
    checked = choose_runner(checked, _diagnosed(checked, built.job), console)
    with folder.begun(checked, force) if folder else nullcontext():
        tell(console, notice(given))
        return _execute(checked, built, folder, _fresh(checked, built.job, folder, console), console)


def _fresh(config: Config, job: Job, folder: RunFolder | None, console: Console | None) -> State:
    kept = config.memory.model_dump()
    memory = folder.checkpoint.memories(**kept) if folder else Memories(**kept)
    with steps(console, "round zero", looked_at(job)) as done:
        return State.fresh(job, done, memory)


@importing()
def resume(out: Path | str, *, console: Console | None = None) -> RunResult:
    """Continue the run in a folder from its last checkpoint; a run killed before its first one starts anew."""
    folder = RunFolder(out)
    with folder.resumed() as checked:
        built = build(checked)
        if folder.checkpoint.exists():
            server = init_server(built.job.algorithm, built.job.initial())
            state = folder.checkpoint.load(server, **checked.memory.model_dump())
        else:
            state = _fresh(checked, built.job, folder, console)
        folder.truncate(state.round)
        return _execute(checked, built, folder, state, console)


def _execute(
    config: Config, built: Built, folder: RunFolder | None, state: State, console: Console | None
) -> RunResult:
    job = _diagnosed(config, built.job)
    metrics = folder.metrics() if folder else []
    plan = _plan(config, built.judge, job, metrics)
    seconds = sum(line["seconds"] for line in metrics)
    cohort = plan.cohort.size(len(job.clients))
    title = title_of(config)
    saved = time.monotonic()
    with (
        Events(folder, config.log.tensorboard, state.round) as events,
        Interruption() as signals,
    ):
        try:
            with (
                _runner(config, job, console) as runner,
                screen(console, title, config.rounds, state.round, ticks(runner, cohort)) as show,
            ):
                for report in rounds(job, runner, plan, state, watch_steps(runner, show.client), signals.held):
                    metrics.append(report.metrics)
                    seconds += report.metrics["seconds"]
                    show.round(report)
                    warn_of_restarts(console, report.clients)
                    events.write(report)
                    if folder:
                        folder.append("clients.jsonl", report.clients)
                        folder.append("metrics.jsonl", [report.metrics])
                        if time.monotonic() - saved >= config.checkpoint.seconds:
                            folder.checkpoint.save(state)
                            saved = time.monotonic()
            if folder:
                with signals.held():
                    folder.checkpoint.save(state)
                folder.checkpoint.wait()
                _save(config, built, folder, state)  # before what may fail: the rounds are done, whatever comes of it
            own = last_test(config, built.judge, job, state, folder, console)
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(folder, state)) from None
        except RunFailed as error:
            if folder:
                folder.write_summary(_summary(config, built, metrics, seconds, failure=str(error)))
            raise
        finally:
            if folder:
                folder.close()
            state.memory.close()
    summary = _summary(config, built, metrics, seconds) | own
    weights = state.server.weights
    if folder:
        _curves(folder, metrics, title)
        folder.write_summary(summary)
    return RunResult(job.model.module_with(weights), metrics, summary, folder.path if folder else None)


def _save(config: Config, built: Built, folder: RunFolder, state: State) -> None:
    about = {"model": config.model.model_dump(), "classes": list(built.dataset.classes)}
    about["input"] = describe_input(built.dataset)
    save_model(folder.path / "model.safetensors", state.server.weights, about)


def choose_runner(config: Config, job: Job, console: Console | None) -> Config:
    """The configuration with its runner settle_runner; what auto chose is told."""
    if config.runner.name != "auto":
        return config
    chosen = settle_runner(config, job)
    tell(console, f"auto: {chosen.runner.auto}")
    return chosen


def _diagnosed(config: Config, job: Job) -> Job:
    return with_proximal_diagnostics(job) if config.diagnostics.proximal else job


def _curves(folder: RunFolder, metrics: list[dict[str, Any]], title: str) -> None:
    from fedra.reports.comparison import draw_curves  # matplotlib is slow to import and only needed here

    draw_curves({title: metrics}, folder.path / "curves.svg")


def _plan(config: Config, judge: Judge, job: Job, past: list[dict[str, Any]]) -> Plan:
    cohort = CohortRule(config.cohort.fraction, config.cohort.sampling)
    faults = FaultRule(**config.faults.model_dump())
    wanted = config.diagnostics
    watching = observers(wanted.classes, wanted.preservation, wanted.divergence, job, past)
    traffic = not is_centralized(config)
    return Plan(config.rounds, cohort, faults, config.evaluation.every, watching, traffic, judge)


@contextmanager
def _runner(config: Config, job: Job, console: Console | None) -> Iterator[Runner]:
    if config.runner.name == "ray":
        tell(console, "ray: starting the workers, which takes some seconds")
    runner = build_runner(config, job)
    try:
        yield runner
    finally:
        runner.close()


def _interrupted(folder: RunFolder | None, state: State) -> str:
    if folder is None:
        return f"interrupted after round {state.round}"
    folder.checkpoint.save(state)
    folder.checkpoint.wait()
    return f"interrupted after round {state.round}; continue with: fedra run --resume {folder.path}"


def _summary(
    config: Config, built: Built, metrics: list[dict[str, Any]], seconds: float, failure: str | None = None
) -> dict[str, Any]:
    accuracies = [line["accuracy"] for line in metrics if line["accuracy"] is not None]
    summary: dict[str, Any] = {
        "status": "finished" if failure is None else "failed",
        "algorithm": config.algorithm.name,
        "protocol": built.protocol,
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "rounds": len(metrics),
        "seconds": round(seconds, 3),
        "parameters": parameters_of(built.job.model.module),
        "clients": len(built.job.clients),
        "bytes_up": sum(line["bytes_up"] for line in metrics),
        "bytes_down": sum(line["bytes_down"] for line in metrics),
        "buffers": "example-weighted mean; counters take the largest" if built.job.model.has_buffers else "none",
        "runner": config.runner.model_dump(),
        "seeds": {"run": config.seed, "partition": config.partition.seed},
        "versions": versions(),
    }
    if restarted := sum(line.get("restarted", 0) for line in metrics):
        summary["restarted"] = restarted
    if failure is not None:
        # A collapsed model predicts one class: papers report such a run at chance level.
        chance = 1 / len(built.dataset.classes) if built.protocol == "classification" else 0.5
        summary |= {"failure": failure, "chance_accuracy": chance}
    return summary


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "fedra": fedra.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
