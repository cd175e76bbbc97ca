"""An algorithm: a choice of parts in named slots.

Terms add (in any order), gradient rules nest (the first listed is the outermost), server rules run in order:
that is the whole law of composition.
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
    "personalize": Personalizer,
}
"""What goes into each slot."""

MANY = ("start", "objective", "gradient", "server")
"""The slots that hold any number of parts; the others hold one."""


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: a choice of parts in named slots."""

    objective: tuple[Term, ...]
    combine: Combine
    gradient: tuple[GradientRule, ...] = ()
    server: tuple[ServerRule, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    personalize: Personalizer | None = None
    start: tuple[StartRule, ...] = ()
    data: DataRule = field(default_factory=OwnData)

    def __post_init__(self) -> None:
        if not self.objective:
            raise ConfigError("an algorithm needs at least one term in its objective, such as cross-entropy")
        for slot, kind in SLOTS.items():
            for part in self.in_slot(slot):
                if not isinstance(part, kind):
                    told = f"the part '{part.name}'" if isinstance(part, Part) else repr(part)
                    raise ConfigError(f"{told} is not a {kind.__name__} and cannot go into the slot '{slot}'")
        if all(term.closed_form for term in self.objective):
            names = ", ".join(term.name for term in self.objective)
            raise ConfigError(f"no term of the objective ({names}) looks at the data: add one, such as cross-entropy")
        by_name: dict[str, Part] = {}
        for part in self.every_part():
            if isinstance(part, KEEPS_STATE) and by_name.setdefault(part.name, part) != part:
                raise ConfigError(
                    f"two different parts '{part.name}' would share one memory: give both the same fields or keep one"
                )
        for part in self.every_part():
            part.check(self)

    def in_slot(self, slot: str) -> tuple[Part, ...]:
        """The parts in a slot, without those that they own."""
        found = getattr(self, slot)
        return tuple(found) if slot in MANY else () if found is None else (found,)

    def every_part(self) -> Iterator[Part]:
        """All parts, those that parts own included, in slot order."""

        def walk(part: Part) -> Iterator[Part]:
            yield part
            for owned in part.nested():
                yield from walk(owned)

        for slot in SLOTS:
            for part in self.in_slot(slot):
                yield from walk(part)

    @cached_property
    def _by_name(self) -> dict[str, Part]:
        found: dict[str, Part] = {}
        for part in self.every_part():
            found.setdefault(part.name, part)
        return found

    def parts(self) -> dict[str, Part]:
        """The parts by the name under which their state is kept; equal parts in two places are one."""
        return dict(self._by_name)

    def able(self, capability: type[Capability]) -> dict[str, Capability]:
        """The parts that have a capability, by name."""
        return {name: part for name, part in self._by_name.items() if isinstance(part, capability)}

    @property
    def owns_classes(self) -> bool:
        """Whether classes belong to clients, with the rows of some parameters."""
        return bool(self.sharing.owned)

    def owns(self, name: str) -> bool:
        """Whether the rows of this parameter belong to classes, and these to clients."""
        return self.sharing.is_owned(name)

    def freezes(self, name: str) -> bool:
        """Whether this parameter, or all whose names begin so, are never trained."""
        return self.sharing.is_frozen(name)

    @property
    def label_loss(self) -> Term:
        """The term that fits the labels, wherever it stands in the objective: what a client trains on for itself."""
        marked = [term for term in self.objective if term.fits_labels]
        looking = marked or [term for term in self.objective if not term.closed_form]
        if marked or len(looking) == 1:
            return looking[0]
        names = ", ".join(term.name for term in looking)
        raise ConfigError(f"no term of the objective ({names}) is marked as the loss of the labels: set fits_labels")

    @cached_property
    def counts_steps(self) -> bool:
        """Whether any part needs the effective number of local steps."""
        return any(isinstance(part, CountsSteps) for part in self.every_part())

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Refuse, before any client trains, a way of local training with which a part makes no sense."""
        for part in self.every_part():
            if isinstance(part, ChecksTraining):
                part.check_training(optimizer, epochs)

    def plus(self, *others: Algorithm | Part) -> Algorithm:
        """This algorithm with more parts, each in its own slot, or with all that another algorithm adds.

        Terms and rules are appended, but a loss of the labels takes the place of plain cross-entropy; a combine
        rule, sharing, data rule or personalizer replaces the present one. Of another algorithm only what differs from
        FedAvg is taken, so that `fedprox(mu=0.1).plus(fedsam(rho=0.1), fedadam())` is FedProx with sharpness-aware
        steps and a server Adam.
        """
        result: Algorithm = self
        for other in others:
            for part in _differences(other) if isinstance(other, Algorithm) else (other,):
                result = _put(result, part)
        return result


def _put(algorithm: Algorithm, part: Part) -> Algorithm:
    slot = next((slot for slot, kind in SLOTS.items() if isinstance(part, kind)), None)
    if slot is None:
        raise ConfigError(f"'{part}' is not a part that goes into a slot of an algorithm")
    present = algorithm.in_slot(slot)
    changes: dict[str, Any] = {slot: part}
    if slot in MANY:
        changes = {slot: present if part in present else (*present, part)}
    if isinstance(part, Term) and part.fits_labels and part not in present:
        changes = {slot: (part, *(term for term in algorithm.objective if not term.is_plain))}
    return replace(algorithm, **changes)


def _differences(algorithm: Algorithm) -> Iterator[Part]:
    if algorithm.sharing != Sharing():  # first, because other parts may rely on who owns what
        yield algorithm.sharing
    if algorithm.data != OwnData():
        yield algorithm.data
    yield from (term for term in algorithm.objective if not term.is_plain)
    yield from (*algorithm.start, *algorithm.gradient, *algorithm.server)
    if not algorithm.combine.is_plain:
        yield algorithm.combine
    if algorithm.personalize is not None:
        yield algorithm.personalize
