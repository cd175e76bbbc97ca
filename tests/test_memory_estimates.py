"""Settings that need more memory than the machine has are refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedra import machine
from fedra.config.names import REGISTRIES
from fedra.machine import physical_memory, require_memory
from fedra.models import MODELS, build
from fedra.models.zoo import _require_memory
from fedra.registry import fields
from tiny import WORDS, mistake

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
