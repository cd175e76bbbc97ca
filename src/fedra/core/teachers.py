"""Outputs of frozen models (teachers), computed once however many parts use them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedra.core.algorithm import Algorithm
from fedra.core.batches import LocalData
from fedra.core.capabilities import Teachers
from fedra.core.model import Model, Output, Weights
from fedra.core.view import Batch, Client
from fedra.errors import ConfigError

TeacherWeights = dict[str, dict[str, Weights]]
"""Frozen models by part and by the part's name for them."""

Outputs = dict[str, dict[str, Output]]
"""Their outputs, by the same names."""

LOOKUP_BATCH = 256
"""Examples per pass when the outputs on all examples are computed at once."""


def teacher_weights(algorithm: Algorithm, client: Client) -> TeacherWeights:
    """The frozen models of all parts."""
    teachers: TeacherWeights = {}
    for part in algorithm.all_parts():
        if not isinstance(part, Teachers):
            continue
        for name, weights in part.teachers(client).items():
            known = teachers.setdefault(part.name, {}).setdefault(name, weights)
            if not _same(known, weights):
                raise ConfigError(
                    f"teacher names must be unique, got '{name}' for different models in two parts '{part.name}': "
                    "give each model its own name"
                )
    return teachers


@torch.no_grad()
def look_up(model: Model, teachers: TeacherWeights, data: LocalData) -> Outputs:
    """The teachers' outputs on all of the client's examples, once a round; empty if a lookup would not be exact."""
    if data.prepared is None or not model.per_example:
        return {}
    batches = torch.split(data.prepared, LOOKUP_BATCH)

    def compute(weights: Weights) -> Output:
        passes = [model.output(weights, batch) for batch in batches]
        return Output(*map(torch.cat, zip(*passes, strict=True)))

    return _compute_once(teachers, compute)


@torch.no_grad()
def teacher_outputs(model: Model, teachers: TeacherWeights, known: Outputs, batch: Batch) -> Outputs:
    """The teachers' outputs on one batch: looked up by row, or computed."""
    index = batch.index
    if known and index is not None:
        return {
            part: {name: Output(out.features[index], out.logits[index]) for name, out in outputs.items()}
            for part, outputs in known.items()
        }
    return _compute_once(teachers, lambda weights: model.output(weights, batch.inputs))


def _compute_once(teachers: TeacherWeights, compute: Callable[[Weights], Output]) -> Outputs:
    """Every teacher's output; a model that several parts use, such as the received one, runs once."""
    outputs: dict[int, Output] = {}
    for named in teachers.values():
        for weights in named.values():
            if id(weights) not in outputs:
                outputs[id(weights)] = compute(weights)
    return {part: {name: outputs[id(weights)] for name, weights in named.items()} for part, named in teachers.items()}


def _same(left: Weights, right: Weights) -> bool:
    """Whether both hold identical tensor objects."""
    pairs = zip(left, right, strict=True)
    return left is right or all(
        one.keys() == other.keys() and all(value is other[name] for name, value in one.items()) for one, other in pairs
    )
