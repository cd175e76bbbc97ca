"""A toy federation divided over sites within this process, which pass the same bytes as over a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fedra
import toy
from fedra.config.reading import read
from fedra.core.job import Job, ServerJob
from fedra.core.model import Model, Weights
from fedra.core.round import init_server
from fedra.core.round_zero import has_round_zero, take_first_rows
from fedra.core.view import Population
from fedra.federation import wire
from fedra.federation.exchange import Exchange, Watch
from fedra.federation.federated_runner import FederatedRunner
from fedra.federation.federation_plan import FederationPlan, FederationSection
from fedra.federation.link import LocalLink
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.packet_files import Inbox
from fedra.federation.policy import Policy
from fedra.federation.roster import FederationRoster, RosterClient
from fedra.federation.site_job import SiteClients, SiteJob
from fedra.federation.site_node import SiteNode
from fedra.storage.client_state.client_files import digest_of

OPEN = Policy(counts="exact", class_embeddings=True, metrics=("*",), examples=1, other_sites=0, attempts=99)
PLACES: Mapping[str, Sequence[int]] = {"north": (0, 2), "south": (1,)}


def plan_of(**federation: Any) -> FederationPlan:
    config = read({"rounds": 9, "data": {"name": "sites"}, "model": {"name": "mlp"}})
    rules = {"name": "toy", "address": "127.0.0.1:1", "deadline": 30, "least": 1, "bound": 0, **federation}
    return FederationPlan(config, DataSchema(shape=(5,), classes=("a", "b")), FederationSection.model_validate(rules))


class ToySide:
    """A site that holds some clients of a toy job."""

    def __init__(self, work: Job, clients: Sequence[int], make: Callable[[], torch.nn.Module], policy: Policy = OPEN):
        self._work, self._clients, self._make, self.policy = work, clients, make, policy

    def check(self, plan: FederationPlan) -> list[str]:
        return []

    def has_changed(self) -> bool:
        return False

    def renew(self) -> bool:
        return False

    def describe(self, plan: FederationPlan) -> wire.SiteWords:
        clients = [
            wire.ClientWords(examples=self._work.clients.size(c), classes=self._work.classes_of(c))
            for c in self._clients
        ]
        return wire.SiteWords(fedra=fedra.__version__, torch=torch.__version__, clients=clients, shape=(5,))

    def build_job(self, plan: FederationPlan, numbers: Sequence[int]) -> SiteJob:
        work = self._work
        own = {number: work.clients[client] for number, client in zip(numbers, self._clients, strict=True)}
        counts = {number: work.classes_of(client) for number, client in zip(numbers, self._clients, strict=True)}
        return SiteJob(
            algorithm=work.algorithm,
            model=Model(self._make()),
            clients=SiteClients(own),
            local=work.local,
            classes=work.classes,
            seed=work.seed,
            public=work.public,
            everyone=Population(clients=1, examples=1),
            own_classes=counts if work.owners is not None else None,
            tests=own,
        )


def server_job(work: Job, places: Mapping[str, Sequence[int]]) -> tuple[ServerJob, FederationRoster]:
    """What the server knows of a toy job: no data."""
    site = {client: name for name, clients in places.items() for client in clients}
    entries = [
        RosterClient(
            site=site[client],
            examples=work.clients.size(client),
            holds=None if work.owners is None else tuple(work.owners.holdings[client].tolist()),
        )
        for client in range(len(work.clients))
    ]
    roster = FederationRoster(clients=tuple(entries), classes=work.classes)
    names = {field: getattr(work, field) for field in ServerJob.__dataclass_fields__}
    shape = tuple(work.clients[0].inputs.shape[1:])
    return ServerJob(**names | {"clients": roster, "owners": roster.owners(), "shape": shape}), roster


class ToyFederation:
    """A coordinator with sites in this process."""

    def __init__(
        self,
        work: Job,
        make: Callable[[], torch.nn.Module],
        folder: Path,
        places: Mapping[str, Sequence[int]] = PLACES,
        order: Callable[[list[int]], list[int]] = lambda tickets: tickets,
        policy: Policy = OPEN,
        **federation: Any,
    ) -> None:
        self.plan = plan_of(**federation)
        self.job, self.roster = server_job(work, places)
        self.folder, self.work, self.make, self.policy = folder, work, make, policy
        self.nodes = {name: self.node(name) for name in places}
        self.link = LocalLink({name: node.answer for name, node in self.nodes.items()}, order)
        self.watch = Watch()
        inbox = Inbox(folder / "inbox")
        self.exchange = Exchange(self.plan.federation, self.link, inbox, self.watch)
        self.runner = FederatedRunner(self.plan, self.job, self.roster, self.exchange, inbox, self.watch)

    def node(self, name: str) -> SiteNode:
        """A site's process, as it would be after a start: all that it knows is in its folder."""
        clients = [number for number, one in enumerate(self.roster.clients) if one.site == name]
        side = ToySide(self.work, clients, self.make, self.policy)
        return SiteNode(self.folder / name, side, runner="sequential")

    def restart(self, name: str) -> None:
        self.nodes[name] = self.node(name)
        self.link.sites[name] = self.nodes[name].answer

    def start(self) -> toy.History:
        for name in self.nodes:
            ask = wire.DescribeAsk(fedra=fedra.__version__, wire=wire.WIRE, plan=self.plan.public)
            self.exchange.ask(name, wire.packet("describe", ask), "describe")
        initial = self.job.initial()
        self.send_start(initial)
        rows: dict[int, Any] = {}
        if has_round_zero(self.job):
            for name in self.nodes:
                ask = wire.RoundZeroAsk(plan=self.plan.digest, cohort=self.roster.numbers(name))
                answer = self.nodes[name].answer(wire.packet("round-zero", ask))
                rows |= {int(client): values for client, values in answer.tree("own").items()}
        weights = take_first_rows(self.job, initial, {client: rows[client] for client in sorted(rows)})
        self.send_start(weights)
        return toy.History(init_server(self.job.algorithm, weights))

    def send_start(self, weights: Weights) -> None:
        common = self.job.common(weights)
        blob = wire.encode_tree({"params": common.params, "buffers": common.buffers})
        for name in self.nodes:
            numbers = self.roster.numbers(name)
            ask = wire.StartAsk(plan=self.plan.digest, numbers=numbers, start=digest_of(blob))
            self.exchange.ask(name, wire.packet("start", ask, {"shared": blob}), "start")

    def run(self, cohorts: Sequence[Sequence[int]]) -> toy.History:
        history = self.start()
        for number, cohort in enumerate(cohorts):
            history.round(self.runner, replace(self.job), number, cohort)
        return history
