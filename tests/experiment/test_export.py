"""Runs as ONNX files: the same numbers as PyTorch for every model, pre-processing inside, a card beside them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core.model import Model
from fedra.errors import ConfigError, FedraError
from fedra.experiment import export as exporting
from fedra.experiment.export import ExportModule, export
from fedra.models import MODELS, build
from fedra.storage.trained_model import TrainedModel, load_embedder, load_embedder_weights

DATA = {"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [3, 16, 20]}
MODEL = {"name": "iresnet-tiny", "embedding": 8, "width": 8}
"""Not narrower: torch 2.13's oneDNN writes past the gradient of a strided 1 x 1 convolution of under 8 channels
(AVX2, channels last), which ends some later test with a broken heap."""
SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "fedarc-cnn": ((1, 28, 28), {}),
    "fedarc-resnet18": ((3, 32, 32), {"width": 4}),
    "fedavg-cnn": ((1, 16, 16), {}),
    "ghostfacenet": ((3, 32, 32), {"embedding": 8, "width": 0.25}),
    "iresnet-tiny": ((3, 32, 32), {"embedding": 8, "width": 4, "norm": "group"}),
    "iresnet18": ((3, 32, 32), {"embedding": 8, "width": 4, "dropout": 0.4}),
    "logistic": ((6,), {}),
    "mbf": ((3, 32, 32), {"embedding": 8, "scale": 1, "blocks": (1, 1, 1, 1)}),
    "mlp": ((1, 8, 8), {"hidden": (8,)}),
    "mobilefacenet": ((3, 32, 32), {"embedding": 8, "width": 0.25}),
    "mobilefacenet-tiny": ((3, 32, 32), {"embedding": 8, "norm": "group"}),
    "resnet18": ((3, 32, 32), {"width": 4, "norm": "running"}),
    "resnet34": ((3, 32, 32), {"width": 4, "norm": "running"}),
    "sl-vit": ((3, 16, 16), {"width": 16, "depth": 1, "heads": 1}),
    "sphere20": ((3, 112, 96), {"embedding": 8, "width": 2}),
    "swin-mini": ((3, 32, 32), {"patch": 4, "window": 4, "width": 8, "depths": (2, 2), "heads": (1, 2)}),
    "vgg11": ((3, 32, 32), {}),
}
LIKE = {"iresnet34": "iresnet18", "iresnet50": "iresnet18", "iresnet100": "iresnet18", "mbf-large": "mbf"}
LIKE |= {"sphere64": "sphere20", "swin": "swin-mini"}
"""Deeper ones of the same layers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = tiny.table(data=DATA, model=MODEL, rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        path = tmp_path_factory.mktemp("run") / "first"
        fedra.run(table, out=path)
    return path


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_every_model_is_tried() -> None:
    assert SMALL.keys() | LIKE.keys() == set(MODELS)


@pytest.mark.parametrize("name", SMALL)
def test_every_model_gives_the_same_numbers_at_any_batch_size(name: str) -> None:
    shape, settings = SMALL[name]
    images = len(shape) == 3
    module = build(name, shape, 4, seed=1, **settings).eval()
    scale = (0.4,) * shape[0] if images else ()
    trained = TrainedModel(module, shape, images, scale, scale, ("a", "b", "c", "d"))
    graph = exporting._trace(ExportModule(trained, True, True).eval(), exporting._random_inputs(trained, 2, 0))
    told: list[int] = []
    differences = list(exporting._differences(graph, trained, Model(module), True, told.append))
    assert len(differences) == 4  # embeddings and logits at two sizes
    assert max(differences) < exporting.TOLERANCE
    assert told == [1, 1]


def test_a_run_is_exported_with_what_the_file_needs_to_say(folder: Path, tmp_path: Path) -> None:
    done = export(folder, tmp_path / "new" / "net.onnx", license="CC BY 4.0")
    assert done.embedding == 8
    net = session(done.file)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 20, 3), dtype=np.uint8)
    (found,) = net.run(None, {"images": images})
    wanted = torch.nn.functional.normalize(load_embedder(folder)(images), dim=1)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)
    about = net.get_modelmeta().custom_metadata_map
    assert about["fedra_version"] == fedra.__version__
    assert about["input_layout"] == "N,H,W,C"
    assert json.loads(about["input_shape"]) == [3, 16, 20]
    assert json.loads(about["mean"]) == [128 / 255]
    assert len(about["run_fingerprint"]) == 64
    assert net.get_inputs()[0].type == "tensor(uint8)"
    assert [file.name for file in done.file.parent.iterdir() if "tmp" in file.name] == []


def test_raw_embeddings_and_logits(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "net.onnx", head=True, normalize=False)
    images = np.random.default_rng(1).integers(0, 256, (2, 16, 20, 3), dtype=np.uint8)
    embedding, logits = session(tmp_path / "net.onnx").run(["embedding", "logits"], {"images": images})
    np.testing.assert_allclose(embedding, load_embedder(folder)(images).numpy(), rtol=1e-3, atol=1e-4)
    assert logits.shape == (2, 3)
    assert "output | `logits`" in (tmp_path / "net.md").read_text()


@pytest.mark.usefixtures("without_curves")
def test_a_run_on_vectors_is_exported_too(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(rounds=1), out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "net.onnx", head=True)
    rows = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    (logits,) = session(tmp_path / "net.onnx").run(["logits"], {"inputs": rows})
    with torch.no_grad():
        np.testing.assert_allclose(logits, result.model.eval()(torch.from_numpy(rows)).numpy(), atol=1e-5)


def test_the_card_tells_where_the_model_comes_from(folder: Path, tmp_path: Path) -> None:
    (folder / "eval-lfw.json").write_text(
        json.dumps({"data": "lfw", "protocols": {"verification": {"table": {"accuracy": "91.00%"}, "metrics": {}}}})
    )
    try:
        card = export(folder, tmp_path / "net.onnx", license="CC BY 4.0").card.read_text()
    finally:
        (folder / "eval-lfw.json").unlink()
    assert "| license of the weights | CC BY 4.0 |" in card
    assert "## Evaluation: verification on lfw\n\n| metric |  |\n| --- | --- |\n| accuracy | 91.00% |" in card
    assert "The data set `synthetic`, partitioned over 4 clients by `quantity`" in card
    assert "accuracy, last" in card
    code = card.rpartition("```python\n")[2].partition("```")[0].replace("net.onnx", str(tmp_path / "net.onnx"))
    exec(compile(code, "card", "exec"), {})


@pytest.mark.usefixtures("without_curves")
def test_the_card_names_no_folder_of_the_machine(folder: Path, tmp_path: Path) -> None:
    model = {**MODEL, "weights": str(folder / "model.safetensors")}
    fedra.run(tiny.table(data=DATA, model=model, rounds=1), out=tmp_path / "run")
    card = export(tmp_path / "run", tmp_path / "net.onnx").card.read_text()
    assert str(folder) not in card
    assert "initial weights | `model.safetensors`" in card


def test_a_graph_that_differs_is_not_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = TrainedModel.transform.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(TrainedModel, "transform", property(lambda self: fedra.data.Transform(None, None)))
    with pytest.raises(FedraError, match=r"must be within 0\.0001 of PyTorch, got .*nothing was written"):
        export(folder, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(TrainedModel, "transform", property(true))
    assert export(folder, tmp_path / "net.onnx").difference < 1e-4


def test_the_file_is_sound_and_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    first, second = (export(folder, tmp_path / name).file for name in ("a.onnx", "b.onnx"))
    onnx.checker.check_model(onnx.load(first), full_check=True)
    assert first.read_bytes() == second.read_bytes()


def test_the_command_exports(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = tiny.call(capsys, "export", folder, tmp_path / "net.onnx", "--raw")
    assert code == 0
    assert "8-dimensional embeddings, within " in told.replace("\n", " ")
    assert (tmp_path / "net.md").exists()
    assert "already exists: choose another name, or overwrite it with --force" in tiny.mistake(
        capsys, "export", folder, tmp_path / "net.onnx"
    )
    assert tiny.call(capsys, "export", folder, tmp_path / "net.onnx", "--force")[0] == 0


def test_a_weight_file_is_exported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, network = tmp_path / "net.pt", "mobilefacenet-tiny:embedding=8"
    module = build("mobilefacenet-tiny", (3, 48, 32), 4, seed=3, embedding=8)
    torch.save(module.state_dict(), weights)
    words = ["export", weights, tmp_path / "net.onnx"]
    assert "network (--network) must be set for the weight file" in tiny.mistake(capsys, *words)
    words += ["--network", network, "--input", "48x32"]
    assert "--head (head=True) needs a run" in tiny.mistake(capsys, *words, "--head")
    code, shown, _ = tiny.call(capsys, *words, "--license", "MIT")
    assert code == 0
    assert "8-dimensional embeddings" in shown
    images = torch.randint(0, 256, (2, 3, 48, 32), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    found = session.run(["embedding"], {"images": images.permute(0, 2, 3, 1).numpy()})[0]
    wanted = load_embedder_weights(weights, "mobilefacenet-tiny", shape=(3, 48, 32), embedding=8)(images)
    assert found == pytest.approx(torch.nn.functional.normalize(wanted, dim=1).numpy(), abs=1e-4)
    card = (tmp_path / "net.md").read_text()
    assert all(text in card for text in ("`net.pt`", network, "48x32, RGB", "| license of the weights | MIT |"))
    assert str(tmp_path) not in card
    with pytest.raises(ConfigError, match="only for a weight file, got the run in"):
        export(tmp_path, tmp_path / "other.onnx", network=network)


def test_mistakes_are_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "must end in .onnx" in tiny.mistake(capsys, "export", folder, tmp_path / "net.pt")
    assert "must contain a run" in tiny.mistake(capsys, "export", tmp_path, tmp_path / "net.onnx")
    (folder / "eval-own.json").write_text("{}")
    try:
        with pytest.raises(FedraError, match=r"eval-own\.json' must be a file of `fedra eval`"):
            export(folder, tmp_path / "net.onnx")
    finally:
        (folder / "eval-own.json").unlink()
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        ConfigError, match=r"export needs the package onnx, which is not installed: pip install 'fedra\[onnx\]'"
    ):
        export(folder, tmp_path / "net.onnx")


@pytest.mark.usefixtures("without_curves")
def test_models_without_an_answer_of_their_own_are_refused(tmp_path: Path) -> None:
    data = {**DATA, "shape": [3, 16, 16]}
    fedra.run(tiny.table(data=data, model={"name": "resnet18", "width": 8}, rounds=1), out=tmp_path / "batch")
    with pytest.raises(ConfigError, match="must normalize each example independently"):
        export(tmp_path / "batch", tmp_path / "net.onnx")
    private = {"name": "fedavg", "plus": [{"name": "sharing", "private": ["head."]}]}
    fedra.run(tiny.table(rounds=1, algorithm=private), out=tmp_path / "private")
    with pytest.raises(ConfigError, match="--head needs a shared head"):
        export(tmp_path / "private", tmp_path / "net.onnx", head=True)
