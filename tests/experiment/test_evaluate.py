"""`fedra.evaluate`: runs, modules and functions, on names, folders, data sets and tensors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

import fedra
import tiny
from fedra.errors import ConfigError
from fedra.experiment import evaluation_data
from fedra.experiment.evaluate_model import evaluate_run_test
from fedra.experiment.result import RunResult
from fedra.faces.photos.detection import Detection

pytestmark = pytest.mark.usefixtures("without_curves")

FACES = "synthetic-faces:identities=2,images=4,test_identities=8,size=32"
PAIRED = {"name": "synthetic-faces", "identities": 6, "images": 10, "size": 32, "test_fraction": 0.4}
MODEL = {"name": "mobilefacenet-tiny", "embedding": 8}


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path / "data"))


def shown() -> Console:
    return Console(file=io.StringIO(), width=250)


def text(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def pixels(images: Tensor) -> Tensor:
    return images.flatten(1)


class Plain(nn.Module):
    """A network of somebody else's, without body and head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16))
        self.norm = nn.BatchNorm1d(16)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.norm(self.net(images))
        return found


class Listed(torch.utils.data.Dataset[Any]):
    """A data set that is read by its rows."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.inputs[row], int(self.targets[row])


def colored(folder: Path, names: tuple[str, ...], size: tuple[int, int] = (32, 32), images: int = 4) -> Path:
    """A color for each name, with noise."""
    draw = np.random.default_rng(0)
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for image in range(images):
            noise = draw.integers(0, 40, (*size, 3))
            noise[..., number % 3] += 60 * (1 + number // 3)
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{image}.png")
    return folder


# Functions and modules.


def test_a_function_a_module_and_a_model_with_a_body_are_judged_alike() -> None:
    by_function = fedra.evaluate(pixels, on=FACES)
    by_module = fedra.evaluate(nn.Flatten(), on=FACES)
    by_body = fedra.evaluate(fedra.models.RecognitionModel(nn.Flatten(), nn.Linear(3072, 2)), on=FACES)
    accuracies = [report.metrics["verification"]["accuracy"] for report in (by_function, by_module, by_body)]
    assert accuracies[0] > 0.5
    assert accuracies == [accuracies[0]] * 3


def test_a_module_without_body_and_head_stays_as_it_was() -> None:
    module = Plain().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = fedra.evaluate(module, on=FACES, protocols=["verification", "identification"])
    assert set(report.metrics) == {"verification", "identification"}
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_report_prints_saves_and_is_short(tmp_path: Path) -> None:
    report = fedra.evaluate(pixels, on=FACES)
    console = shown()
    report.print(console)
    assert "AUROC" in text(console)
    assert repr(report).startswith("EvaluationReport('synthetic-faces:")
    assert len(repr(report)) < 250
    path = report.save(tmp_path / "new" / "folder")
    record = json.loads(path.read_text())
    assert record["protocols"]["verification"]["metrics"] == report.metrics["verification"]
    assert (path.parent / f"{path.stem}-roc.svg").exists()


def test_tensors_and_data_sets() -> None:
    dataset = fedra.data.load("synthetic-faces", identities=2, images=4, test_identities=8, size=32)
    named = fedra.evaluate(pixels, on=FACES).metrics["verification"]
    assert fedra.evaluate(pixels, on=dataset).metrics["verification"] == named
    strangers = dataset.test.targets >= 2
    images, people = dataset.test.inputs[strangers], dataset.test.targets[strangers]
    bytes_ = fedra.evaluate(pixels, on=(images, people), pairs=60).metrics["verification"]
    floats = fedra.evaluate(pixels, on=(images.float() / 127.5 - 1, people), pairs=60).metrics["verification"]
    assert bytes_["pairs"] == 60
    assert floats == bytes_
    for torch_set in (torch.utils.data.TensorDataset(images, people), Listed(images, people)):
        assert fedra.evaluate(pixels, on=torch_set, pairs=60).metrics["verification"] == bytes_


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (pixels, {}, "on must be set for a model without a run"),
        (7, {"on": FACES}, "a model must be a module or a function"),
        (
            lambda images: images,
            {"on": (torch.zeros(4, 3, 8, 8), torch.tensor([0, 0, 1]))},
            "one, got 4 and 3",
        ),
        (lambda images: images.mean(), {"on": FACES}, "with one embedding per image"),
        (lambda images: [1], {"on": FACES}, "with one embedding per image"),
        (pixels, {"on": FACES, "protocols": ["clients"]}, "'clients' needs the run's own data"),
        (pixels, {"on": FACES, "protocols": ["megaface"]}, "needs a MegaFace folder"),
        (pixels, {"on": FACES, "protocols": ["verify"]}, "unknown protocol 'verify'"),
        (pixels, {"on": FACES, "protocols": ["classification"]}, "needs a module that outputs logits"),
        (pixels, {"on": FACES, "detector": "yunet"}, "a detector needs a folder of photos"),
    ],
)
def test_mistakes_are_named(model: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedra.evaluate(model, **options)


def test_a_module_that_classifies() -> None:
    labels = torch.arange(20) % 2
    inputs = torch.stack([1.0 - labels, labels], dim=1).float()
    inputs[:3] = inputs[:3].flip(1)
    report = fedra.evaluate(nn.Identity(), on=(inputs, labels), protocols=["classification"], metrics=["f1", "auroc"])
    figures = report.metrics["classification"]
    assert figures["accuracy"] == pytest.approx(0.85)
    assert set(figures) >= {"f1", "auroc", "class_accuracy"}
    assert "confusion" not in figures
    only = fedra.evaluate(nn.Linear(2, 2), on=(inputs, labels), protocols=["classification"])
    assert sum(map(sum, only.metrics["classification"]["confusion"])) == 20


# Classifiers from runs.


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A run that tells colors apart."""
    source = colored(tmp_path / "train", ("blue", "green", "red"), images=20)
    data = {"name": "imagefolder", "path": str(source)}
    local = {"batch": 8, "lr": 0.05, "epochs": 4}
    model = {"name": "mlp", "hidden": [8]}
    table = tiny.table(data=data, model=model, partition={"name": "iid", "clients": 2}, local=local)
    fedra.run(table, out=tmp_path / "run")
    return tmp_path / "run"


def test_a_classifier_is_judged_on_another_set_by_the_names_of_its_classes(classifier: Path, tmp_path: Path) -> None:
    other = colored(tmp_path / "other hospital", ("blue", "green", "red", "violet"), (48, 40), images=6)
    console = shown()
    report = fedra.evaluate(classifier, on=other, console=console)
    assert list(report.outcomes) == ["classification"]
    assert report.metrics["classification"]["images"] == 18
    assert "the run was trained to classify" in text(console)
    assert "6 of 24 examples of 'other hospital' belong to other classes and are left out" in text(console)
    named = fedra.evaluate(classifier, on=f"imagefolder:path={other}", console=console)
    assert list(named.outcomes) == ["classification"]
    pair = (torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 2, 0]))
    assert fedra.evaluate(classifier, on=pair).metrics["classification"]["images"] == 4
    with pytest.raises(ConfigError, match="labels must be between 0 and 2, the model's classes, got 0 to 3"):
        fedra.evaluate(classifier, on=(pair[0], torch.tensor([0, 1, 2, 3])))


def test_classes_that_the_run_does_not_know_are_compared_and_that_is_said(classifier: Path, tmp_path: Path) -> None:
    people = colored(tmp_path / "people", ("ada", "eve", "bob"))
    console = shown()
    report = fedra.evaluate(classifier, on=people, console=console)
    assert list(report.outcomes) == ["verification"]
    assert "evaluated by verification (pairs of embeddings), because none of its 3 classes" in text(console)
    with pytest.raises(ConfigError, match=r"'people' must have a class of the model .*, got none among its 3 classes"):
        fedra.evaluate(classifier, on=people, protocols=["classification"])


def test_a_classifier_on_the_command_line(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = colored(tmp_path / "other", ("blue", "green", "red"), images=6)
    code, told, aside = tiny.call(capsys, "eval", classifier, "--on", other)
    assert code == 0, aside
    assert "classification on other" in told
    for word in ("balanced accuracy", "auroc", "precision", "blue"):
        assert word in told
    assert (classifier / "eval-other-confusion.svg").stat().st_size > 1000
    code, told, _ = tiny.call(capsys, "eval", classifier, "--on", other, "--metric", "mcc", "--json")
    figures = json.loads(told)["protocols"]["classification"]["metrics"]
    assert "mcc" in figures
    assert "auroc" not in figures


def test_the_result_of_a_run_is_a_model_too(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(rounds=1), out=tmp_path / "run")
    assert isinstance(result, RunResult)
    loose = fedra.run(tiny.table(rounds=1))
    data = fedra.data.load(**tiny.TINY["data"]).test
    on_tensors = fedra.evaluate(loose, on=(data.inputs, data.targets), protocols=["classification"])
    assert on_tensors.metrics["classification"]["accuracy"] == pytest.approx(result.summary["final_accuracy"])
    report = fedra.evaluate(result)
    assert report.metrics["classification"]["accuracy"] == pytest.approx(result.summary["final_accuracy"])


def test_a_model_with_one_answer_is_pointed_out(tmp_path: Path) -> None:
    module = nn.Linear(2, 3)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, 0.0)
    with torch.no_grad():
        module.bias[1] = 1.0
    console = shown()
    data = (torch.zeros(6, 2), torch.arange(6) % 3)
    report = fedra.evaluate(module, on=data, protocols=["classification"], console=console)
    assert "the model predicts class '1' for every test example" in text(console)
    assert report.metrics["classification"]["only_class"] == "1"


# Two tests of clients, each with a name of its own.


def test_clients_enrolled_by_held_out_or_by_training_images(tmp_path: Path) -> None:
    evaluation = {"protocol": "clients", "enroll": 2}
    partition = {"name": "identity", "clients": 3}
    table = tiny.table(data=PAIRED, model=MODEL, partition=partition, rounds=1, evaluation=evaluation)
    result = fedra.run(table, out=tmp_path / "run")
    found = evaluate_run_test(tmp_path / "run", ("clients", "training-gallery")).outcomes
    assert found["clients"].metrics["auroc"] == pytest.approx(result.metrics[-1]["auroc"], abs=1e-4)
    assert found["clients"].metrics["eer"] == pytest.approx(result.metrics[-1]["eer"], abs=1e-4)
    pooled = found["training-gallery"].metrics["pooled"]
    assert isinstance(pooled, dict)
    assert pooled["genuine"] == 6 * 4  # every held-out image


# Photographs that are no crops.


def test_images_of_another_size_are_pointed_out_and_crops_are_not(tmp_path: Path) -> None:
    photographs = colored(tmp_path / "photographs", ("ada", "eve"), (48, 64))
    console = shown()
    fedra.evaluate(pixels, on=photographs, size=(32, 32), console=console)
    assert "warning: 8 of 8 images are not 32x32 (most are 48x64) and were cropped to their central square" in text(
        console
    )
    assert "or use a detector" in text(console)
    again = shown()  # from the cache
    fedra.evaluate(pixels, on=photographs, size=(32, 32), console=again)
    assert "8 of 8 images are not 32x32" in text(again)
    crops, quiet = colored(tmp_path / "crops", ("ada", "eve")), shown()
    fedra.evaluate(pixels, on=crops, size=(32, 32), console=quiet)
    assert "were cut" not in text(quiet)


def test_crops_of_the_models_own_shape_are_taken_as_they_are(tmp_path: Path) -> None:
    crops, console, seen = colored(tmp_path / "crops", ("ada", "eve"), (32, 24)), shown(), []

    def look(images: Tensor) -> Tensor:
        seen.append(images)
        return images.flatten(1)

    fedra.evaluate(look, on=crops, size=(32, 24), prepare=lambda images: images.float(), console=console)
    assert "were cut" not in text(console)
    expected = np.asarray(Image.open(crops / "ada" / "0.png")).transpose(2, 0, 1)
    assert np.array_equal(seen[0][0].numpy(), expected)


def test_a_run_on_photographs_that_are_no_crops_says_so(tmp_path: Path) -> None:
    source = colored(tmp_path / "raw", ("ada", "eve", "bob"), (40, 60), images=6)
    data = {"name": "faces", "folders": [str(source)], "size": 32, "test_fraction": 0.2}
    for _ in range(2):  # from the files, then from the cache
        console = shown()
        table = tiny.table(data=data, model=MODEL, partition={"name": "iid", "clients": 2}, rounds=1)
        fedra.run(table, console=console)
        assert "warning: 18 of 18 images are not 32x32 (most are 40x60)" in text(console)


class Middle:
    """Finds a face in the middle of every photograph that is not black."""

    fingerprint = "middle"

    def __call__(self, image: np.ndarray[Any, Any]) -> list[Detection]:
        if image.max() == 0:
            return []
        height, width = image.shape[:2]
        template = np.array([[38.3, 51.7], [73.5, 51.5], [56.0, 71.7], [41.5, 92.4], [70.7, 92.2]]) / 112
        points = template * min(height, width)
        return [Detection(np.array([0.0, 0.0, width, height]), 1.0, points)]


def test_a_detector_aligns_photographs_and_leaves_out_those_without_a_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_data, "open_detector", lambda name: Middle())
    photographs = colored(tmp_path / "photographs", ("ada", "eve"), (48, 64))
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(photographs / "ada" / "9.png")
    console, seen = shown(), []

    def look(images: Tensor) -> Tensor:
        seen.append(images)
        return images.flatten(1)

    report = fedra.evaluate(look, on=photographs, size=(32, 32), detector="yunet", console=console)
    assert sum(map(len, seen)) == 8
    assert seen[0].shape[1:] == (3, 32, 32)
    assert "1 of 9 photos are skipped" in text(console)
    assert "no face was found" in text(console)
    assert "were cut" not in text(console)
    assert report.settings["detector"] == "yunet"
