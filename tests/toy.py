"""A federation small enough to check by hand: tiny models, three clients of unequal size, any runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs, Examples, InputTransform, LocalData
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.program import ClientProgram
from fedra.core.random import scoped_seed
from fedra.core.round import begin, broadcast, init_server, server_update
from fedra.core.round_zero import round_zero
from fedra.core.teachers import teacher_outputs, teacher_weights
from fedra.core.tree import Params, Tree, each, flatten
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Server, Upload, View
from fedra.data.clients import SeparateClients
from fedra.experiment.build import add_class_owners
from fedra.runners import RUNNERS, iterate_results

SEED = 7
SIZES = (11, 6, 9)
CLASSES = 4
LOCAL = LocalTraining(epochs=2, batch=4, lr=0.1, lr_decay=0.7, momentum=0.9, weight_decay=1e-3)


class Net(nn.Module):
    """A body and a head."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head


def mlp(dtype: torch.dtype = torch.float64) -> Net:
    with scoped_seed(1):
        return Net(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, CLASSES)).to(dtype)


def forgetful(dtype: torch.dtype = torch.float64) -> Net:
    """An MLP with dropout, which draws at every pass."""
    net = mlp(dtype)
    return Net(nn.Sequential(net.body, nn.Dropout(0.5)), net.head)


def conv(dtype: torch.dtype = torch.float64, track: bool = True, channels: int = 1) -> Net:
    """A convolution with batch normalization, whose running statistics are tracked or not."""
    with scoped_seed(2):
        body = nn.Sequential(
            nn.Conv2d(channels, 3, 3), nn.BatchNorm2d(3, track_running_stats=track), nn.Tanh(), nn.Flatten()
        )
        return Net(body, nn.Linear(12, CLASSES)).to(dtype)


def clients(
    shape: tuple[int, ...] = (5,), sizes: Sequence[int] = SIZES, transform: InputTransform | None = None
) -> SeparateClients:
    """Clients whose inputs lean toward their labels; the last client lacks the last class."""
    draw = torch.Generator().manual_seed(SEED)
    own = []
    for number, size in enumerate(sizes):
        kinds = CLASSES - (number == len(sizes) - 1)
        targets = torch.randint(kinds, (size,), generator=draw)
        noise = torch.randn((size, *shape), generator=draw, dtype=torch.float64)
        inputs = noise + targets.double().view(-1, *[1] * len(shape)) / 2
        own.append(Examples(inputs, targets, transform or AsIs()))
    return SeparateClients(own)


def sharers(shape: tuple[int, ...] = (5,), sizes: Sequence[int] = SIZES) -> SeparateClients:
    """Clients that each hold two of the four classes; two classes have two owners, and some have none in common."""
    own = clients(shape, sizes).examples
    kept = [torch.tensor(classes) for classes in ((0, 1), (1, 2), (0, 3))]
    pairs = zip(own, kept, strict=True)
    return SeparateClients([replace(one, targets=two[torch.arange(len(one)) % 2]) for one, two in pairs])


def job(
    algorithm: Algorithm,
    module: Net | None = None,
    data: SeparateClients | None = None,
    local: LocalTraining = LOCAL,
    seed: int = SEED,
) -> Job:
    module = module or mlp()
    images = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    shape = (next(module.parameters()).shape[1], 4, 4) if images else (5,)
    data = data or (sharers(shape) if algorithm.sharing.owned else clients(shape))
    return add_class_owners(
        Job(
            algorithm=algorithm,
            model=Model(module),
            clients=data,
            local=local,
            classes=CLASSES,
            seed=seed,
            test=data[0],
        ),
        data,
    )


@dataclass
class History:
    """A run as it stands: the server, what the clients remember, and all that was uploaded."""

    server: Server
    memory: dict[int, Tree] = field(default_factory=dict)
    uploads: list[Upload] = field(default_factory=list)

    @property
    def params(self) -> Params:
        return self.server.weights.params

    def round(self, runner: Any, work: Job, number: int, cohort: Sequence[int]) -> None:
        weights, sent = self.server.weights, broadcast(work.algorithm, self.server)

        def client_state(client: int) -> Tree:
            return work.client_state(client, weights, self.memory.get(client, {}))

        trained = runner.train(number, work.common(weights), sent, cohort, client_state)
        results = list(iterate_results(trained))
        self.memory |= {result.client: result.memory for result in results}
        self.uploads += [result.upload for result in results]
        uploads = [work.add_classes([r.client], Uploads.of(r.upload))[0] for r in results]
        self.server = server_update(work.algorithm, self.server, uploads, work.population)


def start(work: Job) -> History:
    return History(init_server(work.algorithm, round_zero(work, work.initial())))


def run(
    work: Job, cohorts: Sequence[Sequence[int]] = ((0, 1, 2), (0, 1, 2)), runner: str = "sequential", **settings: Any
) -> History:
    """The rounds of these cohorts, by any registered runner."""
    engine = RUNNERS[runner](work, **settings)
    try:
        history = start(work)
        for number, cohort in enumerate(cohorts):
            history.round(engine, work, number, cohort)
        return history
    finally:
        engine.close()


def same_bits(left: Params, right: Params) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def distance(left: Params, right: Params) -> float:
    """The largest difference of any entry."""
    assert left.keys() == right.keys()
    return max(float((value - right[name]).abs().max()) for name, value in left.items())


@dataclass
class Scene:
    """One client at its first local step, to look at gradients and perturbations."""

    work: Job
    program: ClientProgram
    client: Client
    state: Tree
    data: LocalData
    batch: Batch

    @property
    def params(self) -> Params:
        """All of the client's parameters, those that move and those that do not."""
        return {**self.client.origin.params, **self.state["params"]}

    @property
    def buffers(self) -> Params:
        return dict(self.state["buffers"])

    def view(self, functional: bool = False) -> View:
        teachers = teacher_weights(self.work.algorithm, self.client)
        outputs = teacher_outputs(self.work.model, teachers, {}, self.batch)
        return View(
            model=self.work.model,
            client=self.client,
            batch=self.batch,
            buffers=self.buffers,
            teachers=outputs,
            functional=functional,
            carried=self.state["carried"],
        )

    def step(self) -> Tree:
        result = self.program.step(self.client, self.state, self.batch, dict(self.view().teachers))
        self.program.advance(self.state, result)
        self.state["buffers"] = result["buffers"] or self.state["buffers"]
        return result


def scene(
    algorithm: Algorithm,
    module: Net | None = None,
    local: LocalTraining = LOCAL,
    stir: float = 0.0,
) -> Scene:
    """Client 0 before its first step; `stir` moves its weights, its memory and what it received off their start."""
    work = job(algorithm, module, local=local)
    history = start(work)
    data = LocalData(work.clients[0], work.model, local, work.classes_of(0), SEED, 0, 0)
    sent, first = broadcast(algorithm, history.server), history.server.weights
    origin, memory = work.common(first), work.client_state(0, first, {})
    names = algorithm.sharing.received(origin, memory).params
    program = work.program(0, origin, sent, names)
    memory = each(program.memory(memory), torch.clone)  # a first memory may be the received tensors themselves
    client, state = begin(program, memory, data)
    if stir:
        noise = torch.Generator().manual_seed(3)
        for values in (state["params"], flatten(client.memory), flatten(client.received)):
            for value in values.values():
                if value.is_floating_point():
                    draw = torch.randn(value.shape, generator=noise, dtype=torch.float64)
                    value.data.add_(stir * draw.to(value.dtype))
    return Scene(work, program, client, state, data, next(iter(data)))
