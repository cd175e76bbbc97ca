"""The summary of a run, which is the content of summary.json."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import fedra
from fedra.config.schema import Config
from fedra.errors import RunFailed
from fedra.evaluation.results import find_collapse
from fedra.experiment.build import Built
from fedra.experiment.evaluators.round_summary import summarize_rounds
from fedra.models import count_parameters


def summarize(
    config: Config, built: Built, metrics: Sequence[dict[str, Any]], failure: RunFailed | None = None
) -> dict[str, Any]:
    """Summarize a run that finished, or that failed with the error `failure`."""
    summary: dict[str, Any] = {
        "status": "finished" if failure is None else "failed",
        "algorithm": config.algorithm.name,
        "protocol": built.protocol,
        **summarize_rounds(metrics, built.measures),
        "rounds": len(metrics),
        "seconds": round(sum(line["seconds"] for line in metrics), 3),
        "parameters": count_parameters(built.job.model.module),
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
    # A diverged or collapsed model predicts a single class, so papers report such a run at chance level.
    chance = 1 / len(built.dataset.classes) if built.protocol == "classification" else 0.5
    if collapsed := find_collapse(metrics):
        summary |= {"collapsed": collapsed, "chance_accuracy": chance}
    if failure is not None:
        summary |= {"failure": str(failure), "ending": failure.ending, "chance_accuracy": chance}
    return summary


def versions() -> dict[str, str]:
    """Return the versions of fedra, Python, torch and NumPy."""
    return {
        "fedra": fedra.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
