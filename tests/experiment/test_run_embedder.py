"""Embedders of runs and of weight files, and runs that start from a weight file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.data import load, transform_for
from fedra.errors import ConfigError, DataError, RunError
from fedra.models import build
from fedra.storage.checkpoint import load_model
from fedra.storage.trained_model import load_embedder, load_embedder_weights

DATA = {"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [1, 16, 16]}
MODEL = {"name": "mobilefacenet-tiny", "embedding": 8}
IMAGES = torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def config(**sections: Any) -> dict[str, Any]:
    return tiny.table(**{"data": DATA, "model": MODEL, "rounds": 1, **sections})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fedra.RunResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        return fedra.run(config(), out=tmp_path_factory.mktemp("run") / "first")


@pytest.fixture(scope="module")
def folder(trained: fedra.RunResult) -> Path:
    assert trained.folder is not None
    return trained.folder


@torch.no_grad()
def features(result: fedra.RunResult) -> Tensor:
    prepared = transform_for(load(**DATA), "none").prepare(IMAGES)  # type: ignore[arg-type]
    found: Tensor = result.model.eval().get_submodule("body")(prepared)
    return found


def test_a_run_gives_its_embedder_with_its_own_normalization(trained: fedra.RunResult, folder: Path) -> None:
    torch.testing.assert_close(load_embedder(folder)(IMAGES), features(trained))


@pytest.mark.usefixtures("without_curves")
def test_a_run_with_a_projection_embeds_by_it(tmp_path: Path) -> None:
    result = fedra.run(config(model={**MODEL, "projection": 5}), out=tmp_path / "run")
    found = load_embedder(tmp_path / "run")(IMAGES)
    assert found.shape == (4, 5)
    torch.testing.assert_close(found, features(result))


@pytest.mark.usefixtures("without_curves")
def test_training_starts_from_the_weights_that_the_configuration_names(folder: Path, tmp_path: Path) -> None:
    start, _ = load_model(folder / "model.safetensors")
    weights = str(folder / "model.safetensors")
    still = {"batch": 10, "lr": 1e-30}
    result = fedra.run(config(model={**MODEL, "weights": weights}, local=still), out=tmp_path / "run")
    after = dict(result.model.named_parameters())
    assert all(torch.equal(after[name], start[name]) for name in after)
    assert not torch.equal(fedra.run(config(local=still)).model.state_dict()["head.weight"], start["head.weight"])


@pytest.mark.usefixtures("without_curves")
def test_a_run_that_started_from_a_file_is_read_without_it(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "start.safetensors"
    copy.write_bytes((folder / "model.safetensors").read_bytes())
    result = fedra.run(config(model={**MODEL, "weights": str(copy)}), out=tmp_path / "run")
    copy.unlink()
    torch.testing.assert_close(load_embedder(tmp_path / "run")(IMAGES), features(result))


def test_a_weight_file_gives_an_embedder(tmp_path: Path) -> None:
    model = build("mobilefacenet-tiny", (1, 16, 16), 3, seed=5, embedding=8).eval()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "net.safetensors")
    made = load_embedder_weights(
        tmp_path / "net.safetensors", "mobilefacenet-tiny", shape=(1, 16, 16), mean=[0.5], std=[0.5], embedding=8
    )
    with torch.no_grad():
        expected = model.body(IMAGES / 127.5 - 1)
    torch.testing.assert_close(made(IMAGES), expected, rtol=1e-4, atol=1e-5)


def test_mistakes_are_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the weight file must exist, got 'nowhere\.pt'"):
        fedra.run(config(model={**MODEL, "weights": "nowhere.pt"}))
    with pytest.raises(ConfigError, match=r"must fit the model, .*other shapes: body\.embedding\.weight"):
        fedra.run(config(model={**MODEL, "embedding": 9, "weights": str(folder / "model.safetensors")}))
    with pytest.raises(RunError, match=r"without a model\.safetensors: finish the run"):
        load_embedder(tmp_path)
    silent = {"fedra": json.dumps({"model": MODEL, "classes": ["a"]})}
    safetensors.torch.save_file({"head.weight": torch.ones(1)}, tmp_path / "model.safetensors", silent)
    with pytest.raises(RunError, match="must describe its inputs"):
        load_embedder(tmp_path)
