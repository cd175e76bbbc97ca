"""Frozen models that parts listen to: asked for by part, heard once however many parts ask."""

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
"""Frozen models by the part that asked, and by that part's own name for them."""

Outputs = dict[str, dict[str, Output]]
"""What they say, by the same names."""

LOOKUP_BATCH = 256
"""Examples per pass when a frozen model's outputs are computed ahead."""


def teacher_weights(algorithm: Algorithm, client: Client) -> TeacherWeights:
    """The frozen models that any part wants to hear."""
    asked: TeacherWeights = {}
    for part in algorithm.every_part():
        if not isinstance(part, Teachers):
            continue
        for name, weights in part.teachers(client).items():
            known = asked.setdefault(part.name, {}).setdefault(name, weights)
            if not _same(known, weights):
                raise ConfigError(
                    f"two parts '{part.name}' call different models '{name}': let each model have a name of its own"
                )
    return asked


@torch.no_grad()
def look_up(model: Model, teachers: TeacherWeights, data: LocalData) -> Outputs:
    """The teachers' outputs for all of the client's examples, once a round, where that is exact."""
    if data.prepared is None or not model.per_example:
        return {}
    portions = torch.split(data.prepared, LOOKUP_BATCH)

    def speak(weights: Weights) -> Output:
        passes = [model.output(weights, portion) for portion in portions]
        return Output(*map(torch.cat, zip(*passes, strict=True)))

    return _heard(teachers, speak)


@torch.no_grad()
def teacher_outputs(model: Model, teachers: TeacherWeights, known: Outputs, batch: Batch) -> Outputs:
    """The teachers' outputs on one batch: looked up by row, or computed."""
    index = batch.index
    if known and index is not None:
        return {
            part: {name: Output(out.features[index], out.logits[index]) for name, out in outputs.items()}
            for part, outputs in known.items()
        }
    return _heard(teachers, lambda weights: model.output(weights, batch.inputs))


def _heard(teachers: TeacherWeights, speak: Callable[[Weights], Output]) -> Outputs:
    """Every teacher's output; one that several parts asked for, such as the received model, speaks once."""
    said: dict[int, Output] = {}
    for named in teachers.values():
        for weights in named.values():
            if id(weights) not in said:
                said[id(weights)] = speak(weights)
    return {part: {name: said[id(weights)] for name, weights in named.items()} for part, named in teachers.items()}


def _same(left: Weights, right: Weights) -> bool:
    """Whether both hold the very same tensors."""
    pairs = zip(left, right, strict=True)
    return left is right or all(
        one.keys() == other.keys() and all(value is other[name] for name, value in one.items()) for one, other in pairs
    )
