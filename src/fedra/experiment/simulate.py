"""The same training as a run's, for people with their own model and data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from fedra.callbacks.screen import screen
from fedra.config import reading as configuration
from fedra.config.mode import is_centralized, notice
from fedra.console import steps, tell
from fedra.core.algorithm import Algorithm
from fedra.core.compiling import refuse_without_compiler
from fedra.core.job import Job
from fedra.core.model import Model
from fedra.core.precision import PrecisionName, build_precision
from fedra.core.round_zero import looked_at
from fedra.data.clients import OwnClients
from fedra.errors import ConfigError
from fedra.evaluation.personal_models import personalised
from fedra.experiment.build import build_runner, check_own_models, local_training, with_owners
from fedra.experiment.cohort import CohortRule
from fedra.experiment.plan import Plan
from fedra.experiment.pooling import pool_clients, ticks, watch_steps
from fedra.experiment.rounds import rounds
from fedra.experiment.run import RunResult, choose_runner
from fedra.experiment.user_data import Pair, classes_of, examples_of
from fedra.reports import client_models as personal_report
from fedra.runners import Runner
from fedra.storage.client_state import Memories
from fedra.storage.state import State


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
    schedule: str | Mapping[str, Any] = "constant",
    fraction: float = 1.0,
    seed: int = 0,
    precision: PrecisionName | None = None,
    compile: bool = False,
    runner: str = "auto",
    memory: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> RunResult:
    """Train your own module across your own clients, each a pair of tensors (inputs, targets) or a `Dataset`.

    The module has a `body` and a `head`, or comes from `fedra.models.named_head(module, "fc")`; it is copied, and
    `result.model` is the trained copy, on the module's own device. `batch=None` takes the whole client as one batch.
    Without a `precision` the module's own type is used: a float64 model stays so. `schedule` is a learning-rate
    schedule by its name or as a table with its fields. The runner "centralised" trains on all clients' examples
    pool_clients, one epoch a round. `memory` is a table with the fields `ram` and `precision` of what clients remember.
    `result.summary` tells which runner auto chose and, with a personaliser and a test set, how good the clients' own
    models are.
    """
    table: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "lr_decay": lr_decay}
    table |= {"momentum": momentum, "weight_decay": weight_decay, "schedule": schedule}
    settings = {"rounds": rounds, "seed": seed, "local": table, "cohort": {"fraction": fraction}}
    settings |= {} if precision is None else {"precision": precision}
    checked = configuration.read(
        {**settings, "compile": compile, "runner": {"name": runner}, "memory": dict(memory or {})}
    )
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"{algorithm!r} is no algorithm: make one, such as fedra.algorithms.fedavg()")
    if not clients:
        raise ConfigError("there are no clients to train on: give a list of (inputs, targets) pairs")
    data = OwnClients([examples_of(client, f"client {number}") for number, client in enumerate(clients)])
    tested = None if test is None else examples_of(test, "the test set").kept()
    device = next(model.parameters()).device
    if compile:
        refuse_without_compiler(device)
    numbers = None if precision is None else build_precision(checked.precision, device)
    own = Model(copy.deepcopy(model), device, numbers, compile)
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
    local = local_training(checked.local, rounds)
    algorithm.check_training(local.at(0), epochs)
    job = Job(algorithm, own, data, local, classes, seed, tested)
    if is_centralized(checked):
        tell(console, notice(checked))
        job = pool_clients(job, data)
    else:
        job = with_owners(job, data)
    if algorithm.personalise is not None:
        check_own_models(job, algorithm.personalise, rounds)
    plan = Plan(rounds, CohortRule(fraction), traffic=not is_centralized(checked))
    checked = choose_runner(checked, job, console)
    memories = Memories(**checked.memory.model_dump())
    try:
        result = _simulate(job, plan, partial(build_runner, checked), memories, console)
    finally:
        memories.close()
    return replace(result, summary={"runner": checked.runner.model_dump(), **result.summary})


def _simulate(
    job: Job, plan: Plan, make: Callable[[Job], Runner], memories: Memories, console: Console | None
) -> RunResult:
    with steps(console, "round zero", looked_at(job)) as done:
        state = State.fresh(job, done, memories)
    metrics, runner = [], make(job)
    try:
        with screen(console, "training", plan.rounds, 0, ticks(runner, plan.cohort.size(len(job.clients)))) as show:
            for report in rounds(job, runner, plan, state, watch_steps(runner, show.client)):
                metrics.append(report.metrics)
                show.round(report)
    finally:
        runner.close()
    summary: dict[str, Any] = {}
    if job.algorithm.personalise is not None and job.test is not None:
        total = len(job.clients) * len(job.algorithm.personalise.stages)
        with steps(console, "every client's own model", total) as done:
            own = personalised(job, make, state.server, state.memory.get, state.round, done)
        tell(console, personal_report.result(own))
        tell(console, personal_report.warning(own.diverged, len(job.clients)))
        summary = own.figures() | personal_report.counted(own.diverged)
    return RunResult(job.model.module_with(state.server.weights), metrics, summary)
