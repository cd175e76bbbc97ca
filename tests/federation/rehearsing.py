"""A federation out of folders, with sites in this process: all of it except TLS and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedra.config.reading import read
from fedra.experiment.build import Built, build
from fedra.experiment.result import RunResult
from fedra.federation.coordinator_folder import create_federation, make_plan
from fedra.federation.federation_plan import FederationPlan, FederationSection
from fedra.federation.folder_side import FolderSide
from fedra.federation.link import Answer, LocalLink
from fedra.federation.rehearsal import create_rehearsed_site, deal_clients, rehearsed_roster, simulated
from fedra.federation.roster import write_roster
from fedra.federation.serve import Coordinator
from fedra.federation.site_node import SiteNode
from fedra.federation.wire import Packet
from fedra.storage.run_folder import RunFolder


@dataclass
class Rehearsed:
    """A coordinator's folder and its sites' folders."""

    folder: Path
    table: dict[str, Any]
    sites: int = 3
    rules: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = simulated(read(self.table))
        self.built: Built = build(config)
        rules = {"name": "test", "address": "127.0.0.1:1", "sites": self.sites, "deadline": 60, "bound": 0}
        rules |= {"least": 1, "evaluation": "both", **self.rules}
        self.plan: FederationPlan = make_plan(config, FederationSection.model_validate(rules))
        invitation = create_federation(self.folder / "coordinator", self.plan)
        self.places = deal_clients(len(self.built.job.clients), self.sites)
        for name, clients in self.places.items():
            create_rehearsed_site(
                self.folder / name, name, clients, self.built, invitation, self.folder / "coordinator"
            )
        write_roster(self.folder / "coordinator" / "roster.json", rehearsed_roster(self.built, self.places))
        self.nodes = {name: self.node(name) for name in self.places}
        self.link = LocalLink({name: self.answering(name) for name in self.places})

    def node(self, name: str) -> SiteNode:
        return SiteNode(self.folder / name, FolderSide(self.folder / name), "sequential", tell=self.told.append)

    def answering(self, name: str) -> Callable[[Packet], Answer]:
        return lambda packet: self.nodes[name].answer(packet)

    def coordinator(self, **settings: Any) -> Coordinator:
        found = Coordinator(
            self.plan,
            self.link,
            self.folder / "coordinator",
            RunFolder(self.folder / "run"),
            test=self.built.dataset,
            **settings,
        )
        found.watch.tell = self.told.append
        return found

    def run(self, **settings: Any) -> RunResult:
        return self.coordinator(**settings).run()
