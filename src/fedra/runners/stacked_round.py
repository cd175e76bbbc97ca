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
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import Algorithm, Part, Sharing
from fedra.core.round import nest, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.view import Batch, Client, Local, Population, Upload, View
from fedra.errors import ConfigError
from fedra.runners.stacked_data import StackedBatch, StackedData


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
        trained = tuple(name for name in origin.params if not job.algorithm.sharing.is_frozen(name))
        optimizer, mixes = job.local.at(round), mixes_examples(job.model.module)
        return cls(job.algorithm, job.model, optimizer, origin, received, trained, job.population, mixes)

    def client(self, own: Tree, memory: Tree, examples: int) -> Client:
        """One client of the stack: inside vmap, or its slice after training."""
        origin = _replaced(self.origin, own["private"])
        counts = own["label_counts"]
        return Client(origin, self.received, memory, examples, self.trained, counts, self.optimizer, self.population)


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


def train_stack(common: Common, data: StackedData, memories: Sequence[Tree]) -> list[tuple[Tree, Upload]]:
    """Train the clients of `data`, given what each remembers; new memories and uploads in the same order."""
    own = begin(common, data, memories)
    everyone, state = own, common.optimizer.init(own["params"])
    shape = (len(data.clients), data.steps[0])
    figures = Figures(torch.full(shape, torch.nan, dtype=torch.float64, device=common.model.device), {})
    for step, batch in enumerate(data):
        if len(batch.sizes) < len(own["label_counts"]):
            own, state = _first(own, len(batch.sizes)), _first(state, len(batch.sizes))
        result = slopes(common, own, batch)
        state = common.optimizer.step(own["params"], result["gradient"], state)
        for name, value in result["buffers"].items():
            own["buffers"][name].copy_(value)
        figures.record(step, result["loss"], result["logs"])
    return finish(common, data, everyone, figures)


def begin(common: Common, data: StackedData, memories: Sequence[Tree]) -> Tree:
    """The stacked clients before their first step: everything that is a client's own."""
    count, algorithm = len(data.clients), common.algorithm
    parts = algorithm.parts()
    first = {name: part.init_client(common.origin) for name, part in parts.items()}
    memory: Tree = {name: {} for name in parts}
    if any(first.values()) or any(memories):
        memory |= _stacked([{**first, **common.model.arrange_tree(own)} for own in memories])
    private = memory[algorithm.sharing.name]
    start = _replaced(common.origin, private)
    return {
        "params": {name: _repeated(start.params[name], count, name in private) for name in common.trained},
        "buffers": {name: _repeated(value, count, name in private) for name, value in start.buffers.items()},
        "private": private,
        "memory": memory,
        "examples": torch.tensor(data.examples, dtype=common.model.dtype, device=common.model.device),
        "label_counts": data.label_counts,
    }


def _stacked(memories: Sequence[Tree]) -> Tree:
    """The clients' memories as one; all must be of one shape."""
    flat = [tree.flatten(memory) for memory in memories]
    shapes = [{path: value.shape for path, value in memory.items()} for memory in flat]
    for shape in shapes:
        if shape != shapes[0]:
            path, _ = next(iter(shape.items() ^ shapes[0].items()))
            raise ConfigError(
                f"the part '{path.partition('|')[0]}' remembers other things of one client than of another, so that "
                "they cannot be stacked: let its init_client give the same, or set runner.name = 'processes'"
            )
    return tree.unflatten({path: torch.stack([memory[path] for memory in flat]) for path in flat[0]})


def slopes(common: Common, own: Tree, batch: StackedBatch) -> Tree:
    """The gradients, new buffers, losses and logged numbers of one step.

    Batch normalisation mixes the examples of a batch, padding too: there batches are not padded but grouped by
    their size.
    """
    stacked = {**own, "inputs": batch.inputs, "targets": batch.targets}
    over_clients: Callable[[Tree], Tree] = vmap(lambda one: _slope(common, one), randomness="error")
    if batch.mask is None:
        return over_clients(stacked)
    if not common.mixes_examples:
        return over_clients({**stacked, "mask": batch.mask})
    groups = {int(size): np.flatnonzero(batch.sizes == size) for size in np.unique(batch.sizes)}
    results = [over_clients(_picked(stacked, group, size)) for size, group in groups.items()]
    return _joined(results, np.argsort(np.concatenate(list(groups.values()))))


def mixes_examples(module: nn.Module) -> bool:
    """Whether an example's output depends on its neighbours in the batch: no layer but batch normalisation may."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _slope(common: Common, own: Tree) -> Tree:
    """One client's gradient as a pure function, seen from inside vmap; its number of examples is a tensor here."""
    client = common.client(own, own["memory"], own["examples"])
    batch = Batch(own["inputs"], own["targets"], mask=own.get("mask"))
    teachers = teacher_outputs(common.model, teacher_weights(common.algorithm, client), {}, batch)
    view = View(common.model, client, batch, own["buffers"], teachers, functional=True)
    gradient = nest(common.algorithm, view)({**client.origin.params, **own["params"]})
    trace = view.trace
    return {"gradient": gradient, "buffers": trace.buffers or {}, "loss": trace.loss, "logs": trace.logs}


@torch.no_grad()
def finish(common: Common, data: StackedData, own: Tree, figures: Figures) -> list[tuple[Tree, Upload]]:
    """The clients' new memories and uploads; nothing private or frozen is in an upload."""
    spoken = list(_last_words(common, data, own))
    # From here on the stack of weights is the stack of changes: no second one is made.
    for name, value in own["params"].items():
        value.sub_(own["private"].get(name, common.origin.params[name]))
    averaged = common.algorithm.sharing.is_averaged
    delta = {name: value for name, value in own["params"].items() if averaged(name)}
    buffers = {name: value for name, value in own["buffers"].items() if averaged(name)}
    means, broken = figures.summary(data.steps)
    means["update_norm"] = _norms(delta, len(data.clients))
    effective = common.optimizer.effective_steps if common.algorithm.counts_steps else float
    lengths = {steps: effective(steps) for steps in set(data.steps)}
    uploads = map(
        Upload,
        _apart(delta, len(data.clients)),
        _apart(buffers, len(data.clients)),
        data.examples,
        data.steps,
        [lengths[steps] for steps in data.steps],
        [extras for _, extras in spoken],
        [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)],
        broken,
    )
    return [(memory, upload) for (memory, _), upload in zip(spoken, uploads, strict=True)]


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

    for place, values in enumerate(_apart(flat, len(data.clients))):
        one = {"private": {}, "buffers": {}, "memory": {}, **tree.unflatten(values)}
        memory = {name: one["memory"].get(name, {}) for name in common.algorithm.parts()}
        client = common.client(one, memory, data.examples[place])
        weights = Weights({**client.origin.params, **one["params"]}, one["buffers"])
        said = {name: part.finish_client(Local(client, weights, data.steps[place])) for name, part in parts.items()}
        yield (
            {name: _each(remembered, alone) for name, (remembered, _) in said.items() if remembered},
            {name: _each(sent, alone) for name, (_, sent) in said.items() if sent},
        )


def _speaks(part: Part, memory: Tree) -> bool:
    """Whether the part has anything to remember or to send; sharing has only with private parameters."""
    overridden = type(part).finish_client is not Part.finish_client
    return bool(memory) or (overridden and not isinstance(part, Sharing))


def _norms(delta: Params, count: int) -> list[float]:
    """The Euclidean norm of each client's change."""
    if not delta:
        return [0.0] * count
    lengths = [torch.linalg.vector_norm(value.reshape(count, -1), dim=1) for value in delta.values()]
    norms: list[float] = torch.linalg.vector_norm(torch.stack(lengths), dim=0).tolist()
    return norms


def _replaced(weights: Weights, own: Params) -> Weights:
    """The weights with what is the client's own in its place."""
    return Weights(*({name: own.get(name, value) for name, value in group.items()} for group in weights))


def _repeated(value: Tensor, count: int, stacked: bool = False) -> Tensor:
    """A copy for each client; what is stacked already is copied as it is."""
    return value.clone() if stacked else value.expand(count, *value.shape).clone(memory_format=torch.contiguous_format)


def _each(values: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """The function of every tensor of a tree."""
    return {n: _each(v, function) if isinstance(v, dict) else function(v) for n, v in values.items()}


def _first(values: Tree, count: int) -> Tree:
    """The first clients' slices, as views; an optimiser's scalar is common to all."""
    return _each(values, lambda value: value[:count] if value.dim() else value)


def _apart(values: Params, count: int) -> list[Params]:
    """A dict of stacks as one dict of views per client."""
    if not values:
        return [{} for _ in range(count)]
    return [dict(zip(values, row, strict=True)) for row in zip(*(v.unbind() for v in values.values()), strict=True)]


def _picked(stacked: Tree, group: np.ndarray, size: int) -> Tree:
    """The clients of a group, with the first `size` examples of their batches."""
    rows = torch.from_numpy(group).to(stacked["targets"].device)
    some = _each(stacked, lambda value: value[rows])
    return {**some, "inputs": some["inputs"][:, :size], "targets": some["targets"][:, :size]}


def _joined(pieces: Sequence[Tree], order: np.ndarray) -> Tree:
    """Groups of clients put together again in the stack's order."""
    flat = [tree.flatten(piece) for piece in pieces]
    rows = torch.from_numpy(order).to(flat[0]["loss"].device)
    whole = {path: torch.cat([piece[path] for piece in flat])[rows] for path in flat[0]}
    return {"buffers": {}, "logs": {}, **tree.unflatten(whole)}
