"""Runs with a public data set beside the clients': fedfr from a configuration to its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
import tiny
from fedra.config.reading import read, write
from fedra.config.resolve import resolve_defaults
from fedra.errors import ConfigError
from fedra.experiment.build import build
from fedra.storage.run_folder import RunFolder

PUBLIC = {"name": "synthetic", "examples": 40, "test_examples": 5, "classes": 3, "shape": [6], "seed": 9}


def table(**sections: Any) -> dict[str, Any]:
    merged = tiny.table(
        partition={"name": "identity", "clients": 2}, algorithm={"name": "fedfr", "threshold": 0.9}, public=PUBLIC
    )
    return {**merged, **sections}


@pytest.mark.usefixtures("without_curves")
def test_a_run_keeps_its_public_set_and_can_be_repeated(tmp_path: Path) -> None:
    whole = fedra.run(table(rounds=4), out=tmp_path / "whole")
    config = RunFolder(tmp_path / "whole").config()
    assert config.public is not None
    assert config.public.settings["noise"] == 0.5
    assert read(tmp_path / "whole" / "config.toml") == config
    again = fedra.run(config, out=tmp_path / "again")
    assert tiny.record(tmp_path / "again") == tiny.record(tmp_path / "whole")
    steps = {line["steps"] for line in tiny.lines(tmp_path / "whole" / "clients.jsonl")}
    assert max(steps) > 5, "no public example was ever chosen"
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    assert len(again.metrics) == 4


def test_the_public_part_is_written_out_and_optional() -> None:
    full = resolve_defaults(read(table()))
    assert 'name = "synthetic"' in write(full).partition("[public]")[2]
    without = resolve_defaults(read({name: value for name, value in table().items() if name != "public"}))
    assert "[public]" not in write(without)
    assert build(without).job.public is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"algorithm": {"name": "fedgc"}}, "public data must be used by the algorithm"),
        (
            {"public": {**PUBLIC, "shape": [7]}},
            r"public examples must be torch.float32 of shape .*, got torch.float32 of shape \(7,\)",
        ),
        ({"public": {**PUBLIC, "size": 3}}, "the data set 'synthetic' has no field 'size'"),
        ({"public": {"name": "synthetc"}}, "did you mean 'synthetic'"),
        ({"public": {"seed": 3}}, "public.name"),
        (
            {"public": {**tiny.TINY["data"]}},
            "public identities must differ from those of the clients, got 'class 0' in both",
        ),
        ({"runner": {"name": "stacked"}}, "cannot be stacked: use the runner 'processes' or 'sequential'"),
    ],
)
def test_mistakes_are_told(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fedra.run(table(**sections))


def test_everybody_s_labels_count_on_into_the_public_ones() -> None:
    job = build(read(table())).job
    assert job.public is not None
    assert [job.labels_of(client) for client in range(2)] == [5, 5]
    start = job.initial()
    memory = job.client_state(0, start, {})
    everything = job.examples_of(0, job.program(0, job.common(start), {}), memory)
    assert set(everything.targets.tolist()) <= set(range(5))
    assert torch.equal(everything.inputs[: job.clients.size(0)], job.clients[0].inputs)
