"""A client's round for many clients at once: the same parts, with one more dimension in front of every tensor.

Gradients are taken by `torch.func.vmap` over the clients. The optimiser is elementwise, so that it runs on the
stacked tensors as they are. Clients that have done their steps leave the stack from its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import Part, Sharing
from fedra.core.round import first_carried, nest, with_own
from fedra.core.teachers import Outputs, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local, Population, View
from fedra.errors import ConfigError
from fedra.runners import stacked_teachers
from fedra.runners import stacked_tree as stack
from fedra.runners.stacked_data import StackedBatch, StackedData

PADDING_NOISE = 1e-3
"""The relative difference up to which a gradient may differ for another padding: rounding makes far less."""


@dataclass(frozen=True)
class Common:
    """What the clients of a stack share. `origin` is the model that all received, without private parameters."""

    algorithm: Algorithm
    model: Model
    optimizer: Optimizer
    origin: Weights
    received: Tree
    trained: tuple[str, ...]
    population: Population
    mixes_examples: bool

    @classmethod
    def of(cls, job: Job, round: int, origin: Weights, received: Tree) -> Common:
        """The round's common ground; `origin` and `received` are arranged for the model."""
        sharing = job.algorithm.sharing
        names = (*origin.params, *job.owned)
        trained = tuple(name for name in names if not sharing.is_frozen(name))
        optimizer, mixes = job.local.at(round), mixes_examples(job.model.module)
        return cls(job.algorithm, job.model, optimizer, origin, received, trained, job.population, mixes)

    def client(self, own: Tree, memory: Tree, examples: int) -> Client:
        """One client of the stack: inside vmap, or its slice after training."""
        origin = with_own(self.origin, own["private"])
        known = (self.optimizer, self.population, self.model.start)
        return Client(origin, self.received, memory, examples, self.trained, own["label_counts"], *known)


@dataclass(frozen=True)
class Figures:
    """Losses and logged numbers, (clients, steps); NaN where a client had no such step."""

    losses: Tensor
    logs: dict[str, Tensor]

    def record(self, step: int, loss: Tensor, logged: Params) -> None:
        """Note a step of the clients still at work."""
        self.losses[: len(loss), step] = loss
        for name, value in logged.items():
            kept = self.logs.setdefault(name, torch.full_like(self.losses, torch.nan))
            kept[: len(value), step] = value

    def summary(self, steps: Sequence[int]) -> tuple[dict[str, list[float]], list[int | None]]:
        """Means over each client's steps, and the first step whose loss was not finite."""
        count = torch.tensor(steps, device=self.losses.device)
        own = torch.arange(self.losses.shape[1], device=count.device) < count[:, None]
        means = {"train_loss": (torch.where(own, self.losses, 0.0).sum(dim=1) / count).tolist()}
        means |= {name: self.logs[name].nanmean(dim=1).tolist() for name in sorted(self.logs)}
        broken = own & ~self.losses.isfinite()
        first = torch.where(broken.any(dim=1), broken.int().argmax(dim=1), -1).tolist()
        return means, [step if step >= 0 else None for step in first]


def train_stack(common: Common, data: StackedData, memories: Sequence[Tree], vet: bool) -> tuple[list[Tree], Uploads]:
    """Train the clients of `data`, given what each remembers; new memories and uploads in the same order.

    `vet` asks whether any part looks at padding.
    """
    own = begin(common, data, memories)
    everyone, state = own, common.optimizer.init(own["params"])
    carried = tree.flatten(own["carried"])
    shape = (len(data.clients), data.steps[0])
    figures = Figures(torch.full(shape, torch.nan, dtype=torch.float64, device=common.model.device), {})
    known = _look_up(common, own, data)
    for step, batch in enumerate(data):
        if len(batch.sizes) < len(own["label_counts"]):
            own, state = stack.first(own, len(batch.sizes)), stack.first(state, len(batch.sizes))
        result = slopes(common, own, batch, known)
        if vet and batch.mask is not None and not common.mixes_examples:
            refuse_unmasked(common, own, batch, known, result)
            vet = False
        state = step_stack(common.optimizer, own["params"], result, state)
        for name, value in result["buffers"].items():
            own["buffers"][name].copy_(value)
        for path, value in tree.flatten(result["carried"]).items():
            carried[path][: len(value)].copy_(value)
        figures.record(step, result["loss"], result["logs"])
    return finish(common, data, everyone, figures)


def step_stack(optimizer: Optimizer, params: Params, result: Tree, state: Tree) -> Tree:
    """One update of all clients; what one of them holds stays as it is, the optimiser's state included."""
    held: Params = result["held"]
    if not held:
        return optimizer.step(params, result["gradient"], state)
    before = tree.flatten(tree.each({"params": params, "state": state}, torch.clone))
    state = optimizer.step(params, result["gradient"], state)
    for path, value in tree.flatten({"params": params, "state": state}).items():
        name = path.rpartition("|")[2]
        if name in held:
            still = held[name].view(-1, *[1] * (value.dim() - 1))
            value.copy_(torch.where(still, before[path], value))
    return state


def begin(common: Common, data: StackedData, memories: Sequence[Tree]) -> Tree:
    """The stacked clients before their first step: everything that is a client's own."""
    count, algorithm = len(data.clients), common.algorithm
    parts = algorithm.parts()

    def first(own: Params) -> Tree:
        return {name: part.init_client(with_own(common.origin, own)) for name, part in parts.items()}

    sharing = algorithm.sharing
    alike = {} if sharing.owned else first({})
    memory: Tree = {name: {} for name in parts}
    if any(alike.values()) or any(memories):
        kept = [common.model.arrange_tree(own) for own in memories]
        known = [{**(alike or first(own.get(sharing.name, {}))), **own} for own in kept]
        memory |= stack.together(known, "remembers", "init_client")
    private = memory[algorithm.sharing.name]
    start = with_own(common.origin, private)
    own = {
        "params": {name: stack.repeated(start.params[name], count, name in private) for name in common.trained},
        "buffers": {name: stack.repeated(value, count, name in private) for name, value in start.buffers.items()},
        "private": private,
        "memory": memory,
        "examples": torch.tensor(data.examples, dtype=common.model.dtype, device=common.model.device),
        "label_counts": data.label_counts,
    }
    return {**own, "carried": _carried(common, own)}


def _carried(common: Common, own: Tree) -> Tree:
    """What the parts of each client carry into its first step."""
    if all(type(part).init_steps is Part.init_steps for part in common.algorithm.parts().values()):
        return {}

    def first(one: Tree) -> Tree:
        return first_carried(common.algorithm, common.client(one, one["memory"], one["examples"]))

    return tree.each(vmap(first)(own), lambda value: value.clone(memory_format=torch.contiguous_format))


def slopes(common: Common, own: Tree, batch: StackedBatch, known: Params) -> Tree:
    """The gradients, new buffers, what is carried on, losses and logged numbers of one step.

    Batch normalisation mixes the examples of a batch, padding too: there batches are not padded but grouped by
    their size.
    """
    stacked = {**own, "inputs": batch.inputs, "targets": batch.targets, "drawn": batch.drawn, "epoch": batch.epoch}
    if batch.rows is not None and known:
        stacked["teachers"] = stacked_teachers.picked(known, batch.rows)
    over_clients: Callable[[Tree], Tree] = vmap(lambda one: _slope(common, one), randomness="error")
    if batch.mask is None:
        return over_clients(stacked)
    if not common.mixes_examples:
        return over_clients({**stacked, "mask": batch.mask})
    groups = {int(size): np.flatnonzero(batch.sizes == size) for size in np.unique(batch.sizes)}
    results = [over_clients(stack.picked(stacked, group, size)) for size, group in groups.items()]
    return stack.joined(results, np.argsort(np.concatenate(list(groups.values()))))


def mixes_examples(module: nn.Module) -> bool:
    """Whether an example's output depends on its neighbours in the batch: no layer but batch normalisation may."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _slope(common: Common, own: Tree) -> Tree:
    """One client's gradient as a pure function, seen from inside vmap; its number of examples is a tensor here."""
    client = common.client(own, own["memory"], own["examples"])
    batch = Batch(own["inputs"], own["targets"], mask=own.get("mask"), drawn=own["drawn"], epoch=own["epoch"])
    teachers = stacked_teachers.as_outputs(own["teachers"]) if "teachers" in own else _heard(common, client, batch)
    view = View(common.model, client, batch, own["buffers"], teachers, functional=True, carried=own["carried"])
    gradient = nest(common.algorithm, view)({**client.origin.params, **own["params"]})
    trace = view.trace
    return {
        "gradient": gradient,
        "buffers": trace.buffers or {},
        "carried": trace.carried,
        "loss": trace.loss,
        "logs": trace.logs,
        "held": trace.held,
    }


def _heard(common: Common, client: Client, batch: Batch) -> Outputs:
    return teacher_outputs(common.model, teacher_weights(common.algorithm, client), {}, batch)


def _look_up(common: Common, own: Tree, data: StackedData) -> Params:
    """The teachers' outputs on all examples, where that is exact and saves passes; else nothing."""
    if not stacked_teachers.worthwhile(common.algorithm.parts(), common.model.per_example, data):
        return {}

    def speak(one: Tree) -> Outputs:
        client = common.client(one, one["memory"], one["examples"])
        return _heard(common, client, Batch(one["inputs"], one["label_counts"]))

    return stacked_teachers.look_up(speak, own, data)


def refuse_unmasked(common: Common, own: Tree, batch: StackedBatch, known: Params, result: Tree) -> None:
    """Refuse parts that look at padding: with another example in its place, `result` must be the same."""
    again = tree.flatten(slopes(common, own, batch.with_other_padding(), known))
    for path, value in tree.flatten({name: result[name] for name in ("loss", "gradient")}).items():
        if (value - again[path]).abs().max() > PADDING_NOISE * value.abs().max():
            parts = ", ".join(part.name for part in (*common.algorithm.objective, *common.algorithm.gradient))
            raise ConfigError(
                f"one of the parts {parts} looks at the padding of a stacked batch: let it take means over the batch "
                "by view.batch.mean, or set runner.name = 'processes'"
            )


@torch.no_grad()
def finish(common: Common, data: StackedData, own: Tree, figures: Figures) -> tuple[list[Tree], Uploads]:
    """The clients' new memories and uploads; nothing private or frozen is in an upload."""
    spoken = list(_last_words(common, data, own))
    # From here on the stack of weights is the stack of changes: no second one is made.
    for name, value in own["params"].items():
        value.sub_(own["private"][name] if name in own["private"] else common.origin.params[name])
    averaged = common.algorithm.sharing.is_averaged
    delta = {name: value for name, value in own["params"].items() if averaged(name)}
    buffers = {name: value for name, value in own["buffers"].items() if averaged(name)}
    means, broken = figures.summary(data.steps)
    means["update_norm"] = stack.norms(delta, len(data.clients))
    effective = common.optimizer.effective_steps if common.algorithm.counts_steps else float
    lengths = {steps: effective(steps) for steps in set(data.steps)}
    effective_steps = [lengths[steps] for steps in data.steps]
    extras = stack.together([sent for _, sent in spoken], "sends", "finish_client")
    uploads = Uploads(delta, buffers, data.examples, data.steps, effective_steps, extras, means, broken)
    return [memory for memory, _ in spoken], uploads


def _last_words(common: Common, data: StackedData, own: Tree) -> Iterator[tuple[Tree, Tree]]:
    """What each client's parts remember and send, asked client by client where any part has something to say."""
    parts = {name: part for name, part in common.algorithm.parts().items() if _speaks(part, own["memory"][name])}
    if not parts:
        yield from (({}, {}) for _ in data.clients)
        return
    flat = tree.flatten(own)
    stacks = {value.untyped_storage().data_ptr() for value in flat.values()}

    def alone(value: Tensor) -> Tensor:
        """What outlives the stack must neither keep it alive nor change with it."""
        return value.clone() if value.untyped_storage().data_ptr() in stacks else value

    for place, values in enumerate(stack.apart(flat, len(data.clients))):
        one = {"private": {}, "buffers": {}, "memory": {}, "carried": {}, **tree.unflatten(values)}
        memory = {name: one["memory"].get(name, {}) for name in common.algorithm.parts()}
        client = common.client(one, memory, data.examples[place])
        weights = Weights({**client.origin.params, **one["params"]}, one["buffers"])
        local = Local(client, weights, data.steps[place], one["carried"])
        said = {name: part.finish_client(local) for name, part in parts.items()}
        yield (
            {name: tree.each(remembered, alone) for name, (remembered, _) in said.items() if remembered},
            {name: tree.each(sent, alone) for name, (_, sent) in said.items() if sent},
        )


def _speaks(part: Part, memory: Tree) -> bool:
    """Whether the part has anything to remember or to send; sharing has only with private parameters."""
    overridden = type(part).finish_client is not Part.finish_client
    return bool(memory) or (overridden and not isinstance(part, Sharing))
