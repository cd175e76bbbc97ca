"""Outputs of frozen models on all examples of a stack: computed once per round, then looked up by row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.capabilities import Teachers
from fedra.core.model import Output
from fedra.core.program import ClientProgram
from fedra.core.teachers import Outputs
from fedra.core.tree import Params, Tree
from fedra.runners import stacked_tree as stack
from fedra.runners.stacked_data import StackedData


@torch.no_grad()
def look_up(compute: Callable[[Tree], Outputs], own: Tree, data: StackedData) -> Params:
    """The outputs by path, (examples of all clients, ...); `compute` returns those of one client on given inputs."""
    known: Params = {}
    for rows, inputs in data.in_order():
        batch = {**stack.take_first(own, len(rows)), "inputs": inputs}
        outputs = stack.map_clients(lambda one: as_tree(compute(one)), batch)
        for path, value in tree.flatten(outputs).items():
            entry = known.setdefault(path, value.new_empty(sum(data.examples), *value.shape[2:]))
            entry[rows.reshape(-1)] = value.flatten(0, 1)
    return known


def is_worthwhile(program: ClientProgram, data: StackedData) -> bool:
    """Whether a part uses teachers and identical inputs occur more than once."""
    return bool(program.algorithm.with_capability(Teachers)) and program.model.per_example and data.repeats


def select(known: Params, rows: Tensor) -> Tree:
    """The outputs on the examples of one step, (clients, batch, ...)."""
    flat = rows.reshape(-1)
    return tree.unflatten({path: v.index_select(0, flat).view(*rows.shape, *v.shape[1:]) for path, v in known.items()})


def as_tree(outputs: Outputs) -> Tree:
    """Outputs as nested dicts."""
    return {part: {name: out._asdict() for name, out in named.items()} for part, named in outputs.items()}


def as_outputs(values: Tree) -> Outputs:
    """The inverse of `as_tree`."""
    return {part: {name: Output(**out) for name, out in named.items()} for part, named in values.items()}
