"""What several private runs on the same clients spend together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedra.privacy.accounting import Mechanism, total_epsilon


@dataclass(frozen=True)
class PrivacyTotal:
    """The privacy loss of several runs on the same clients or examples.

    Args:
        runs: Number of private runs.
        epsilon: Epsilon of all of them together; infinite if one gives no guarantee.
        delta: The probability with which the bound may fail.
        unit: What is hidden.

    Example:
        >>> PrivacyTotal(3, 4.5, 1e-5, "one example").sentence()
        '3 private runs on the same data: together at most (4.50, 1e-05) for one example'
    """

    runs: int
    epsilon: float
    delta: float
    unit: str

    def sentence(self) -> str:
        """One line for a table's caption.

        Returns:
            Epsilon with delta and unit, or that there is no guarantee.
        """
        what = f"{self.runs} private runs on the same data"
        if math.isinf(self.epsilon):
            return f"{what}: together no guarantee"
        return f"{what}: together at most ({self.epsilon:.2f}, {self.delta:.0e}) for {self.unit}"

    def as_dict(self) -> dict[str, Any]:
        """The total as plain values; without a guarantee epsilon is None.

        Returns:
            A table for a JSON file.
        """
        spent = None if math.isinf(self.epsilon) else self.epsilon
        return {"runs": self.runs, "epsilon": spent, "delta": self.delta, "unit": self.unit}


def add_up(statements: Sequence[Mapping[str, Any]]) -> PrivacyTotal | None:
    """Add up what runs state in their summaries.

    Gaussian mechanisms are composed at once by privacy loss distributions; for others epsilons and deltas are added.

    Args:
        statements: `privacy` of the runs' summaries; empty ones are left out.

    Returns:
        The total; None without private runs.

    Example:
        >>> one = {"epsilon": 1.0, "delta": 1e-5, "noise": 8.0, "rate": 1.0, "releases": 25, "unit": "one example",
        ...        "accountant": "dp-accounting 0.6.0 PLD"}
        >>> round(add_up([one, one]).epsilon, 4)
        3.7965
    """
    found = [one for one in statements if one]
    if not found:
        return None
    units = list(dict.fromkeys(str(one["unit"]) for one in found))
    unit = units[0] if len(units) == 1 else "each run's unit"
    if any(one.get("epsilon") is None for one in found):
        return PrivacyTotal(len(found), math.inf, max(one["delta"] for one in found), unit)
    composable = all(str(one["accountant"]).endswith("PLD") and one["noise"] for one in found)
    if not composable or len(units) > 1:
        spent = sum(one["epsilon"] for one in found)
        return PrivacyTotal(len(found), spent, sum(one["delta"] for one in found), unit)
    delta = max(one["delta"] for one in found)
    mechanisms = [(Mechanism(one["noise"], one["rate"]), one["releases"]) for one in found]
    return PrivacyTotal(len(found), total_epsilon(mechanisms, delta), delta, unit)
