"""One round of federated learning: the only loop in the package. Everything else is a part or a runner.

client:  begin, then `local_step` on every batch, then finish with an upload
server:  fold the uploads, average, let every part finish the round
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import LocalData
from fedra.core.draws import Draws
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import GradientFunction, GradientRule, Part
from fedra.core.teachers import Outputs, look_up, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local, Population, Server, Trace, Upload, View


@dataclass
class LocalState:
    """What moves during a client's local steps."""

    params: Params
    buffers: Params
    optimizer: Tree
    carried: Tree


def client_update(
    algorithm: Algorithm,
    model: Model,
    optimizer: Optimizer,
    origin: Weights,
    received: Tree,
    memory: Tree,
    data: LocalData,
    population: Population,
) -> tuple[Tree, Upload]:
    """Local training of one client: from what it received and remembers to its new memory and its upload."""
    client, state = begin(algorithm, model, optimizer, origin, received, memory, data, population)
    teachers = teacher_weights(algorithm, client)
    known = look_up(model, teachers, data)
    draws = Draws(algorithm, model, *data.where)
    traces = []
    for number, batch in enumerate(data):
        try:
            batch = replace(batch, drawn=draws.step(len(batch.targets)))
            outputs = teacher_outputs(model, teachers, known, batch)
            traces.append(local_step(algorithm, model, client, state, batch, outputs))
        except Exception as error:
            error.add_note(f"at local step {number}")
            raise
    return finish(algorithm, client, state, traces)


def begin(
    algorithm: Algorithm,
    model: Model,
    optimizer: Optimizer,
    origin: Weights,
    received: Tree,
    memory: Tree,
    data: LocalData,
    population: Population,
) -> tuple[Client, LocalState]:
    """The client before its first step; one that takes part for the first time gets its parts' first memory."""
    origin = Weights(model.arrange(origin.params), model.arrange(origin.buffers))
    received, memory = model.arrange_tree(received), model.arrange_tree(memory)
    sharing = algorithm.sharing
    origin = with_own(origin, memory.get(sharing.name, sharing.init_client(origin)))
    memory = {name: part.init_client(origin) for name, part in algorithm.parts().items()} | memory
    trained = tuple(name for name in origin.params if not algorithm.sharing.is_frozen(name))
    params = {name: model.format(value.clone()) for name, value in origin.params.items()}
    for name in trained:
        params[name].requires_grad_()
    counts = data.label_counts
    client = Client(origin, received, memory, len(data), trained, counts, optimizer, population, model.start)
    moving = {name: params[name].detach() for name in trained}
    return client, LocalState(
        params, tree.clone(origin.buffers), optimizer.init(moving), first_carried(algorithm, client)
    )


def with_own(weights: Weights, own: Params) -> Weights:
    """The weights with what is the client's own in its place: private parameters, and the rows of its classes."""
    buffers = {name: own.get(name, value) for name, value in weights.buffers.items()}
    mine = {name: value for name, value in own.items() if name not in buffers}
    return Weights({**weights.params, **mine}, buffers)


def first_carried(algorithm: Algorithm, client: Client) -> Tree:
    """What parts carry into the first local step."""
    carried = {name: part.init_steps(client) for name, part in algorithm.parts().items()}
    return {name: values for name, values in carried.items() if values}


def local_step(
    algorithm: Algorithm,
    model: Model,
    client: Client,
    state: LocalState,
    batch: Batch,
    teachers: Outputs,
    functional: bool = False,
) -> Trace:
    """One step: the objective's gradient through all gradient rules, then the optimiser; `state` is updated."""
    view = View(model, client, batch, state.buffers, teachers, functional, state.carried)
    gradient = nest(algorithm, view)(state.params)
    moving = {name: slope for name, slope in gradient.items() if not view.trace.held.get(name)}
    state.optimizer = client.optimizer.step(state.params, moving, state.optimizer)
    if view.trace.buffers is not None:
        state.buffers = view.trace.buffers
    state.carried = state.carried | view.trace.carried
    return view.trace


def nest(algorithm: Algorithm, view: View) -> GradientFunction:
    """The gradient function of the objective inside all gradient rules, the first listed outermost.

    What a personaliser trains beside the model has its turn when the step's gradient is known.
    """

    def objective(params: Params) -> Params:
        return view.gradient(algorithm.objective, params, record=True)

    def wrap(rule: GradientRule, inner: GradientFunction) -> GradientFunction:
        return lambda params: rule.gradient(inner, params, view)

    function: GradientFunction = objective
    for rule in reversed(algorithm.gradient):
        function = wrap(rule, function)
    personaliser = algorithm.personalise
    if personaliser is None:
        return function

    def and_beside(params: Params) -> Params:
        gradient = function(params)
        personaliser.beside(algorithm, params, view)
        return gradient

    return and_beside


@torch.no_grad()
def finish(algorithm: Algorithm, client: Client, state: LocalState, traces: list[Trace]) -> tuple[Tree, Upload]:
    """The client's new memory and its upload; nothing private or frozen is in it."""
    params = {name: value.detach() for name, value in state.params.items()}
    local = Local(client, Weights(params, state.buffers), len(traces), state.carried)
    memory, extras = last_words(algorithm, local)
    averaged = algorithm.sharing.is_averaged
    delta = {name: value.contiguous() for name, value in local.delta.items() if averaged(name)}
    buffers = {name: value for name, value in state.buffers.items() if averaged(name)}
    losses = [trace.loss for trace in traces if trace.loss is not None]
    figures, broken = _figures(losses, traces)
    figures["update_norm"] = float(tree.norm(delta)) if delta else 0.0
    steps = len(traces)
    effective = client.optimizer.effective_steps(steps) if algorithm.counts_steps else float(steps)
    upload = Upload(delta, buffers, client.examples, steps, effective, extras, figures, broken)
    return memory, upload


def last_words(algorithm: Algorithm, local: Local) -> tuple[Tree, Tree]:
    """What the client's parts remember, and what they send beside the model."""
    said = {name: part.finish_client(local) for name, part in algorithm.parts().items()}
    memory = {name: remembered for name, (remembered, _) in said.items() if remembered}
    return memory, {name: sent for name, (_, sent) in said.items() if sent}


def _figures(losses: list[Tensor], traces: list[Trace]) -> tuple[dict[str, float], int | None]:
    """Means over the steps, and the first step whose loss was not finite: one look at the device for all."""
    values = torch.stack(losses)
    broken = (~values.isfinite()).nonzero()
    figures = {"train_loss": float(values.double().mean())}
    for name in sorted({name for trace in traces for name in trace.logs}):
        logged = torch.stack([trace.logs[name] for trace in traces if name in trace.logs])
        figures[name] = float(logged.double().nanmean())
    return figures, int(broken[0]) if len(broken) else None


def init_server(algorithm: Algorithm, weights: Weights) -> Server:
    """The server before the first round."""
    common = algorithm.sharing.common(weights)
    memory = {name: part.init_server(common) for name, part in algorithm.parts().items()}
    return Server(weights, {name: value for name, value in memory.items() if value})


def broadcast(algorithm: Algorithm, server: Server) -> Tree:
    """What every client receives beside the model."""
    sent = {name: part.broadcast(server.memory.get(name, {})) for name, part in algorithm.parts().items()}
    return {name: value for name, value in sent.items() if value}


class Fold:
    """A round on the server: a running fold over uploads, the average, then every part's last word.

    Buffers (running statistics) follow one rule whatever the algorithm: floating-point ones are averaged by the
    clients' numbers of examples (or by a robust combine rule), whole numbers (counters) take the largest.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._parts = algorithm.parts()
        self._combined = algorithm.combine.start()
        self._totals: dict[str, Tree] = {name: {} for name in self._parts}
        self.uploads = 0

    def add(self, upload: Upload) -> None:
        """Fold in one upload, which is not needed any more after it."""
        self.add_stack(Uploads.of(upload))

    @torch.no_grad()
    def add_stack(self, uploads: Uploads) -> None:
        """Fold in a stack of them: the combine rule at once, parts that collect something one after the other."""
        self._combined = self._algorithm.combine.add_stack(self._combined, uploads)
        collecting = {name: part for name, part in self._parts.items() if self._collects(part)}
        for upload in uploads if collecting else ():
            for name, part in collecting.items():
                self._totals[name] = part.collect(self._totals[name], upload)
        self.uploads += len(uploads)

    def _collects(self, part: Part) -> bool:
        """Whether the part has anything to collect; sharing has only where rows belong to classes."""
        overridden = type(part).collect is not Part.collect
        return overridden and (part != self._algorithm.sharing or bool(self._algorithm.sharing.owned))

    @torch.no_grad()
    def finish(self, server: Server, population: Population) -> Server:
        """The server after the round; at least one upload must have come."""
        change = self._algorithm.combine.finish(self._combined)
        params = tree.add(server.weights.params, change.params)
        result = Server(Weights(params, {**server.weights.buffers, **change.buffers}), server.memory)
        for name, part in self._parts.items():
            result = part.finish_round(server, result, self._totals[name], population)
        return result


def server_update(algorithm: Algorithm, server: Server, uploads: Iterable[Upload], population: Population) -> Server:
    """The server after a round with these uploads."""
    fold = Fold(algorithm)
    for upload in uploads:
        fold.add(upload)
    return fold.finish(server, population)
