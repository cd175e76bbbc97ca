"""The hooks that a callback may define, and their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.errors import ConfigError, FedraError, RunError
from fedra.evaluation.results import is_evaluated
from fedra.storage.state import State


@dataclass(frozen=True)
class RoundReport:
    """One finished round, as `Callback.on_round_end` receives it.

    Args:
        metrics: The round's line of metrics.jsonl, such as `{"round": 3, "accuracy": 0.81, "train_loss": 0.6, ...}`.
        clients: The lines of clients.jsonl of the round's clients.
        examples: Number of training examples processed in the round.

    Example:
        ```python
        class PrintLoss(Callback):
            def on_round_end(self, run, report):
                print(report.metrics["round"], report.metrics["train_loss"])
        ```
    """

    metrics: dict[str, Any]
    clients: list[dict[str, Any]]
    examples: int


@dataclass
class RunContext:
    """A run, as every hook of a callback receives it.

    Args:
        title: Name of the run in tables and plots.
        config: The resolved configuration as nested dicts.
        algorithm: The algorithm of the run.
        rounds: Number of the last round.
        metrics: One dict per finished round, in order, including rounds before a resume.
        state: The server's state and the client states.
        folder: The run's folder, or None.
        console: Console to print to, or None if the run is silent.
        ticks: Number of calls of `on_progress` per round: one per client, or one per step in centralized training.

    Attributes:
        stop_reason: Why the run stops early, or None.

    Example:
        ```python
        class StopAt90(Callback):
            def on_evaluation(self, run, metrics):
                if metrics["accuracy"] > 0.9:
                    run.stop(f"accuracy above 90 % after {run.round} rounds")
        ```
    """

    title: str
    config: dict[str, Any]
    algorithm: Algorithm
    rounds: int
    metrics: list[dict[str, Any]]
    state: State
    folder: Path | None = None
    console: Console | None = None
    ticks: int = 1
    stop_reason: str | None = field(default=None, init=False)

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return self.state.round

    @property
    def weights(self) -> Weights:
        """Parameters and buffers of the global model after the last finished round."""
        return self.state.server.weights

    def stop(self, reason: str) -> None:
        """Stop the run after the current round, as if it were the last one.

        Args:
            reason: The reason for the summary, such as "accuracy has not improved for 5 rounds".
        """
        self.stop_reason = reason


class Callback:
    """Base class of callbacks: override the hooks you need.

    Callbacks run in the order in which they are passed. A round may be evaluated while the next one trains, so
    `on_round_end` may be called after `on_round_start` of the next round. If a hook raises, the run ends with an error
    that names the callback, and everything up to the last finished round is saved.

    Example:
        >>> class Print(Callback):
        ...     def on_round_end(self, run, report):
        ...         print(report.metrics["round"], report.metrics["accuracy"])
    """

    def on_run_start(self, run: RunContext) -> None:
        """Called before the first round, or before the first round of a resumed run."""

    def on_round_start(self, run: RunContext, round: int) -> None:
        """Called before clients train; `round` counts from 1."""

    def on_client_end(self, run: RunContext, line: dict[str, Any]) -> None:
        """Called after a client was trained or dropped; `line` is its line of clients.jsonl."""

    def on_progress(self, run: RunContext) -> None:
        """Called after every client or, in centralized training, after every step."""

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        """Called after the server update of a round and, if the round is evaluated, after its evaluation."""

    def on_evaluation(self, run: RunContext, metrics: dict[str, Any]) -> None:
        """Called after a round was evaluated, before `on_round_end`; `metrics` is the round's line."""

    def on_training_end(self, run: RunContext) -> None:
        """Called after the last round, before the final evaluation, such as that of personal models."""

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        """Called when the run ends for any reason: `summary["status"]` is "finished", "failed" or "interrupted"."""


class CallbackFailed(RunError):
    """A callback raised an error. The run can be resumed."""


def check_callbacks(callbacks: object) -> None:
    """Raise unless a user gave a list of objects with hooks; others would be ignored."""
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks must be a list, got {type(callbacks).__name__}: put it in brackets")
    for one in callbacks:
        if isinstance(one, type) or not (isinstance(one, Callback) or any(_defines(one, hook) for hook in HOOKS)):
            got = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
            raise ConfigError(f"callbacks must be objects with hooks such as on_round_end, got {got}")


class Callbacks:
    """Calls the hooks of several callbacks in order; an error in a user's callback names that callback."""

    def __init__(self, built_in: Sequence[Callback], users: Sequence[Callback], run: RunContext) -> None:
        self.run, self._users = run, tuple(users)
        # on_client_end runs once per client, so hooks that no callback defines must cost nothing.
        self._hooks = {hook: [one for one in (*built_in, *users) if _defines(one, hook)] for hook in HOOKS}

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback that defines it."""
        for callback in self._hooks[hook]:
            try:
                getattr(callback, hook)(self.run, *arguments)
            except Exception as error:
                ours = type(callback).__module__.startswith("fedra.")  # its messages say what to do
                if callback not in self._users or (ours and isinstance(error, FedraError)):
                    raise
                raise CallbackFailed(
                    f"the callback {type(callback).__name__} failed in {hook} after round {self.run.round} "
                    f"({type(error).__name__}: {error})"
                ) from error

    def round_end(self, report: RoundReport) -> None:
        """Record a finished round and call its hooks."""
        self.run.metrics.append(report.metrics)
        if is_evaluated(report.metrics):
            self.call("on_evaluation", report.metrics)
        self.call("on_round_end", report)


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def _defines(callback: object, hook: str) -> bool:
    return getattr(type(callback), hook, None) not in (None, getattr(Callback, hook))
