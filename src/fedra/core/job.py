"""Everything that stays the same during a run, and the one function by which every runner trains a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples, LocalData, Schedule
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Adam, Optimizer, Sgd
from fedra.core.ownership import Owners
from fedra.core.part import CLASSES, Part
from fedra.core.public import Public, joined
from fedra.core.random import generator, key, scoped_seed
from fedra.core.rates import RateSchedule, constant
from fedra.core.round import client_update, with_own
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Upload
from fedra.errors import ConfigError, RunError, nearest


class Clients(Protocol):
    """The clients' data: how many there are, how much each holds, and one client's examples on demand."""

    def __len__(self) -> int: ...

    def size(self, client: int) -> int:
        """The number of the client's examples."""
        ...

    def __getitem__(self, client: int) -> Examples: ...

    def joined(self, clients: Sequence[int]) -> Examples | None:
        """These clients' examples one after the other, fetched at once; None where they are not prepared alike."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """All tensors that hold data, for a runner that shares them between processes."""
        ...


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: the optimiser, its rate at progress t (lr lr_decay^t rate(t)), and the passes over its
    data. `rounds` is how long the run goes on.
    """

    schedule: Schedule = field(default_factory=Schedule)
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    rate: RateSchedule = constant
    rounds: int = 1

    def at(self, progress: float) -> Optimizer:
        """The optimiser at the start of a round or, in centralised training, somewhere within it."""
        lr = self.lr * self.lr_decay**progress * self.rate(progress, self.rounds)
        if self.optimizer == "adam":
            return Adam(lr, self.weight_decay)
        return Sgd(lr, self.momentum, self.weight_decay)


@dataclass(frozen=True)
class Job:
    """A run without its runner."""

    algorithm: Algorithm
    model: Model
    clients: Clients
    local: LocalTraining
    classes: int
    seed: int
    test: Examples | None = None
    owners: Owners | None = None
    public: Public | None = None
    validation: Examples | None = None
    keep_scores: bool = False  # whether a test hands back every example's logits: metrics such as AUROC need them

    @property
    def judged(self) -> Examples | None:
        """The examples that rounds are tested on: the validation examples where there are any, else the test set."""
        return self.test if self.validation is None else self.validation

    @cached_property
    def population(self) -> Population:
        """All clients and all their examples."""
        count = len(self.clients)
        examples = sum(self.clients.size(client) for client in range(count))
        return Population(count, examples, self.owners, self.seed)

    @cached_property
    def owned(self) -> tuple[str, ...]:
        """The names of the parameters whose rows belong to classes, the model's and those that parts bring along."""
        return tuple(filter(self.algorithm.sharing.is_owned, self.initial().params)) if self.owners else ()

    def classes_of(self, client: int) -> int:
        """How many classes the client tells apart: all, or its own where classes belong to clients."""
        return self.classes if self.owners is None else len(self.owners.holdings[client])

    def labels_of(self, client: int) -> int:
        """How many labels the client's examples may have: its classes, and behind them the public ones."""
        return self.classes_of(client) + (0 if self.public is None else self.public.classes)

    def examples_of(self, client: int, origin: Weights, memory: Tree) -> Examples:
        """What the client trains on in a round: its own, and the public ones that it chooses by what it received."""
        own = self.clients[client]
        if self.public is None:
            return own
        received = with_own(origin, memory.get(self.algorithm.sharing.name, {}))
        return joined(own, self.public, self.algorithm, self.model, received, self.classes_of(client))

    def remembered(self, client: int, weights: Weights, memory: Tree) -> Tree:
        """What a client begins a round with beside what all receive: its memory, and the rows of its classes."""
        if self.owners is None:
            return memory
        return self.algorithm.sharing.delivered(weights, memory, self.owners.holdings[client])

    def addressed(self, clients: Sequence[int], uploads: Uploads) -> Uploads:
        """The uploads with the classes that returned rows belong to: the server knows whose they are."""
        name = self.algorithm.sharing.name
        if self.owners is None or name not in uploads.extras:
            return uploads
        classes = torch.stack([self.owners.holdings[client] for client in clients])
        return replace(uploads, extras={**uploads.extras, name: {**uploads.extras[name], CLASSES: classes}})

    def initial(self) -> Weights:
        """Where training starts: the module's own weights, and the parameters that parts bring along."""
        weights = self.model.weights()
        parts = self.algorithm.parts()
        for name, part in parts.items():
            weights = Weights(part.init_weights(weights.params, generator(self.seed, f"{name} start")), weights.buffers)
        if any(type(part).init_params is not Part.init_params for part in parts.values()):
            weights = self._with_brought(weights, parts)
        self._check_sharing(weights)
        return weights

    def _with_brought(self, weights: Weights, parts: Mapping[str, Part]) -> Weights:
        """The weights and the parameters that parts bring along."""
        some = self.clients[0]
        ready = self.model.ready(some.transform.prepare(some.inputs[:2].to(self.model.device)))
        with torch.no_grad():
            features = self.model.output(weights, ready).features.shape[1]
        brought: Params = {}
        for name, part in parts.items():
            own = part.init_params(features, self.classes, generator(self.seed, name))
            if self.public is not None:
                own = own | part.init_public(features, self.public.classes, generator(self.seed, f"{name} public"))
            brought |= {f"{name}.{n}": value.to(self.model.device, self.model.dtype) for n, value in own.items()}
        return Weights({**weights.params, **brought}, weights.buffers)

    def _check_sharing(self, weights: Weights) -> None:
        sharing = self.algorithm.sharing
        for prefix in (*sharing.private, *sharing.frozen, *sharing.owned):
            if not any(name.startswith(prefix) for name in weights.params):
                layers = {name.rpartition(".")[0] + "." for name in weights.params} | {"body.", "head."}
                raise ConfigError(f"no parameter of the model begins with '{prefix}': {nearest(prefix, layers)}")
        if all(sharing.is_frozen(name) for name in self.model.names):
            raise ConfigError("every parameter of the model is frozen, so nothing would be trained: freeze less")
        for name, value in weights.params.items():
            if sharing.is_owned(name) and (self.owners is None or len(value) != self.classes):
                raise ConfigError(
                    f"the parameter '{name}' of shape {tuple(value.shape)} has no row for each of {self.classes} "
                    "classes, so that its rows cannot belong to clients: own 'head.' alone"
                )

    def tensors(self) -> Iterable[Tensor]:
        """All data of the job."""
        yield from self.clients.tensors()
        if self.public is not None:
            yield from (self.public.examples.inputs, self.public.examples.targets)
        for held_out in (self.test, self.validation):
            if held_out is not None:
                yield from (held_out.inputs, held_out.targets)


def run_client(
    job: Job,
    round: int,
    client: int,
    origin: Weights,
    received: Tree,
    memory: Tree,
    optimizer: Optimizer | None = None,
) -> tuple[Tree, Upload]:
    """Train one client in one round, with the round's optimiser or another.

    The result depends on nothing but the arguments and the threads in use.
    """
    try:
        examples, labels = job.examples_of(client, origin, memory), job.labels_of(client)
        data = LocalData(examples, job.model, job.local.schedule, labels, job.seed, round, client)
        with scoped_seed(key(job.seed, "layers", round, client)):
            rule = optimizer or job.local.at(round)
            return client_update(job.algorithm, job.model, rule, origin, received, memory, data, job.population)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            error.add_note(f"in round {round + 1}, client {client}")
            raise
        raise RunError(
            f"in round {round + 1}, client {client}, a batch of one example reached a batch normalisation, which needs "
            "two: set local.drop_last = true, another local.batch, or a model without it (norm = 'group')"
        ) from None
    except Exception as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = str(error).strip().partition("\n")[0]
            raise RunError(
                f"in round {round + 1}, client {client}, a compiled pass failed ({reason}): set compile = false, or "
                "empty torch's cache of compiled code (TORCHINDUCTOR_CACHE_DIR), which a kill may have damaged"
            ) from None
        error.add_note(f"in round {round + 1}, client {client}")
        raise
