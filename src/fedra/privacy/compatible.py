"""What goes with privacy and secure aggregation, and the sentences for what does not."""

from __future__ import annotations

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CollectsFirstRows, CollectsUploads, StepState, SumsUploads, TrainsAlongside
from fedra.core.sharing import Sharing
from fedra.errors import ConfigError


def check_sums(algorithm: Algorithm, has_buffers: bool, section: str) -> None:
    """Raise unless the server can run an algorithm with sums over clients alone.

    Args:
        algorithm: The algorithm.
        has_buffers: Whether the model has running statistics.
        section: The section that asks for it, "privacy" or "secure", for the sentence.

    Raises:
        ConfigError: With the reason, and what works instead.

    Example:
        ```python
        check_sums(fedra.algorithms.fedavg(), has_buffers=False, section="secure")
        ```
    """
    check_returned_rows(algorithm)
    for rule in algorithm.start:
        if isinstance(rule, CollectsFirstRows):
            raise ConfigError(
                f"[{section}] must cover everything that clients send, but '{rule.name}' asks them for the mean "
                "features of their people before the first round: start from random rows (fedpe)"
            )
    if not algorithm.combine.sums:
        raise ConfigError(
            f"the combine rule '{algorithm.combine.name}' needs single uploads, so [{section}] does not fit it: "
            "use weighted-mean, or remove the section"
        )
    for name, part in algorithm.with_capability(CollectsUploads).items():
        if part.collects and not isinstance(part, SumsUploads | Sharing):
            raise ConfigError(
                f"the part '{name}' collects numbers from every upload by itself, so [{section}] does not fit it: "
                f"{_alternative(name)}"
            )
    if has_buffers:
        raise ConfigError(
            f"[{section}] needs a model without running statistics, which are averages of clients' examples: set "
            "model.norm = 'group', or 'fixed' for a pre-trained network"
        )


def check_returned_rows(algorithm: Algorithm) -> None:
    """Raise if clients return class vectors of their people, which no sum hides.

    Args:
        algorithm: The algorithm.

    Raises:
        ConfigError: If rows of owned parameters travel.

    Example:
        ```python
        check_returned_rows(fedra.algorithms.fedavg())
        ```
    """
    sharing = algorithm.sharing
    if any(sharing.is_returned(prefix) and not sharing.is_frozen(prefix) for prefix in sharing.owned):
        raise ConfigError(
            "the algorithm returns a class vector of every person to the server: it shows one person, and no sum hides "
            "it, so no noise both hides and keeps it; keep the rows on the clients (fedpe or fedcos with "
            "kept = true), or fix them (fedpe with fixed = true)"
        )


def check_examples(
    algorithm: Algorithm, *, moves_buffers: bool, mixes: bool, counts_public: bool, public_data: bool
) -> None:
    """Raise unless each example can be clipped by itself in all that an algorithm's clients do.

    Args:
        algorithm: The algorithm, without the private rule.
        moves_buffers: Whether training changes the model's running statistics.
        mixes: Whether the model normalizes by the statistics of a batch.
        counts_public: Whether label counts of clients may steer their losses.
        public_data: Whether clients select public examples.

    Raises:
        ConfigError: With the reason, and what works instead.

    Example:
        ```python
        check_examples(fedra.algorithms.fedsol(), moves_buffers=False, mixes=False, counts_public=False, ...)
        ```
    """
    if moves_buffers or mixes:
        raise ConfigError(
            "at the level of examples the model must not mix the examples of a batch, and batch normalization does: "
            "set model.norm = 'group', or 'fixed' for a pre-trained network"
        )
    for rule in algorithm.start:
        if isinstance(rule, CollectsFirstRows):
            raise ConfigError(
                f"[privacy] must cover everything that clients send, but '{rule.name}' asks them for the mean features "
                "of their people before the first round: start from random rows (fedpe)"
            )
    if public_data:
        raise ConfigError(
            "clients select public examples by their own ones, which no noise covers: remove [public], or protect "
            "clients instead (privacy.level = 'client')"
        )
    for part in algorithm.all_parts():
        if part.mixes_examples:
            raise ConfigError(
                f"the part '{part.name}' looks at several examples of a batch at once, so one example cannot be "
                "clipped by itself: leave it out, or protect clients instead (privacy.level = 'client')"
            )
        if part.uses_label_counts and not counts_public:
            raise ConfigError(
                f"the part '{part.name}' weights its loss by the client's label counts, which one example changes: set "
                "privacy.counts = 'public' if they may be known, or leave it out"
            )
        if isinstance(part, StepState) and not isinstance(part, TrainsAlongside) and part.has_step_state:
            raise ConfigError(
                f"the part '{part.name}' carries numbers of the examples from step to step, which no noise covers: "
                f"{_alternative(part.name)}"
            )


def check_delta(delta: float | None, clients: int, what: str = "clients") -> float:
    """Return delta if it protects a client, or an example, at all.

    Args:
        delta: The configured delta.
        clients: Number of clients, or of examples of the largest one.
        what: What is counted, for the sentence.

    Returns:
        Delta.

    Raises:
        ConfigError: If it is missing, or not below 1 / clients.

    Example:
        >>> check_delta(1e-5, clients=100)
        1e-05
    """
    if delta is None:
        raise ConfigError(f"privacy.delta must be set, got none: set it below 1 / {clients} {what}, such as 1e-5")
    if delta >= 1 / clients:
        raise ConfigError(
            f"privacy.delta must be below {1 / clients:.2g} for {clients} {what}, got {delta:g}: otherwise a "
            "mechanism may publish one of them outright"
        )
    return delta


def _alternative(name: str) -> str:
    if name.startswith("margin"):
        return "use a margin loss without running state, such as cosface or arcface"
    return "leave it out, or remove the section"
