"""A round of many clients at once, with a leading client dimension in every tensor.

`ClientProgram` does the work, mapped over the clients with `torch.func.vmap`. This module adds what is specific to a
stack: clients that have finished their steps drop out at its end, and padding must not affect results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from fedra.core import tree
from fedra.core.capabilities import ClientState, Teachers
from fedra.core.private_steps import add_noise, private_steps
from fedra.core.program import ClientProgram, StepMetrics
from fedra.core.sharing import Sharing
from fedra.core.teachers import Outputs, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client
from fedra.errors import ConfigError
from fedra.runners import stacked_teachers
from fedra.runners import stacked_tree as stack
from fedra.runners.stacked_data import StackedBatch, StackedData
from fedra.runners.stacked_finish import finish_clients
from fedra.runners.stacked_states import StackedTrees, StateGroup

PADDING_NOISE = 1e-3
"""Relative difference of gradients allowed when padding changes; rounding causes far less."""


def train_stack(
    program: ClientProgram, data: StackedData, states: Sequence[StateGroup], check_padding: bool
) -> tuple[StackedTrees, Uploads]:
    """Train the clients of `data` from their states; returns new states and uploads in the same order.

    `check_padding` raises if a part depends on padding.
    """
    own = begin(program, data, states)
    all_clients = own
    metrics = StepMetrics.empty(len(data.clients), data.steps[0], program.model.device)
    known = _look_up(program, own, data)
    for step, batch in enumerate(data):
        if len(batch.sizes) < len(own["label_counts"]):
            if own is all_clients:  # from now on, steps write into a part of it
                own["carried"] = tree.each(own["carried"], torch.clone)
            own = stack.take_first(own, len(batch.sizes))
        result = compute_step(program, own, batch, known)
        if check_padding and batch.mask is not None and not mixes_examples(program.model.module):
            check_masked(program, own, batch, known, result)
            check_padding = False
        _add_noise(program, data, result["gradient"], step, len(batch.sizes))
        program.advance(own, result)
        for name, value in result["buffers"].items():
            own["buffers"][name].copy_(value)
        for part, carried in result["carried"].items():
            if own is all_clients:
                own["carried"][part] = tree.each(carried, stack.with_plain_strides)
                continue
            before = tree.flatten(own["carried"][part])  # views of all clients' values
            for path, value in tree.flatten(carried).items():
                before[path].copy_(value)
        metrics.record(step, result["loss"], result["logs"])
        del result  # the next step's gradients take its place: one stack of them in memory, not two
    return finish(program, data, all_clients, metrics)


def _add_noise(program: ClientProgram, data: StackedData, gradient: Params, step: int, active: int) -> None:
    """Add each client's own noise of a private step, the same as for the client alone."""
    if private_steps(program.algorithm) is None:
        return
    for row, client in enumerate(data.clients[:active]):
        own = {name: gradient[name][row] for name in program.trained}
        add_noise(program.algorithm, own, data.secrets.get(client), step, data.examples[row])


def begin(program: ClientProgram, data: StackedData, states: Sequence[StateGroup]) -> Tree:
    """The stacked clients before their first step: everything that differs between clients."""
    memory = tree.unflatten(_recall(program, len(data.clients), states))
    own: Tree = {
        "memory": {name: memory.get(name, {}) for name in program.algorithm.with_capability(ClientState)},
        "examples": data.example_counts,
        "label_counts": data.label_counts,
    }
    state = stack.map_clients(lambda one: program.init(_client(program, one)), own)
    private = memory.get(Sharing.name, {})
    for kind in ("params", "buffers"):  # private values already differ between clients and keep their strides
        values = state[kind].items()
        state[kind] = {name: value.clone() if name in private else stack.copy_plainly(value) for name, value in values}
    state["carried"] = tree.each(state["carried"], stack.with_plain_strides)
    return {**own, **state, "optimizer": program.optimizer.init(state["params"])}


def _recall(program: ClientProgram, clients: int, states: Sequence[StateGroup]) -> Params:
    """The state of every client by path: stored, or the initial one."""
    if not states and not program.algorithm.with_capability(ClientState):
        return {}
    groups: list[tuple[Sequence[int], Params]] = []
    for indices, stored in states:
        if tree.flatten(program.memory(stored[0])).keys() == stored.values.keys():
            groups.append((indices, {path: value.to(program.model.device) for path, value in stored.values.items()}))
        else:  # a part has no state yet, and its initial one may depend on what the client keeps
            each = (program.memory(program.model.arrange_tree(one)) for one in stored)
            groups += (([index], StackedTrees.of(one).values) for index, one in zip(indices, each, strict=True))
    known = {index for indices, _ in groups for index in indices}
    new = [index for index in range(clients) if index not in known]
    if new:
        initial = tree.flatten(program.memory({}))
        groups.append((new, {path: value.expand(len(new), *value.shape) for path, value in initial.items()}))
    return stack.arrange(program.model, stack.merge_groups(groups, "client state", "init_client"))


def _client(program: ClientProgram, own: Tree) -> Client:
    """One client inside vmap, where its number of examples is a tensor."""
    return program.client(own["memory"], own["examples"], own["label_counts"])


def compute_step(program: ClientProgram, own: Tree, batch: StackedBatch, known: Params) -> Tree:
    """The gradients, buffers, carried state, losses and logged values of one step.

    Batch normalization would mix padding into the statistics, so there batches are grouped by size instead of padded.
    """
    stacked = {name: value for name, value in own.items() if name != "optimizer"}
    stacked |= {"inputs": batch.inputs, "targets": batch.targets, "drawn": batch.drawn, "epoch": batch.epoch}
    if batch.rows is not None and known:
        stacked["teachers"] = stacked_teachers.select(known, batch.rows)
    over_clients = partial(stack.map_clients, partial(_compute_one, program))
    if batch.mask is None:
        return over_clients(stacked)
    if not mixes_examples(program.model.module):
        return over_clients({**stacked, "mask": batch.mask})
    groups = {int(size): np.flatnonzero(batch.sizes == size) for size in np.unique(batch.sizes)}
    results = [over_clients(stack.select(stacked, group, size)) for size, group in groups.items()]
    return stack.merge(results, np.argsort(np.concatenate(list(groups.values()))))


def mixes_examples(module: nn.Module) -> bool:
    """Whether an example's output depends on the rest of its batch; only batch normalization may do that."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _compute_one(program: ClientProgram, own: Tree) -> Tree:
    """One client's step inside vmap."""
    client = _client(program, own)
    batch = Batch(own["inputs"], own["targets"], mask=own.get("mask"), drawn=own["drawn"], epoch=own["epoch"])
    teachers = (
        stacked_teachers.as_outputs(own["teachers"]) if "teachers" in own else _run_teachers(program, client, batch)
    )
    return program.step(client, own, batch, teachers)


def _run_teachers(program: ClientProgram, client: Client, batch: Batch) -> Outputs:
    if not program.algorithm.with_capability(Teachers):
        return {}
    return teacher_outputs(program.model, teacher_weights(program.algorithm, client), {}, batch)


def _look_up(program: ClientProgram, own: Tree, data: StackedData) -> Params:
    """The teachers' outputs on all examples; empty if a lookup would not be exact or would not save passes."""
    if not stacked_teachers.is_worthwhile(program, data):
        return {}

    def compute(one: Tree) -> Outputs:
        return _run_teachers(program, _client(program, one), Batch(one["inputs"], one["label_counts"]))

    client = {name: own[name] for name in ("memory", "examples", "label_counts")}
    return stacked_teachers.look_up(compute, client, data)


def check_masked(program: ClientProgram, own: Tree, batch: StackedBatch, known: Params, result: Tree) -> None:
    """Raise if a part depends on padding: with other padding, `result` must be the same."""
    again = tree.flatten(compute_step(program, own, batch.with_other_padding(), known))
    for path, value in tree.flatten({name: result[name] for name in ("loss", "gradient")}).items():
        if (value - again[path]).abs().max() > PADDING_NOISE * value.abs().max():
            parts = ", ".join(part.name for part in (*program.algorithm.objective, *program.algorithm.gradient))
            raise ConfigError(
                f"parts must ignore the padding of a stacked batch, but one of {parts} depends on it: average with "
                "view.batch.mean, or use the runner 'processes'"
            )


@torch.no_grad()
def finish(program: ClientProgram, data: StackedData, own: Tree, metrics: StepMetrics) -> tuple[StackedTrees, Uploads]:
    """The clients' new states and uploads."""
    memories, extras = finish_clients(program, data, own)
    # The weights become changes in place, which saves a second stack, unless clients keep or send the weights.
    origin = _client(program, own).origin.params
    kept = {value.untyped_storage().data_ptr() for value in (*memories.values.values(), *tree.flatten(extras).values())}
    own["params"] = {
        name: value - origin[name] if value.untyped_storage().data_ptr() in kept else value.sub_(origin[name])
        for name, value in own["params"].items()
    }
    uploads = program.uploads(
        delta=own["params"],
        buffers=own["buffers"],
        examples=data.examples,
        steps=data.steps,
        extras=extras,
        metrics=metrics,
    )
    return memories, uploads
