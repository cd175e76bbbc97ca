"""A federation has the simulator's bits, for every registered method, whatever the order of answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from splitting import ToyFederation

import toy
from fedra.algorithms import ENTRIES, scaffold
from fedra.core.tree import flatten
from fedra.core.upload_rule import UploadRule
from fedra.federation.federated_runner import KEPT, version_of
from fedra.federation.site_memory import SiteMemory
from fedra.federation.wire import Packet
from fedra.parts import ByteUpload, HalfUpload, TopUpload

NAMES = tuple(ENTRIES)
COHORTS = ((0, 1), (1, 2), (0, 2))
MODULES: dict[str, Callable[[], toy.Net]] = {
    "mlp": lambda: toy.mlp(torch.float32),
    "conv": lambda: toy.conv(torch.float32),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_every_method_has_the_simulators_bits(name: str, kind: str, tmp_path: Path) -> None:
    make = MODULES[kind]
    reference = toy.run(toy.job(ENTRIES[name].recipe(), make()), COHORTS)
    federation = ToyFederation(toy.job(ENTRIES[name].recipe(), make()), make, tmp_path, order=lambda ids: ids[::-1])
    found = federation.run(COHORTS)
    assert toy.same_bits(found.params, reference.params)
    assert toy.same_bits(found.server.weights.buffers, reference.server.weights.buffers)
    assert toy.same_bits(flatten(found.server.memory), flatten(reference.server.memory))
    for client, memory in reference.memory.items():
        version = version_of(found.memory[client])
        assert (version is None) == (not memory)
        if version is not None:
            site = federation.roster.site_of(client)
            stored = SiteMemory(tmp_path / site / "state" / "memory").load(client, version)
            assert toy.same_bits(flatten(stored), flatten(memory))
            assert set(found.memory[client]) == {KEPT}


@pytest.mark.parametrize("rule", [HalfUpload(), ByteUpload(), TopUpload(share=0.25)], ids=lambda rule: rule.name)
def test_a_federation_packs_them_and_has_the_simulators_bits(rule: UploadRule, tmp_path: Path) -> None:
    algorithm = scaffold().plus(rule)
    reference = toy.run(toy.job(algorithm, toy.mlp(torch.float32)), COHORTS)
    federation = ToyFederation(toy.job(algorithm, toy.mlp(torch.float32)), lambda: toy.mlp(torch.float32), tmp_path)
    found = federation.run(COHORTS)
    assert toy.same_bits(found.params, reference.params)
    assert toy.same_bits(flatten(found.server.memory), flatten(reference.server.memory))
    passed = [answer for _, question, answer in federation.link.passed if question.kind == "train"]
    answers = [answer for answer in passed if isinstance(answer, Packet)]
    kinds = {path.split("|")[1] for answer in answers for path in flatten(answer.tree("own"))}
    assert "packed" in kinds
    assert "delta" not in kinds
