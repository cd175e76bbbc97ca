"""Everything that crosses is recorded and searched: declared tensors only, no names, no labels, no foreign rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedra.config.reading import read
from fedra.core.tree import flatten
from fedra.federation import wire
from fedra.federation.coordinator_folder import create_federation, make_plan
from fedra.federation.federation_plan import FederationSection
from fedra.federation.folder_side import FolderSide
from fedra.federation.link import LocalLink
from fedra.federation.policy import Policy
from fedra.federation.serve import Coordinator
from fedra.federation.site_config import SiteConfig, SiteDataSection
from fedra.federation.site_folder import create_site_folder
from fedra.federation.site_node import SiteNode
from fedra.federation.wire import Packet
from fedra.storage.checkpoint import load_model
from fedra.storage.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("without_curves")
PEOPLE = {"north": ("Wilhelmina-Borgen", "Alan-Turing"), "south": ("Grace-Hopper", "Kurt-Goedel", "Emmy-Noether")}


def photographs(folder: Path, people: tuple[str, ...]) -> None:
    draw = np.random.default_rng(sum(map(ord, "".join(people))))
    for person in people:
        (folder / person).mkdir(parents=True)
        for number in range(8):
            pixels = draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / person / f"holiday-{person}-{number}.png")


class Federation:
    """Two sites with photographs of people, and a record of every message in both directions."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self.folder = folder
        table: dict[str, Any] = {
            "rounds": 3,
            "data": {"name": "sites", "shape": [3, 12, 12], "identities": "own"},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": {"name": algorithm},
            "local": {"batch": 4, "lr": 0.05},
        }
        rules = FederationSection.model_validate({"name": "people", "address": "127.0.0.1:1", "sites": 2, "bound": 0})
        self.plan = make_plan(read(table), rules)
        invitation = create_federation(folder / "coordinator", self.plan)
        nodes = {}
        for name, people in PEOPLE.items():
            photographs(folder / "photos" / name, people)
            policy = Policy(approve="within-policy", class_embeddings=True, examples=1, test_examples=1)
            data = SiteDataSection(path=str(folder / "photos" / name))
            create_site_folder(folder / name, invitation, SiteConfig(name=name, data=data, policy=policy))
            nodes[name] = SiteNode(folder / name, FolderSide(folder / name), "sequential")
        self.link = LocalLink({name: node.answer for name, node in nodes.items()})
        self.coordinator = Coordinator(self.plan, self.link, folder / "coordinator", RunFolder(folder / "run"))
        self.result = self.coordinator.run()

    def bytes_of(self, site: str, *, down: bool) -> bytes:
        found = []
        for name, question, answer in self.link.passed:
            packet = question if down else answer
            if name == site and isinstance(packet, Packet):
                found += [packet.words.encode(), *packet.blobs.values()]
        return b"\n".join(found)


@pytest.fixture(scope="module", params=["fedgc", "fedface", "fedpe"])
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation(tmp_path_factory.mktemp(request.param), request.param)


def test_no_name_of_a_person_or_a_file_crosses(federation: Federation) -> None:
    for site in PEOPLE:
        for down in (True, False):
            crossed = federation.bytes_of(site, down=down).lower()
            assert len(crossed) > 1000
            for name in (name for people in PEOPLE.values() for name in people):
                for word in (name, name.partition("-")[0], name.partition("-")[2]):
                    assert word.lower().encode() not in crossed
            for word in (b"holiday", b".png", str(federation.folder).encode(), b"photos", b"\x89PNG", b"JFIF"):
                assert word.lower() not in crossed


def test_no_label_and_no_pixel_crosses(federation: Federation) -> None:
    """A run of labels as any integer type, and the raw pixels of any image, would be found."""
    for site in PEOPLE:
        data = FolderSide(federation.folder / site).data(federation.plan)
        crossed = federation.bytes_of(site, down=False)
        labels = data.targets[:6]
        for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32):
            pattern = labels.to(dtype).numpy().tobytes()
            assert len(set(labels.tolist())) == 1 or pattern not in crossed
        for image in data.inputs:
            assert image.contiguous().numpy().tobytes()[:64] not in crossed
            assert image.float().numpy().tobytes()[:64] not in crossed


def test_a_site_never_receives_the_row_of_another_sites_person(federation: Federation) -> None:
    roster = federation.coordinator.roster
    owners = roster.owners()
    assert owners is not None
    uploads = {site: federation.bytes_of(site, down=False) for site in PEOPLE}
    final, _ = load_model(federation.folder / "run" / "model.safetensors")
    found = 0
    for site in PEOPLE:
        received = federation.bytes_of(site, down=True)
        for other in set(PEOPLE) - {site}:
            (client,) = roster.numbers(other)
            for name, value in final.items():
                if name in federation.coordinator._build().job.owned and value.dim() == 2:
                    for row in value[owners.holdings[client]]:
                        assert row.contiguous().numpy().tobytes() not in received
            for _, question, _ in (one for one in federation.link.passed if one[0] == other and one[1].kind == "train"):
                for path, row in flatten(question.tree("own")).items():
                    if row.dim() == 2:
                        found += 1
                        assert all(line.contiguous().numpy().tobytes() not in received for line in row), path
    assert found or federation.plan.config.algorithm.name == "fedpe"
    assert all(uploads.values())


def test_only_declared_tensors_leave(federation: Federation) -> None:
    for site in PEOPLE:
        side = FolderSide(federation.folder / site)
        declared = side.uploads(federation.plan)
        allowed = {f"delta|{n}" for n in declared.delta} | {f"buffers|{n}" for n in declared.buffers}
        allowed |= {f"extras|{n}" for n in declared.extras}
        (client,) = federation.coordinator.roster.numbers(site)
        for name, question, answer in federation.link.passed:
            if name != site or not isinstance(answer, Packet):
                continue
            assert set(answer.blobs) <= {"own"}
            paths = set(flatten(answer.tree("own")))
            if question.kind == "train":
                assert paths == {f"{client}|{path}" for path in allowed}
            elif question.kind == "round-zero":
                rows = {f"{client}|{name}" for name in federation.coordinator._build().job.owned}
                assert paths <= rows
            else:
                assert not paths


def test_the_words_of_a_site_are_counts_alone(federation: Federation) -> None:
    for name, question, answer in federation.link.passed:
        assert name in PEOPLE
        if question.kind == "evaluate" and isinstance(answer, Packet):
            tested = answer.read(wire.EvaluateAnswer).tested
            assert all(sum(one.genuine) + sum(one.impostor) == one.examples * (one.examples - 1) // 2 for one in tested)
    line = federation.result.metrics[-1]
    assert 0 <= line["eer"] <= 1
    assert line["accuracy"] == 1 - line["eer"]
