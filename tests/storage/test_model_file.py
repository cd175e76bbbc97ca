"""The file of a trained model: what is not as the run wrote it is refused, and no metadata can do harm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.errors import DataError, FedraError, RunError
from fedra.experiment.trained_run import open_trained_run
from fedra.models import build, load_weights
from fedra.storage.trained_model import load_trained_model
from tiny import mistake


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        fedra.run(tiny.table(rounds=1), out=tmp_path_factory.mktemp("run") / "first")
    return Path(tmp_path_factory.getbasetemp() / "run0" / "first")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def parts(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    data = (run / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return safetensors.torch.load(data), json.loads(header["__metadata__"]["fedra"])


def replace_model(run: Path, tensors: dict[str, torch.Tensor], about: Any, keep_summary: bool = False) -> None:
    """A stranger's file; without a summary there is no digest to compare it with."""
    text = about if isinstance(about, str) else json.dumps(about)
    safetensors.torch.save_file(tensors, run / "model.safetensors", {"fedra": text})
    if not keep_summary:
        (run / "summary.json").unlink()


@pytest.mark.parametrize("place", [-1, -40, 300])
def test_a_flipped_byte_is_noticed_by_all_that_open_a_run(run: Path, place: int, capsys: Any) -> None:
    load_trained_model(run)
    data = bytearray((run / "model.safetensors").read_bytes())
    data[place] ^= 1
    (run / "model.safetensors").write_bytes(bytes(data))
    for open_it in (load_trained_model, open_trained_run):
        with pytest.raises(RunError, match=r"must be the one that the run wrote, got another"):
            open_it(run)
    assert "must be the one that the run wrote" in mistake(capsys, "eval", run, code=1)


def test_another_model_of_the_same_shape_is_noticed(run: Path) -> None:
    tensors, about = parts(run)
    replace_model(run, {**tensors, "extra": torch.zeros(1)}, about, keep_summary=True)
    with pytest.raises(RunError, match="must be the one that the run wrote"):
        load_trained_model(run)


def change(about: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    node = about
    *steps, last = path.split(".")
    for step in steps:
        node = node[step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return about


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", None),
        ("model", ["mlp"]),
        ("model.name", None),
        ("model.name", 5),
        ("model.name", "os:abort"),
        ("model.hidden", "many"),
        ("model.hidden", [-3]),
        ("model.hidden", [10**6, 10**6]),
        ("model.unknown", 3),
        ("model.projection", "wide"),
        ("model.projection", 10**12),
        ("model.head", 7),
        ("classes", "abcd"),
        ("classes", [1, 2, 3, 4]),
        ("classes", []),
        ("input", None),
        ("input.shape", None),
        ("input.shape", [-6]),
        ("input.shape", [10**12]),
        ("input.shape", [True]),
        ("input.shape", "six"),
        ("input.mean", [0.5, 0.5]),
        ("input.std", [0.0]),
        ("input.std", ["a"]),
        ("input.bytes", "yes"),
    ],
)
def test_metadata_of_a_stranger(run: Path, path: str, value: Any) -> None:
    tensors, about = parts(run)
    replace_model(run, tensors, change(about, path, value))
    with pytest.raises(FedraError, match=r"^.{10,400}$"):
        load_trained_model(run)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", "[" * 100_000, '{"a": 1e999}'])
def test_metadata_that_are_no_table(run: Path, text: str) -> None:
    replace_model(run, parts(run)[0], text)
    with pytest.raises(RunError, match=r"^.{10,500}$"):
        load_trained_model(run)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda value: value * 0, "must not all be zero"),
        (lambda value: value + 1e31, "must be below 1e"),
        (lambda value: value * float("nan"), "must be finite"),
        (lambda value: value.to(torch.int32), "must have the type torch.float32, got torch.int32"),
        (lambda value: value.to(torch.complex64), "must have the type torch.float32, got torch.complex64"),
    ],
    ids=["zero", "huge", "nan", "integers", "complex"],
)
def test_weights_that_no_training_leaves(run: Path, change: Any, told: str) -> None:
    tensors, about = parts(run)
    replace_model(run, {name: change(value) for name, value in tensors.items()}, about)
    with pytest.raises(DataError, match=told):
        load_trained_model(run)


def test_half_precision_weights_are_weights(run: Path) -> None:
    tensors, about = parts(run)
    replace_model(run, {name: value.half() for name, value in tensors.items()}, about)
    load_trained_model(run)


def test_a_device_in_the_place_of_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the weight file must exist"):
        load_weights(build("mlp", (6,), 4), "/dev/zero")
