"""What is said about a run's privacy: on the screen, in the summary, and on the model card. Never epsilon alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

UNIT = "all data of one client"
NOT_COVERED = (
    "who is a client and how many examples it has",
    "client state, personal models and checkpoints in this folder",
    "choosing among several runs on the same clients",
)


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The guarantee of a run, with its unit, its trust and its gaps.

    Args:
        epsilon: The privacy loss so far; None if the noise can be recomputed.
        epsilon_if_secret: What it would be if the noise were secret (`privacy.seed = "run"`).
        delta: The probability with which the bound may fail.
        noise: Noise over the clip norm.
        clip: "adaptive", or the norm.
        rate: Sampling rate that is counted; 1 without amplification.
        releases: Number of released rounds, or of a client's participations without amplification.
        accountant: Name and version of the accountant.
        trust: Whom clients must trust.
        secret: What became of the secret.
        not_covered: What the guarantee does not cover.

    Example:
        ```python
        statement.sentence()  # "(2.29, 1e-04) for all data of one client, if the server is trusted"
        ```
    """

    epsilon: float | None
    delta: float
    noise: float
    clip: str | float
    rate: float
    releases: int
    accountant: str
    trust: str = "the server, which sees single uploads"
    secret: str = "kept until the run is finished"
    epsilon_if_secret: float | None = None
    level: str = "client"
    unit: str = UNIT
    relation: str = "zero-out"
    covers: tuple[str, ...] = ("the global models of all rounds", "the metrics in metrics.jsonl")
    not_covered: tuple[str, ...] = NOT_COVERED

    def sentence(self) -> str:
        """One line for the screen.

        Returns:
            Epsilon with delta, unit and trust; without a guarantee, why there is none.
        """
        if self.epsilon is None:
            return (
                f"privacy: noise as for ({self.epsilon_if_secret:.2f}, {self.delta:.0e}), but it can be recomputed "
                "from the seed (privacy.seed = 'run'): no guarantee"
            )
        return f"privacy: ({self.epsilon:.2f}, {self.delta:.0e}) for {self.unit}, if you trust {self.trust}"

    def as_dict(self) -> dict[str, Any]:
        """The statement for summary.json.

        Returns:
            Plain values.
        """
        values = asdict(self)
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is not None
        }
