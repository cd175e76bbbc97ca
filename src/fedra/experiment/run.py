"""Runs from configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.callbacks.callback import Callback
from fedra.config.schema import Config
from fedra.evaluation.metrics import MetricChoice
from fedra.experiment.experiment import Experiment
from fedra.experiment.result import RunResult
from fedra.storage.run_folder import RunFolder


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    overrides: Iterable[str] = (),
    metrics: MetricChoice = (),
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Run a configuration.

    Args:
        config: A dict, the path of a TOML file, or a checked `Config`.
        out: Folder for the record, which must be empty or hold a run; None keeps no record.
        overrides: Words `key.sub=value` that replace settings.
        metrics: Measured in addition to `evaluation.metrics`: names such as "auroc", functions (targets, probabilities)
            -> number on NumPy arrays, `fedra.evaluation.Metric`s, or a mapping from names to functions.
        callbacks: What happens alongside: see `fedra.callbacks`.
        force: Whether a run that is in the folder is replaced.
        console: Where progress is shown; by default the standard error, where that is a terminal.

    Returns:
        The trained model, the metrics of every round, the summary, and the folder.

    Example:
        >>> fedra.run({"rounds": 2, "model": {"name": "logistic"}}, out="runs/a").summary["final_accuracy"]
    """
    return Experiment.from_config(config, overrides, metrics).run(out, callbacks, force=force, console=console)


def resume(
    out: Path | str,
    *,
    metrics: MetricChoice = (),
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> RunResult:
    """Continue the run in a folder from its last checkpoint; one killed before its first checkpoint starts anew.

    Args:
        out: The folder of a run from a configuration; a run of your own objects goes on by
            `Experiment(...).run(out, resume=True)`.
        metrics: Functions of your own, which the folder does not hold.
        callbacks: What happens alongside: see `fedra.callbacks`.
        console: Where progress is shown; by default the standard error, where that is a terminal.

    Returns:
        The same as the uninterrupted run, to the bit.

    Example:
        >>> fedra.resume("runs/a")
    """
    return Experiment.from_config(RunFolder(out).config(), metrics=metrics).run(
        out, callbacks, resume=True, console=console
    )
