"""Floating-point operations of a local step, counted, relative to those of FedAvg."""

from __future__ import annotations

from functools import lru_cache

from fedra.config import reading as configuration
from fedra.config.resolve import comparable
from fedra.config.schema import Config
from fedra.experiment.build import build
from fedra.runners.calibration import Trial


def count_flops(config: Config) -> float:
    """Count the floating-point operations of a local step of a client.

    Args:
        config: The configuration of a run.

    Returns:
        The operations of matrix products and convolutions per step, forward and backward, in all passes of the
        algorithm. A result that is reused instead of computed again does not count.

    Example:
        >>> from fedra.config import reading
        >>> count_flops(reading.read({"model": {"name": "logistic"}, "local": {"batch": 10}})) > 0
        True
    """
    return Trial(build(config).job, 1).count_flops()


def relative_flops(config: Config) -> float:
    """Count the operations of a local step relative to those of FedAvg in the same setting.

    Args:
        config: The configuration of a run.

    Returns:
        The ratio.

    Example:
        >>> from fedra.config import reading
        >>> relative_flops(reading.read({"model": {"name": "logistic"}, "local": {"batch": 10}}))
        1.0
    """
    table = config.model_dump(exclude={"sweep", "seed"})
    return _relative(configuration.write(comparable(configuration.read(table))))


@lru_cache(maxsize=256)
def _relative(text: str) -> float:
    """The ratio for a configuration as TOML, which does not depend on the seed."""
    import tomllib

    table = tomllib.loads(text)
    own, base = configuration.read(table), configuration.read({**table, "algorithm": {"name": "fedavg"}})
    return count_flops(own) / count_flops(base)
