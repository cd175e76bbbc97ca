"""The plan of a run's rounds, and observers of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from fedra.core.evaluate import Counts
from fedra.core.view import Server, Upload
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.evaluator import Evaluator, classification


class Observer(Protocol):
    """Measures more about a round; the metrics it returns are added to the record of the round or the client."""

    def begin(self) -> None:
        """Start an attempt at a round, discarding what was measured in a failed attempt."""
        ...

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        """Measure an accepted upload."""
        ...

    def server_step(self, combined: Server, server: Server) -> None:
        """Measure what the server rules change: the server with all uploads combined, and after the rules."""
        ...

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        """Measure the server after the round."""
        ...


@dataclass(frozen=True)
class Plan:
    """The settings of a run's rounds."""

    rounds: int
    cohort: CohortRule = field(default_factory=CohortRule)
    faults: FaultRule = field(default_factory=FaultRule)
    evaluate_every: int = 1
    observers: tuple[Observer, ...] = ()
    traffic: bool = True  # whether traffic is counted, which centralized training does not have
    evaluator: Evaluator = classification
