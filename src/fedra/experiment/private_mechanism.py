"""From `[privacy]` at the level of clients to what the accountant counts, and the noise for a budget."""

from __future__ import annotations

from functools import partial

from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.experiment.cohort import CohortRule
from fedra.experiment.secure_run import adds_noise_by_clients, coarsest_mechanism, noise_by_clients
from fedra.privacy.accounting import Mechanism, noise_for


def sampling_rate(config: Config) -> float:
    """Return the sampling rate that the accountant may count; 1 without amplification."""
    return (
        config.cohort.fraction
        if config.cohort.sampling == "poisson"
        and config.privacy.amplification == "auto"
        and not adds_noise_by_clients(config)
        else 1.0
    )


def mechanism_of(config: Config, noise: float) -> Mechanism:
    """Return what the accountant counts for an amount of noise."""
    if adds_noise_by_clients(config):
        return coarsest_mechanism(noise)
    return Mechanism(noise, sampling_rate(config), config.privacy.band)


def planned_noise(config: Config, delta: float) -> float:
    """Return the noise over the clip norm, as configured or for the budget."""
    privacy = config.privacy
    if adds_noise_by_clients(config):
        return noise_by_clients(config, delta)
    if privacy.noise != "auto":
        return privacy.noise
    assert privacy.epsilon is not None  # check_privacy
    mechanism = partial(Mechanism, band=privacy.band)
    return noise_for(privacy.epsilon, delta, sampling_rate(config), config.rounds, mechanism)


def check_band(config: Config, clients: int | None) -> None:
    """Raise unless the clients of a run with correlated noise take turns, at least a band of rounds apart.

    Args:
        config: The configuration.
        clients: Number of clients; None if the data decide it, which are checked when they are read.
    """
    privacy, cohort = config.privacy, config.cohort
    if privacy.band == 1 or privacy.level == "none":
        return
    if privacy.level != "client" or privacy.where != "server":
        given = f"level = '{privacy.level}'" if privacy.level != "client" else f"where = '{privacy.where}'"
        raise ConfigError(
            f"privacy.band = {privacy.band} needs noise that the server adds to a sum over clients, got "
            f"privacy.{given}: remove band, or set level = 'client' and where = 'server'"
        )
    if cohort.sampling != "rotation":
        raise ConfigError(
            f"privacy.band = {privacy.band} needs cohorts that keep a client's rounds at least {privacy.band} apart, "
            f"got cohort.sampling = '{cohort.sampling}': set it to 'rotation'"
        )
    if clients is None:
        return
    rule = CohortRule(cohort.fraction, cohort.sampling)
    if privacy.band > (apart := rule.rounds_apart(clients)):
        raise ConfigError(
            f"privacy.band must be at most {apart}, got {privacy.band}: with {rule.size(clients)} of {clients} clients "
            f"per round, a client would come twice within a band; lower privacy.band or cohort.fraction"
        )
