"""How a client trains in a round: its passes over its data, and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedra.core.optimizer import Adam, Optimizer, Sgd
from fedra.core.rates import RateSchedule, constant


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains: passes over its data, and the optimizer with its rate lr lr_decay^t schedule(t) in round t.

    `batch` None is all of the data at once; `drop_last` leaves out an epoch's incomplete last batch; `rounds` is how
    long the run goes on, for schedules that end with it.
    """

    epochs: int = 1
    batch: int | None = 50
    drop_last: bool = False
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: RateSchedule = constant
    rounds: int = 1

    def at(self, progress: float) -> Optimizer:
        """The optimizer at the start of a round or, in centralized training, somewhere within it."""
        lr = self.lr * self.lr_decay**progress * self.schedule(progress, self.rounds)
        if self.optimizer == "adam":
            return Adam(lr, self.weight_decay)
        return Sgd(lr, self.momentum, self.weight_decay)

    def portions(self, examples: int) -> list[tuple[int, int]]:
        """Start and end of each batch of an epoch; with `drop_last` an incomplete one goes, unless it is the only."""
        size = self.batch or examples
        cuts = [(start, min(start + size, examples)) for start in range(0, examples, size)]
        if self.drop_last and len(cuts) > 1 and cuts[-1][1] - cuts[-1][0] < size:
            cuts.pop()
        return cuts

    def steps(self, examples: int) -> int:
        """The number of local steps of a client with that many examples."""
        return self.epochs * len(self.portions(examples))
