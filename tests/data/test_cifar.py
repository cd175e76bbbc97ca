from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedra.data import load
from fedra.errors import ConfigError, DataError

RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (12, 3072), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10
FINE = np.arange(12, dtype=np.uint8) * 8
COARSE = np.arange(12, dtype=np.uint8)


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes as Python 2 wrote its strings, as the official files have them."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) is bytes and len(obj) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(obj)]) + obj)
        elif type(obj) is bytes:
            self.write(pickle.BINSTRING + len(obj).to_bytes(4, "little") + obj)
        else:
            super().save(obj, save_persistent_id)


def pickled(batch: dict[bytes, Any]) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(batch)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def ten_files(*, python: bool) -> dict[str, bytes]:
    files = {}
    for number in range(6):
        rows = slice(2 * number, 2 * number + 2)
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        if python:
            files[name] = pickled({b"data": PIXELS[rows], b"labels": LABELS[rows].tolist()})
        else:
            files[f"{name}.bin"] = np.column_stack([LABELS[rows], PIXELS[rows]]).tobytes()
    return files


def hundred_files(*, python: bool) -> dict[str, bytes]:
    parts = {"train": slice(0, 9), "test": slice(9, 12)}
    if python:
        return {
            name: pickled(
                {b"data": PIXELS[rows], b"fine_labels": FINE[rows].tolist(), b"coarse_labels": COARSE[rows].tolist()}
            )
            for name, rows in parts.items()
        }
    return {
        f"{name}.bin": np.column_stack([COARSE[rows], FINE[rows], PIXELS[rows]]).tobytes()
        for name, rows in parts.items()
    }


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_archive(path: Path, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**files, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("python", [False, True])
def test_cifar10_reads_back_exactly(tmp_path: Path, python: bool, archived: bool) -> None:
    folder = "cifar-10-batches-py" if python else "cifar-10-batches-bin"
    if archived:
        name = "cifar-10-python.tar.gz" if python else "cifar-10-binary.tar.gz"
        write_archive(tmp_path / name, folder, ten_files(python=python))
    else:
        write_folder(tmp_path / folder, ten_files(python=python))
    for _ in range(2):  # decoded, then from the cache
        dataset = load("cifar10", root=tmp_path)
        assert torch.equal(dataset.train.inputs, torch.from_numpy(PIXELS[:10].reshape(-1, 3, 32, 32)))
        assert torch.equal(dataset.test.inputs, torch.from_numpy(PIXELS[10:].reshape(-1, 3, 32, 32)))
        assert dataset.train.targets.tolist() == LABELS[:10].tolist()
        assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.classes[3] == "cat"
    assert dataset.augment == ("crop", "flip", "cutout")


@pytest.mark.parametrize("python", [False, True])
def test_cifar100_fine_and_coarse(tmp_path: Path, python: bool) -> None:
    folder = "cifar-100-python" if python else "cifar-100-binary"
    write_folder(tmp_path / folder, hundred_files(python=python))
    fine = load("cifar100", root=tmp_path)
    coarse = load("cifar100", root=tmp_path, labels="coarse")
    assert fine.train.targets.tolist() == FINE[:9].tolist()
    assert coarse.test.targets.tolist() == COARSE[9:].tolist()
    assert torch.equal(fine.train.inputs, torch.from_numpy(PIXELS[:9].reshape(-1, 3, 32, 32)))
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    assert fine.classes[-1] == "worm"
    assert coarse.classes[0] == "aquatic_mammals"


def test_blank_coarse_labels_are_refused(tmp_path: Path) -> None:
    files = {name: np.column_stack([COARSE * 0, FINE, PIXELS]).tobytes() for name in ("train.bin", "test.bin")}
    write_folder(tmp_path / "cifar-100-binary", files)
    assert len(load("cifar100", root=tmp_path).train) == 12
    with pytest.raises(DataError, match="cifar-100-binary must contain valid coarse labels"):
        load("cifar100", root=tmp_path, labels="coarse")


def test_an_unknown_kind_of_label(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'labels' of the data set 'cifar100' must be .*, got 'medium'"):
        load("cifar100", root=tmp_path, labels="medium")


class Hostile:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-10-batches-py", ten_files(python=True))
    victim = tmp_path / "owned"
    file = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps([Hostile(victim)], protocol=protocol))
        with pytest.raises(DataError, match=r"data_batch_3 .*asks for \w+\.mkdir"):
            load("cifar10", root=tmp_path)
    assert not victim.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.core.multiarray.fromfile"])
def test_no_other_name_is_admitted(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / "cifar-10-batches-py", ten_files(python=True))
    module, _, attribute = name.rpartition(".")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match=f"test_batch .*asks for {name}"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickled({b"labels": [1]}),
        pickled({b"data": PIXELS[:, :5], b"labels": [0] * 12}),
        pickled({b"data": PIXELS.astype(np.float32), b"labels": [0] * 12}),
        pickled({b"data": PIXELS, b"labels": ["a"] * 12}),
        pickled({b"data": PIXELS, b"labels": [300] * 12}),
        pickled({b"data": PIXELS, b"labels": [0] * 12})[:-100],
    ],
)
def test_damaged_pickles_are_named(tmp_path: Path, content: bytes) -> None:
    write_folder(tmp_path / "cifar-10-batches-py", {**ten_files(python=True), "data_batch_2": content})
    with pytest.raises(DataError, match="data_batch_2"):
        load("cifar10", root=tmp_path)


def test_damaged_binaries_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_folder(folder, ten_files(python=False))
    (folder / "data_batch_4.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(DataError, match=r"data_batch_4.bin must have a multiple of 3073 bytes .* got 3074"):
        load("cifar10", root=tmp_path)
    (folder / "data_batch_4.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(DataError, match=r"cifar-10-batches-bin must have labels between 0 and 9, got 11"):
        load("cifar10", root=tmp_path)
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin does not exist"):
        load("cifar10", root=tmp_path)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    files = ten_files(python=False)
    write_archive(archive, "cifar-10-batches-bin", files)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is damaged"):
        load("cifar10", root=tmp_path)
    del files["test_batch.bin"]
    write_archive(archive, "cifar-10-batches-bin", files)
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz must contain cifar-10-batches-bin/test_batch"):
        load("cifar10", root=tmp_path)


def test_the_real_cifar10(real_data: Path) -> None:
    dataset = load("cifar10", root=real_data)
    assert dataset.train.targets.bincount().tolist() == [5000] * 10
    means = dataset.train.inputs.double().mean(dim=(0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)


def test_the_real_cifar100(real_data: Path) -> None:
    dataset = load("cifar100", root=real_data)
    counts = dataset.train.targets.bincount(minlength=100)
    assert (counts == counts[0]).all()
    assert dataset.shape == (3, 32, 32)
