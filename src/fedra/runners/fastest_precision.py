"""Choosing the precision `auto`: the fastest that this processor computes and that keeps the range of float32."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from fedra.core.job import Job
from fedra.core.model import Model
from fedra.core.precision import PRECISIONS, PrecisionName, build_precision
from fedra.errors import ConfigError
from fedra.runners.calibration import Trial

CLEARLY = 1.2
"""Required speedup of bfloat16, which changes rounding."""


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision by name, and the reason for choosing it."""

    name: PrecisionName
    reason: str

    def __str__(self) -> str:
        """Such as: bfloat16 (0.54 of float32's time on this network)."""
        return f"{self.name} ({self.reason})"


def choose_precision(job: Job) -> PrecisionChoice:
    """Choose float32 or bfloat16 for a job; float16 is left out, because its gradients may overflow."""
    try:
        build_precision("bfloat16", job.model.device)
    except ConfigError as error:
        return PrecisionChoice("float32", f"bfloat16 does not work here: {str(error).partition(':')[0]}")
    if job.model.compiled:
        return PrecisionChoice("float32", "compiled passes are not timed")
    try:
        seconds = {name: _seconds(job, name) for name in ("float32", "bfloat16")}
    except Exception as error:  # a layer without half precision, or a bug that the run itself will show
        return PrecisionChoice("float32", f"a trial in bfloat16 failed with {type(error).__name__}")
    ratio = seconds["bfloat16"] / seconds["float32"]
    faster = ratio * CLEARLY < 1
    return PrecisionChoice(
        "bfloat16" if faster else "float32", f"bfloat16 takes {ratio:.2f} of float32's time with this network"
    )


def with_precision(job: Job, name: PrecisionName) -> Job:
    """Return the job with its model in another precision."""
    model = job.model
    return replace(job, model=Model(copy.deepcopy(model.module), model.device, PRECISIONS[name], model.compiled))


def _seconds(job: Job, name: PrecisionName) -> float:
    return Trial(with_precision(job, name), 1).single
