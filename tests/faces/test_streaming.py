"""Streamed faces: the bits of the in-memory reader on every runner, files opened by workers, and bounded memory."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_face_files import casia, header, picture, write_records

import fedra
from fedra.config.schema import Config
from fedra.core.deferred import DeferredInputs
from fedra.data import load, streaming
from fedra.data.dataset import Dataset
from fedra.errors import DataError
from fedra.experiment.build import build
from fedra.runners.packing import pack

COUNTS = [5, 9, 4, 7, 6, 8]


def jpeg(draw: np.random.Generator, size: tuple[int, int] = (40, 36)) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)).save(packed, "JPEG", quality=90)
    return packed.getvalue()


def write_folder(folder: Path, counts: list[int], size: tuple[int, int] = (40, 36)) -> Path:
    draw = np.random.default_rng(3)
    for person, count in enumerate(counts):
        (folder / f"person{person}").mkdir(parents=True)
        for number in range(count):
            (folder / f"person{person}" / f"{number}.jpg").write_bytes(jpeg(draw, size))
    return folder


def write_bin(path: Path) -> None:
    path.write_bytes(pickle.dumps(([picture()[1] for _ in range(6)], [True, False, True])))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record set, a folder of JPEGs, CelebA's files, and what they are verified on."""
    base = tmp_path_factory.mktemp("data")
    casia(base / "casia", COUNTS)
    write_folder(base / "people", COUNTS)
    write_folder(base / "others", [3, 3], (32, 32))
    for number, person in enumerate(("others0", "others1")):  # names that are not in the training data
        (base / "others" / f"person{number}").rename(base / "others" / person)
    write_bin(base / "casia" / "pairs.bin")
    return base


SETS: dict[str, dict[str, Any]] = {
    "records": {"name": "record-faces", "path": "casia", "size": 32},
    "records and .bin": {"name": "record-faces", "path": "casia", "size": 32, "verify": "casia/pairs.bin"},
    "folder": {"name": "faces", "folders": ["people"], "size": 32},
    "folder, narrow": {"name": "faces", "folders": ["people"], "size": 36, "width": 32, "most": 4},
    "folder and folder": {"name": "faces", "folders": ["people"], "size": 32, "verify": "others"},
    "unseen people": {"name": "faces", "folders": ["people"], "size": 32, "test_identities": 2, "pairs": 6},
}


def both(root: Path, kind: str) -> tuple[Dataset, Dataset]:
    settings = {"root": root, "test_fraction": 0.3, **SETS[kind]}
    name = settings.pop("name")
    return load(name, **settings), load(name, **settings, stream=True)


@pytest.mark.parametrize("kind", SETS)
def test_streamed_sets_equal_those_in_memory(root: Path, kind: str) -> None:
    held, streamed = both(root, kind)
    for own, other in ((held.train, streamed.train), (held.test, streamed.test)):
        assert isinstance(other.inputs, DeferredInputs)
        assert not isinstance(own.inputs, DeferredInputs)
        assert other.inputs.shape == own.inputs.shape
        assert torch.equal(other.inputs.cpu(), own.inputs)
        assert torch.equal(other.targets, own.targets)
    assert torch.equal(streamed.known_test.inputs.cpu(), held.known_test.inputs)
    assert (streamed.classes, streamed.shape) == (held.classes, held.shape)
    if held.pairs is not None and streamed.pairs is not None:
        assert torch.equal(streamed.pairs.second, held.pairs.second)
    draw = np.random.default_rng(0)
    rows = torch.from_numpy(draw.permutation(len(held.train)))
    chosen = streamed.train.inputs[rows]
    assert isinstance(chosen, DeferredInputs)
    assert torch.equal(chosen.cpu(), held.train.inputs[rows])
    assert torch.equal(chosen.source.read(chosen.rows, threads=3), held.train.inputs[rows])


def work(data: dict[str, Any], runner: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "rounds": 2,
        "data": {**data, "test_fraction": 0.3},
        "partition": {"name": "iid", "clients": 3, "seed": 1},
        "model": {"name": "mlp"},
        "local": {"epochs": 1, "batch": 4, "lr": 0.01},
        "algorithm": {"name": "fedavg"},
        "runner": runner,
        **others,
    }


def trained(config: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[Any]]:
    result = fedra.run(config)
    return result.model.state_dict(), [(row.get("accuracy"), row.get("loss")) for row in result.metrics]


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequential": ({"name": "sequential"}, {}),
    "several epochs": ({"name": "sequential"}, {"local": {"epochs": 3, "batch": 4, "lr": 0.01}}),
    "stacked": ({"name": "stacked"}, {}),
    "processes": ({"name": "processes", "workers": 2, "start_method": "fork"}, {}),
    "centralized": ({"name": "auto", "threads": 1}, {"mode": "centralized"}),
    "validation": ({"name": "sequential"}, {"evaluation": {"validation": 0.2}}),
    "teachers": ({"name": "sequential"}, {"algorithm": {"name": "fedntd"}}),
    "own classes": (
        {"name": "sequential"},
        {"algorithm": {"name": "fedpe"}, "partition": {"name": "identity", "clients": 3, "seed": 1}},
    ),
}


@pytest.mark.trains
@pytest.mark.parametrize(("kind", "augment"), [("records", "none"), ("folder", "paper")])
@pytest.mark.parametrize("run", RUNS)
def test_training_gives_the_same_bits(
    root: Path, monkeypatch: pytest.MonkeyPatch, run: str, kind: str, augment: str
) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(root))
    runner, others = RUNS[run]
    data = {**SETS[kind], "augment": augment}
    held = trained(work(data, runner, **others))
    streamed = trained(work({**data, "stream": True}, runner, **others))
    assert streamed[1] == held[1]
    assert held[0].keys() == streamed[0].keys()
    assert all(torch.equal(value, streamed[0][name]) for name, value in held[0].items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves files and processes to the garbage collector
@pytest.mark.parametrize(
    "runner", [{"name": "processes", "workers": 2, "start_method": "spawn"}, {"name": "ray", "workers": 2, "stack": 1}]
)
def test_workers_of_other_processes_give_the_same_bits(
    root: Path, monkeypatch: pytest.MonkeyPatch, runner: dict[str, Any]
) -> None:
    if runner["name"] == "ray":
        pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    monkeypatch.setenv("FEDRA_DATA", str(root))
    monkeypatch.chdir(root)  # workers open the files by absolute paths
    for kind in ("records", "folder"):
        held = trained(work(SETS[kind], {"name": "sequential"}))
        streamed = trained(work({**SETS[kind], "stream": True}, runner))
        gc.collect()
        assert streamed[1] == held[1]
        assert all(torch.equal(value, streamed[0][name]) for name, value in held[0].items())


def test_sets_larger_than_half_of_memory_are_streamed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(COUNTS) * 3 * 32 * 32
    monkeypatch.setattr(streaming, "physical_memory", lambda: 2 * needed)
    assert not isinstance(load("record-faces", root=root, path="casia", size=32).train.inputs, DeferredInputs)
    monkeypatch.setattr(streaming, "physical_memory", lambda: 2 * needed - 1)
    for kind in ("records", "folder"):
        settings = dict(SETS[kind])
        found = load(settings.pop("name"), root=root, **settings)
        assert isinstance(found.train.inputs, DeferredInputs)
        assert "39 images of 32 x 32 take 0.0 GB decoded, more than half of" in found.notes["streamed"]
        refused = load(SETS[kind]["name"], root=root, **settings, stream=False)
        assert not isinstance(refused.train.inputs, DeferredInputs)


def test_what_no_machine_can_hold_is_not_read_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = load("record-faces", root=root, path="casia", size=32, stream=True).train.inputs
    monkeypatch.setattr(streaming, "physical_memory", lambda: 10 * 3 * 32 * 32)
    assert len(inputs[:10].cpu()) == 10
    with pytest.raises(DataError, match=r"read at once must fit into memory .* got 11, which"):
        inputs[:11].cpu()


def test_faulty_files_are_left_out_as_in_memory(tmp_path: Path) -> None:
    write_folder(tmp_path / "people", [3, 4])
    (tmp_path / "people" / "person0" / "1.jpg").write_bytes(b"no image")
    copy = (tmp_path / "people" / "person1" / "2.jpg").read_bytes()
    (tmp_path / "people" / "person1" / "3.jpg").write_bytes(copy)
    settings: dict[str, Any] = {"root": tmp_path, "folders": ["people"], "size": 32, "test_fraction": 0.4}
    with pytest.raises(DataError, match=r"2 images are unusable.*1.jpg.*3.jpg .a copy of"):
        load("faces", **settings, stream=True)
    held, streamed = (load("faces", **settings, faults="skip", stream=stream) for stream in (False, True))
    assert len(held.train) + len(held.test) == 5
    assert torch.equal(streamed.train.inputs.cpu(), held.train.inputs)
    assert streamed.notes["left out"] == held.notes["left out"]


def test_files_that_change_or_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    casia(tmp_path / "casia", [3, 3])
    records = load("record-faces", root=tmp_path, path="casia", size=32, stream=True, test_fraction=0.4).train.inputs
    rec = tmp_path / "casia" / "train.rec"
    whole = rec.read_bytes()
    for other in (whole + b"\0\0\0\0", b""):
        rec.write_bytes(other)
        with pytest.raises(DataError, match=rf"must have {len(whole)} bytes, as when .* listed, got {len(other)} on"):
            records[:2].cpu()
    rec.unlink()
    with pytest.raises(DataError, match=r"must stay where they are, on every machine that trains, but .* cannot read"):
        records[:2].cpu()
    write_folder(tmp_path / "people", [3, 3])
    faces = load("faces", root=tmp_path, folders=["people"], size=32, stream=True, test_fraction=0.4).train.inputs
    for file in (tmp_path / "people" / "person0").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"must stay where they are.*person0.\d.jpg: No such file"):
        faces[:2].cpu()
    write_records(tmp_path / "bad", {1: header(0) + b"no image", 2: header(0) + picture()[1]})
    bad = load("record-faces", root=tmp_path, path="bad", size=32, stream=True, test_fraction=0.5)
    with pytest.raises(DataError, match=r"train.rec: record 1 cannot be decoded \(it is not an image file\)"):
        torch.cat([bad.train.inputs, bad.test.inputs]).cpu()


def test_the_index_is_read_from_the_cache_until_the_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedra.faces.datasets import packed_faces

    casia(tmp_path / "casia", [3, 2])
    settings: dict[str, Any] = {"root": tmp_path, "path": "casia", "size": 32, "stream": True, "test_fraction": 0.4}
    first = load("record-faces", **settings)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the records were listed again")

    with monkeypatch.context() as patched:
        patched.setattr(packed_faces, "record_people", refuse)
        again = load("record-faces", **settings)
    assert torch.equal(again.train.inputs.cpu(), first.train.inputs.cpu())
    pixels = casia(tmp_path / "casia", [3, 3, 4])
    changed = load("record-faces", **settings)
    both = torch.cat([changed.train.inputs, changed.test.inputs]).cpu().numpy()
    assert {image.tobytes() for image in both} == {image.tobytes() for image in pixels}


FEDERATED = ("sequential", "processes")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,400 small JPEGs of 12 people, 472 MB if they are decoded to 256 x 256."""
    base = tmp_path_factory.mktemp("large")
    draw = np.random.default_rng(5)
    contents = [jpeg(draw, (24, 24)) for _ in range(60)]
    write_records(base / "casia", {key: header(key % 12) + contents[key % 60] for key in range(2400)})
    if sys.platform != "linux" or limited(base, False, "sequential") != "no memory":
        pytest.skip("this system does not limit the memory of a process: 472 MB of images fitted into 420 MB")
    return base


def limited(root: Path, stream: bool, mode: str) -> str:
    """Train with 420 MB for data."""
    script = Path(__file__).with_name("limited_memory.py")
    command = [sys.executable, str(script), json.dumps([stream, mode, 420])]
    environment = {**os.environ, "FEDRA_DATA": str(root), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.split("\n")[-2]


@pytest.mark.parametrize("mode", ["centralized", *(pytest.param(m, marks=pytest.mark.slow) for m in FEDERATED)])
def test_more_images_than_memory(large: Path, mode: str) -> None:
    assert limited(large, True, mode) == "done"


@pytest.mark.parametrize("kind", ["records and .bin", "folder and folder"])
def test_no_pixels_are_sent_to_workers(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(root))
    data = {**SETS[kind], "stream": True}
    job = build(Config.model_validate(work(data, {"name": "sequential"}))).job
    sent = pack(replace(job, model=None), pickle.Pickler).arrays  # type: ignore[arg-type]
    names = sum(array.nbytes for array in sent if array.dtype == np.uint8)
    assert names <= (sum(COUNTS) * 300 if kind.startswith("folder") else 0)  # the paths of files, or nothing
