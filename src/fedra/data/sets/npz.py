"""Arrays of an .npz file as a data set."""

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
    """Your own arrays in one .npz file: x_train, y_train, x_test, y_test, and optionally the owner of each example.

    `path` is absolute, or relative to the data root or the current folder. Inputs are uint8 images as NHWC, NCHW or NHW
    (`layout` sets the position of ambiguous channels), or numbers of any shape. Labels are integers or strings of shape
    (N,) or (N, 1). Common array names are found automatically, including those of MedMNIST (train_images, ...); the
    fields `train_x` to `test_y` set other names. `groups` is the name of the array with the owner of each training
    example, for the partition natural; arrays named groups, client, site, hospital or owner are found. `classes` is a
    list of class names or the name of the array that contains them. `use_validation` adds validation arrays to the
    training data. Without test arrays, `test_fraction` of every class is held out.
    """
    file = under(root, path)
    given = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
    known = names_in(file)
    roles = _roles(file, known, given, use_validation)
    owner = groups or _find_one(file, known, [f"{part}{name}" for name in OWNERS for part in ("", "train_")], "groups")
    named = classes or _find_one(file, known, NAMES, "classes")
    wanted = [*roles.values(), *(name for name in (owner, named) if isinstance(name, str))]
    for name in wanted:
        if name not in known:
            raise DataError(f"'{file}' does not contain the array '{name}': {nearest(name, known)}")
    arrays = read_arrays(file, wanted)
    return from_arrays(
        _join_validation(file, roles, arrays, "x"),
        _join_validation(file, roles, arrays, "y"),
        arrays[roles["test_x"]] if "test_x" in roles else None,
        arrays[roles["test_y"]] if "test_y" in roles else None,
        groups=None if owner is None else _owners(file, roles, arrays, owner),
        classes=arrays[named].ravel().tolist() if isinstance(named, str) else named,
        layout=layout,
        test_fraction=test_fraction,
        name=file.name,
    )


def _roles(file: Path, known: Sequence[str], given: dict[str, str | None], use_validation: bool) -> dict[str, str]:
    """Find the array of each role: train_x, train_y, and optionally val_x, val_y, test_x, test_y."""
    found: dict[str, str] = {}
    for part in ("train", "test", *(("val",) if use_validation else ())):
        for kind, bases in (("x", INPUTS), ("y", LABELS)):
            role = f"{part}_{kind}"
            name = given.get(role) or _find_one(file, known, _common_names(part, bases), role)
            if name is None and part == "train":
                name = _find_one(file, known, bases, role)
            if name is not None:
                found[role] = name
    for role in ("train_x", "train_y"):
        if role not in found:
            raise DataError(
                f"'{file}' must contain an array for {role}, got {', '.join(known) or 'none'}: name the arrays "
                "x_train, y_train, x_test and y_test, or set data.train_x and data.train_y to their names"
            )
    if ("val_x" in found) != ("val_y" in found):
        raise DataError(
            f"'{file}' must contain both validation inputs and labels or neither, got only one: add the other, or set "
            "data.use_validation = false"
        )
    return found


def _common_names(part: str, bases: Sequence[str]) -> list[str]:
    words = ("val", "valid", "validation") if part == "val" else (part,)
    return [name for word in words for base in bases for name in (f"{word}_{base}", f"{base}_{word}", f"{base}{word}")]


def _find_one(file: Path, known: Sequence[str], common: Sequence[str], field: str) -> str | None:
    """Find the only array with one of the common names, ignoring case."""
    found = [name for name in known if name.lower() in common]
    if len(found) > 1:
        raise DataError(f"'{file}' must have one array for {field}, got {' and '.join(found)}: set data.{field} to one")
    return found[0] if found else None


def _join_validation(file: Path, roles: dict[str, str], arrays: dict[str, NDArray[Any]], kind: str) -> NDArray[Any]:
    """Return the training arrays, followed by the validation arrays if they are used."""
    train = arrays[roles[f"train_{kind}"]]
    if f"val_{kind}" not in roles:
        return train
    validation = arrays[roles[f"val_{kind}"]]
    if validation.shape[1:] != train.shape[1:] or validation.dtype.kind != train.dtype.kind:
        raise DataError(
            f"'{file}' must have validation arrays like the training arrays ({train.dtype} {train.shape}), got "
            f"{validation.dtype} {validation.shape}: set data.use_validation = false to ignore them"
        )
    return np.concatenate([train, validation])


def _owners(file: Path, roles: dict[str, str], arrays: dict[str, NDArray[Any]], owner: str) -> NDArray[Any]:
    if "val_y" in roles and len(arrays[owner]) == len(arrays[roles["train_y"]]):
        raise DataError(
            f"'{file}' must have groups for its validation examples too, got none: set data.use_validation = false"
        )
    return arrays[owner]
