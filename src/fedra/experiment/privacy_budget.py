"""What a configuration's privacy would cost, before any data are read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.experiment.build import local_training
from fedra.experiment.example_run import expected_rounds
from fedra.experiment.private_mechanism import (
    check_band,
    mechanism_of,
    planned_noise,
    rounds_apart,
    sampling_rate,
)
from fedra.experiment.secure_run import adds_noise_by_clients
from fedra.privacy.banded import prefix_error, round_deviation
from fedra.privacy.example_level import ExampleAccount, exposure_of, noise_for_examples
from fedra.privacy.statement import EXAMPLE_UNIT, UNIT

POINTS = (0.1, 0.25, 0.5, 1.0)
"""Shares of the rounds at which epsilon is computed."""
FACTORS = (0.5, 1.0, 2.0)
"""Factors on the noise that are compared."""


@dataclass(frozen=True)
class Budget:
    """Epsilon over the rounds for several amounts of noise.

    Args:
        delta: The probability with which the bound may fail.
        rate: Sampling rate that is counted; 1 without amplification.
        rounds: The rounds of the columns.
        epsilons: For each noise, epsilon after each of the rounds.
        chosen: The configured noise, or the noise for the target.
        target: The configured budget, and the last round within it; None without one.
        clients: Expected clients per round; None if the data decide the number of clients.
        honest: With noise by clients, the share of them whose noise suffices, and epsilon if only half as many add
            theirs; None if the server adds it.
        unit: What is hidden.
        turns: If clients take turns, the fewest rounds from one turn to the next, and with correlated noise the error
            of the model over that of independent noise; else None.
        deviation: Noise of a single round over `chosen`; above 1 if it is correlated.

    Example:
        ```python
        plan_budget(config).epsilons[1.0]  # epsilon after 10, 25, 50 and 100 % of the rounds with noise 1
        ```
    """

    delta: float
    rate: float
    rounds: tuple[int, ...]
    epsilons: dict[float, tuple[float, ...]]
    chosen: float
    target: tuple[float, int] | None
    clients: float | None
    honest: tuple[float, float] | None = None
    unit: str = UNIT
    turns: tuple[int, float | None] | None = None
    deviation: float = 1.0

    def noise_ratio(self, parameters: int) -> float | None:
        """Length of the noise on the mean over the clip norm, for a model of a number of parameters.

        Args:
            parameters: Number of uploaded values.

        Returns:
            Noise of a round * sqrt(parameters) / clients, or None if the number of clients is not known.
        """
        return None if self.clients is None else self.chosen * self.deviation * parameters**0.5 / self.clients


def plan_budget(config: Config, examples: int | None = None) -> Budget:
    """Compute what a configuration's privacy would cost.

    Args:
        config: The configuration; privacy.delta, and noise or epsilon must be set.
        examples: Number of a client's examples, which the level of examples needs.

    Returns:
        The budget. At the level of examples the rounds are those in which the client takes part.

    Raises:
        ConfigError: If the configuration does not ask for privacy.

    Example:
        ```python
        budget = plan_budget(fedra.config.read("private.toml"))
        ```
    """
    privacy, rate = config.privacy, sampling_rate(config)
    if privacy.level == "none":
        raise ConfigError("privacy.level must be set to compute a budget, got 'none': add [privacy] to the file")
    if privacy.delta is None:
        raise ConfigError("privacy.delta must be set, got none: set it below 1 / clients, such as 1e-5")
    if privacy.noise == "auto" and privacy.epsilon is None:
        raise ConfigError("privacy needs noise, or epsilon to compute it from, got neither: set one of them")
    check_band(config, config.partition.clients or None)
    if privacy.level == "example":
        return _plan_examples(config, privacy.delta, examples)
    count, error = config.partition.clients or None, None
    if privacy.band > 1:
        error = prefix_error(privacy.band, config.rounds) / prefix_error(1, config.rounds)
    apart = rounds_apart(config, count)
    turns = (apart, error) if apart > 1 else None
    chosen = planned_noise(config, privacy.delta, count)
    mechanism = partial(mechanism_of, config, clients=count)
    rounds = tuple(sorted({max(1, round(share * config.rounds)) for share in POINTS}))
    epsilons = {
        factor * chosen: tuple(mechanism(factor * chosen).epsilon(past, privacy.delta) for past in rounds)
        for factor in FACTORS
    }
    target = None
    if privacy.epsilon is not None:
        last = mechanism(chosen).releases_within(privacy.epsilon, privacy.delta)
        target = (privacy.epsilon, min(last, config.rounds))
    clients = config.cohort.fraction * count if count else None
    honest = None
    if adds_noise_by_clients(config):
        honest = (privacy.honest, mechanism(chosen * 0.5**0.5).epsilon(config.rounds, privacy.delta))
    deviation = round_deviation(privacy.band, config.rounds - 1)
    return Budget(
        privacy.delta, rate, rounds, epsilons, chosen, target, clients, honest, turns=turns, deviation=deviation
    )


def _plan_examples(config: Config, delta: float, examples: int | None) -> Budget:
    """Compute what a client's examples would lose."""
    if examples is None:
        raise ConfigError(
            "the budget of examples depends on how many a client has, which no configuration states: add --examples "
            "with a number (`fedra partition` shows the clients' sizes)"
        )
    privacy, last = config.privacy, expected_rounds(config)
    local = local_training(config.local, config.rounds)
    each = exposure_of(local, examples, examples, privacy.amplification == "auto")
    noise = privacy.noise
    if noise == "auto":
        assert privacy.epsilon is not None  # plan_budget
        noise = noise_for_examples(privacy.epsilon, delta, [each], last)
    rounds = tuple(sorted({max(1, round(share * last)) for share in POINTS}))
    accounts = {factor * noise: ExampleAccount(factor * noise, delta, (each,)) for factor in FACTORS}
    epsilons = {z: tuple(account.largest([count]) for count in rounds) for z, account in accounts.items()}
    target = None
    if privacy.epsilon is not None:
        target = (privacy.epsilon, accounts[noise].limits(privacy.epsilon, last)[0])
    return Budget(delta, each.rate, rounds, epsilons, noise, target, None, unit=EXAMPLE_UNIT)


def planned_epsilon(config: Config) -> float | None:
    """Return the epsilon that a configuration may spend.

    Args:
        config: The configuration.

    Returns:
        Its budget, or the epsilon of all its rounds; None if it gives no guarantee.

    Example:
        >>> planned_epsilon(Config()) is None
        True
    """
    privacy = config.privacy
    if privacy.level == "none" or privacy.seed == "run" or privacy.delta is None:
        return None
    if privacy.epsilon is not None:
        return privacy.epsilon
    if privacy.noise == "auto" or privacy.level == "example":
        return None
    return mechanism_of(config, privacy.noise).epsilon(config.rounds, privacy.delta)
