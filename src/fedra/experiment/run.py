"""A run from its configuration to its folder, and the same training for people with their own model and data."""

from __future__ import annotations

import copy
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import Dataset as TorchDataset

import fedra
from fedra.analysis.diagnostics import observers, with_proximal_diagnostics
from fedra.core.job import Job
from fedra.core.model import Model
from fedra.core.part import Algorithm
from fedra.data.clients import OwnClients
from fedra.errors import ConfigError, RunError, RunFailed
from fedra.evaluation.personalised import personalised
from fedra.experiment import config as configuration
from fedra.experiment.build import Built, build, build_runner, local_training, resolved
from fedra.experiment.checkpoint import save_model, write_atomically
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.config import Config
from fedra.experiment.folder import RunFolder
from fedra.experiment.interrupt import Interruption
from fedra.experiment.own_data import Pair, classes_of, examples_of
from fedra.experiment.progress import screen
from fedra.experiment.tensorboard import Events
from fedra.experiment.training import Plan, State, rounds
from fedra.models import parameters_of
from fedra.runners import RUNNERS, Runner


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


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    force: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Run a configuration (an object, a dict or a TOML file); with `out`, keep its record in that folder."""
    checked = resolved(config if isinstance(config, Config) else configuration.read(config))
    folder = None if out is None else RunFolder(out)
    if folder and not force:
        folder.refuse()
    built = build(checked)
    if folder:
        folder.create(checked)
    return _execute(checked, built, folder, State.fresh(built.job), console)


def resume(out: Path | str, *, console: Console | None = None) -> RunResult:
    """Continue the run in a folder from its last checkpoint; a run killed before its first one starts anew."""
    folder = RunFolder(out)
    checked = folder.config()
    if folder.finished:
        raise ConfigError(f"the run in '{folder.path}' {folder.ending()}: nothing is left to resume")
    built = build(checked)
    state = State.fresh(built.job)
    if folder.checkpoint.exists():
        state = folder.checkpoint.load(state.server)
    folder.truncate(state.round)
    return _execute(checked, built, folder, state, console)


def _execute(
    config: Config, built: Built, folder: RunFolder | None, state: State, console: Console | None
) -> RunResult:
    job = with_proximal_diagnostics(built.job) if config.diagnostics.proximal else built.job
    metrics = folder.metrics() if folder else []
    plan = _plan(config, job, metrics)
    seconds = sum(line["seconds"] for line in metrics)
    cohort = plan.cohort.size(len(job.clients))
    title = config.algorithm.name
    saved = time.monotonic()
    with (
        _runner(config, job) as runner,
        Events(folder, config.log.tensorboard, state.round) as events,
        Interruption() as signals,
    ):
        try:
            with screen(console, title, config.rounds, state.round, cohort) as show:
                for report in rounds(job, runner, plan, state, show.client, signals.held):
                    metrics.append(report.metrics)
                    seconds += report.metrics["seconds"]
                    show.round(report)
                    events.write(report)
                    if folder:
                        folder.append("clients.jsonl", report.clients)
                        folder.append("metrics.jsonl", [report.metrics])
                        if time.monotonic() - saved >= config.checkpoint.seconds:
                            folder.checkpoint.save(state)
                            saved = time.monotonic()
            if folder:
                folder.checkpoint.save(state)
            own = _personalise(config, job, state, folder, console) if job.algorithm.personalise else {}
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(folder, state)) from None
        except RunFailed as error:
            if folder:
                folder.write_summary(_summary(config, built, metrics, seconds, failure=str(error)))
            raise
        finally:
            if folder:
                folder.close()
    summary = _summary(config, built, metrics, seconds) | own
    weights = state.server.weights
    if folder:
        about = {"model": config.model.model_dump(), "classes": list(built.dataset.classes)}
        save_model(folder.path / "model.safetensors", weights, about)
        _curves(folder, metrics, title)
        folder.write_summary(summary)
    return RunResult(job.model.module_with(weights), metrics, summary, folder.path if folder else None)


def _personalise(
    config: Config, job: Job, state: State, folder: RunFolder | None, console: Console | None
) -> dict[str, float]:
    """Every client's own model after the last round: figures for the summary, a line per client for the record."""
    with screen(console, "every client's own model", 1, 0, len(job.clients)) as show:
        outcome = personalised(
            job,
            lambda own: build_runner(config, own),
            state.server,
            lambda client: state.memory.get(client, {}),
            state.round,
            show.client,
        )
    if folder:
        lines = [
            {"client": k, "examples": job.clients.size(k), "accuracy": own, "global_accuracy": outcome.shared[k]}
            for k, own in sorted(outcome.own.items())
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(folder.path / "personalised.jsonl", text.encode())
    return outcome.figures()


def _curves(folder: RunFolder, metrics: list[dict[str, Any]], title: str) -> None:
    from fedra.experiment.report import draw_curves  # matplotlib is slow to import and only needed here

    draw_curves({title: metrics}, folder.path / "curves.svg")


def _plan(config: Config, job: Job, past: list[dict[str, Any]]) -> Plan:
    cohort = CohortRule(config.cohort.fraction, config.cohort.sampling)
    faults = FaultRule(**config.faults.model_dump())
    wanted = config.diagnostics
    watching = observers(wanted.classes, wanted.preservation, wanted.divergence, job, past)
    return Plan(config.rounds, cohort, faults, config.evaluation.every, watching)


@contextmanager
def _runner(config: Config, job: Job) -> Iterator[Runner]:
    runner = build_runner(config, job)
    try:
        yield runner
    finally:
        runner.close()


def _interrupted(folder: RunFolder | None, state: State) -> str:
    if folder is None:
        return f"interrupted after round {state.round}"
    folder.checkpoint.save(state)
    return f"interrupted after round {state.round}; continue with: fedra run --resume {folder.path}"


def _summary(
    config: Config, built: Built, metrics: list[dict[str, Any]], seconds: float, failure: str | None = None
) -> dict[str, Any]:
    accuracies = [line["accuracy"] for line in metrics if line["accuracy"] is not None]
    summary: dict[str, Any] = {
        "status": "finished" if failure is None else "failed",
        "algorithm": config.algorithm.name,
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
    if failure is not None:
        # A collapsed model predicts one class: papers report such a run at chance level.
        summary |= {"failure": failure, "chance_accuracy": 1 / len(built.dataset.classes)}
    return summary


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "fedra": fedra.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def simulate(
    algorithm: Algorithm,
    model: nn.Module,
    clients: Sequence[Pair | TorchDataset[Any]],
    test: Pair | TorchDataset[Any] | None = None,
    *,
    rounds: int,
    epochs: int = 1,
    batch: int | None = 50,
    lr: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    fraction: float = 1.0,
    seed: int = 0,
    runner: str = "sequential",
    console: Console | None = None,
) -> RunResult:
    """Train your own module across your own clients, each a pair of tensors (inputs, targets) or a `Dataset`.

    The module has a `body` and a `head`, or comes from `fedra.models.named_head(module, "fc")`; it is copied, and
    `result.model` is the trained copy, on the module's own device. `batch=None` takes the whole client as one batch.
    A float64 model stays so. With a personaliser and a test set, `result.summary` tells how good the clients' own
    models are.
    """
    table = {"epochs": epochs, "batch": batch, "lr": lr, "lr_decay": lr_decay}
    table |= {"momentum": momentum, "weight_decay": weight_decay}
    settings = {"rounds": rounds, "seed": seed, "local": table, "cohort": {"fraction": fraction}}
    checked = configuration.read(settings)
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{algorithm!r} is no algorithm: make one, such as fedra.algorithms.fedavg()")
    if not clients:
        raise ConfigError("there are no clients to train on: give a list of (inputs, targets) pairs")
    data = OwnClients([examples_of(client, f"client {number}") for number, client in enumerate(clients)])
    tested = None if test is None else examples_of(test, "the test set")
    own = Model(copy.deepcopy(model), next(model.parameters()).device)
    classes = classes_of(own, data.examples[0].inputs[:2])
    for number, examples in enumerate((*data.examples, *((tested,) if tested else ()))):
        where = f"client {number}" if number < len(data) else "the test set"
        if examples.inputs.shape[1:] != data.examples[0].inputs.shape[1:]:
            shapes = tuple(examples.inputs.shape[1:]), tuple(data.examples[0].inputs.shape[1:])
            raise ConfigError(
                f"{where} has inputs of shape {shapes[0]}, client 0 of shape {shapes[1]}: make them equal"
            )
        if int(examples.targets.max()) >= classes or int(examples.targets.min()) < 0:
            raise ConfigError(f"{where} has labels outside 0..{classes - 1}, the classes of the model's head")
    job = Job(algorithm, own, data, local_training(checked.local), classes, seed, tested)
    return _simulate(job, Plan(rounds, CohortRule(fraction)), RUNNERS[runner], console)


def _simulate(job: Job, plan: Plan, make: Callable[[Job], Runner], console: Console | None) -> RunResult:
    state, metrics, runner = State.fresh(job), [], make(job)
    try:
        with screen(console, "training", plan.rounds, 0, plan.cohort.size(len(job.clients))) as show:
            for report in rounds(job, runner, plan, state, show.client):
                metrics.append(report.metrics)
                show.round(report)
    finally:
        runner.close()
    summary: dict[str, Any] = {}
    if job.algorithm.personalise is not None and job.test is not None:
        own = personalised(job, make, state.server, lambda client: state.memory.get(client, {}), state.round)
        summary = dict(own.figures())
    return RunResult(job.model.module_with(state.server.weights), metrics, summary)
