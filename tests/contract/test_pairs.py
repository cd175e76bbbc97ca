"""Any two parts make an algorithm: all pairs of terms, gradient rules, combine rules and server rules."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from itertools import combinations

import pytest
import torch

import toy
from fedra import algorithms
from fedra.core.batches import Schedule
from fedra.core.part import KNOWN, Combine, GradientRule, Part, ServerRule, Term
from fedra.core.tree import flatten, is_finite
from fedra.errors import ConfigError
from fedra.parts.gradient import Accumulate, AlsoDescend, DriftRadius, Perturb, WeightRadius
from fedra.parts.objective import CrossEntropy, Distillation, ModelContrast, Proximal
from fedra.parts.spread import SpreadOut, UnitRows

ONCE = replace(toy.LOCAL, schedule=Schedule(batch=6))


def known(slot: type[Part]) -> list[Part]:
    """Every part of ours that goes into the slot and can be made without arguments."""

    kinds = [kind for kind in KNOWN.values() if issubclass(kind, slot) and kind.__module__.startswith("fedra.")]
    concrete = [kind for kind in kinds if "__dataclass_fields__" in vars(kind)]
    return [kind() for kind in concrete if all(p.default is not p.empty for p in signature(kind).parameters.values())]


RULES = [
    *known(GradientRule),
    Perturb(0.1, Distillation(), scope="head"),
    Perturb(0.1, Proximal(), DriftRadius("layer"), "body"),
    Perturb(0.1, radius=WeightRadius(0.1)),
    AlsoDescend(ModelContrast()),
    AlsoDescend(Proximal(), through=Perturb(0.1, Distillation(), scope="head")),
]
PARTS = [*known(Term), *RULES, *known(Combine), *known(ServerRule)]
SLOTS = (Term, GradientRule, Combine, ServerRule)
PAIRS = [
    (left, right)
    for left, right in combinations(PARTS, 2)
    if not any(isinstance(left, slot) and isinstance(right, slot) for slot in (Combine, ServerRule))
]


def label(part: Part) -> str:
    return f"{part.name}{PARTS.index(part)}"


def test_every_slot_is_there() -> None:
    for slot, least in zip(SLOTS, (9, 6, 5, 4), strict=True):
        assert len([part for part in PARTS if isinstance(part, slot)]) >= least


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(map(label, pair)))
def test_composes_and_stays_finite(pair: tuple[Part, Part]) -> None:
    owned = any(isinstance(part, SpreadOut | UnitRows) for part in pair)
    start = algorithms.fedpe() if owned else algorithms.fedavg()
    innermost_last = sorted(pair, key=lambda part: isinstance(part, Accumulate))
    work = toy.job(start.plus(*innermost_last), toy.mlp(torch.float32), local=ONCE)
    history = toy.run(work, ((0, 1), (1, 2)))
    assert is_finite(history.params)
    assert is_finite(flatten(history.server.memory))
    assert all(upload.broken_step is None for upload in history.uploads)
    assert toy.distance(history.params, work.initial().params) > 1e-4


@pytest.mark.parametrize("first", algorithms.ENTRIES)
def test_algorithms_join(first: str) -> None:
    """Every named algorithm joins every other, or says in one sentence why not."""
    for second in algorithms.ENTRIES:
        left, right = algorithms.ENTRIES[first].recipe(), algorithms.ENTRIES[second].recipe()
        spread = [[part for part in one.server if isinstance(part, SpreadOut)] for one in (left, right)]
        if spread[0] and (right.sharing.frozen or (spread[1] and spread[0] != spread[1])):
            # The later sharing takes the rows away, or two server corrections would keep one count of rounds.
            with pytest.raises(ConfigError, match=r"begin with fedpe|two different parts 'spread-out'"):
                left.plus(right)
            continue
        joined = left.plus(right)
        assert set(joined.gradient) == {*left.gradient, *right.gradient}
        assert set(joined.server) == {*left.server, *right.server}
        labels = [term for term in joined.objective if term.fits_labels]
        wanted = {term for term in (*left.objective, *right.objective) if term.fits_labels and not term.is_plain}
        assert set(labels) == (wanted or {CrossEntropy()})
        history = toy.run(toy.job(joined, toy.mlp(torch.float32), local=ONCE), ((0, 1),))
        assert is_finite(history.params)


def test_a_part_of_no_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no part of an algorithm"):
        algorithms.fedavg().plus(DriftRadius())
