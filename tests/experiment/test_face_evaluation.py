"""`fedra eval`: protocols on embedded faces, sets by name and path, records and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.data.dataset import Pairs
from fedra.errors import ConfigError, DataError
from fedra.experiment.evaluate_model import check_protocols, evaluate_run_test
from fedra.experiment.evaluation_data import faces_of, read_faces
from fedra.faces.benchmarks.protocols import (
    FaceSet,
    client_verification,
    identification,
    open_identification,
    verification,
)
from fedra.models import build

FACES = {"name": "synthetic-faces", "identities": 6, "images": 10, "size": 32, "test_identities": 6}
MODEL = {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "group"}
LOCAL = {"batch": 10, "lr": 0.01}  # at a higher rate all cosines are above 0.999


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(data))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "faces"
    partition = {"name": "identity", "clients": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        patch.setenv("FEDRA_DATA", str(data))
        fedra.run(tiny.table(data=FACES, model=MODEL, local=LOCAL, partition=partition, rounds=1), out=out)
    return out


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("crops") / "my crops"
    draw = np.random.default_rng(0)
    for person in range(4):
        (base / f"p{person}").mkdir(parents=True)
        for number in range(4):
            Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
                base / f"p{person}" / f"{number}.png"
            )
    return base


def clear_faces(people: int = 6, images: int = 4) -> tuple[FaceSet, torch.Tensor]:
    """People far apart, whose embeddings tell them apart without a mistake."""
    who = torch.arange(people).repeat_interleave(images)
    noise = 0.01 * torch.randn(len(who), people, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(len(who))
    first = torch.cat([rows, rows])
    second = torch.cat([torch.where((rows + 1) % images == 0, rows - 1, rows + 1), rows.roll(images)])
    pairs = Pairs(first, second, who[first] == who[second], torch.zeros(len(first), dtype=torch.int64))
    pictures = torch.zeros(len(who), 3, 8, 8, dtype=torch.uint8)
    return FaceSet("clear", pictures, who, pairs), torch.eye(people)[who] + noise


def ignore_progress(count: int) -> None:
    pass


def test_verification_gives_the_figures_of_the_protocol() -> None:
    faces, features = clear_faces()
    assert faces.pairs is not None
    found = verification(faces, faces.pairs, features)
    assert found.metrics["accuracy"] == 1.0
    assert found.metrics["auroc"] == 1.0
    assert found.table["accuracy"] == "100.00% +- 0.00%"
    assert "TAR at FAR 0.1" in found.table
    assert "TAR at FAR 0.01" not in found.table  # 24 impostors cannot show it
    assert set(found.pictures) == {"roc.svg", "scores.svg", "errors.png"}


def test_identification_enrolls_the_first_image_of_everybody() -> None:
    faces, features = clear_faces()
    found = identification(faces, features, ignore_progress)
    assert (found.metrics["people"], found.metrics["probes"], found.metrics["rank_1"]) == (6, 18, 1.0)
    features[1] = features[4]  # a probe of the first person looks like the second
    assert identification(faces, features, ignore_progress).metrics["rank_1"] == pytest.approx(17 / 18)


def test_somebody_with_one_image_is_left_out_of_identification() -> None:
    faces, features = clear_faces()
    alone = FaceSet("alone", faces.images[3:], faces.people[3:], None)
    assert identification(alone, features[3:], ignore_progress).metrics["people"] == 5


def test_an_open_set_has_strangers() -> None:
    faces, features = clear_faces()
    found = open_identification(faces, features, 0, ignore_progress)
    assert (found.metrics["people"], found.metrics["mated"], found.metrics["non_mated"]) == (3, 9, 12)
    assert found.table["TPIR at FPIR 0.1"] == "100.00%"
    other = [open_identification(faces, torch.randn(24, 6), seed, ignore_progress).metrics for seed in (1, 1)]
    assert other[0]["people"] == other[1]["people"]


def test_clients_are_judged_each_and_pooled() -> None:
    faces, features = clear_faces(4, 3)
    train, probes = (features[::3], faces.people[::3]), (features[1::3], faces.people[1::3])
    found = client_verification({0: [0, 1], 1: [2, 3]}, train, probes)
    assert found.metrics["auroc_macro"] == 1.0
    pooled = found.metrics["pooled"]
    assert isinstance(pooled, dict)
    assert (pooled["genuine"], pooled["impostors"]) == (4, 12)
    assert found.table["clients"] == "2"
    with pytest.raises(DataError, match="at least one client must have held-out images of its people"):
        client_verification({0: [7]}, train, probes)


def test_a_run_is_judged_on_its_own_strangers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = tiny.call(capsys, "eval", folder)
    assert code == 0
    assert "verification on synthetic-faces (the run's test data)" in told
    record = json.loads((folder / "eval-test.json").read_text())["protocols"]["verification"]
    assert record["metrics"]["pairs"] == 540
    for name in ("roc.svg", "scores.svg", "errors.png"):
        assert (folder / f"eval-test-{name}").stat().st_size > 1000
    assert record["metrics"]["accuracy"] == pytest.approx(tiny.metrics(folder)[0]["accuracy"], abs=0.02)


def test_all_protocols_of_a_run_in_one_record(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        word
        for name in ("training-gallery", "identification", "open-set", "classification")
        for word in ("--protocol", name)
    ]
    code, told, _ = tiny.call(capsys, "eval", folder, *words, "--out", tmp_path, "--flip", "sum", "--json")
    assert code == 0
    protocols = json.loads(told)["protocols"]
    assert list(protocols) == ["classification", "identification", "open-set", "training-gallery"]
    assert protocols["classification"]["metrics"]["images"] == 6
    assert protocols["identification"]["metrics"]["people"] == 6  # strangers alone
    assert protocols["training-gallery"]["metrics"]["pooled"]["genuine"] == 6
    assert (tmp_path / "eval-test-cmc.svg").exists()


@pytest.mark.usefixtures("without_curves")
def test_a_classifier_is_judged_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fedra.run(tiny.table(rounds=2), out=tmp_path / "run")
    code, told, _ = tiny.call(capsys, "eval", tmp_path / "run")
    assert code == 0
    figures = json.loads((tmp_path / "run" / "eval-test.json").read_text())["protocols"]["classification"]["metrics"]
    assert figures["accuracy"] == pytest.approx(result.summary["final_accuracy"])
    assert figures["loss"] == pytest.approx(result.metrics[-1]["loss"], rel=1e-5)
    assert len(figures["class_accuracy"]) == 4
    assert all(name in told for name in figures["class_accuracy"])
    fedra.run(tiny.table(rounds=1), out=tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "eval-test.json").exists()  # it spoke of the model before


def test_a_folder_of_crops_and_a_weight_file(crops: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = build("mobilefacenet-tiny", (3, 32, 32), 3, seed=5, embedding=8)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "net.safetensors")
    words: list[str | Path] = ["--on", crops, "--network", "mobilefacenet-tiny:embedding=8", "--input", "32x32"]
    code, told, _ = tiny.call(capsys, "eval", tmp_path / "net.safetensors", *words, "--pairs", "40")
    assert code == 0, told
    record = json.loads((tmp_path / "eval-my-crops.json").read_text())
    assert record["protocols"]["verification"]["metrics"]["pairs"] == 40
    assert "classification" not in record["protocols"]
    told = tiny.mistake(capsys, "eval", tmp_path / "net.safetensors", *words[2:])
    assert "on must be set for a weight file, which has no test data of its own" in told


def test_sets_are_found_by_name_with_their_fields_and_at_the_size_of_the_model(crops: Path) -> None:
    found = read_faces("synthetic-faces:identities=2,images=4,test_identities=6", 32)
    assert tuple(found.images.shape) == (24, 3, 32, 32)
    assert found.pairs is not None
    assert int(found.pairs.first.max()) < 24
    assert read_faces("synthetic-faces:identities=2,images=4,test_identities=6,size=40", 32).images.shape[-1] == 40
    assert read_faces(str(crops), 40).images.shape[-1] == 40


def test_the_strangers_of_a_set_keep_their_pairs() -> None:
    from fedra.data import load

    dataset = load("synthetic-faces", **{key: value for key, value in FACES.items() if key != "name"})
    faces, pairs = faces_of(dataset, "some"), dataset.pairs
    assert faces.pairs is not None
    assert pairs is not None
    assert torch.equal(faces.images[faces.pairs.second], dataset.test.inputs[pairs.second])
    assert torch.equal(faces.people[faces.pairs.first] == faces.people[faces.pairs.second], pairs.same)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--protocol", "identificaton"], "unknown protocol 'identificaton': did you mean 'identification'?"),
        (["--flip", "both"], "flip must be a known mode, got 'both'"),
        (["--on", "somewhere", "--protocol", "clients"], "the protocol 'clients' needs the run's own data"),
    ],
)
def test_mistakes_of_the_command(
    folder: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in tiny.mistake(capsys, "eval", folder, *words)


def test_mistakes_of_data(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nowhere' must be a data set, or" in tiny.mistake(capsys, "eval", folder, "--on", "nowhere", code=1)
    assert "must contain a run" in tiny.mistake(capsys, "eval", tmp_path)
    file = folder / "model.safetensors"
    assert "network (--network) must be set for the weight file" in tiny.mistake(
        capsys, "eval", file, "--on", "synthetic-faces"
    )
    assert "must contain images" in tiny.mistake(capsys, "eval", folder, "--on", "synthetic:shape=[6]", code=1)
    assert check_protocols(["open-set", "verification"]) == ("verification", "open-set")


@pytest.mark.usefixtures("without_curves")
def test_people_with_several_clients_have_no_clients_of_their_own(tmp_path: Path) -> None:
    config: dict[str, Any] = tiny.table(
        data=FACES, model=MODEL, local=LOCAL, partition={"name": "iid", "clients": 2}, rounds=1
    )
    fedra.run(config, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="at clients 0 and 1"):
        evaluate_run_test(tmp_path / "run", ("training-gallery",))


def test_pairs_alone_and_single_images_cannot_be_identified() -> None:
    faces, features = clear_faces()
    with pytest.raises(DataError, match="lists pairs without identities"):
        identification(FaceSet("bin", faces.images, faces.people, faces.pairs, named=False), features, ignore_progress)
    with pytest.raises(DataError, match="identification needs a person with at least 2 images, got none in 'single'"):
        identification(FaceSet("single", faces.images, torch.arange(24), None), features, ignore_progress)
    with pytest.raises(DataError, match="open-set needs at least 2 people"):
        open_identification(FaceSet("one", faces.images[:5], faces.people[:5], None), features[:5], 0, ignore_progress)
