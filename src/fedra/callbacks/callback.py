"""What happens alongside training: the hooks that a callback may define, and what they receive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.errors import FedraError, RunError
from fedra.evaluation.results import was_tested
from fedra.storage.state import State


@dataclass(frozen=True)
class RoundReport:
    """One finished round: a line for metrics.jsonl, lines for clients.jsonl, and the examples seen."""

    metrics: dict[str, Any]
    clients: list[dict[str, Any]]
    examples: int


@dataclass
class RunContext:
    """A run as its callbacks see it.

    Attributes:
        title: What the run is called in tables and curves.
        config: The resolved configuration as nested dicts.
        algorithm: The algorithm that is trained.
        rounds: The round at which the run ends.
        metrics: A dict for every finished round, the last one last; of a resumed run the earlier ones too.
        folder: The run's folder, or None.
        console: Where to print, or None where the run is silent.
        ticks: How often progress is reported within a round: once a client, or once a step in centralized training.
        stop_reason: Why the run stops early, or None.
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
        """The number of finished rounds."""
        return self.state.round

    @property
    def weights(self) -> Weights:
        """The server's parameters and buffers after the last finished round."""
        return self.state.server.weights

    def stop(self, reason: str) -> None:
        """End the run after this round, as if it were the last.

        Args:
            reason: A sentence for the summary, such as "accuracy has not improved for 5 rounds".
        """
        self.stop_reason = reason


class Callback:
    """Base class: override the hooks you need. They run in the order in which callbacks are given.

    The test of a round may go on while the next round trains; `on_round_end` of a round may therefore follow
    `on_round_start` of the next. A hook that raises ends the run with a sentence that names the callback; everything
    up to the last finished round is saved.

    Example:
        >>> class Print(Callback):
        ...     def on_round_end(self, run, report):
        ...         print(report.metrics["round"], report.metrics["accuracy"])
    """

    def on_run_start(self, run: RunContext) -> None:
        """Before the first round, or before a resumed run goes on."""

    def on_round_start(self, run: RunContext, round: int) -> None:
        """Before clients are trained; `round` counts from 1."""

    def on_client_end(self, run: RunContext, line: dict[str, Any]) -> None:
        """After a client was trained or dropped; `line` is its line of clients.jsonl."""

    def on_progress(self, run: RunContext) -> None:
        """After every client; in centralized training, which has no clients, after every step."""

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        """After a round was folded in and, where due, tested."""

    def on_evaluation(self, run: RunContext, metrics: dict[str, Any]) -> None:
        """After a round that was tested, before `on_round_end`; `metrics` is the round's line."""

    def on_training_end(self, run: RunContext) -> None:
        """After the last round, before what is tested once at the end, such as personal models."""

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        """When the run ends in any way: `summary["status"]` is "finished", "failed" or "interrupted"."""


class CallbackFailed(RunError):
    """A callback raised: the run ends, and can be resumed."""


class Callbacks:
    """Several callbacks called one after the other, fedra's own first; an error in a user's names the callback."""

    def __init__(self, own: Sequence[Callback], users: Sequence[Callback], run: RunContext) -> None:
        self.run, self._users = run, tuple(users)
        # A round of a thousand clients asks a thousand times: hooks that nobody defines cost nothing.
        self._hooks = {hook: [one for one in (*own, *users) if _defines(one, hook)] for hook in HOOKS}

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback that defines it."""
        for callback in self._hooks[hook]:
            try:
                getattr(callback, hook)(self.run, *arguments)
            except FedraError:
                raise
            except Exception as error:
                if callback not in self._users:
                    raise
                raise CallbackFailed(
                    f"the callback {type(callback).__name__} failed in {hook} after round {self.run.round} "
                    f"({type(error).__name__}: {error})"
                ) from error

    def round_end(self, report: RoundReport) -> None:
        """A round ended, and was tested where it was due."""
        self.run.metrics.append(report.metrics)
        if was_tested(report.metrics):
            self.call("on_evaluation", report.metrics)
        self.call("on_round_end", report)


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def _defines(callback: object, hook: str) -> bool:
    return getattr(type(callback), hook, None) not in (None, getattr(Callback, hook))
