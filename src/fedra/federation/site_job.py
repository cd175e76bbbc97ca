"""A site's part of a job: its own clients under their numbers in the federation, and no other client's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedra.config.names import build_algorithm
from fedra.core.batches import Examples
from fedra.core.capabilities import OwnParams
from fedra.core.device import build_device
from fedra.core.job import Job, ServerJob
from fedra.core.model import Model, Weights
from fedra.core.precision import build_precision
from fedra.core.tree import Params, Tree
from fedra.core.view import Population
from fedra.data import AUGMENTATIONS, Transform
from fedra.errors import ConfigError
from fedra.experiment.build import build_module, build_public, local_training
from fedra.experiment.example_run import add_example_privacy
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.policy import Policy
from fedra.federation.wire import SiteWords


@dataclass(frozen=True)
class SiteClients:
    """The clients of a site, by their numbers in the federation."""

    examples: Mapping[int, Examples]

    def __len__(self) -> int:
        return len(self.examples)

    def size(self, client: int) -> int:
        return len(self.examples[client])

    def __getitem__(self, client: int) -> Examples:
        return self.examples[client]

    def joined(self, clients: Sequence[int]) -> Examples | None:
        own = [self.examples[client] for client in clients]
        if any(one.transform != own[0].transform for one in own):
            return None
        inputs, targets = torch.cat([one.inputs for one in own]), torch.cat([one.targets for one in own])
        return Examples(inputs, targets, own[0].transform)

    def tensors(self) -> Iterable[Tensor]:
        for own in self.examples.values():
            yield from (own.inputs, own.targets)


@dataclass(frozen=True, kw_only=True)
class SiteJob(Job):
    """What a site knows of a run: its own data, two numbers about all clients, and how many classes its clients own.

    `rows` are the rows of its clients' classes that it received last, and `start` is the common model that it keeps.
    """

    clients: SiteClients
    everyone: Population
    own_classes: Mapping[int, int] | None = None
    tests: Mapping[int, Examples] = field(default_factory=dict)
    rows: Mapping[int, Params] = field(default_factory=dict)
    kept: Weights | None = None

    @property
    def population(self) -> Population:
        return self.everyone

    def classes_of(self, client: int) -> int:
        return self.classes if self.own_classes is None else self.own_classes[client]

    def rows_for(self, client: int, weights: Weights) -> Params:
        return self.rows.get(client, {})

    def client_state(self, client: int, weights: Weights, memory: Tree) -> Tree:
        if self.own_classes is None:
            return memory
        return self.algorithm.sharing.put_in(self.common(weights), self.rows_for(client, weights), memory)

    def initial(self) -> Weights:
        """The common model that the site keeps, without the parameters of parts that the algorithm does not have."""
        assert self.kept is not None, "the site has no model yet"
        parts = tuple(f"{name}." for name in self.algorithm.with_capability(OwnParams))
        known = {n: value for n, value in self.kept.params.items() if n in self.model.names or n.startswith(parts)}
        first = next(iter(self.rows.values()), {})
        return Weights({**known, **first}, self.kept.buffers)

    def _two_inputs(self) -> Tensor:
        return ServerJob._two_inputs(self)  # the numbers of its clients are those of the federation

    def with_start(self, start: Weights) -> SiteJob:
        """Return the job with the model that the run starts from, which is loaded into the network."""
        with torch.no_grad():
            for group, values in ((self.model.module.named_parameters(), start.params),) + (
                (self.model.module.named_buffers(), start.buffers),
            ):
                for name, value in group:
                    if name in values and values[name].shape == value.shape:
                        value.copy_(values[name])
        self.model.__dict__.pop("start", None)  # computed from the module's weights
        return replace(self, kept=start)


def build_site_job(plan: FederationPlan, data: SiteData, numbers: Sequence[int], device: str = "cpu") -> SiteJob:
    """Build a site's job from the plan and its own data; `numbers` are those of its clients in the federation.

    Public data that the plan names are loaded at the site.
    """
    config = plan.config
    algorithm = build_algorithm(config.algorithm)
    place = build_device(device)
    transform = plan_transform(plan.schema)
    own = range(len(data.clients))
    if len(numbers) != len(own):
        raise ConfigError(f"the coordinator must number all {len(own)} clients of this site, got {len(numbers)}")
    examples = {numbers[index]: Examples(*data.train(index), transform) for index in own}
    tests = {numbers[index]: Examples(*data.test(index), transform) for index in own}
    owned = {numbers[index]: data.classes[index] for index in own} if algorithm.owns_classes else None
    classes = max(data.classes) if owned else len(plan.schema.classes)
    blank = plan.blank_dataset(classes)
    job = SiteJob(
        algorithm=algorithm,
        model=Model(build_module(config, blank), place, build_precision(config.precision, place)),
        clients=SiteClients(examples),
        local=local_training(config.local, config.rounds),
        classes=classes,
        seed=config.seed,
        shape=plan.schema.shape,
        public=None if config.public is None else build_public(config.public, blank, transform),
        everyone=Population(clients=1, examples=1, seed=config.seed),
        own_classes=owned,
        tests={number: one for number, one in tests.items() if len(one)},
    )
    if config.privacy.level != "example":
        return job
    return replace(job, algorithm=add_example_privacy(config, job, list(numbers)))


def plan_transform(schema: DataSchema) -> Transform:
    """Return how raw examples become inputs, which the plan fixes for all sites."""
    return Transform(schema.mean, schema.std, tuple(AUGMENTATIONS[name]() for name in schema.augment))


class SiteSide(Protocol):
    """What a site brings: its data, its policy, and what it says of both."""

    @property
    def policy(self) -> Policy:
        """What the site allows."""
        ...

    def has_changed(self) -> bool:
        """Return whether there are data that were read anew since the site described itself."""
        ...

    def renew(self) -> bool:
        """Use data that were read anew; returns whether there were any."""
        ...

    def check(self, plan: FederationPlan) -> list[str]:
        """Return why the site does not take part in a plan; nothing if it does."""
        ...

    def describe(self, plan: FederationPlan) -> SiteWords:
        """Return what the site says of itself."""
        ...

    def build_job(self, plan: FederationPlan, numbers: Sequence[int]) -> SiteJob:
        """Return the site's job, given the numbers of its clients."""
        ...
