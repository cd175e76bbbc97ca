"""Training of a user's own model and data in one call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from fedra.callbacks.callback import Callback
from fedra.core.algorithm import Algorithm
from fedra.experiment.experiment import Experiment
from fedra.experiment.result import RunResult
from fedra.experiment.user_data import Client


def simulate(
    algorithm: Algorithm,
    model: nn.Module,
    clients: Sequence[Client],
    test: Client | None = None,
    *,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
    **settings: Any,
) -> RunResult:
    """Train your own module across your own clients: `Experiment(...)` and its `run` in one call.

    Args:
        algorithm: An `Algorithm`, such as `fedra.algorithms.fedprox(mu=0.1)`.
        model: Any `nn.Module` from a batch of inputs to logits; it is copied, never changed.
        clients: For every client a pair (inputs, targets), a pair with a transform, a `Dataset` or a `DataLoader`.
        test: The test set in the same form, or None.
        out: Folder for the record; None keeps no record.
        callbacks: What happens alongside: see `fedra.callbacks`.
        force: Whether a run that is in the folder is replaced.
        resume: Whether an interrupted run in the folder is continued.
        console: Where progress is shown; by default the standard error, where that is a terminal.
        settings: Every other argument of `fedra.Experiment`, such as rounds, lr, optimizer, fraction, seed, runner.

    Returns:
        The trained module under its own names, the metrics of every round, the summary, and the folder.

    Example:
        >>> result = fedra.simulate(fedra.algorithms.fedavg(), net, clients, test, rounds=20, lr=0.1)
        >>> result.metrics[-1]["accuracy"]
    """
    experiment = Experiment(algorithm, model, clients, test, **settings)
    return experiment.run(out, callbacks, force=force, resume=resume, console=console)


def _with_settings() -> inspect.Signature:
    """The signature with the settings by name, so that help and editors show them."""
    own = inspect.signature(simulate)
    known = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [p for name, p in inspect.signature(Experiment).parameters.items() if name not in own.parameters]
    return own.replace(parameters=[*known, *more])


simulate.__signature__ = _with_settings()  # type: ignore[attr-defined]
