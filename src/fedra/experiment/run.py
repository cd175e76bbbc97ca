"""`fedra.run` and `fedra.resume`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.callbacks.callback import Callback
from fedra.config.schema import Config
from fedra.evaluation.metrics import MetricChoice
from fedra.experiment.experiment import Experiment
from fedra.experiment.extend import extend_run
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
    """Train a configuration.

    Args:
        config: A dict, the path of a TOML file, or a validated `Config`.
        out: Output folder, which must be new, empty or hold a run; None writes no files.
        overrides: Strings `key.sub=value` that override settings.
        metrics: Metrics in addition to `evaluation.metrics`: names such as "auroc", functions (targets, probabilities)
            -> number on NumPy arrays, `fedra.evaluation.Metric`s, or a mapping from names to functions.
        callbacks: Callbacks that run in addition to the built-in ones; see `fedra.callbacks`.
        force: Whether to replace an existing run in the folder.
        console: Where progress is shown; standard error if it is a terminal, by default.

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
    rounds: int | None = None,
    accept_data: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Continue the run in a folder from its last checkpoint, or from the start if it has none.

    Args:
        out: The folder of a run that was started from a configuration; to resume a run of Python objects, use
            `Experiment(...).run(out, resume=True)`.
        metrics: The metric functions of the run, which its folder does not contain.
        callbacks: Callbacks that run in addition to the built-in ones; see `fedra.callbacks`.
        rounds: A new number of all rounds, with which a finished run can be trained further.
        accept_data: Whether to continue although the data changed since the run was started.
        console: Where progress is shown; standard error if it is a terminal, by default.

    Returns:
        The result, bit for bit the same as that of an uninterrupted run.

    Example:
        >>> fedra.resume("runs/a")
    """
    if rounds is not None:
        extend_run(RunFolder(out), rounds)
    return Experiment.from_config(RunFolder(out).config(), metrics=metrics).run(
        out, callbacks, resume=True, accept_data=accept_data, console=console
    )
