"""The runner that suits a job: rules first, then a short trial, with thresholds far from what noise can move.

Sequential and processes give the same bits, so that the choice between them is one of time alone. A stack is taken
only where it is clearly faster and was seen to give what clients alone give, but for rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from fedra.core.job import Job
from fedra.runners.base import Runner
from fedra.runners.calibration import Trial
from fedra.runners.processes import default_start_method, default_workers, processes
from fedra.runners.sequential import sequential
from fedra.runners.stacked import stacked

SHORT = 3.0
"""Seconds of training in all, under which nothing is worth setting up."""

LONG_STEP = 1e8
"""Floating-point operations of a local step from which on they, and not overhead, take a CPU's time."""

LONG_RUN = 1e12
"""Floating-point operations of a whole run, which take any core longer than `SHORT`."""

CLEARLY = 1.5
"""How many times faster a stack, or more threads, must be to be taken: they change the last bits."""

WORTHWHILE = 1.2
"""How many times faster a pool must be to be taken: it changes no bits."""

START = {"fork": 0.5, "spawn": 5.0}
"""Seconds that a pool takes to start."""

MESSAGE, BYTES_A_SECOND = 3e-4, 5e8
"""What a pool adds to a client: a message there and back, and its tensors packed and unpacked."""

BUILDERS = {"sequential": sequential, "processes": processes, "stacked": stacked}


@dataclass(frozen=True)
class Choice:
    """A runner by name and settings, and why."""

    runner: str
    reason: str
    settings: dict[str, Any] = field(default_factory=lambda: {"threads": 1})

    def __str__(self) -> str:
        """Such as: stacked, 1 thread (calibrated on 8 clients: sequential 1.9 ms, stacked 0.2 ms a client)."""
        threads = _counted(self.settings["threads"], "threads")
        workers = self.settings.get("workers")
        size = threads if workers is None else f"{_counted(workers, 'workers')}, {threads} each"
        return f"{self.runner}, {size} ({self.reason})"

    def build(self, job: Job) -> Runner:
        """The runner for a job."""
        runner: Runner = BUILDERS[self.runner](job, **self.settings)
        return runner


def choose(job: Job, cohort: int, cores: int | None = None, also: tuple[Job, ...] = ()) -> Choice:
    """The runner for a job of which `cohort` clients train in a round, and for the jobs it will `also` have to do."""
    cores = cores or default_workers()
    if cohort == 1 and (cores == 1 or not _on_cpu(job)):
        return Choice("sequential", "one client a round")
    try:
        trial = Trial(job, cohort)
        if _on_cpu(job) and _is_long(trial, cohort):
            return _by_rule(trial, cohort, cores)
        total = trial.alone * cohort * job.local.rounds
    except Exception as error:  # the run itself will meet it, and say where
        return Choice("sequential", f"the calibration failed with {type(error).__name__}")
    if total < SHORT:
        return Choice("sequential", f"about {total:.1f} s of training in all")
    if cohort == 1:
        return _threads(trial, cores)
    return _fastest(trial, cohort, cores, total, also)


def _is_long(trial: Trial, cohort: int) -> bool:
    """Whether the sheer arithmetic decides: no stack would help, and any set-up is soon repaid."""
    total = trial.arithmetic * cohort * trial.job.local.rounds
    return trial.arithmetic_of_a_step >= LONG_STEP and total >= LONG_RUN


def _by_rule(trial: Trial, cohort: int, cores: int) -> Choice:
    """All cores: a client on each or, where one trains alone, all on it."""
    told = f"{trial.arithmetic_of_a_step / 1e9:.2g} GFLOP a step: no calibration needed"
    if cohort == 1 or cores == 1:
        return Choice("sequential", told, {"threads": cores})
    return Choice("processes", told, {"workers": min(cores, cohort), "threads": 1})


def _fastest(trial: Trial, cohort: int, cores: int, total: float, also: tuple[Job, ...]) -> Choice:
    """First one of the two that give the same bits, then a stack if it clearly beats that."""
    times = {"sequential": trial.alone}
    runner, settings = "sequential", {"threads": 1}
    if _on_cpu(trial.job) and cores > 1:
        workers = min(cores, cohort)
        times["processes"] = _in_a_pool(trial, cohort, workers)
        saved = total * (1 - times["processes"] / trial.alone)
        if times["processes"] * WORTHWHILE < trial.alone and saved > START[default_start_method()]:
            runner, settings = "processes", {"workers": workers, "threads": 1}
    if _may_stack(trial) and trial.stackable():
        times["stacked"] = trial.stacked
        if trial.stacked * CLEARLY < times[runner] and all(Trial(other, cohort).stackable() for other in also):
            runner, settings = "stacked", {"threads": 1}
    estimated = {"processes": "about "}
    told = ", ".join(f"{name} {estimated.get(name, '')}{_time(seconds)}" for name, seconds in times.items())
    return Choice(runner, f"calibrated on {_counted(trial.clients, 'clients')}: {told} a client", settings)


def _may_stack(trial: Trial) -> bool:
    """On a CPU stacks of convolutions or of long steps gain nothing; what is compiled, or has public examples to choose
    among, is not stacked.
    """
    light = not trial.job.model.channels_last and trial.arithmetic_of_a_step < LONG_STEP
    return not trial.compiled and not trial.has_public and (light or not _on_cpu(trial.job))


def _on_cpu(job: Job) -> bool:
    """Elsewhere a pool would have to share one device."""
    return job.model.device.type == "cpu"


def _threads(trial: Trial, cores: int) -> Choice:
    """One client a round: nothing to share out but its own arithmetic."""
    together = trial.sequential(threads=cores)
    told = f"one client a round, {_time(trial.alone)} on 1 thread, {_time(together)} on {cores}"
    return Choice("sequential", told, {"threads": cores if together * CLEARLY < trial.alone else 1})


def _in_a_pool(trial: Trial, cohort: int, workers: int) -> float:
    """A client's share of a round by a pool, estimated: to start one for a trial would take longer than the trial."""
    waves = math.ceil(cohort / workers) / cohort
    return trial.alone * waves + MESSAGE + trial.traffic() / BYTES_A_SECOND


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _counted(count: int, what: str) -> str:
    return f"{count} {what if count != 1 else what.removesuffix('s')}"


def automatic(job: Job, *, cores: Annotated[int, Field(ge=1)] | None = None) -> Runner:
    """Sequential, processes or stacked: whichever a short trial finds to suit the job.

    A trial of about a second times a few clients cut short. Short runs stay sequential; a pool is taken where it
    saves time, on at most `cores` of the machine's; a stack where it is clearly faster and agrees with clients
    alone; on a GPU never a pool. A run's folder records the choice under `[runner]`, so that resuming it or running
    its config.toml repeats it.
    """
    return choose(job, len(job.clients), cores).build(job)
