"""What a run's rounds are given and what they leave: the plan, the state they move on, a report of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from fedra.core.evaluate import Counts
from fedra.core.view import Server, Upload
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.evaluator import Judge, classification


class Observer(Protocol):
    """Somebody who measures more about a round; figures it returns join the round's or the client's line."""

    def begin(self) -> None:
        """Forget what was seen of a try at a round that failed: another begins."""
        ...

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        """Look at an accepted upload."""
        ...

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        """Look at the server after the round."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long and in what manner to train."""

    rounds: int
    cohort: CohortRule = field(default_factory=CohortRule)
    faults: FaultRule = field(default_factory=FaultRule)
    evaluate_every: int = 1
    observers: tuple[Observer, ...] = ()
    traffic: bool = True  # whether models and uploads travel, which they do not within one machine
    judge: Judge = classification
