"""Arrays and tensors of the user's own as a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedra.data import DATASETS, Dataset, Split, from_arrays, load, register
from fedra.data.decoding import stratified_split
from fedra.errors import ConfigError, DataError

LABELS = np.arange(20) % 2


def image(*shape: int, kind: Any = np.uint8) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(kind)


@pytest.mark.parametrize(
    ("pixels", "layout", "shape"),
    [
        (image(20, 8, 9), "auto", (1, 8, 9)),
        (image(20, 8, 9, 3), "auto", (3, 8, 9)),
        (image(20, 8, 9, 1), "auto", (1, 8, 9)),
        (image(20, 3, 8, 9), "auto", (3, 8, 9)),
        (image(20, 3, 8, 3), "channels-last", (3, 3, 8)),
        (image(20, 3, 8, 3), "channels-first", (3, 8, 3)),
        (image(20, 8, 9, 5), "channels-last", (5, 8, 9)),
        (image(20, 8, 9, 3, kind=np.float64), "auto", (3, 8, 9)),
        (image(20, 8, 9, kind=np.float32), "auto", (8, 9)),
        (image(20, 7, kind=np.int64), "auto", (7,)),
        (image(20, 7), "auto", (7,)),
    ],
)
def test_layouts(pixels: np.ndarray, layout: Any, shape: tuple[int, ...]) -> None:
    found = from_arrays(pixels, LABELS, layout=layout)
    assert found.shape == shape
    images = pixels.dtype == np.uint8 and pixels.ndim > 2
    assert found.train.inputs.dtype == (torch.uint8 if images else torch.float32)
    assert found.mean == ((0.5,) * shape[0] if images else None)
    first = pixels[0].transpose(2, 0, 1) if pixels.ndim == 4 and shape == (shape[0], *pixels.shape[1:3]) else pixels[0]
    rows = torch.cat([found.train.inputs, found.test.inputs])
    assert any(np.array_equal(row.numpy(), first.reshape(shape).astype(row.numpy().dtype)) for row in rows)


def test_labels_of_every_kind_give_the_same_classes() -> None:
    inputs = image(20, 4, kind=np.float32)
    plain = from_arrays(inputs, LABELS)
    assert plain.classes == ("0", "1")
    for labels in (
        LABELS[:, None],
        LABELS.astype(np.uint8),
        LABELS.astype(bool),
        torch.tensor(LABELS),
        LABELS.tolist(),
    ):
        again = from_arrays(inputs, labels)
        assert again.classes == plain.classes
        assert torch.equal(again.train.targets, plain.train.targets)
    words = from_arrays(inputs, np.array(["sick", "healthy"])[LABELS])
    assert words.classes == ("healthy", "sick")
    rows = words.train.inputs[:, 0].long() // 4
    assert torch.equal(words.train.targets, 1 - torch.tensor(LABELS)[rows])
    signs = from_arrays(inputs, np.where(LABELS, 1, -1))
    assert signs.classes == ("-1", "1")
    assert torch.equal(signs.train.targets, plain.train.targets)
    named = from_arrays(inputs, LABELS, classes=["no", "yes", "unsure"])
    assert named.classes == ("no", "yes", "unsure")
    assert torch.equal(named.train.targets, plain.train.targets)


def test_the_held_out_share_keeps_rows_labels_and_groups_together() -> None:
    inputs = np.arange(40, dtype=np.float32)[:, None]
    labels, groups = np.arange(40) % 4, np.array(["b", "a"])[np.arange(40) // 20]
    found = from_arrays(inputs, labels, groups=groups, test_fraction=0.3)
    assert (len(found.train), len(found.test)) == (28, 12)
    assert found.test.targets.bincount().tolist() == [3, 3, 3, 3]
    for split in (found.train, found.test):
        assert torch.equal(split.inputs[:, 0].long() % 4, split.targets)
    assert found.group_names == ("a", "b")
    assert found.groups is not None
    assert torch.equal(found.groups, (found.train.inputs[:, 0] < 20).long())


FLOATS = image(20, 4, kind=np.float32)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: from_arrays(np.where(FLOATS == 21, np.nan, FLOATS), LABELS), "got NaN or infinity in row 5"),
    "huge": (lambda: from_arrays(FLOATS.astype(np.float64) * 1e300, LABELS), "finite numbers, got NaN or infinity"),
    "one-hot": (
        lambda: from_arrays(FLOATS, np.eye(2)[LABELS]),
        r"shape \(N,\) or \(N, 1\), got \(20, 2\): take the arg",
    ),
    "float labels": (lambda: from_arrays(FLOATS, LABELS * 0.5), "integers or strings, got float64"),
    "lengths": (lambda: from_arrays(FLOATS[:5], LABELS), "as many rows in train_x as in train_y, got 5 and 20"),
    "empty": (lambda: from_arrays(FLOATS[:0], LABELS[:0]), "with at least one example, got"),
    "objects": (lambda: from_arrays(np.array([None] * 20)[:, None], LABELS), "must contain numbers, got object"),
    "ragged": (lambda: from_arrays([[1, 2], [3]], [0, 1]), "must be an array or a tensor"),
    "integers": (lambda: from_arrays(image(20, 8, 8, kind=np.int32), LABELS), "uint8 .* or floats, got int32"),
    "channels": (lambda: from_arrays(image(20, 8, 8, 5), LABELS), "set layout to 'channels-last'"),
    "five": (lambda: from_arrays(image(20, 2, 2, 2, 2), LABELS), "with channels, got"),
    "half a test": (lambda: from_arrays(FLOATS, LABELS, FLOATS), "both test_x and test_y or neither"),
    "test label": (
        lambda: from_arrays(FLOATS, LABELS, FLOATS, LABELS + 1),
        "test_y must contain only the 2 classes of training, got '2'",
    ),
    "test shape": (
        lambda: from_arrays(FLOATS, LABELS, FLOATS[:, :3], LABELS),
        "like the training examples",
    ),
    "test kind": (lambda: from_arrays(image(20, 4, 4), LABELS, image(20, 1, 4, 4) * 1.0, LABELS), "like the training"),
    "groups": (lambda: from_arrays(FLOATS, LABELS, groups=[1, 2]), "one group per training example \\(20\\), got 2"),
    "names": (lambda: from_arrays(FLOATS, LABELS, classes=["only"]), "between 0 and 0 .* got 0 to 1"),
    "twice": (lambda: from_arrays(FLOATS, LABELS, classes=["a", "a"]), "unique class names, got a, a"),
    "std": (lambda: from_arrays(FLOATS, LABELS, mean=[0.0], std=[0.0]), "a positive std"),
    "means": (lambda: from_arrays(FLOATS, LABELS, mean=[0.0] * 3, std=[1.0]), "a mean of 1 or 4 finite numbers"),
    "too few": (lambda: from_arrays(FLOATS[:2], LABELS[:2]), "enough examples to hold out at least one, got 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_refused(name: str) -> None:
    make, told = BAD[name]
    with pytest.raises((DataError, ConfigError), match=told):
        make()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Dataset]:
    monkeypatch.setattr(DATASETS, "_functions", dict(DATASETS._functions))

    def loaded(value: Any) -> Dataset:
        DATASETS._functions.pop("own", None)
        register("own", lambda: value)
        return load("own")

    return loaded


def test_what_a_loading_function_may_return(own: Callable[[Any], Dataset]) -> None:
    test = (FLOATS[:6], LABELS[:6])
    groups = LABELS.tolist()
    table = {"train_x": FLOATS, "train_y": LABELS, "test_x": test[0], "test_y": test[1], "groups": groups}
    for value in ((FLOATS, LABELS, *test), ((FLOATS, LABELS), test), (FLOATS, LABELS, *test, groups), table):
        found = own(value)
        assert (found.name, len(found.train), len(found.test)) == ("own", 20, 6)
    assert found.groups is not None
    assert len(own((FLOATS, LABELS)).test) == 4
    split = Split(torch.tensor(FLOATS), torch.tensor(LABELS))
    ready = Dataset("mine", split, split, ("a", "b"))
    assert own(ready) is ready


def test_what_it_may_not_return(own: Callable[[Any], Dataset]) -> None:
    floats, labels = torch.tensor(FLOATS), torch.tensor(LABELS)
    good = Split(floats, labels)
    for value, told in (
        (None, "must return a fedra.data.Dataset, .* got a NoneType"),
        ((FLOATS, LABELS, FLOATS), "must return 2 arrays .* got 3"),
        ({"x": FLOATS}, "a dict with 'train_x', got the keys x"),
        ({"train_x": FLOATS, "train_y": LABELS, "labels": 1}, "a dict with keys among .*, got 'labels'"),
        (Dataset("d", Split(floats, labels[:, None]), good, ("a", "b")), r"train.targets as int64 \(20,\)"),
        (Dataset("d", Split(floats.long(), labels), good, ("a", "b")), "train.inputs as uint8"),
        (Dataset("d", good, Split(floats, labels.int()), ("a", "b")), "test.targets as int64"),
        (Dataset("d", good, good, ("a",)), "train.targets between 0 and 0"),
        (Dataset("d", good, good, ("a", "b"), groups=labels[:3]), "one group per training example \\(20\\), got 3"),
    ):
        with pytest.raises(DataError, match=told):
            own(value)


def test_a_registered_loader_has_fields_and_perhaps_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_functions", dict(DATASETS._functions))

    def rooted(root: Path, *, scale: float = 1.0) -> Any:
        assert root == tmp_path
        return scale * FLOATS, LABELS

    register("rooted", rooted)
    assert float(load("rooted", root=str(tmp_path), scale=2).train.inputs.max()) == 2 * FLOATS.max()
    with pytest.raises(ConfigError, match="the data set 'rooted' has no field 'scael': did you mean 'scale'"):
        load("rooted", root=tmp_path, scael=2)
    with pytest.raises(ValueError, match="must be unique"):
        register("digits", rooted)
    with pytest.raises(ValueError, match="must not contain a colon"):
        register("mine:load", rooted)


def test_the_stratified_split_draws_class_by_class() -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 7, 60) * 3)
    draw, expected = np.random.RandomState(0), []
    for label in np.unique(labels.numpy()):
        members = draw.permutation(np.flatnonzero(labels.numpy() == label))
        expected += members[: min(round(0.3 * len(members)), len(members) - 1)].tolist()
    train, test = stratified_split(labels, 0.3)
    assert test.tolist() == sorted(expected)
    assert sorted([*train.tolist(), *expected]) == list(range(60))
