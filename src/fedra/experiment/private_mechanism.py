"""From `[privacy]` at the level of clients to what the accountant counts, and the noise for a budget."""

from __future__ import annotations

from functools import partial

from fedra.config.schema import Config
from fedra.core.job import Job, ServerJob
from fedra.errors import ConfigError
from fedra.experiment.cohort import CohortRule
from fedra.experiment.secure_run import adds_noise_by_clients, coarsest_mechanism, is_secure, noise_by_clients
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


def fixed_clients(job: ServerJob) -> int | None:
    """Return the number of clients if it never changes; a federation may grow, which changes the turns."""
    return len(job.clients) if isinstance(job, Job) else None


def rounds_apart(config: Config, clients: int | None) -> int:
    """Return the fewest rounds from one turn of a client to its next that the accountant may count on.

    Args:
        config: The configuration.
        clients: Number of clients; None if it is not known or not fixed.
    """
    if config.cohort.sampling != "rotation":
        return 1
    if clients is None:
        return config.privacy.band  # check_band
    return CohortRule(config.cohort.fraction, config.cohort.sampling).rounds_apart(clients)


def mechanism_of(config: Config, noise: float, clients: int | None = None) -> Mechanism:
    """Return what the accountant counts for an amount of noise; `clients` as in `rounds_apart`."""
    apart = rounds_apart(config, clients)
    if adds_noise_by_clients(config):
        return coarsest_mechanism(noise, apart=apart)
    return Mechanism(noise, sampling_rate(config), apart)


def planned_noise(config: Config, delta: float, clients: int | None = None) -> float:
    """Return the noise over the clip norm, as configured or for the budget; `clients` as in `rounds_apart`."""
    privacy = config.privacy
    if adds_noise_by_clients(config):
        return noise_by_clients(config, delta)
    if privacy.noise != "auto":
        return privacy.noise
    assert privacy.epsilon is not None  # check_privacy
    mechanism = partial(Mechanism, apart=rounds_apart(config, clients))
    return noise_for(privacy.epsilon, delta, sampling_rate(config), config.rounds, mechanism)


def check_sampling(config: Config) -> None:
    """Raise if amplification is counted that the sampling does not have."""
    if config.privacy.level == "client":
        if config.cohort.sampling not in ("poisson", "rotation") and config.cohort.fraction != 1:
            raise ConfigError(
                "cohorts of a fixed size have no proven amplification: set cohort.sampling = 'poisson', or 'rotation', "
                "which counts a client's turns, or privacy.amplification = 'none', which counts every round"
            )
    elif config.local.sampling != "poisson" and config.local.batch is not None:
        raise ConfigError(
            "shuffled batches have no proven amplification: set local.sampling = 'poisson', or privacy.amplification = "
            "'none', which counts every epoch as one release of every example"
        )


def check_canaries(config: Config) -> None:
    """Raise unless canaries can take part in a run like clients."""
    privacy = config.privacy
    if not privacy.canaries:
        return
    given = {
        f"privacy.level = '{privacy.level}'": privacy.level != "client",
        "secure.aggregation = 'masks'": is_secure(config),
        f"privacy.band = {privacy.band}": privacy.band > 1,
    }
    for what, hinders in given.items():
        if hinders:
            raise ConfigError(
                "privacy.canaries needs a sum over clients that the server clips and noises, with noise of its own in "
                f"every round, got {what}: set privacy.canaries = 0, and use fedra audit"
            )


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
