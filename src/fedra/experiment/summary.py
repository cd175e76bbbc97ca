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
from fedra.experiment.build import ServerBuilt
from fedra.experiment.evaluators.round_summary import summarize_rounds
from fedra.models import count_parameters


def summarize(
    config: Config,
    built: ServerBuilt,
    metrics: Sequence[dict[str, Any]],
    done: int,
    failure: RunFailed | None = None,
    status: str = "finished",
) -> dict[str, Any]:
    """Summarize a run of `done` rounds that finished, was interrupted, or failed with the error `failure`.

    `metrics` may lack rounds, if the record was damaged before the run was resumed.
    """
    summary: dict[str, Any] = {
        "status": status if failure is None else "failed",
        "algorithm": config.algorithm.name,
        "protocol": built.protocol,
        **summarize_rounds(metrics, built.measures),
        "rounds": done,
        "seconds": round(sum(line["seconds"] for line in metrics), 3),
        "parameters": count_parameters(built.job.model.module),
        "clients": len(built.job.clients),
        "bytes_up": sum(line.get("bytes_up", 0) for line in metrics),
        "bytes_down": sum(line["bytes_down"] for line in metrics),
        "buffers": "example-weighted mean; counters take the largest" if built.job.model.has_buffers else "none",
        "runner": config.runner.model_dump(),
        "seeds": {"run": config.seed, "partition": config.partition.seed},
        "versions": versions(),
    }
    if restarted := sum(line.get("restarted", 0) for line in metrics):
        summary["restarted"] = restarted
    if missing := sorted(set(range(1, done + 1)) - {line["round"] for line in metrics}):
        summary["rounds_without_record"] = missing
        if done in missing:  # the last line that is left belongs to an earlier model
            summary |= {key: None for key in summary if key.startswith("final_")}
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
