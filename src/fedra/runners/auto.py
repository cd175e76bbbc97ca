"""Choosing the runner for a job: by rule if possible, otherwise by a short trial, with margins well above noise.

Sequential and processes give bit-identical results, so only time decides between them. Stacked is chosen only if it is
clearly faster and the trial shows that its results equal the sequential ones up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from fedra.core.job import Job
from fedra.runners import RUNNERS
from fedra.runners.base import MOST_WORKERS, Runner
from fedra.runners.calibration import Trial
from fedra.runners.processes import default_start_method, default_workers, processes
from fedra.runners.sequential import sequential
from fedra.runners.stacked import MEMORY, clients_at_once, stacked

SHORT = 3.0
"""Runs with less training than this, in seconds, are not worth any setup."""

LONG_STEP = 1e8
"""Floating-point operations of a local step above which arithmetic, not overhead, dominates on a CPU."""

LONG_RUN = 1e12
"""Floating-point operations of a run that take any core longer than `SHORT`."""

CLEARLY = 1.5
"""Required speedup of a stack, or of more threads, which change rounding."""

WORTHWHILE = 1.2
"""Required speedup of a process pool, which does not change results."""

START = {"fork": 0.5, "spawn": 5.0}
"""Seconds to start a process pool."""

MESSAGE, BYTES_PER_SECOND = 3e-4, 5e8
"""Overhead of a pool per client: seconds for a message and its reply, and the speed of packing tensors."""

GROUP, LARGEST_GROUP = 2.5, 256
"""Clients in a stack of a cluster's worker: `GROUP` times the square root of the cohort, at most `LARGEST_GROUP`.

The number of workers does not count, because it may change on the way, and the results depend on the stacks.
"""

BUILDERS = {"sequential": sequential, "processes": processes, "stacked": stacked}


@dataclass(frozen=True)
class Choice:
    """A runner by name and settings, and the reason for choosing it."""

    runner: str
    reason: str
    settings: dict[str, Any] = field(default_factory=lambda: {"threads": 1})

    def __str__(self) -> str:
        """Such as: stacked, 1 thread (calibrated on 8 clients: sequential 1.9 ms, stacked 0.2 ms per client)."""
        threads = _format_count(self.settings["threads"], "threads")
        workers = self.settings.get("workers")
        size = threads if workers is None else f"{_format_count(workers, 'workers')}, {threads} each"
        return f"{self.runner}, {size} ({self.reason})"

    def build(self, job: Job) -> Runner:
        """Build the runner for a job."""
        runner: Runner = BUILDERS[self.runner](job, **self.settings)
        return runner


def choose(job: Job, cohort: int, cores: int | None = None, also: tuple[Job, ...] = ()) -> Choice:
    """Choose a runner for a job with `cohort` clients per round, which must also run the jobs in `also`."""
    cores = cores or default_workers()
    if cohort == 1 and (cores == 1 or not _on_cpu(job)):
        return Choice("sequential", "one client per round")
    try:
        trial = Trial(job, cohort)
        if _on_cpu(job) and _is_long(trial, cohort):
            return _choose_by_rule(trial, cohort, cores)
        total = trial.single * cohort * job.local.rounds
    except Exception as error:  # the run itself will raise it with its location
        return Choice("sequential", f"calibration failed with {type(error).__name__}")
    if total < SHORT:
        return Choice("sequential", f"about {total:.1f} s of training in total")
    if cohort == 1:
        return _choose_threads(trial, cores)
    return _choose_fastest(trial, cohort, cores, total, also)


def choose_stack(job: Job, cohort: int, also: tuple[Job, ...] = ()) -> int:
    """How many clients a worker of a cluster trains as one stack; 1 if stacks do not help or their results differ.

    Unlike `choose`, it measures no times: on a cluster, two runs of one configuration have the same stacks.
    """
    size = min(LARGEST_GROUP, math.ceil(GROUP * math.sqrt(cohort)), cohort)
    try:
        trial = Trial(job, cohort)
        if not _may_stack(trial) or not all(Trial(other, cohort).stackable() for other in (job, *also)):
            return 1
        return min(size, clients_at_once(job, job.common(job.initial()), range(len(job.clients)), MEMORY))
    except Exception:  # the run itself will raise it with its location
        return 1


def _is_long(trial: Trial, cohort: int) -> bool:
    """Whether arithmetic dominates: a stack would not help, and any setup pays off."""
    total = trial.operations * cohort * trial.job.local.rounds
    return trial.operations_per_step >= LONG_STEP and total >= LONG_RUN


def _choose_by_rule(trial: Trial, cohort: int, cores: int) -> Choice:
    """Use all cores: one client on each or, with one client per round, all threads on it."""
    reason = f"{trial.operations_per_step / 1e9:.2g} GFLOP per step: no calibration needed"
    if cohort == 1 or cores == 1:
        return Choice("sequential", reason, {"threads": cores})
    return Choice("processes", reason, {"workers": min(cores, cohort), "threads": 1})


def _choose_fastest(trial: Trial, cohort: int, cores: int, total: float, also: tuple[Job, ...]) -> Choice:
    """Sequential or processes, whose results are bit-identical; then stacked if it is clearly faster."""
    times = {"sequential": trial.single}
    runner, settings = "sequential", {"threads": 1}
    if _on_cpu(trial.job) and cores > 1:
        workers = min(cores, cohort)
        times["processes"] = _estimate_pool(trial, cohort, workers)
        saved = total * (1 - times["processes"] / trial.single)
        if times["processes"] * WORTHWHILE < trial.single and saved > START[default_start_method()]:
            runner, settings = "processes", {"workers": workers, "threads": 1}
    if _may_stack(trial) and trial.stackable():
        times["stacked"] = trial.stacked
        if trial.stacked * CLEARLY < times[runner] and all(Trial(other, cohort).stackable() for other in also):
            runner, settings = "stacked", {"threads": 1}
    estimated = {"processes": "about "}
    measured = ", ".join(f"{name} {estimated.get(name, '')}{_format_time(t)}" for name, t in times.items())
    clients = _format_count(trial.clients, "clients")
    return Choice(runner, f"calibrated on {clients}: {measured} per client", settings)


def _may_stack(trial: Trial) -> bool:
    """Whether to try a stack. On a CPU it does not speed up convolutions or long steps; compiled passes and public
    data are not supported.
    """
    light = not trial.job.model.channels_last and trial.operations_per_step < LONG_STEP
    return not trial.compiled and not trial.has_public and (light or not _on_cpu(trial.job))


def _on_cpu(job: Job) -> bool:
    """Whether the model runs on the CPU; otherwise a pool would share one device."""
    return job.model.device.type == "cpu"


def _choose_threads(trial: Trial, cores: int) -> Choice:
    """One client per round: choose only the number of threads."""
    parallel = trial.sequential(threads=cores)
    times = f"{_format_time(trial.single)} on 1 thread, {_format_time(parallel)} on {cores}"
    threads = cores if parallel * CLEARLY < trial.single else 1
    return Choice("sequential", f"one client per round, {times}", {"threads": threads})


def _estimate_pool(trial: Trial, cohort: int, workers: int) -> float:
    """Estimated seconds per client in a pool; starting one for the trial would take longer than the trial."""
    waves = math.ceil(cohort / workers) / cohort
    return trial.single * waves + MESSAGE + trial.traffic() / BYTES_PER_SECOND


def _format_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _format_count(count: int, what: str) -> str:
    return f"{count} {what if count != 1 else what.removesuffix('s')}"


@RUNNERS.add("auto")
def automatic(job: Job, *, cores: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None) -> Runner:
    """Sequential, processes or stacked, chosen by a short trial.

    The trial takes about a second and times shortened training of a few clients. Short runs use `sequential`.
    `processes`, with at most `cores` workers, is chosen if it saves time, but never on a GPU; `stacked` if it is
    clearly faster and its results agree with `sequential`. The run's folder records the choice under `[runner]`, so
    resuming it or running its config.toml repeats it.
    """
    return choose(job, len(job.clients), cores).build(job)
