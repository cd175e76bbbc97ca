"""One round of federated learning: the plain loop over a client's batches, and the server's side.

client:  `ClientProgram.init`, then `step` on every batch, then `finish`, which returns the upload. The stacked runner
         runs the same program over many clients at once
server:  combine the uploads, then let every part finish the round
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import LocalData
from fedra.core.capabilities import CollectsUploads, ServerState
from fedra.core.draws import Draws
from fedra.core.model import Weights
from fedra.core.private_steps import add_noise
from fedra.core.program import ClientProgram, StepMetrics
from fedra.core.robust_fold import Selected, Selecting
from fedra.core.teachers import look_up, teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import SingleUploads, Uploads, stack_of_one
from fedra.core.view import Client, Local, Population, Server, Upload


def client_update(program: ClientProgram, memory: Tree, data: LocalData) -> tuple[Tree, Upload]:
    """Local training of one client: returns its new state and its upload."""
    algorithm, model = program.algorithm, program.model
    client, state = begin(program, memory, data)
    teachers = teacher_weights(algorithm, client)
    known = look_up(model, teachers, data)
    draws = Draws(algorithm, model, *data.where)
    losses, logs = [], []
    for number, batch in enumerate(data):
        try:
            batch = replace(batch, drawn=draws.step(len(batch.targets)))
            outputs = teacher_outputs(model, teachers, known, batch)
            result = program.step(client, state, batch, outputs)
            add_noise(algorithm, result["gradient"], data.secret, number, client.examples)
            program.advance(state, result)
        except Exception as error:
            error.add_note(f"at local step {number}")
            raise
        state |= {"buffers": result["buffers"] or state["buffers"], "carried": state["carried"] | result["carried"]}
        losses.append(result["loss"])
        logs.append(result["logs"])
    return finish(program, client, state, StepMetrics.of(losses, logs))


def begin(program: ClientProgram, memory: Tree, data: LocalData) -> tuple[Client, Tree]:
    """The client before its first step, and what its local steps change."""
    client = program.client(program.memory(memory), len(data), data.label_counts)
    state = program.init(client)
    state["buffers"] = tree.clone(state["buffers"])
    params = {name: program.model.format(value.clone()) for name, value in state["params"].items()}
    state["optimizer"] = program.optimizer.init(params)
    state["params"] = {name: value.requires_grad_() for name, value in params.items()}
    return client, state


@torch.no_grad()
def finish(program: ClientProgram, client: Client, state: Tree, metrics: StepMetrics) -> tuple[Tree, Upload]:
    """The client's new state and its upload."""
    params = {name: value.detach() for name, value in state["params"].items()}
    weights = Weights({**client.origin.params, **params}, state["buffers"])
    steps = metrics.losses.shape[1]
    local = Local(client=client, weights=weights, steps=steps, carried=state["carried"])
    memory, extras = program.finish(local)
    delta = {name: (value - client.origin.params[name]).contiguous() for name, value in params.items()}
    uploads = program.uploads(
        delta=tree.each(delta, stack_of_one),
        buffers=tree.each(state["buffers"], stack_of_one),
        examples=[client.examples],
        steps=[steps],
        extras=tree.each(extras, stack_of_one),
        metrics=metrics,
    )
    return memory, uploads[0]


def init_server(algorithm: Algorithm, weights: Weights) -> Server:
    """The server before the first round."""
    common = algorithm.sharing.common(weights)
    stateful = algorithm.with_capability(ServerState)
    memory = {name: part.init_server(weights if part.sees_rows else common) for name, part in stateful.items()}
    for name, values in memory.items():
        tree.check_tensors(f"the server state that init_server of the part '{name}' returns", values)
    return Server(weights=weights, memory={name: value for name, value in memory.items() if value})


def broadcast(algorithm: Algorithm, server: Server) -> Tree:
    """What every client receives in addition to the model."""
    stateful = algorithm.with_capability(ServerState)
    sent = {name: part.broadcast(server.memory.get(name, {})) for name, part in stateful.items()}
    return {name: value for name, value in sent.items() if value}


class Fold(SingleUploads):
    """A round on the server: a running fold over uploads, then the updates of all parts.

    Buffers (running statistics) are treated the same in every algorithm: floating-point buffers are averaged with the
    clients' numbers of examples (or by a robust combine rule), integer buffers (counters) take the maximum. With a
    robust combine rule, what parts collect is robust too: they see the center of all uploads in place of each. `root`
    is the server's own update, for rules that compare uploads with it.
    """

    def __init__(self, algorithm: Algorithm, root: Upload | None = None) -> None:
        self._algorithm = algorithm
        self._combined = algorithm.combine.start() | ({} if root is None else {"root": root})
        self._collecting = algorithm.with_capability(CollectsUploads)
        self._totals: dict[str, Tree] = {name: {} for name in self._collecting}
        self._held: list[Upload] = []  # until a robust rule has seen all of them
        self._clients: list[int] = []  # of the uploads, if a rule chooses among them
        self._factors: dict[int, float] = {}
        self.uploads = 0

    def add(self, upload: Upload) -> None:
        """Fold in one upload, which need not be kept afterward."""
        self.add_stack(Uploads.of(upload))

    @torch.no_grad()
    def add_stack(self, uploads: Uploads, clients: Sequence[int] = ()) -> None:
        """Fold in a stack of uploads."""
        self._combined = self._algorithm.combine.add_stack(self._combined, uploads)
        combine = self._algorithm.combine
        if isinstance(combine, Selecting):
            self._clients += clients
        elif not combine.robust:
            for name, part in self._collecting.items():
                if part.collects:
                    self._totals[name] = part.collect_stack(self._totals[name], uploads)
        elif any(part.collects for part in self._collecting.values()):
            self._held += uploads
        self.uploads += len(uploads)

    @property
    def factors(self) -> dict[int, float]:
        """By client, the factor of a robust rule on its update, 0 if it was left out; empty for other rules."""
        return {client: self._factors.get(number, 0.0) for number, client in enumerate(self._clients)}

    def _see(self, selected: Selected) -> None:
        self._factors[selected.number] = selected.factor
        self._collect([selected.upload])

    def add_rejected(self, clients: Sequence[int]) -> None:
        """Leave clients with an invalid upload out: they count as dropped."""

    def _collect(self, uploads: Iterable[Upload]) -> None:
        collecting = {name: part for name, part in self._collecting.items() if part.collects}
        for upload in uploads if collecting else ():
            for name, part in collecting.items():
                self._totals[name] = part.collect(self._totals[name], upload)

    def _centered(self) -> Iterator[Upload]:
        """The held uploads with the center of all changes and extras; rows of a client's own classes stay its own."""
        if not self._held:
            return
        own = self._algorithm.sharing.name
        extras = [{name: sent for name, sent in one.extras.items() if name != own} for one in self._held]
        delta = self._center([one.delta for one in self._held])
        center = tree.unflatten(self._center([tree.flatten(sent) for sent in extras]))
        for one in self._held:
            rows = {own: one.extras[own]} if own in one.extras else {}
            yield replace(one, delta=delta, extras={**center, **rows})

    def _center(self, values: list[Params]) -> Params:
        """The center of each tensor over the clients; counters take the maximum."""
        rule = self._algorithm.combine.center
        stacks = {name: torch.stack([one[name] for one in values]) for name in values[0]}
        return {name: rule(s) if s.is_floating_point() else s.amax(dim=0) for name, s in stacks.items()}

    @torch.no_grad()
    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        """The server after the round; there must be at least one upload.

        `observe` is called with the server before and after the server rules.
        """
        combine = self._algorithm.combine
        if isinstance(combine, Selecting):  # other parts see what the rule selected
            change = combine.finish(self._combined, self._see)
        else:
            change = combine.finish(self._combined)
        self._collect(self._centered())
        params = tree.add(server.weights.params, change.params)
        weights = Weights(params, {**server.weights.buffers, **change.buffers})
        combined = Server(weights=weights, memory=server.memory)
        for name, part in self._collecting.items():
            combined = part.finish_round(server, combined, self._totals[name], population)
        result = combined
        for rule in self._algorithm.server:
            result = rule.update(server, result, population)
        if observe is not None:
            observe(combined, result)
        return result


def server_update(algorithm: Algorithm, server: Server, uploads: Iterable[Upload], population: Population) -> Server:
    """The server after a round with these uploads."""
    fold = Fold(algorithm)
    for upload in uploads:
        fold.add(upload)
    return fold.finish(server, population)
