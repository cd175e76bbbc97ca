"""What is said about a run's privacy: on the screen, in the summary, and on the model card. Never epsilon alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

UNIT = "all data of one client"
NOT_COVERED = (
    "who is a client and how many examples it has",
    "client state, personal models and checkpoints in this folder",
    "choosing among several runs on the same clients",
)


EXAMPLE_UNIT = "one example"
NOT_COVERED_EXAMPLES = (
    "a person with several examples",
    "who is a client and how many examples it has",
    "client state, personal models and checkpoints in this folder",
    "choosing among several runs on the same examples",
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
        releases: Number of released rounds; if clients take turns, most turns of a client.
        accountant: Name and version of the accountant.
        trust: Whom clients must trust.
        secret: What became of the secret.
        band: With correlated noise, over how many rounds.
        apart: If clients take turns, the fewest rounds from one participation of a client to its next.
        canaries: What canaries in the run measured.
        epsilon_median: At the level of examples, an epsilon that holds for half of the clients.
        epsilon_largest_client: At the level of examples, that of the client with the most examples.
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
    band: int | None = None
    apart: int | None = None
    canaries: dict[str, Any] | None = None
    epsilon_median: float | None = None
    epsilon_largest_client: float | None = None
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
        measured = "" if self.canaries is None else f"; {_describe(self.canaries)}"
        if self.epsilon is None:
            return (
                f"privacy: noise as for ({self.epsilon_if_secret:.2f}, {self.delta:.0e}), but it can be recomputed "
                f"from the seed (privacy.seed = 'run'): no guarantee{measured}"
            )
        turns = f", which takes part at most once in {self.apart} rounds" if self.apart else ""
        said = f"privacy: ({self.epsilon:.2f}, {self.delta:.0e}) for {self.unit}{turns}, if you trust {self.trust}"
        return said + measured

    def as_dict(self) -> dict[str, Any]:
        """The statement for summary.json.

        Returns:
            Plain values.
        """
        values = asdict(self)
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is not None and value != math.inf  # without noise there is no bound, and JSON has no infinity
        }


def _describe(canaries: dict[str, Any]) -> str:
    """Say what canaries measured."""
    if "violation" in canaries:
        return str(canaries["violation"])
    low, high = canaries["interval"]
    return f"{canaries['count']} canaries measured {canaries['epsilon']:.2f} (95 %: {low:.2f} to {high:.2f})"


def example_statement(
    *,
    spent: float,
    secret: bool,
    median: float | None,
    largest_client: float | None,
    counts_public: bool,
    returns_rows: bool,
    all_figures: bool,
    **numbers: Any,
) -> PrivacyStatement:
    """Return the statement of a run whose unit is one example.

    Args:
        spent: The largest epsilon of all clients.
        secret: Whether noise and batches come from a secret.
        median: An epsilon that holds for half of the clients, if it was computed.
        largest_client: The epsilon of the client with the most examples, if it was computed.
        counts_public: Whether label counts may steer the clients' losses.
        returns_rows: Whether clients own class vectors.
        all_figures: Whether training losses are recorded.
        **numbers: Delta, noise, clip norm, sampling rate, number of releases and the accountant's name.

    Returns:
        The statement.

    Example:
        ```python
        example_statement(spent=4.2, secret=True, ...).sentence()
        ```
    """
    gaps = list(NOT_COVERED_EXAMPLES)
    if counts_public:
        gaps.append("how many examples of each class a client has (privacy.counts = 'public')")
    if returns_rows:
        gaps.append("people: a class vector shows one person, whose examples alone it is trained on")
    if all_figures:
        gaps.append("training losses in metrics.jsonl and clients.jsonl (privacy.figures = 'all')")
    return PrivacyStatement(
        epsilon=spent if secret else None,
        epsilon_if_secret=None if secret else spent,
        epsilon_median=median if secret else None,
        epsilon_largest_client=largest_client if secret else None,
        level="example",
        unit=EXAMPLE_UNIT,
        trust="the client's own device alone",
        covers=("all uploads", "the global models of all rounds", "the metrics in metrics.jsonl"),
        not_covered=tuple(gaps),
        **numbers,
    )
