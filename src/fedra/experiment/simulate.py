"""`fedra.simulate`: train your own model on your own data in one call."""

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
    """Train your own model on your own clients; the same as `Experiment(...).run(...)`.

    Args:
        algorithm: An `Algorithm`, such as `fedra.algorithms.fedprox(mu=0.1)`.
        model: Any `nn.Module` from a batch of inputs to logits; it is copied and never changed.
        clients: For each client a pair (inputs, targets), a triple with a transform, a `Dataset` or a `DataLoader`.
        test: The test set in the same form, or None.
        out: Output folder; None writes no files.
        callbacks: Callbacks that run in addition to the built-in ones; see `fedra.callbacks`.
        force: Whether to replace an existing run in the folder.
        resume: Whether to continue an interrupted run in the folder.
        console: Where progress is shown; standard error if it is a terminal, by default.
        settings: All other arguments of `fedra.Experiment`, such as rounds, lr, optimizer, fraction, seed, runner.

    Returns:
        The trained module with its original parameter names, the metrics of every round, the summary, and the folder.

    Example:
        >>> result = fedra.simulate(fedra.algorithms.fedavg(), net, clients, test, rounds=20, lr=0.1)
        >>> result.metrics[-1]["accuracy"]
    """
    experiment = Experiment(algorithm, model, clients, test, **settings)
    return experiment.run(out, callbacks, force=force, resume=resume, console=console)


def _with_settings() -> inspect.Signature:
    """Return the signature with all settings by name, for help and editors."""
    own = inspect.signature(simulate)
    known = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [p for name, p in inspect.signature(Experiment).parameters.items() if name not in own.parameters]
    return own.replace(parameters=[*known, *more])


simulate.__signature__ = _with_settings()  # type: ignore[attr-defined]
