"""How long the runs of an entry will take, and how much memory, from a short trial of each kind of run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedra.config.mode import is_centralized
from fedra.config.resolve import record_weights_digest, resolve_defaults
from fedra.config.schema import Config
from fedra.console import format_duration, steps
from fedra.core.evaluate import evaluate
from fedra.experiment.build import Built, build
from fedra.experiment.cohort import CohortRule
from fedra.experiment.execution import add_diagnostics
from fedra.runners.calibration import Trial
from fedra.runners.processes import default_workers
from fedra.storage.run_folder import RunFolder

SAMPLE = 512
"""Examples of a timed evaluation."""
Run = tuple[int, Config, Path]


@dataclass(frozen=True)
class Speed:
    """What a trial measured for one kind of run.

    Args:
        client: Seconds per client of average size and round, on one thread.
        test: Seconds per evaluation.
        clients: Number of clients.
        megabytes: Memory of this process after the trial, or None where it cannot be measured.
        grown: Memory that the trial added to it.
    """

    client: float
    test: float
    clients: int
    megabytes: float | None
    grown: float


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of the runs that are not finished.

    Args:
        runs: Number of all runs.
        finished: Number of finished runs.
        seconds: Estimated time of the others.
        megabytes: Estimated memory of the largest, or None where it cannot be measured.
    """

    runs: int
    finished: int
    seconds: float
    megabytes: float | None

    def __str__(self) -> str:
        waiting = self.runs - self.finished
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        if not waiting:
            return f"{runs}, all finished"
        memory = "" if self.megabytes is None else f", {self.megabytes / 1000:.1f} GB of memory"
        done = f", {self.finished} of them finished" if self.finished else ""
        return f"{runs}{done}; estimated: {format_duration(self.seconds)}{memory}"


def estimate(runs: Sequence[Run], console: Console | None = None, cores: int | None = None) -> Estimate:
    """Estimate the time and memory of runs; finished ones cost nothing.

    Args:
        runs: Seed, configuration and folder of each run.
        console: Where the progress of the trials is shown.
        cores: Number of cores; those of the machine by default.

    Returns:
        The estimate. Every distinct combination of algorithm, network and data is tried for about a second.
    """
    waiting = {folder: config for _, config, folder in runs if not RunFolder(folder).finished}
    total = len({folder for _, _, folder in runs})
    kinds = {_kind(config): config for config in waiting.values()}
    speeds: dict[str, Speed] = {}
    with steps(console, "estimating", max(1, len(kinds))) as done:
        for kind, config in kinds.items():
            speeds[kind] = measure(config)
            done(1)
    seconds, memory = 0.0, []
    for folder, config in waiting.items():
        speed = speeds[_kind(config)]
        left = 1 - len(RunFolder(folder).metrics()) / config.rounds
        seconds += left * run_seconds(config, speed, cores or default_workers())
        memory.append(None if speed.megabytes is None else speed.megabytes + speed.grown * (cores or default_workers()))
    known = [value for value in memory if value is not None]
    return Estimate(total, total - len(waiting), seconds, max(known) if known else None)


def run_seconds(config: Config, speed: Speed, cores: int) -> float:
    """Estimate the seconds of a run.

    Args:
        config: The configuration.
        speed: What a trial of this kind of run measured.
        cores: Number of cores.

    Returns:
        Rounds times the time of a cohort, with the evaluations.
    """
    cohort = 1 if is_centralized(config) else CohortRule(config.cohort.fraction).size(speed.clients)
    one_by_one = is_centralized(config) or config.runner.name in ("sequential", "stacked")
    workers = 1 if one_by_one else min(cores, cohort)
    tests = config.rounds / config.evaluation.every
    return config.rounds * cohort * speed.client / workers + tests * speed.test


def measure(config: Config) -> Speed:
    """Build a run and train a few of its clients for a few steps."""
    built = build(record_weights_digest(resolve_defaults(config)))
    before = peak_megabytes()
    trial = Trial(add_diagnostics(config, built.job), CohortRule(config.cohort.fraction).size(len(built.job.clients)))
    seconds, test = trial.single, _seconds_of_test(built)
    after = peak_megabytes()
    grown = 0.0 if before is None or after is None else after - before
    return Speed(seconds, test, len(built.job.clients), after, grown)


def _seconds_of_test(built: Built) -> float:
    """Time an evaluation of a sample and scale it to the test set; only the forward passes count."""
    test = built.job.evaluated_examples
    if test is None or not len(test):
        return 0.0
    size = min(SAMPLE, len(test))
    sample: Any = type(test)(test.inputs[:size], test.targets[:size], test.transform)
    weights = built.job.initial()
    started = time.perf_counter()
    with torch.no_grad():
        evaluate(built.job.model, weights, sample, built.job.classes)
    return (time.perf_counter() - started) * len(test) / size


def peak_megabytes() -> float | None:
    """Return the largest memory of this process so far in MB, or None where it cannot be measured."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def _kind(config: Config) -> str:
    """Return what the speed depends on: everything but seed, rounds and rates."""
    table = config.model_dump(include={"mode", "data", "model", "local", "partition", "diagnostics", "precision"})
    for name in ("lr", "lr_of", "lr_decay", "momentum", "weight_decay", "schedule"):
        table["local"].pop(name)
    algorithm = {key: value for key, value in config.algorithm.model_dump().items() if not isinstance(value, float)}
    return repr((table, algorithm))
