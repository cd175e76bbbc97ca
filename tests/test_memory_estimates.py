"""Settings that need more memory than the machine has are refused before anything is allocated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
from fedra import machine
from fedra.config.names import REGISTRIES
from fedra.core.model import Weights
from fedra.experiment.memory_estimate import MemoryEstimate, _kept_bytes
from fedra.machine import physical_memory, require_memory
from fedra.models import MODELS, build
from fedra.models.zoo import _require_memory
from fedra.registry import fields
from tiny import WORDS, mistake, table

SHAPES = {"swin": (3, 224, 224), "swin-mini": (3, 32, 32)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data.examples=1000000000", "data.shape=[1000]"], "the synthetic examples must fit into the memory"),
        (["data.shape=[1000000, 1000000]"], "lower data.examples, data.test_examples, data.classes or data.shape"),
        (["data.groups=1000000000", "data.shape=[1000]"], "the synthetic examples must fit"),
        (["data={name='synthetic-faces', images=1000000000}"], "the synthetic faces must fit"),
        (["model={name='mlp', hidden=[1000000000, 1000000]}"], "lower its settings (hidden = "),
        (["model={name='mlp', hidden=[1000000]}", "model.projection=1000000"], "the projection must fit"),
    ],
)
def test_sizes_in_one_sentence(capsys: Any, tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "c.toml").write_text("")
    sentence = mistake(capsys, "run", tmp_path / "c.toml", "--out", tmp_path / "run", *WORDS, *words)
    assert told in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("memory", "words", "told"),
    [
        (3 * 10**7, ["model=fedavg-cnn", "local.batch=0", "partition.clients=1"], "lower local.batch (all)"),
        (3 * 10**7, ["model={name='mlp', hidden=[1500, 1500]}"], "choose a smaller model ('mlp')"),
        (
            10**8,
            [
                "model={name='mlp', hidden=[1000, 1000]}",
                "runner={name='processes', workers=30}",
                "partition.clients=30",
            ],
            "or runner.workers (30)",
        ),
        (
            10**8,
            [
                "model={name='mlp', hidden=[500, 500]}",
                "algorithm=scaffold",
                "partition.clients=200",
                "local.momentum=0",
            ],
            "for the state of 200 clients; lower memory.ram (2048 MB): the rest is stored on disk",
        ),
        (
            10**8,
            ["model={name='mlp', hidden=[500, 500]}", "algorithm.plus=['median']", "partition.clients=200"],
            "for the uploads of 200 clients, which the rule 'median' keeps; lower cohort.fraction (1)",
        ),
    ],
    ids=["activations", "weights", "workers", "client state", "robust rule"],
)
def test_training_in_one_sentence(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, words: list[str], told: str
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(str(memory))
    monkeypatch.setattr(machine, "CGROUP", limit)
    (tmp_path / "c.toml").write_text("")
    usual = ["data=digits", "data.fraction=1.0", "rounds=1", "runner=sequential"]
    out = ["run", tmp_path / "c.toml", "--out", tmp_path / "run", *usual, *words]
    sentence = mistake(capsys, *out)
    assert re.search(
        rf"training must fit into the memory of this machine \({memory / 1e9:.1f} GB\), got \d\.\d GB:", sentence
    )
    assert told in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "shape"), [("fedavg-cnn", (3, 32, 32)), ("resnet18", (3, 32, 32)), ("mobilefacenet-tiny", (3, 112, 112))]
)
def test_activations_are_those_of_a_real_pass(model: str, shape: tuple[int, ...]) -> None:
    module = build(model, shape, 10, seed=0)
    outline = Weights(
        {name: value.detach().to("meta") for name, value in module.named_parameters()},
        {name: value.to("meta") for name, value in module.named_buffers()},
    )
    own = {value.untyped_storage().data_ptr() for value in module.parameters()}
    kept: dict[int, int] = {}

    def count(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        output = module(torch.zeros(2, *shape))
    real = sum(size for place, size in kept.items() if place not in own)
    assert output.requires_grad
    assert _kept_bytes(module, outline, (2, *shape)) == pytest.approx(real, rel=0.02)


def test_a_run_that_fits_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tensor without memory takes a second of imports."""
    monkeypatch.setattr(MemoryEstimate, "items", lambda _: pytest.fail("a small run was measured"))
    fedra.run(table(rounds=1))


def test_every_network_can_be_counted_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedra.models.zoo.USUAL", 0)
    monkeypatch.setattr("fedra.models.zoo.FEW", 0)
    counted: dict[str, int] = {}
    monkeypatch.setattr("fedra.models.zoo.require_memory", lambda what, needed, _: counted.setdefault(what, needed))
    for name in ("mlp", "fedavg-cnn", "resnet18", "iresnet-tiny", "mobilefacenet-tiny", "sl-vit", "swin-mini"):
        shape = SHAPES.get(name, (3, 32, 32) if name != "mobilefacenet-tiny" else (3, 112, 112))
        _require_memory(name, shape, 10, MODELS.settings(name, {}))
        state = build(name, shape, 10, seed=0).state_dict().values()
        assert counted[f"the model '{name}'"] == sum(value.numel() * value.element_size() for value in state)


def test_depths_are_bounded() -> None:
    found = [
        (name, field.name)
        for name in REGISTRIES["model"]
        for field in fields(REGISTRIES["model"][name]).values()
        if field.name in ("depth", "depths", "blocks")
    ]
    assert {name for name, _ in found} == {"mbf", "sl-vit", "swin", "swin-mini"}
    for name, field in found:
        with pytest.raises(ValueError, match="at most 1000"):
            MODELS.settings(name, {field: 1001 if field == "depth" else [1001] * 4})


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "memory.max")
    whole = physical_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert physical_memory() == whole
    (tmp_path / "memory.max").write_text("64000000\n")
    assert physical_memory() == 64_000_000
    require_memory("it", 64_000_000, "lower it")
    with pytest.raises(ValueError, match=r"it must fit into the memory of this machine \(0.1 GB\), got 0.1 GB: lower"):
        require_memory("it", 64_000_001, "lower it")
    with pytest.raises(ValueError, match=r"got more than 10\^15 GB"):
        require_memory("it", 10**400, "lower it")
