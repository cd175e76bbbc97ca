"""Any two parts make an algorithm: all pairs of terms, gradient rules, combine rules and server rules."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from itertools import combinations

import pytest
import torch

import toy
from fedra import algorithms
from fedra.algorithms.fedfr import PersonalBranch
from fedra.algorithms.fedgc import PushApart
from fedra.algorithms.fedpe import UnitRows
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsam import WeightRadius
from fedra.algorithms.fedsol import Distillation, DriftRadius
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import KEEPS_STATE, CollectsUploads
from fedra.core.job import Job
from fedra.core.part import Combine, GradientRule, Part, ServerRule, Term, known_parts
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, flatten, is_finite
from fedra.errors import ConfigError
from fedra.parts.gradient import Accumulate, AlsoDescend, Perturb
from fedra.parts.margin import HeadMargin, MarginSoftmax
from fedra.parts.objective import CrossEntropy, ModelContrast
from fedra.parts.private import PrivateMean
from fedra.parts.private_gradient import PrivateGradient
from fedra.parts.robust import Bulyan, MultiKrum, RootTrust
from fedra.parts.spread import SpreadOut
from fedra.parts.start import MeanRows

ONCE = replace(toy.LOCAL, epochs=1, batch=6)


def known(slot: type[Part]) -> list[Part]:
    """Every part of ours that goes into the slot and can be made without arguments."""

    kinds = [kind for kind in known_parts().values() if issubclass(kind, slot) and kind.__module__.startswith("fedra.")]
    concrete = [kind for kind in kinds if "__dataclass_fields__" in vars(kind)]
    return [kind() for kind in concrete if all(p.default is not p.empty for p in signature(kind).parameters.values())]


# A private gradient and a private mean need the secret of a run: tests/privacy compose them with every method.
RULES = [
    *(rule for rule in known(GradientRule) if not isinstance(rule, PrivateGradient)),
    Perturb(0.1, Distillation(), scope="head"),
    Perturb(0.1, Proximal(), DriftRadius("layer"), "body"),
    Perturb(0.1, radius=WeightRadius(0.1)),
    AlsoDescend(ModelContrast()),
    AlsoDescend(Proximal(), through=Perturb(0.1, Distillation(), scope="head")),
]
# Rules against malicious clients need more clients than the toy has; root trust needs the server's own examples
# (tests/parts/test_root_trust.py).
COMBINES = [
    replace(part, malicious=0.0) if isinstance(part, MultiKrum | Bulyan) else part
    for part in known(Combine)
    if not isinstance(part, PrivateMean | RootTrust)
]
PARTS = [*known(Term), *RULES, *COMBINES, *known(ServerRule)]
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
    kept = any(isinstance(part, PushApart) for part in pair)
    owned = kept or any(isinstance(part, SpreadOut | UnitRows | MeanRows) for part in pair)
    start = algorithms.fedpe(kept=kept) if owned else algorithms.fedavg()
    if owned and any(isinstance(part, PersonalBranch) for part in pair):  # its rows belong to classes as well
        sharing = algorithms.fedfr().sharing
        private = (*sharing.private, "head.") if kept else sharing.private
        start = start.plus(replace(sharing, private=private), PersonalBranch())
    innermost_last = sorted(pair, key=lambda part: isinstance(part, Accumulate))
    if owned and any(map(has_vectors, pair)):
        with pytest.raises(ConfigError, match="margin on the head instead"):
            start.plus(*innermost_last)
        return
    if any(isinstance(part, Bulyan) for part in pair) and any(map(collects, pair)):
        with pytest.raises(ConfigError, match="cannot follow its choice"):
            start.plus(*innermost_last)
        return
    work = toy.job(start.plus(*innermost_last), toy.mlp(torch.float32), local=ONCE)
    three = any(isinstance(part, MultiKrum | Bulyan) for part in pair)
    history = toy.run(work, ((0, 1, 2), (2, 1, 0)) if three else ((0, 1), (1, 2)))
    assert is_finite(history.params)
    assert is_finite(flatten(history.server.memory))
    assert all(upload.broken_step is None for upload in history.uploads)
    assert toy.distance(seen(history, work), seen(toy.start(work), work)) > 1e-4


def seen(history: toy.History, work: Job) -> Params:
    """The server's parameters, and those that the first client keeps."""
    kept = work.client_state(0, history.server.weights, history.memory.get(0, {}))
    return {**history.params, **{f"kept {path}": value for path, value in kept.get("sharing", {}).items()}}


def collects(part: Part) -> bool:
    """Whether the part, or one within, collects something from every upload."""
    return (isinstance(part, CollectsUploads) and part.collects) or any(map(collects, part.nested()))


def has_vectors(part: Part) -> bool:
    """Whether a margin, its own or that of a part within, has class vectors which all clients share."""
    shared = isinstance(part, MarginSoftmax) and not isinstance(part, HeadMargin)
    return shared or any(map(has_vectors, part.nested()))


def clash(left: Algorithm, right: Algorithm) -> bool:
    """The later sharing takes rows away that a part needs, two parts of one kind would share a memory, or class vectors
    that all share meet classes that belong to clients.
    """
    sharing = left.sharing if right.sharing == Sharing() else right.sharing
    if sharing.owned and any(map(has_vectors, (*left.objective, *right.objective))):
        return True
    known = {part.name: part for part in (*left.objective, *left.server)}
    if any(
        isinstance(part, KEEPS_STATE) and known.get(part.name, part) != part
        for part in (*right.objective, *right.server)
    ):
        return True
    if right.sharing in (Sharing(), left.sharing):
        return False
    if not right.sharing.owned:
        return any(isinstance(part, SpreadOut | MeanRows) for part in (*left.server, *left.start))
    return PersonalBranch() in left.objective and PersonalBranch() not in right.objective


@pytest.mark.parametrize("first", algorithms.ENTRIES)
def test_algorithms_join(first: str) -> None:
    """Every named algorithm joins every other, or says in one sentence why not."""
    for second in algorithms.ENTRIES:
        left, right = algorithms.ENTRIES[first].recipe(), algorithms.ENTRIES[second].recipe()
        if clash(left, right):
            sentence = r"start from fedpe|two different parts '|branch must be owned|margin on the head instead"
            with pytest.raises(ConfigError, match=sentence):
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
    with pytest.raises(ConfigError, match="plus must be given algorithms or parts that have a slot"):
        algorithms.fedavg().plus(DriftRadius())
