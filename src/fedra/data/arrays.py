"""Arrays and tensors of the user's own as a `Dataset`, checked once, whatever they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import stratified
from fedra.errors import ConfigError, DataError

Layout = Literal["auto", "channels-last", "channels-first"]
CHANNELS = (1, 3, 4)
"""The numbers of channels by which the layout of an image is recognized."""
PARTS = ("train_x", "train_y", "test_x", "test_y")


def from_arrays(
    train_x: ArrayLike | Tensor,
    train_y: ArrayLike | Tensor,
    test_x: ArrayLike | Tensor | None = None,
    test_y: ArrayLike | Tensor | None = None,
    *,
    groups: ArrayLike | Tensor | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: Layout = "auto",
    test_fraction: float = 0.2,
    name: str = "arrays",
) -> Dataset:
    """A data set from arrays or tensors.

    Args:
        train_x: Images of bytes (uint8) in NHWC, NCHW or NHW, or numbers of any shape (N, ...), one row per example.
        train_y: Labels, (N,) or (N, 1): whole numbers, or texts.
        test_x: As `train_x`; without it `test_fraction` of every class is held out, always the same rows.
        test_y: As `train_y`; every label must occur in training.
        groups: The natural owner of each training example (a hospital, a writer): whole numbers or texts, (N,) or
            (N, 1), for the partition `natural`.
        classes: The names of the classes 0, 1, ...; without it the classes are the labels that occur, sorted.
        mean: Subtracted per channel, on the 0..1 scale for bytes; 0.5 for images of bytes unless given.
        std: Divided by after that; as `mean`.
        layout: Where an image's channels are; "auto" recognizes 1, 3 or 4 of them.
        test_fraction: The share that is held out where there is no test part.
        name: What messages call the data set.

    Returns:
        The data set, its inputs uint8 (N, C, H, W) or float32.

    Example:
        >>> import numpy as np
        >>> pixels, labels = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
        >>> found = from_arrays(pixels, labels, groups=["north", "south"] * 5)
        >>> found.shape, found.classes, found.group_names, len(found.test)
        ((1, 8, 8), ('0', '1'), ('north', 'south'), 2)
    """
    if (test_x is None) != (test_y is None):
        raise DataError(f"{name} has one of test_x and test_y: give both or neither")
    inputs, labels = _inputs(train_x, layout, f"{name}: train_x"), _labels(train_y, f"{name}: train_y")
    _same_length(name, train_x=inputs, train_y=labels)
    names = _class_names(labels, classes, name)
    targets = _numbered(labels, names, classes is not None, f"{name}: train_y")
    owners, group_names = _owners(groups, len(targets), name)
    if test_x is None or test_y is None:
        rows, held_out = _divide(targets, test_fraction, name)
        train, test = Split(inputs[rows], targets[rows]), Split(inputs[held_out], targets[held_out])
        owners = None if owners is None else owners[rows]
    else:
        train = Split(inputs, targets)
        test = _test_part(test_x, test_y, names, classes is not None, layout, inputs, name)
    if inputs.dtype == torch.uint8:
        mean, std = (given or (0.5,) * inputs.shape[1] for given in (mean, std))
    _check_scale(mean, std, inputs.shape[1], name)
    return Dataset(
        name,
        train,
        test,
        names,
        mean=None if mean is None else tuple(mean),
        std=None if std is None else tuple(std),
        groups=owners,
        group_names=group_names,
    )


def to_dataset(value: Any, name: str) -> Dataset:
    """What a user's loading function returned, as a `Dataset`.

    A `Dataset` is taken as it is. A dict has the arguments of `from_arrays`; a tuple is (train_x, train_y), (train_x,
    train_y, test_x, test_y) or the latter and the groups; ((train_x, train_y), (test_x, test_y)) works too.
    """
    if isinstance(value, Dataset):
        return _checked(value, name)
    if isinstance(value, Mapping):
        return _from_table(value, name)
    if isinstance(value, tuple | list):
        parts = tuple(value)
        if len(parts) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in parts):
            parts = (*parts[0], *parts[1])
        if len(parts) in (2, 4, 5):
            return from_arrays(*parts[:4], groups=parts[4] if len(parts) == 5 else None, name=name)
        raise DataError(f"the dataset '{name}' returned {len(parts)} things: return 2 (train), 4 (train, test) or 5")
    raise DataError(
        f"the dataset '{name}' returned a {type(value).__name__}: return a fedra.data.Dataset, a dict with "
        f"{', '.join(PARTS)} or a tuple of them"
    )


def _checked(dataset: Dataset, name: str) -> Dataset:
    """A `Dataset` of the user's own, once it is known to keep what `Dataset` promises."""
    count = len(dataset.classes)
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        inputs, targets = split.inputs, split.targets
        images = inputs.dtype == torch.uint8 and inputs.dim() == 4
        if not images and not inputs.is_floating_point():
            raise DataError(
                f"the dataset '{name}' must have {part}.inputs as uint8 (N, C, H, W) or floats, got {inputs.dtype} of "
                f"shape {tuple(inputs.shape)}: fedra.data.from_arrays converts them"
            )
        if targets.dtype != torch.int64 or targets.dim() != 1 or len(inputs) != len(targets):
            raise DataError(
                f"the dataset '{name}' must have {part}.targets as int64 ({len(inputs)},), got {targets.dtype} of "
                f"shape {tuple(targets.shape)}"
            )
    targets = dataset.train.targets
    if not len(targets) or int(targets.min()) < 0 or int(targets.max()) >= count:
        raise DataError(f"the dataset '{name}' must have train.targets between 0 and {count - 1}, one or more of them")
    if dataset.groups is not None and len(dataset.groups) != len(targets):
        raise DataError(f"the dataset '{name}' has {len(dataset.groups)} groups for {len(targets)} training examples")
    return dataset


def _from_table(table: Mapping[str, Any], name: str) -> Dataset:
    optional = ("groups", "classes", "mean", "std", "layout", "test_fraction")
    for key in ("train_x", "train_y"):
        if key not in table:
            raise DataError(
                f"the dataset '{name}' returned a dict without '{key}': it has {', '.join(map(str, table))}"
            )
    for key in table:
        if key not in (*PARTS, *optional):
            raise DataError(f"the dataset '{name}' returned a dict with '{key}': use {', '.join((*PARTS, *optional))}")
    return from_arrays(**{**table, "name": name})


def _inputs(values: ArrayLike | Tensor, layout: Layout, where: str) -> Tensor:
    """Images of bytes as (N, C, H, W), everything else as float32."""
    array = _array(values, where)
    if array.ndim < 2 or 0 in array.shape:
        raise DataError(f"{where} must hold one row per example, (N, ...), and at least one, got shape {array.shape}")
    if array.dtype == np.uint8 and array.ndim >= 3:
        return torch.from_numpy(np.require(_channels_first(array, layout, where), requirements=["C", "W"]))
    if array.dtype.kind not in "fbiu":
        raise DataError(f"{where} must hold numbers, got {array.dtype}")
    if array.dtype.kind in "iu" and array.ndim >= 3:
        raise DataError(f"{where} must hold images as uint8 (0 to 255) or floats, got {array.dtype}: convert them")
    if array.ndim == 4 and (layout != "auto" or _guess(array.shape) is not None):
        array = _channels_first(array, layout, where)
    with np.errstate(over="ignore"):  # what is too large for float32 is refused below
        numbers = np.require(array, dtype=np.float32, requirements=["C", "W"])
    for start in range(0, len(numbers), 4096):  # in parts: a whole mask would cost a quarter of the array again
        finite = np.isfinite(numbers[start : start + 4096])
        if not finite.all():
            row = start + int(np.argwhere(~finite)[0][0])
            raise DataError(f"{where} must hold finite numbers, got NaN or infinity in row {row}: repair or remove it")
    return torch.from_numpy(numbers)


def _guess(shape: tuple[int, ...]) -> Layout | None:
    """The layout by which exactly one of the two places can be the channels."""
    first, last = shape[1] in CHANNELS, shape[-1] in CHANNELS
    if first == last:
        return None
    return "channels-first" if first else "channels-last"


def _channels_first(images: NDArray[Any], layout: Layout, where: str) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise DataError(f"{where} must hold images as (N, H, W) or with channels, got shape {images.shape}")
    known = _guess(images.shape) if layout == "auto" else layout
    if known is None:
        raise DataError(
            f"{where} has the shape {images.shape}, in which the channels cannot be recognized: set layout to "
            "'channels-last' or 'channels-first'"
        )
    return images.transpose(0, 3, 1, 2) if known == "channels-last" else images


def _labels(values: ArrayLike | Tensor, where: str) -> NDArray[Any]:
    """Whole numbers or texts, (N,)."""
    array = _array(values, where)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{where} must have the shape (N,) or (N, 1), got {array.shape}: take the argmax of one-hot labels"
        )
    if array.dtype.kind not in "biuU":
        raise DataError(f"{where} must hold whole numbers or texts, got {array.dtype}: convert it, as by .astype(int)")
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _class_names(labels: NDArray[Any], classes: Sequence[str] | None, name: str) -> tuple[str, ...]:
    found = tuple(str(label) for label in np.unique(labels)) if classes is None else tuple(map(str, classes))
    if len(set(found)) != len(found):
        raise DataError(f"{name} has two classes of one name: {', '.join(found)}")
    return found


def _numbered(labels: NDArray[Any], names: tuple[str, ...], given: bool, where: str) -> Tensor:
    """Each label's class number: the label itself where names were given for 0, 1, ..., else its place among them."""
    if given and labels.dtype.kind != "U":
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(names):
            raise DataError(f"{where} must be between 0 and {len(names) - 1} (one name per class), got {low} to {high}")
        return torch.from_numpy(labels.astype(np.int64))
    place = {name: number for number, name in enumerate(names)}
    values, rows = np.unique(labels, return_inverse=True)
    for value in values:
        if str(value) not in place:
            raise DataError(
                f"{where} has the label '{value}', which is not one of the {len(names)} classes of training"
            )
    numbers = np.array([place[str(value)] for value in values], dtype=np.int64)
    return torch.from_numpy(numbers[rows])


def _owners(groups: ArrayLike | Tensor | None, count: int, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    if groups is None:
        return None, ()
    labels = _labels(groups, f"{name}: groups")
    if len(labels) != count:
        raise DataError(f"{name} has {len(labels)} groups for {count} training examples: give one per example")
    values, rows = np.unique(labels, return_inverse=True)
    return torch.from_numpy(rows.astype(np.int64)), tuple(map(str, values))


def _check_scale(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, name: str) -> None:
    if (mean is None) != (std is None):
        raise DataError(f"{name} has one of mean and std: give both or neither")
    for what, values in (("mean", mean), ("std", std)):
        if values is not None and (len(values) not in (1, channels) or not np.isfinite(values).all()):
            raise DataError(f"{name} must have 1 or {channels} finite numbers as {what}, got {list(values)}")
    if std is not None and min(std) <= 0:
        raise DataError(f"{name} must have a std above 0, got {list(std)}")


def _divide(targets: Tensor, test_fraction: float, name: str) -> tuple[Tensor, Tensor]:
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    rows, held_out = stratified(targets, test_fraction)
    if len(held_out) == 0:
        raise DataError(f"{name} has too few examples for test_fraction = {test_fraction}: add some, or raise it")
    return rows, held_out


def _test_part(
    test_x: ArrayLike | Tensor,
    test_y: ArrayLike | Tensor,
    names: tuple[str, ...],
    given: bool,
    layout: Layout,
    train: Tensor,
    name: str,
) -> Split:
    inputs, labels = _inputs(test_x, layout, f"{name}: test_x"), _labels(test_y, f"{name}: test_y")
    _same_length(name, test_x=inputs, test_y=labels)
    if inputs.shape[1:] != train.shape[1:] or inputs.dtype != train.dtype:
        raise DataError(
            f"{name} must have test examples like the training ones, got {inputs.dtype} of shape "
            f"{tuple(inputs.shape[1:])} and {train.dtype} of shape {tuple(train.shape[1:])}"
        )
    return Split(inputs, _numbered(labels, names, given, f"{name}: test_y"))


def _array(values: ArrayLike | Tensor, where: str) -> NDArray[Any]:
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} must be an array or a tensor ({error})") from None
    return array


def _same_length(name: str, **parts: Tensor | NDArray[Any]) -> None:
    (first, inputs), (second, labels) = parts.items()
    if len(inputs) != len(labels):
        raise DataError(f"{name} has {len(inputs)} rows in {first} and {len(labels)} in {second}: give as many")
