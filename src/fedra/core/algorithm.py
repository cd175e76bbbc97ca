"""An algorithm: a choice of parts in named slots.

Terms add up in any order, gradient rules nest (the first one listed is outermost), and server rules run in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from fedra.core.capabilities import KEEPS_STATE, ChecksTraining, CountsSteps
from fedra.core.data_rule import DataRule, OwnData
from fedra.core.optimizer import Optimizer
from fedra.core.part import Combine, GradientRule, Part, ServerRule, StartRule, Term
from fedra.core.personalizer import Personalizer
from fedra.core.sharing import Sharing
from fedra.core.upload_rule import UploadRule
from fedra.errors import ConfigError

Capability = TypeVar("Capability")

SLOTS: dict[str, type[Part]] = {
    "start": StartRule,
    "data": DataRule,
    "objective": Term,
    "gradient": GradientRule,
    "sharing": Sharing,
    "combine": Combine,
    "server": ServerRule,
    "upload": UploadRule,
    "personalize": Personalizer,
}
"""The class that the parts of each slot must inherit from."""

MANY = ("start", "objective", "gradient", "server")
"""Slots that hold any number of parts; the others hold at most one."""


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: a choice of parts in named slots.

    Args:
        objective: Terms of the local objective; they add up.
        combine: How uploads become one change of the global model.
        gradient: Gradient rules; the first one listed is outermost.
        server: Server rules, applied in order after the uploads are combined.
        sharing: Which parameters are averaged, private, frozen or owned by classes.
        personalize: How each client gets its personal model after the last round, if it does.
        start: How the initial weights are set.
        data: Which examples a client trains on.
        upload: How a client's change is made smaller before it leaves, if it is.

    Raises:
        ConfigError: If a part does not fit its slot, or the parts do not work together.

    Example:
        ```python
        from fedra.parts import Algorithm, CrossEntropy, WeightedMean

        fedavg = Algorithm(objective=(CrossEntropy(),), combine=WeightedMean())
        ```
    """

    objective: tuple[Term, ...]
    combine: Combine
    gradient: tuple[GradientRule, ...] = ()
    server: tuple[ServerRule, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    personalize: Personalizer | None = None
    start: tuple[StartRule, ...] = ()
    data: DataRule = field(default_factory=OwnData)
    upload: UploadRule | None = None

    def __post_init__(self) -> None:
        if not self.objective:
            raise ConfigError("the objective must have at least one term, got none: add one, such as cross-entropy")
        for slot, kind in SLOTS.items():
            for part in self.in_slot(slot):
                if not isinstance(part, kind):
                    given = f"the part '{part.name}'" if isinstance(part, Part) else repr(part)
                    raise ConfigError(f"the slot '{slot}' must hold {kind.__name__} parts, got {given}")
        if all(term.closed_form for term in self.objective):
            names = ", ".join(term.name for term in self.objective)
            raise ConfigError(
                f"at least one term of the objective must depend on the data, got {names}: add one, such as "
                "cross-entropy"
            )
        by_name: dict[str, Part] = {}
        for part in self.all_parts():
            if isinstance(part, KEEPS_STATE) and by_name.setdefault(part.name, part) != part:
                raise ConfigError(
                    f"parts of the same name that keep state must be equal, got two different parts '{part.name}': "
                    "give both the same fields, or remove one"
                )
        for part in self.all_parts():
            part.check(self)

    def in_slot(self, slot: str) -> tuple[Part, ...]:
        """The parts in a slot, without nested parts.

        Args:
            slot: A key of `SLOTS`, such as "objective".

        Returns:
            The parts in order; empty if the slot is empty.
        """
        found = getattr(self, slot)
        return tuple(found) if slot in MANY else () if found is None else (found,)

    def all_parts(self) -> Iterator[Part]:
        """All parts in slot order, nested parts included."""

        def walk(part: Part) -> Iterator[Part]:
            yield part
            for inner in part.nested():
                yield from walk(inner)

        for slot in SLOTS:
            for part in self.in_slot(slot):
                yield from walk(part)

    @cached_property
    def _by_name(self) -> dict[str, Part]:
        found: dict[str, Part] = {}
        for part in self.all_parts():
            found.setdefault(part.name, part)
        return found

    def parts(self) -> dict[str, Part]:
        """The parts by name, the key of their state; equal parts appear once."""
        return dict(self._by_name)

    def with_capability(self, capability: type[Capability]) -> dict[str, Capability]:
        """The parts that have a capability, by name.

        Args:
            capability: A class of `fedra.core.capabilities`, such as `ClientState`.

        Returns:
            The parts that inherit from it.
        """
        return {name: part for name, part in self._by_name.items() if isinstance(part, capability)}

    @property
    def owns_classes(self) -> bool:
        """Whether clients own classes, and with them rows of some parameters."""
        return bool(self.sharing.owned)

    def owns(self, name: str) -> bool:
        """Whether the rows of a parameter belong to classes that clients own.

        Args:
            name: Name of the parameter.

        Returns:
            True if they do.
        """
        return self.sharing.is_owned(name)

    def freezes(self, name: str) -> bool:
        """Whether parameters are never trained.

        Args:
            name: Name or prefix of the parameters.

        Returns:
            True if they are frozen.
        """
        return self.sharing.is_frozen(name)

    @property
    def label_loss(self) -> Term:
        """The term that fits the labels, wherever it is in the objective; personal models are trained on it."""
        flagged = [term for term in self.objective if term.fits_labels]
        candidates = flagged or [term for term in self.objective if not term.closed_form]
        if flagged or len(candidates) == 1:
            return candidates[0]
        names = ", ".join(term.name for term in candidates)
        raise ConfigError(
            f"one term of the objective must be the label loss, got {names}: set fits_labels = True on its class"
        )

    @cached_property
    def counts_steps(self) -> bool:
        """Whether any part uses the effective number of local steps."""
        return any(isinstance(part, CountsSteps) for part in self.all_parts())

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Raise `ConfigError` if a part does not support the local training.

        Args:
            optimizer: The optimizer of the first round.
            epochs: Number of local epochs.
        """
        for part in self.all_parts():
            if isinstance(part, ChecksTraining):
                part.check_training(optimizer, epochs)

    def plus(self, *others: Algorithm | Part) -> Algorithm:
        """Add parts, each to its own slot, or everything by which another algorithm differs from FedAvg.

        Terms and rules are appended, but a label loss replaces plain cross-entropy. A combine rule, sharing, data
        rule, upload rule or personalizer replaces the current one.

        Args:
            *others: Parts and algorithms, applied in order.

        Returns:
            A new algorithm.

        Example:
            ```python
            from fedra.algorithms import fedadam, fedprox, fedsam

            # FedProx with sharpness-aware local steps and Adam on the server
            algorithm = fedprox(mu=0.1).plus(fedsam(rho=0.1), fedadam())
            ```
        """
        result: Algorithm = self
        combine: Combine | None = None
        for other in others:
            for part in _differences(other) if isinstance(other, Algorithm) else (other,):
                if isinstance(part, Combine):
                    _check_one_rule(combine, part)
                    combine = part
                result = _put(result, part)
        return result


def _check_one_rule(before: Combine | None, part: Combine) -> None:
    if before is not None and before != part:
        raise ConfigError(
            f"plus must name at most one combine rule, got '{before.name}' and '{part.name}', of which only the last "
            "would act: keep one of them"
        )


def _put(algorithm: Algorithm, part: Part) -> Algorithm:
    slot = next((slot for slot, kind in SLOTS.items() if isinstance(part, kind)), None)
    if slot is None:
        raise ConfigError(f"plus must be given algorithms or parts that have a slot, got '{part}'")
    present = algorithm.in_slot(slot)
    changes: dict[str, Any] = {slot: part}
    if slot in MANY:
        changes = {slot: present if part in present else (*present, part)}
    if isinstance(part, Term) and part.fits_labels and part not in present:
        changes = {slot: (part, *(term for term in algorithm.objective if not term.is_plain))}
    return replace(algorithm, **changes)


def _differences(algorithm: Algorithm) -> Iterator[Part]:
    if algorithm.sharing != Sharing():  # first: other parts check which parameters are owned
        yield algorithm.sharing
    if algorithm.data != OwnData():
        yield algorithm.data
    yield from (term for term in algorithm.objective if not term.is_plain)
    yield from (*algorithm.start, *algorithm.gradient, *algorithm.server)
    if not algorithm.combine.is_plain:
        yield algorithm.combine
    if algorithm.upload is not None:
        yield algorithm.upload
    if algorithm.personalize is not None:
        yield algorithm.personalize
