"""Arrays in one .npz file as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedra.data.arrays import Layout, from_arrays
from fedra.data.dataset import Dataset
from fedra.data.images import under
from fedra.data.loading import DATASETS
from fedra.data.npz_files import names_in, read_arrays
from fedra.errors import DataError, nearest
from fedra.registry import FileName

INPUTS = ("x", "images", "inputs", "data", "features")
LABELS = ("y", "labels", "targets")
OWNERS = ("groups", "group", "clients", "client", "site", "hospital", "owner")
NAMES = ("classes", "class_names")


@DATASETS.add("npz")
def npz(
    root: Path,
    *,
    path: FileName,
    train_x: str | None = None,
    train_y: str | None = None,
    test_x: str | None = None,
    test_y: str | None = None,
    groups: str | None = None,
    classes: str | tuple[str, ...] | None = None,
    use_validation: bool = True,
    layout: Layout = "auto",
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> Dataset:
    """Your own arrays in one .npz file: x_train, y_train, x_test, y_test, and perhaps the client of each example.

    `path` is absolute, or relative to the data root or the current folder. Inputs are images of bytes (uint8) in NHWC,
    NCHW or NHW (`layout` says where channels are if that is not clear), or numbers of any shape; labels are whole
    numbers or texts, (N,) or (N, 1). The usual names are known, MedMNIST's too (train_images, train_labels, ...); the
    fields `train_x` to `test_y` name other arrays. `groups` names the array that says who owns each training example,
    for the partition natural; arrays called groups, client, site, hospital or owner are found. `classes` is a list of
    class names or the array that holds them. `use_validation` trains on a validation part too, if there is one. Without
    a test part `test_fraction` of every class is held out.
    """
    file = under(root, path)
    given = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
    known = names_in(file)
    roles = _roles(file, known, given, use_validation)
    owner = groups or _one(file, known, [f"{part}{name}" for name in OWNERS for part in ("", "train_")], "groups")
    named = classes or _one(file, known, NAMES, "classes")
    wanted = [*roles.values(), *(name for name in (owner, named) if isinstance(name, str))]
    for name in wanted:
        if name not in known:
            raise DataError(f"'{file}' has no array '{name}': {nearest(name, known)}")
    arrays = read_arrays(file, wanted)
    return from_arrays(
        _joined(file, roles, arrays, "x"),
        _joined(file, roles, arrays, "y"),
        arrays[roles["test_x"]] if "test_x" in roles else None,
        arrays[roles["test_y"]] if "test_y" in roles else None,
        groups=None if owner is None else _owners(file, roles, arrays, owner),
        classes=arrays[named].ravel().tolist() if isinstance(named, str) else named,
        layout=layout,
        test_fraction=test_fraction,
        name=file.name,
    )


def _roles(file: Path, known: Sequence[str], given: dict[str, str | None], use_validation: bool) -> dict[str, str]:
    """The array of each role that there is: train_x, train_y, and perhaps val_x, val_y, test_x, test_y."""
    found: dict[str, str] = {}
    for part in ("train", "test", *(("val",) if use_validation else ())):
        for kind, bases in (("x", INPUTS), ("y", LABELS)):
            role = f"{part}_{kind}"
            name = given.get(role) or _one(file, known, _usual(part, bases), role)
            if name is None and part == "train":
                name = _one(file, known, bases, role)
            if name is not None:
                found[role] = name
    for role in ("train_x", "train_y"):
        if role not in found:
            raise DataError(
                f"'{file}' has no array that is known as {role}; it has {', '.join(known) or 'none'}: name the arrays "
                "x_train, y_train, x_test and y_test, or set data.train_x and data.train_y to their names"
            )
    if ("val_x" in found) != ("val_y" in found):
        raise DataError(f"'{file}' has half of a validation part: add the other, or set data.use_validation = false")
    return found


def _usual(part: str, bases: Sequence[str]) -> list[str]:
    words = ("val", "valid", "validation") if part == "val" else (part,)
    return [name for word in words for base in bases for name in (f"{word}_{base}", f"{base}_{word}", f"{base}{word}")]


def _one(file: Path, known: Sequence[str], usual: Sequence[str], field: str) -> str | None:
    """The one array with a usual name, in letters of any case."""
    found = [name for name in known if name.lower() in usual]
    if len(found) > 1:
        raise DataError(f"'{file}' has {' and '.join(found)}: set data.{field} to the one to use")
    return found[0] if found else None


def _joined(file: Path, roles: dict[str, str], arrays: dict[str, NDArray[Any]], kind: str) -> NDArray[Any]:
    """The training part, and after it the validation part if it is used."""
    train = arrays[roles[f"train_{kind}"]]
    if f"val_{kind}" not in roles:
        return train
    validation = arrays[roles[f"val_{kind}"]]
    if validation.shape[1:] != train.shape[1:] or validation.dtype.kind != train.dtype.kind:
        raise DataError(
            f"'{file}' must have a validation part like the training part, got {validation.dtype} {validation.shape} "
            f"and {train.dtype} {train.shape}: set data.use_validation = false to leave it out"
        )
    return np.concatenate([train, validation])


def _owners(file: Path, roles: dict[str, str], arrays: dict[str, NDArray[Any]], owner: str) -> NDArray[Any]:
    if "val_y" in roles and len(arrays[owner]) == len(arrays[roles["train_y"]]):
        raise DataError(
            f"'{file}' has no owners for its validation part, which is trained on: set data.use_validation = false"
        )
    return arrays[owner]
