"""An algorithm: a choice of parts in named slots.

Terms add (in any order), gradient rules nest (the first listed is the outermost), server rules run in order:
that is the whole law of composition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedra.core.optimizer import Optimizer
from fedra.core.part import Combine, GradientRule, Part, ServerRule, Sharing, Term
from fedra.core.personaliser import Personaliser
from fedra.errors import ConfigError

SLOTS: dict[str, type[Part]] = {"objective": Term, "gradient": GradientRule, "server": ServerRule}
"""The slots that hold any number of parts, and what goes into them."""


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: a choice of parts in named slots."""

    objective: tuple[Term, ...]
    combine: Combine
    gradient: tuple[GradientRule, ...] = ()
    server: tuple[ServerRule, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    personalise: Personaliser | None = None

    def __post_init__(self) -> None:
        if not self.objective:
            raise ConfigError("an algorithm needs at least one term in its objective, such as cross-entropy")
        for slot, kind in SLOTS.items():
            for part in getattr(self, slot):
                if not isinstance(part, kind):
                    raise ConfigError(
                        f"the part '{part.name}' is no {kind.__name__} and cannot go into the slot '{slot}'"
                    )
        if all(term.closed_form for term in self.objective):
            names = ", ".join(term.name for term in self.objective)
            raise ConfigError(f"no term of the objective ({names}) looks at the data: add one, such as cross-entropy")
        by_name: dict[str, Part] = {}
        for part in self.every_part():
            if part.stateful and by_name.setdefault(part.name, part) != part:
                raise ConfigError(
                    f"two different parts '{part.name}' would share one memory: give both the same fields or keep one"
                )
        for part in self.every_part():
            part.check(self)

    def every_part(self) -> Iterator[Part]:
        """All parts, those that parts own included, in slot order."""

        def walk(part: Part) -> Iterator[Part]:
            yield part
            for owned in part.nested():
                yield from walk(owned)

        tops = (*self.objective, *self.gradient, self.sharing, self.combine, *self.server)
        for part in (*tops, self.personalise) if self.personalise else tops:
            yield from walk(part)

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Refuse, before any client trains, a way of local training with which a part makes no sense."""
        for part in self.every_part():
            part.check_training(optimizer, epochs)

    @cached_property
    def counts_steps(self) -> bool:
        """Whether any part needs the effective number of local steps."""
        return any(part.counts_steps for part in self.every_part())

    def parts(self) -> dict[str, Part]:
        """The parts by the name under which their state is kept; equal parts in two places are one."""
        found: dict[str, Part] = {}
        for part in self.every_part():
            found.setdefault(part.name, part)
        return found

    def plus(self, *others: Algorithm | Part) -> Algorithm:
        """This algorithm with more parts, each in its own slot, or with all that another algorithm adds.

        Terms and rules are appended, but a loss of the labels takes the place of plain cross-entropy; a combine
        rule, sharing or personaliser replaces the present one. Of another algorithm only what differs from FedAvg
        is taken, so that
        `fedprox(mu=0.1).plus(fedsam(rho=0.1), fedadam())` is FedProx with sharpness-aware steps and a server Adam.
        """
        result: Algorithm = self
        for other in others:
            for part in _differences(other) if isinstance(other, Algorithm) else (other,):
                result = _put(result, part)
        return result


def _put(algorithm: Algorithm, part: Part) -> Algorithm:
    for slot, kind in SLOTS.items():
        if isinstance(part, kind):
            present = getattr(algorithm, slot)
            changes: dict[str, Any] = {slot: present if part in present else (*present, part)}
            if isinstance(part, Term) and part.fits_labels and part not in present:
                changes = {slot: (part, *(term for term in present if not term.is_plain))}
            return replace(algorithm, **changes)
    for slot, kind in (("combine", Combine), ("sharing", Sharing), ("personalise", Personaliser)):
        if isinstance(part, kind):
            changes = {slot: part}
            return replace(algorithm, **changes)
    raise ConfigError(f"'{part}' is no part of an algorithm")


def _differences(algorithm: Algorithm) -> Iterator[Part]:
    if algorithm.sharing != Sharing():  # first, because other parts may rely on who owns what
        yield algorithm.sharing
    yield from (term for term in algorithm.objective if not term.is_plain)
    yield from (*algorithm.gradient, *algorithm.server)
    if not algorithm.combine.is_plain:
        yield algorithm.combine
    if algorithm.personalise is not None:
        yield algorithm.personalise
