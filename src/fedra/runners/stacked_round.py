"""The program of a client's round, run by many clients at once: one more dimension in front of every tensor.

`ClientProgram` does the work, mapped over the clients by `torch.func.vmap`; here is only what a stack adds: clients
that have done their steps leave it from its end, and padding must not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedra.core import tree
from fedra.core.capabilities import ClientState
from fedra.core.model import Weights
from fedra.core.program import ClientProgram, StepMetrics
from fedra.core.sharing import Sharing
from fedra.core.teachers import Outputs, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local
from fedra.errors import ConfigError
from fedra.runners import stacked_teachers
from fedra.runners import stacked_tree as stack
from fedra.runners.stacked_data import StackedBatch, StackedData

PADDING_NOISE = 1e-3
"""The relative difference up to which a gradient may differ for another padding: rounding makes far less."""


def train_stack(
    program: ClientProgram, data: StackedData, memories: Sequence[Tree], vet: bool
) -> tuple[list[Tree], Uploads]:
    """Train the clients of `data`, given what each remembers; new memories and uploads in the same order.

    `vet` asks whether any part looks at padding.
    """
    own = begin(program, data, memories)
    everyone, carried = own, tree.flatten(own["carried"])
    metrics = StepMetrics.empty(len(data.clients), data.steps[0], program.model.device)
    known = _look_up(program, own, data)
    for step, batch in enumerate(data):
        if len(batch.sizes) < len(own["label_counts"]):
            own = stack.first(own, len(batch.sizes))
        result = slopes(program, own, batch, known)
        if vet and batch.mask is not None and not mixes_examples(program.model.module):
            refuse_unmasked(program, own, batch, known, result)
            vet = False
        program.advance(own, result)
        for name, value in result["buffers"].items():
            own["buffers"][name].copy_(value)
        for path, value in tree.flatten(result["carried"]).items():
            carried[path][: len(value)].copy_(value)
        metrics.record(step, result["loss"], result["logs"])
    return finish(program, data, everyone, metrics)


def begin(program: ClientProgram, data: StackedData, memories: Sequence[Tree]) -> Tree:
    """The stacked clients before their first step: everything that is a client's own."""
    fresh = {} if all(memories) else program.memory({})  # the same for all that remember nothing
    memory: Tree = {}
    if any(memories) or tree.flatten(fresh):
        kept = [program.model.arrange_tree(own) for own in memories]
        memory = stack.together([program.memory(own) if own else fresh for own in kept], "remembers", "init_client")
    own: Tree = {
        "memory": {name: memory.get(name, {}) for name in program.algorithm.able(ClientState)},
        "examples": torch.tensor(data.examples, dtype=program.model.dtype, device=program.model.device),
        "label_counts": data.label_counts,
    }
    state: Tree = vmap(lambda one: program.init(_client(program, one)))(own)
    private = memory.get(Sharing.name, {})
    for kind in ("params", "buffers"):  # what was each client's own already keeps its strides
        values = state[kind].items()
        state[kind] = {name: value.clone() if name in private else _contiguous(value) for name, value in values}
    state["carried"] = tree.each(state["carried"], _contiguous)
    return {**own, **state, "optimizer": program.optimizer.init(state["params"])}


def _contiguous(value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


def _client(program: ClientProgram, own: Tree) -> Client:
    """One client seen from inside vmap, where its number of examples is a tensor."""
    return program.client(own["memory"], own["examples"], own["label_counts"])


def slopes(program: ClientProgram, own: Tree, batch: StackedBatch, known: Params) -> Tree:
    """The gradients, new buffers, what is carried on, losses and logged numbers of one step.

    Batch normalization mixes the examples of a batch, padding too: there batches are not padded but grouped by
    their size.
    """
    stacked = {name: value for name, value in own.items() if name != "optimizer"}
    stacked |= {"inputs": batch.inputs, "targets": batch.targets, "drawn": batch.drawn, "epoch": batch.epoch}
    if batch.rows is not None and known:
        stacked["teachers"] = stacked_teachers.picked(known, batch.rows)
    over_clients: Callable[[Tree], Tree] = vmap(lambda one: _slope(program, one), randomness="error")
    if batch.mask is None:
        return over_clients(stacked)
    if not mixes_examples(program.model.module):
        return over_clients({**stacked, "mask": batch.mask})
    groups = {int(size): np.flatnonzero(batch.sizes == size) for size in np.unique(batch.sizes)}
    results = [over_clients(stack.picked(stacked, group, size)) for size, group in groups.items()]
    return stack.joined(results, np.argsort(np.concatenate(list(groups.values()))))


def mixes_examples(module: nn.Module) -> bool:
    """Whether an example's output depends on its neighbors in the batch: no layer but batch normalization may."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _slope(program: ClientProgram, own: Tree) -> Tree:
    """One client's step, seen from inside vmap."""
    client = _client(program, own)
    batch = Batch(own["inputs"], own["targets"], mask=own.get("mask"), drawn=own["drawn"], epoch=own["epoch"])
    teachers = stacked_teachers.as_outputs(own["teachers"]) if "teachers" in own else _heard(program, client, batch)
    return program.step(client, own, batch, teachers)


def _heard(program: ClientProgram, client: Client, batch: Batch) -> Outputs:
    return teacher_outputs(program.model, teacher_weights(program.algorithm, client), {}, batch)


def _look_up(program: ClientProgram, own: Tree, data: StackedData) -> Params:
    """The teachers' outputs on all examples, where that is exact and saves passes; else nothing."""
    if not stacked_teachers.worthwhile(program, data):
        return {}

    def speak(one: Tree) -> Outputs:
        return _heard(program, _client(program, one), Batch(one["inputs"], one["label_counts"]))

    return stacked_teachers.look_up(speak, {name: own[name] for name in ("memory", "examples", "label_counts")}, data)


def refuse_unmasked(program: ClientProgram, own: Tree, batch: StackedBatch, known: Params, result: Tree) -> None:
    """Refuse parts that look at padding: with another example in its place, `result` must be the same."""
    again = tree.flatten(slopes(program, own, batch.with_other_padding(), known))
    for path, value in tree.flatten({name: result[name] for name in ("loss", "gradient")}).items():
        if (value - again[path]).abs().max() > PADDING_NOISE * value.abs().max():
            parts = ", ".join(part.name for part in (*program.algorithm.objective, *program.algorithm.gradient))
            raise ConfigError(
                f"one of the parts {parts} looks at the padding of a stacked batch: let it take means over the batch "
                "by view.batch.mean, or use the runner 'processes'"
            )


@torch.no_grad()
def finish(program: ClientProgram, data: StackedData, own: Tree, metrics: StepMetrics) -> tuple[list[Tree], Uploads]:
    """The clients' new memories and uploads."""
    said = list(_last_words(program, data, own))
    # From here on the stack of weights is the stack of changes: no second one is made.
    origin = _client(program, own).origin.params
    for name, value in own["params"].items():
        value.sub_(origin[name])
    uploads = program.uploads(
        delta=own["params"],
        buffers=own["buffers"],
        examples=data.examples,
        steps=data.steps,
        extras=stack.together([sent for _, sent in said], "sends", "finish_client"),
        metrics=metrics,
    )
    return [memory for memory, _ in said], uploads


def _last_words(program: ClientProgram, data: StackedData, own: Tree) -> Iterator[tuple[Tree, Tree]]:
    """What each client's parts remember and send, asked client by client where any part has something to say."""
    if not any(part.remembers for part in program.algorithm.able(ClientState).values()):
        yield from (({}, {}) for _ in data.clients)
        return
    flat = tree.flatten({name: value for name, value in own.items() if name != "optimizer"})
    stacks = {value.untyped_storage().data_ptr() for value in flat.values()}

    def alone(value: Tensor) -> Tensor:
        """What outlives the stack must neither keep it alive nor change with it."""
        return value.clone() if value.untyped_storage().data_ptr() in stacks else value

    for place, values in enumerate(stack.apart(flat, len(data.clients))):
        one = {"params": {}, "buffers": {}, "memory": {}, "carried": {}, **tree.unflatten(values)}
        memory = {name: one["memory"].get(name, {}) for name in own["memory"]}
        client = program.client(memory, data.examples[place], one["label_counts"])
        weights = Weights({**client.origin.params, **one["params"]}, one["buffers"])
        local = Local(client=client, weights=weights, steps=data.steps[place], carried=one["carried"])
        remembered, sent = program.finish(local)
        yield tree.each(remembered, alone), tree.each(sent, alone)
