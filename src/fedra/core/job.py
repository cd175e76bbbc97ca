"""Everything that is constant during a run, and the function that trains one client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples, LocalData
from fedra.core.capabilities import OwnParams, Sizes
from fedra.core.data_rule import Public, Supply
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.ownership import Owners
from fedra.core.private_steps import client_secret
from fedra.core.program import ClientProgram
from fedra.core.random import generator, key, scoped_seed
from fedra.core.round import client_update
from fedra.core.sharing import CLASSES
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Upload
from fedra.errors import RunError


class Roster(Protocol):
    """What the server knows of the clients: their number and their sizes."""

    def __len__(self) -> int: ...

    def size(self, client: int) -> int:
        """The client's number of examples."""
        ...


class Clients(Roster, Protocol):
    """The clients with their data: each client's examples on demand."""

    def __getitem__(self, client: int) -> Examples: ...

    def joined(self, clients: Sequence[int]) -> Examples | None:
        """The concatenated examples of these clients; None if their transforms differ."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """All tensors that hold data, for runners that share them between processes."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServerJob:
    """What the server knows of a run: everything except its runner and the clients' data.

    `shape` is that of one prepared input; parts that add parameters need it. `owners` says which client owns which
    classes, if clients own any; no client learns it.
    """

    algorithm: Algorithm
    model: Model
    clients: Roster
    local: LocalTraining
    classes: int
    seed: int
    shape: tuple[int, ...] | None = None
    test: Examples | None = None
    owners: Owners | None = None
    public: Public | None = None
    validation: Examples | None = None
    root: Examples | None = None  # clean examples of the server's own, for combine rules that need them
    keep_scores: bool = False  # whether evaluation returns the logits, which metrics such as AUROC need

    @property
    def evaluated_examples(self) -> Examples | None:
        """The examples that rounds are evaluated on: the validation examples if there are any, else the test set."""
        return self.test if self.validation is None else self.validation

    @property
    def population(self) -> Population:
        """The numbers of all clients and all their examples, and the owners of classes."""
        return self._counted

    @cached_property
    def _counted(self) -> Population:
        count = len(self.clients)
        examples = sum(self.clients.size(client) for client in range(count))
        return Population(clients=count, examples=examples, owners=self.owners, seed=self.seed)

    @cached_property
    def owned(self) -> tuple[str, ...]:
        """The names of the parameters whose rows belong to classes, those of parts included."""
        return tuple(filter(self.algorithm.sharing.is_owned, self.initial().params)) if self.owners else ()

    @cached_property
    def moves_buffers(self) -> bool:
        """Whether training changes the model's running statistics; fixed statistics never change."""
        if not self.model.has_buffers:
            return False
        params, before = self.model.weights()
        after = {name: value.clone() for name, value in before.items()}
        with torch.no_grad(), scoped_seed(0):
            features = self.model.features(Weights(params, after), self._two_inputs(), train=True)
            self.model.classify(Weights(params, after), features, train=True)
        return any(not torch.equal(value, after[name]) for name, value in before.items())

    def classes_of(self, client: int) -> int:
        """The number of classes that the client trains on: all, or its own if clients own classes."""
        return self.classes if self.owners is None else len(self.owners.holdings[client])

    def program(
        self,
        round: int,
        origin: Weights,
        received: Tree,
        names: Iterable[str] | None = None,
        *,
        optimizer: Optimizer | None = None,
        functional: bool = False,
    ) -> ClientProgram:
        """The client program of a round; `names` are a client's parameters, by default those of `origin`."""
        arranged = Weights(self.model.arrange(origin.params), self.model.arrange(origin.buffers))
        return ClientProgram(
            algorithm=self.algorithm,
            model=self.model,
            optimizer=optimizer or self.local.at(round),
            origin=arranged,
            received=self.model.arrange_tree(received),
            trained=self.algorithm.sharing.trained(origin.params if names is None else names),
            population=replace(self.population, owners=None),
            functional=functional,
        )

    def common(self, weights: Weights) -> Weights:
        """The part of the server's weights that all clients receive."""
        return self.algorithm.sharing.common(weights)

    def rows_for(self, client: int, weights: Weights) -> Params:
        """The rows of the client's own classes, the only rows that it receives."""
        return {} if self.owners is None else self.algorithm.sharing.rows_for(weights, self.owners.holdings[client])

    def client_state(self, client: int, weights: Weights, memory: Tree) -> Tree:
        """The client's state at the start of a round, with the current rows of its classes."""
        if self.owners is None:
            return memory
        return self.algorithm.sharing.put_in(self.common(weights), self.rows_for(client, weights), memory)

    def add_classes(self, clients: Sequence[int], uploads: Uploads) -> Uploads:
        """The uploads with the classes of their returned rows, which the server looks up itself."""
        name = self.algorithm.sharing.name
        if self.owners is None or name not in uploads.extras:
            return uploads
        classes = torch.stack([self.owners.holdings[client] for client in clients])
        return replace(uploads, extras={**uploads.extras, name: {**uploads.extras[name], CLASSES: classes}})

    def bytes_down(self, weights: Weights, received: Tree, clients: Sequence[int]) -> int:
        """The bytes sent to these clients: the common broadcast, and the rows of each client's classes."""
        sharing = self.algorithm.sharing
        common = sum(map(tree.size_in_bytes, (*sharing.traveling(weights), received))) * len(clients)
        if self.owners is None:
            return common
        rows = {name: value for name, value in weights.params.items() if sharing.is_returned(name)}
        return common + tree.size_in_bytes(rows) // self.classes * sum(map(self.classes_of, clients))

    def bytes_up(self, uploads: Uploads) -> int:
        """The bytes of one upload as it travels."""
        rule = self.algorithm.upload
        if rule is None:
            return uploads.bytes_each
        packed = sum(rule.packed_bytes(value) for value in uploads[0].delta.values())
        return packed + sum(map(tree.size_in_bytes, (uploads.buffers, uploads.extras))) // len(uploads)

    def initial(self) -> Weights:
        """The initial weights: those of the module, changed by start rules, and the parameters of parts."""
        weights = self.model.weights()
        for rule in self.algorithm.start:
            draw = generator(self.seed, f"{rule.name} start")
            weights = Weights(rule.init_weights(weights.params, draw), weights.buffers)
        if self.algorithm.with_capability(OwnParams):
            weights = self._add_part_params(weights)
        classes = None if self.owners is None else self.classes
        self.algorithm.sharing.check_parameters(weights.params, self.model.names, classes)
        return weights

    def _add_part_params(self, weights: Weights) -> Weights:
        """The weights with the parameters of parts."""
        with torch.no_grad():
            features = self.model.output(weights, self._two_inputs()).features.shape[1]
        sizes = Sizes(features, self.classes, 0 if self.public is None else self.public.classes)
        added: Params = {}
        for name, part in self.algorithm.with_capability(OwnParams).items():
            own = part.init_params(sizes, generator(self.seed, name))
            added |= {f"{name}.{n}": value.to(self.model.device, self.model.dtype) for n, value in own.items()}
        return Weights({**weights.params, **added}, weights.buffers)

    def _two_inputs(self) -> Tensor:
        """Two blank inputs of the right shape."""
        assert self.shape is not None, "a job without data needs the shape of its inputs"
        return self.model.ready(torch.zeros(2, *self.shape, device=self.model.device))


@dataclass(frozen=True, kw_only=True)
class Job(ServerJob):
    """Everything that a run consists of, with the clients' data, except its runner."""

    clients: Clients

    def labels_of(self, client: int) -> int:
        """The number of labels in the client's training examples: its classes, then the public ones."""
        return self.classes_of(client) + (0 if self.public is None else self.public.classes)

    def examples_of(self, client: int, program: ClientProgram, memory: Tree) -> Examples:
        """The client's training examples in a round, given the received model and the client's state."""
        own = self.clients[client]
        if self.public is None:
            return own
        received = self.algorithm.sharing.received(program.origin, memory)
        supply = Supply(
            own=own, public=self.public, classes=self.classes_of(client), model=self.model, received=received
        )
        return self.algorithm.data.examples(supply)

    def _two_inputs(self) -> Tensor:
        first = self.clients[0]
        return self.model.ready(first.transform.prepare(first.inputs[:2].to(self.model.device)))

    def tensors(self) -> Iterable[Tensor]:
        """All data of the job."""
        yield from self.clients.tensors()
        if self.public is not None:
            yield from (self.public.examples.inputs, self.public.examples.targets)
        for held_out in (self.test, self.validation, self.root):
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
    """Train one client in one round; the result depends only on the arguments and the number of threads."""
    try:
        memory = job.model.arrange_tree(memory)
        names = job.algorithm.sharing.received(origin, memory).params
        program = job.program(round, origin, received, names, optimizer=optimizer)
        examples, labels = job.examples_of(client, program, memory), job.labels_of(client)
        secret = client_secret(job.algorithm, memory)
        data = LocalData(examples, job.model, job.local, labels, job.seed, round, client, secret)
        with scoped_seed(key(job.seed, "layers", round, client)):
            return client_update(program, memory, data)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            error.add_note(f"in round {round + 1}, client {client}")
            raise
        raise RunError(
            f"batches must have at least two examples for batch normalization, got one in round {round + 1}, client "
            f"{client}: drop incomplete batches (drop_last), change the batch size, or use a model without it"
        ) from None
    except Exception as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = str(error).strip().partition("\n")[0]
            raise RunError(
                f"a compiled pass failed in round {round + 1}, client {client} ({reason}): do not compile, or delete "
                "torch's cache of compiled code (TORCHINDUCTOR_CACHE_DIR), which a killed process may have damaged"
            ) from None
        error.add_note(f"in round {round + 1}, client {client}")
        raise
