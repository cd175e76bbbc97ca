"""How a client trains in a round: epochs, batches and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fedra.core.optimizer import Adam, Optimizer, Sgd
from fedra.core.rates import RateSchedule, constant


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in a round. The learning rate in round t is lr * lr_decay^t * schedule(t).

    Parameters with a learning rate of their own (`lr_of`) follow the same decay and schedule.

    Args:
        epochs: Passes over the client's data.
        batch: Batch size; None trains on all data in one batch.
        drop_last: Whether to drop an epoch's incomplete last batch.
        optimizer: "sgd" or "adam".
        lr: Learning rate.
        lr_of: Learning rates of parameters by prefix of their names, in place of `lr`; the longest matching prefix
            counts.
        lr_decay: Factor on the learning rate per round.
        momentum: Momentum of SGD.
        weight_decay: Weight decay.
        schedule: Factor on the learning rate as a function of the progress and the number of rounds.
        rounds: Number of rounds of the run, for schedules that end with it.
        sampling: "shuffle" takes every example once per epoch; "poisson" takes every example into every batch with
            the same probability, independently, so `batch` is the expected size.

    Example:
        ```python
        local = LocalTraining(epochs=5, batch=32, lr=0.05, momentum=0.9)
        local.steps(100)  # 20: 4 batches in each of 5 epochs
        LocalTraining(lr=0.05, lr_of={"head.": 0.5})  # class vectors learn ten times faster
        ```
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
    lr_of: Mapping[str, float] = field(default_factory=dict)
    sampling: Literal["shuffle", "poisson"] = "shuffle"

    def at(self, progress: float) -> Optimizer:
        """The optimizer with the learning rate of a round.

        Args:
            progress: Rounds done; a fraction within a round in centralized training.

        Returns:
            The optimizer.
        """
        lr = self.lr * self.lr_decay**progress * self.schedule(progress, self.rounds)
        if self.optimizer == "adam":
            return Adam(lr, self.weight_decay, factors=self._factors)
        return Sgd(lr, self.momentum, self.weight_decay, factors=self._factors)

    def with_lr(self, lr: float) -> LocalTraining:
        """The same training with another learning rate, constant over the rounds.

        Args:
            lr: The learning rate; those of `lr_of` change by the same factor.

        Returns:
            The settings without decay and schedule.
        """
        rates = {prefix: lr * factor for prefix, factor in self._factors}
        return replace(self, lr=lr, lr_of=rates, lr_decay=1.0, schedule=constant)

    @property
    def _factors(self) -> tuple[tuple[str, float], ...]:
        return tuple((prefix, rate / self.lr) for prefix, rate in self.lr_of.items())

    def batch_ranges(self, examples: int) -> list[tuple[int, int]]:
        """Start and end of each batch of an epoch.

        Args:
            examples: Number of the client's examples.

        Returns:
            The ranges in order; with `drop_last` without the incomplete last one, unless it is the only one.
        """
        size = self.batch or examples
        ranges = [(start, min(start + size, examples)) for start in range(0, examples, size)]
        if self.drop_last and len(ranges) > 1 and ranges[-1][1] - ranges[-1][0] < size:
            ranges.pop()
        return ranges

    def sampling_rate(self, examples: int) -> float:
        """The probability with which an example is in a batch of a client.

        Args:
            examples: Number of the client's examples.

        Returns:
            Batch size over examples, at most 1.
        """
        return min((self.batch or examples) / examples, 1.0)

    def steps(self, examples: int) -> int:
        """The number of local steps of a client in a round.

        Args:
            examples: Number of the client's examples.

        Returns:
            Epochs times batches per epoch.
        """
        return self.epochs * len(self.batch_ranges(examples))
