"""Sites with folders of people's images, in this process: data, policy, describing, training, all but the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from test_site_data import draw

from fedra.config.reading import read
from fedra.experiment.result import RunResult
from fedra.federation.coordinator_folder import create_federation, make_plan
from fedra.federation.federation_plan import FederationPlan, FederationSection
from fedra.federation.folder_side import FolderSide
from fedra.federation.link import LocalLink
from fedra.federation.local_data.matching import SECRET, copy_secret, create_secret
from fedra.federation.rehearsal import REHEARSAL
from fedra.federation.serve import Coordinator
from fedra.federation.site_config import SiteConfig
from fedra.federation.site_folder import create_site_folder
from fedra.federation.site_node import SiteNode
from fedra.storage.run_folder import RunFolder

PER_PERSON = 6


@dataclass
class FolderFederation:
    """A coordinator and sites; `people` names the people of each."""

    folder: Path
    people: Mapping[str, Sequence[str]]
    match: str = "secret"
    rounds: int = 2
    algorithm: str = "fedgc"
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = {"name": "sites", "shape": [1, 8, 8], "identities": "own", "match": self.match}
        table = {"data": data, "algorithm": self.algorithm, "model": {"name": "mlp", "hidden": [8]}}
        table |= {"rounds": self.rounds, "local": {"batch": 5, "lr": 0.1}}
        rules = {"name": "people", "address": "127.0.0.1:1", "sites": len(self.people), "bound": 0, "least": 1}
        self.plan: FederationPlan = make_plan(read(table), FederationSection.model_validate(rules))
        invitation = create_federation(self.folder / "coordinator", self.plan)
        for number, (name, people) in enumerate(self.people.items()):
            self.draw(name, people, seed=number)
            policy = REHEARSAL.model_copy(update={"pixel_statistics": True, **self.policies.get(name, {})})
            site = SiteConfig.model_validate({"name": name, "data": {"path": str(self.data(name))}, "policy": policy})
            create_site_folder(self.folder / name, invitation, site)
            if number == 0:
                create_secret(self.folder / name)
            else:
                copy_secret(self.folder / name, self.folder / next(iter(self.people)) / SECRET)
        self.sides = {name: FolderSide(self.folder / name) for name in self.people}
        self.nodes = {name: self.node(name) for name in self.people}
        self.link = LocalLink({name: node.answer for name, node in self.nodes.items()})

    def node(self, name: str) -> SiteNode:
        return SiteNode(self.folder / name, self.sides[name], "sequential", tell=self.told.append)

    def data(self, name: str) -> Path:
        return self.folder / "data" / name

    def draw(self, name: str, people: Sequence[str], seed: int = 0, high: int = 255, first: int = 0) -> None:
        for place, person in enumerate(people):
            for index in range(first, first + PER_PERSON):
                draw(self.data(name) / person / f"{index}.png", 10_000 * seed + 100 * place + index, high=high)

    def coordinator(self) -> Coordinator:
        found = Coordinator(self.plan, self.link, self.folder / "coordinator", RunFolder(self.folder / "run"))
        found.watch.tell = self.told.append
        return found

    def run(self) -> RunResult:
        return self.coordinator().run()
