"""The data set `npz`: names of arrays, whole files, and files made to do harm."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedra.data import Dataset, load
from fedra.errors import DataError, FedraError
from tiny import call

PIXELS = np.arange(30 * 6 * 5, dtype=np.uint8).reshape(30, 6, 5)
LABELS = (np.arange(30) % 5 == 0).astype(np.uint8)[:, None]
WHOLE = {"x_train": PIXELS[:20], "y_train": LABELS[:20], "x_test": PIXELS[20:], "y_test": LABELS[20:]}


def write(folder: Path, arrays: dict[str, Any], name: str = "own.npz") -> Path:
    np.savez_compressed(folder / name, **arrays)
    return folder / name


def read(path: Path, **fields: Any) -> Dataset:
    return load("npz", root="nowhere", path=path, **fields)


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "Y_train", "X_test", "Y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train_x", "train_y", "test_x", "test_y"),
        ("images", "labels", "test_images", "test_labels"),
    ],
)
def test_the_usual_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = read(write(tmp_path, dict(zip(names, WHOLE.values(), strict=True))))
    assert found.name == "own.npz"
    assert torch.equal(found.train.inputs, torch.tensor(PIXELS[:20, None]))
    assert torch.equal(found.test.targets, torch.tensor(LABELS[20:, 0]).long())
    assert found.classes == ("0", "1")
    assert found.groups is None


def test_fields_name_other_arrays(tmp_path: Path) -> None:
    arrays = {"a": PIXELS[:20], "b": LABELS[:20], "x": PIXELS[20:], "y": LABELS[20:], "who": np.arange(20) % 3}
    path = write(tmp_path, {**arrays, "words": np.array(["ill", "well"])})
    found = read(path, train_x="a", train_y="b", test_x="x", test_y="y", groups="who", classes="words")
    assert (len(found.train), len(found.test), found.classes) == (20, 10, ("ill", "well"))
    assert found.group_names == ("0", "1", "2")
    assert read(path, classes=["no", "yes"]).classes == ("no", "yes")
    with pytest.raises(DataError, match=r"own.npz' does not contain the array 'aa': did you mean 'a'"):
        read(path, train_x="aa", train_y="b")


def test_owners_and_class_names_are_found(tmp_path: Path) -> None:
    hospitals = np.array(["north", "south"])[np.arange(20) % 2]
    found = read(write(tmp_path, {**WHOLE, "hospital": hospitals, "class_names": np.array(["no", "yes"])}))
    assert found.classes == ("no", "yes")
    assert found.group_names == ("north", "south")
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1] * 10


def test_a_validation_part_is_trained_on_unless_told(tmp_path: Path) -> None:
    arrays = {**WHOLE, "val_images": PIXELS[:7], "val_labels": LABELS[:7]}
    path = write(tmp_path, arrays)
    assert len(read(path).train) == 27
    assert len(read(path, use_validation=False).train) == 20
    path = write(tmp_path, {**arrays, "client": np.arange(20) % 2})
    with pytest.raises(DataError, match=r"groups for its validation examples.*: set data.use_validation = false"):
        read(path)
    assert read(path, use_validation=False).group_names == ("0", "1")


def test_without_a_test_part_a_share_is_held_out(tmp_path: Path) -> None:
    found = read(write(tmp_path, {"features": PIXELS.reshape(30, -1) / 255, "targets": LABELS}), test_fraction=0.5)
    assert (len(found.train), len(found.test), found.shape) == (15, 15, (30,))
    assert found.train.inputs.dtype == torch.float32


def test_the_path_is_relative_to_here_or_to_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    write(tmp_path / "root", WHOLE, "there.npz")
    write(tmp_path, WHOLE, "here.npz")
    monkeypatch.chdir(tmp_path)
    for name in ("here.npz", "there.npz", "root/there.npz"):
        assert len(load("npz", root="root", path=name).train) == 20


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"pictures": PIXELS}, "must contain an array for train_x, got pictures"),
        ({"x_train": PIXELS}, "must contain an array for train_y, got x_train"),
        ({**WHOLE, "train_images": PIXELS}, "got x_train and train_images: set data.train_x"),
        ({**WHOLE, "val_images": PIXELS}, "both validation inputs and labels or neither"),
        ({**WHOLE, "x_val": PIXELS[:, :3], "y_val": LABELS}, "validation arrays like the training arrays"),
        ({**WHOLE, "y_train": LABELS[:5]}, "as many rows in train_x as in train_y, got 20 and 5"),
        ({**WHOLE, "groups": np.arange(7)}, "one group per training example \\(20\\), got 7"),
        ({**WHOLE, "x_test": PIXELS[20:] / np.nan}, "finite"),
        (
            {**WHOLE, "y_train": np.array([None] * 20)},
            "'y_train' in .*own.npz' must contain numbers or strings .* got object",
        ),
        ({**WHOLE, "y_train": np.zeros(20, [("a", int)])}, "no records"),
        ({}, "an array for train_x, got none"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unfit_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        read(write(tmp_path, arrays))


def header(shape: str, kind: str = "|u1", version: int = 1) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def hostile(folder: Path, member: bytes, **changes: int) -> Path:
    path = write(folder, WHOLE)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", member)
        packed = io.BytesIO()
        np.save(packed, LABELS[:20])
        archive.writestr("y_train.npy", packed.getvalue())
    return path


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (header("(1000000000000,)") + bytes(10), r"must contain 1,000,000,000,000 bytes of data, got 10"),
        (header("(1000000, 1000000)", "<f8") + bytes(10), "must contain 8,000,000,000,000 bytes of data, got 10"),
        (header("(5,)") + bytes(10), "must contain 5 bytes of data, got 10"),
        (header("(-1,)") + bytes(10), "without negative sizes|not a readable"),
        (header("(True,)") + bytes(1), "not a readable|at least one"),
        (header("(2,)", "|O") + b"cos\nsystem\n(S'touch pwned'\ntR.", "must contain numbers or strings .* got object"),
        (header("(2,)", version=2) + bytes(1), "must contain 2 bytes of data, got 1"),
        (header("__import__('os').abort()") + bytes(10), "not a readable"),
        (header("(" * 3000 + ")" * 3000), "not a readable"),
        (header("(9,)", "<M8[ns]") + bytes(72), "must contain numbers or strings"),
        (b"\x93NUMPY\x03\x00" + bytes(20), "must have the .npy format"),
        (b"\x93NUMPY", "not a readable"),
        (b"", "not a readable"),
        (bytes(300), "not a readable"),
    ],
)
def test_hostile_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: bytes, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=told):
        read(hostile(tmp_path, member))
    assert not Path("pwned").exists()


def test_a_size_in_the_directory_is_not_believed(tmp_path: Path) -> None:
    """A member that claims 900 GB of zeros in a few bytes, as its header does, is refused before any is allocated."""
    size = 900 * 10**9
    path = hostile(tmp_path, header(f"({size - 128},)").ljust(128, b" "))
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"must fit into its file of .* bytes, but its header says 4,294,967,294 bytes"):
        read(path)


def test_other_files_are_no_npz(tmp_path: Path) -> None:
    for content in (b"", b"PK", b"<html>", np.arange(9).tobytes()):
        (tmp_path / "own.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"not a readable .npz file"):
            read(tmp_path / "own.npz")
    for path in (tmp_path, tmp_path / "none.npz", Path("/dev/zero")):
        with pytest.raises(DataError, match="does not exist"):
            read(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_files_are_read_or_refused(tmp_path: Path, places: list[tuple[int, int]]) -> None:
    content = bytearray(write(tmp_path, WHOLE).read_bytes())
    for place, value in places:
        content[place % len(content)] = value
    (tmp_path / "damaged.npz").write_bytes(bytes(content))
    try:
        found = read(tmp_path / "damaged.npz")
    except FedraError:
        return
    assert len(found.train)


def test_an_imbalanced_binary_file_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rng = np.random.RandomState(0)
    labels = (rng.rand(200) < 0.1).astype(np.int64)[:, None]
    pixels = (rng.rand(200, 8, 8, 3) * 100 + 100 * labels[:, :, None, None]).astype(np.uint8)
    names = np.array(["St. Mary", "[bold]"])[np.arange(200) % 2]
    write(tmp_path, {"x_train": pixels, "y_train": labels, "hospital": names}, "x.npz")
    Path("c.toml").write_text(
        "rounds = 6\ndata = { name = 'npz', path = 'x.npz' }\npartition = 'natural'\nmodel = 'logistic'\n"
        "local = { lr = 0.1, epochs = 2 }\nrunner = 'sequential'\n"
    )
    code, shown, told = call(capsys, "run", "c.toml")
    assert code == 0, told
    assert "everything is in runs/c" in shown
    code, shown, _ = call(capsys, "split", "c.toml")
    assert code == 0
    assert "│ St. Mary │" in shown
    assert "│ [bold]   │" in shown
