"""Convert arrays and tensors to a `Dataset`, and check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import stratified_split
from fedra.errors import ConfigError, DataError

Layout = Literal["auto", "channels-last", "channels-first"]
CHANNELS = (1, 3, 4)
"""Numbers of channels from which the layout of an image is inferred."""
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
    """Build a data set from arrays or tensors.

    Args:
        train_x: uint8 images as NHWC, NCHW or NHW, or numbers of any shape (N, ...), one row per example.
        train_y: Labels of shape (N,) or (N, 1): integers or strings.
        test_x: Test inputs, like `train_x`. Without them, a fixed `test_fraction` of every class is held out.
        test_y: Test labels, like `train_y`. Every label must occur in `train_y`.
        groups: The owner of each training example (a hospital, a writer) for the partition `natural`: integers or
            strings of shape (N,) or (N, 1).
        classes: Names of the classes 0, 1, .... Defaults to the sorted labels that occur.
        mean: Value to subtract per channel, on the 0..1 scale for uint8. Defaults to 0.5 for uint8 images.
        std: Value to divide by per channel after that. Defaults to 0.5 for uint8 images.
        layout: Position of the channels of an image; "auto" infers it from a size of 1, 3 or 4.
        test_fraction: Fraction of every class to hold out if there is no test data.
        name: Name of the data set in messages.

    Returns:
        The data set, with inputs as uint8 (N, C, H, W) or float32.

    Example:
        >>> import numpy as np
        >>> pixels, labels = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
        >>> found = from_arrays(pixels, labels, groups=["north", "south"] * 5)
        >>> found.shape, found.classes, found.group_names, len(found.test)
        ((1, 8, 8), ('0', '1'), ('north', 'south'), 2)
    """
    if (test_x is None) != (test_y is None):
        raise DataError(f"{name} must have both test_x and test_y or neither, got only one")
    inputs, labels = _inputs(train_x, layout, f"{name}: train_x"), _labels(train_y, f"{name}: train_y")
    _same_length(name, train_x=inputs, train_y=labels)
    names = _class_names(labels, classes, name)
    targets = _to_targets(labels, names, classes is not None, f"{name}: train_y")
    owners, group_names = _owners(groups, len(targets), name)
    if test_x is None or test_y is None:
        rows, held_out = _hold_out(targets, test_fraction, name)
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
    """Convert the return value of a user's loading function to a `Dataset`.

    The value is a `Dataset`, a dict with the arguments of `from_arrays`, or a tuple: (train_x, train_y), (train_x,
    train_y, test_x, test_y), the latter with groups, or ((train_x, train_y), (test_x, test_y)).
    """
    if isinstance(value, Dataset):
        return _check_dataset(value, name)
    if isinstance(value, Mapping):
        return _from_table(value, name)
    if isinstance(value, tuple | list):
        parts = tuple(value)
        if len(parts) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in parts):
            parts = (*parts[0], *parts[1])
        if len(parts) in (2, 4, 5):
            return from_arrays(*parts[:4], groups=parts[4] if len(parts) == 5 else None, name=name)
        raise DataError(
            f"the data set '{name}' must return 2 arrays (train), 4 (train, test) or 5 (train, test, groups), got "
            f"{len(parts)}"
        )
    raise DataError(
        f"the data set '{name}' must return a fedra.data.Dataset, a dict with {', '.join(PARTS)} or a tuple of them, "
        f"got a {type(value).__name__}"
    )


def _check_dataset(dataset: Dataset, name: str) -> Dataset:
    """Check types, shapes and labels of a user's `Dataset`."""
    count = len(dataset.classes)
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        inputs, targets = split.inputs, split.targets
        is_image = inputs.dtype == torch.uint8 and inputs.dim() == 4
        if not is_image and not inputs.is_floating_point():
            raise DataError(
                f"the data set '{name}' must have {part}.inputs as uint8 (N, C, H, W) or floats, got {inputs.dtype} of "
                f"shape {tuple(inputs.shape)}: convert them with fedra.data.from_arrays"
            )
        if targets.dtype != torch.int64 or targets.dim() != 1 or len(inputs) != len(targets):
            raise DataError(
                f"the data set '{name}' must have {part}.targets as int64 ({len(inputs)},), got {targets.dtype} of "
                f"shape {tuple(targets.shape)}"
            )
    targets = dataset.train.targets
    if not len(targets) or int(targets.min()) < 0 or int(targets.max()) >= count:
        got = f"{int(targets.min())} to {int(targets.max())}" if len(targets) else "none"
        raise DataError(f"the data set '{name}' must have train.targets between 0 and {count - 1}, got {got}")
    if dataset.groups is not None and len(dataset.groups) != len(targets):
        raise DataError(
            f"the data set '{name}' must have one group per training example ({len(targets)}), got "
            f"{len(dataset.groups)}"
        )
    return dataset


def _from_table(table: Mapping[str, Any], name: str) -> Dataset:
    optional = ("groups", "classes", "mean", "std", "layout", "test_fraction")
    for key in ("train_x", "train_y"):
        if key not in table:
            raise DataError(
                f"the data set '{name}' must return a dict with '{key}', got the keys {', '.join(map(str, table))}"
            )
    for key in table:
        if key not in (*PARTS, *optional):
            raise DataError(
                f"the data set '{name}' must return a dict with keys among {', '.join((*PARTS, *optional))}, got "
                f"'{key}'"
            )
    return from_arrays(**{**table, "name": name})


def _inputs(values: ArrayLike | Tensor, layout: Layout, where: str) -> Tensor:
    """Convert uint8 images to (N, C, H, W) and everything else to float32."""
    array = _array(values, where)
    if array.ndim < 2 or 0 in array.shape:
        raise DataError(f"{where} must have the shape (N, ...) with at least one example, got {array.shape}")
    if array.dtype == np.uint8 and array.ndim >= 3:
        return torch.from_numpy(np.require(_channels_first(array, layout, where), requirements=["C", "W"]))
    if array.dtype.kind not in "fbiu":
        raise DataError(f"{where} must contain numbers, got {array.dtype}")
    if array.dtype.kind in "iu" and array.ndim >= 3:
        raise DataError(f"{where} must contain images as uint8 (0 to 255) or floats, got {array.dtype}: convert them")
    if array.ndim == 4 and (layout != "auto" or _infer_layout(array.shape) is not None):
        array = _channels_first(array, layout, where)
    with np.errstate(over="ignore"):  # values that overflow float32 raise below
        numbers = np.require(array, dtype=np.float32, requirements=["C", "W"])
    for start in range(0, len(numbers), 4096):  # in chunks, because a full mask takes a quarter of the array's memory
        finite = np.isfinite(numbers[start : start + 4096])
        if not finite.all():
            row = start + int(np.argwhere(~finite)[0][0])
            raise DataError(f"{where} must contain finite numbers, got NaN or infinity in row {row}: fix or remove it")
    return torch.from_numpy(numbers)


def _infer_layout(shape: tuple[int, ...]) -> Layout | None:
    """Infer the layout if exactly one of the first and the last axis can be the channels."""
    first, last = shape[1] in CHANNELS, shape[-1] in CHANNELS
    if first == last:
        return None
    return "channels-first" if first else "channels-last"


def _channels_first(images: NDArray[Any], layout: Layout, where: str) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise DataError(f"{where} must contain images of shape (N, H, W) or with channels, got {images.shape}")
    found = _infer_layout(images.shape) if layout == "auto" else layout
    if found is None:
        raise DataError(
            f"{where} must have one axis of 1, 3 or 4 channels, got the shape {images.shape}: set layout to "
            "'channels-last' or 'channels-first'"
        )
    return images.transpose(0, 3, 1, 2) if found == "channels-last" else images


def _labels(values: ArrayLike | Tensor, where: str) -> NDArray[Any]:
    """Convert labels to integers or strings of shape (N,)."""
    array = _array(values, where)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{where} must have the shape (N,) or (N, 1), got {array.shape}: take the argmax of one-hot labels"
        )
    if array.dtype.kind not in "biuU":
        raise DataError(f"{where} must contain integers or strings, got {array.dtype}: convert it with .astype(int)")
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _class_names(labels: NDArray[Any], classes: Sequence[str] | None, name: str) -> tuple[str, ...]:
    found = tuple(str(label) for label in np.unique(labels)) if classes is None else tuple(map(str, classes))
    if len(set(found)) != len(found):
        raise DataError(f"{name} must have unique class names, got {', '.join(found)}")
    return found


def _to_targets(labels: NDArray[Any], names: tuple[str, ...], given: bool, where: str) -> Tensor:
    """Convert labels to class indices: the label itself if `given` names of 0, 1, ..., else its index in `names`."""
    if given and labels.dtype.kind != "U":
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(names):
            raise DataError(f"{where} must be between 0 and {len(names) - 1} (one name per class), got {low} to {high}")
        return torch.from_numpy(labels.astype(np.int64))
    index = {name: number for number, name in enumerate(names)}
    values, rows = np.unique(labels, return_inverse=True)
    for value in values:
        if str(value) not in index:
            raise DataError(f"{where} must contain only the {len(names)} classes of training, got '{value}'")
    numbers = np.array([index[str(value)] for value in values], dtype=np.int64)
    return torch.from_numpy(numbers[rows])


def _owners(groups: ArrayLike | Tensor | None, count: int, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    if groups is None:
        return None, ()
    labels = _labels(groups, f"{name}: groups")
    if len(labels) != count:
        raise DataError(f"{name} must have one group per training example ({count}), got {len(labels)}")
    values, rows = np.unique(labels, return_inverse=True)
    return torch.from_numpy(rows.astype(np.int64)), tuple(map(str, values))


def _check_scale(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, name: str) -> None:
    if (mean is None) != (std is None):
        raise DataError(f"{name} must have both mean and std or neither, got only one")
    for what, values in (("mean", mean), ("std", std)):
        if values is not None and (len(values) not in (1, channels) or not np.isfinite(values).all()):
            raise DataError(f"{name} must have a {what} of 1 or {channels} finite numbers, got {list(values)}")
    if std is not None and min(std) <= 0:
        raise DataError(f"{name} must have a positive std, got {list(std)}")


def _hold_out(targets: Tensor, test_fraction: float, name: str) -> tuple[Tensor, Tensor]:
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    rows, held_out = stratified_split(targets, test_fraction)
    if len(held_out) == 0:
        raise DataError(
            f"{name} must have enough examples to hold out at least one, got {len(targets)} with test_fraction = "
            f"{test_fraction}: add examples, or increase test_fraction"
        )
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
            f"{name} must have test examples like the training examples ({train.dtype} of shape "
            f"{tuple(train.shape[1:])}), got {inputs.dtype} of shape {tuple(inputs.shape[1:])}"
        )
    return Split(inputs, _to_targets(labels, names, given, f"{name}: test_y"))


def _array(values: ArrayLike | Tensor, where: str) -> NDArray[Any]:
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} must be an array or a tensor ({error})") from None
    return array


def _same_length(name: str, **parts: Tensor | NDArray[Any]) -> None:
    (first, inputs), (second, labels) = parts.items()
    if len(inputs) != len(labels):
        raise DataError(f"{name} must have as many rows in {first} as in {second}, got {len(inputs)} and {len(labels)}")
