"""Read the data to evaluate on: a data set by name, a folder or file, a `Dataset`, or tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedra.config.names import read_word
from fedra.core.batches import Examples
from fedra.data import DATASETS, Dataset, data_root, load
from fedra.data.dataset import Split
from fedra.data.images import indices, list_images, read_images
from fedra.errors import ConfigError, DataError
from fedra.evaluation.classification import LabeledSet
from fedra.experiment.user_data import examples_of
from fedra.faces.benchmarks.aligned_photos import aligned_photos
from fedra.faces.benchmarks.protocols import FaceSet
from fedra.faces.datasets import verification_set
from fedra.faces.photos.detectors import open_detector
from fedra.registry import fields
from fedra.storage.trained_model import TrainedModel

On = str | Path | Dataset | tuple[Any, Any] | TorchDataset[Any]
"""Types of `on`: a name or path, a data set of fedra or torch, or a pair (images, labels)."""


def resolve_path(on: str) -> Path | None:
    """Resolve a path relative to here or to the data root; None if `on` names a data set."""
    name, _, rest = on.partition(":")
    here, there = Path(on).expanduser(), data_root() / Path(on).expanduser()
    if name in DATASETS and (rest or not (here.exists() or there.exists())):
        return None
    return here if here.exists() else there


def title_of(on: On) -> tuple[str, str]:
    """Return the name for the evaluation record, and the source of the data."""
    if isinstance(on, str | Path):
        place = resolve_path(str(on))
        return _file_name(str(on)), str(on) if place is None else str(place.resolve())
    name = on.name if isinstance(on, Dataset) else "tensors"
    return _file_name(name), name


def _file_name(on: str) -> str:
    """Convert a name or path to a safe file name."""
    last = on if ":" in on else Path(on).stem
    return re.sub(r"[^\w.=-]+", "-", last).strip("-.") or "set"


def tensors_of(on: tuple[Any, Any] | TorchDataset[Any]) -> tuple[Tensor, Tensor]:
    """Return the inputs and class numbers of a pair or a torch data set, which is read once."""
    examples = examples_of(on, "the set to evaluate on")
    return examples.transform.prepare(examples.inputs), examples.targets


# Faces to compare.


def read_faces(
    on: On,
    side: int,
    pairs: int | None = None,
    seed: int = 0,
    *,
    width: int | None = None,
    detector: Path | str | None = None,
    console: Console | None = None,
) -> FaceSet:
    """Read faces by name, path or value, at the model's input size if it can be chosen."""
    place = resolve_path(str(on)) if isinstance(on, str | Path) else None
    if detector is not None:
        if place is None or not place.is_dir():
            raise ConfigError(f"a detector needs a folder of photos, got '{on}': leave it out, or give a folder")
        return aligned_photos(place, open_detector(detector), size=side, pairs=pairs, seed=seed, console=console)
    if isinstance(on, str | Path):
        if place is None:
            name, settings = read_word(str(on))
            if "size" in fields(DATASETS[name]):
                settings.setdefault("size", side)
            return faces_of(load(name, **settings), str(on))
        here = Path(on).expanduser()
        source = here.resolve() if here.exists() else on
        found = verification_set(source, size=side, width=width, pairs=pairs, seed=seed)
        named = bool(found.names)
        return FaceSet(found.name, found.images, found.people, found.pairs, named, found.names, found.note)
    if isinstance(on, Dataset):
        return faces_of(on, on.name)
    return FaceSet("tensors", *tensors_of(on), None)


def faces_of(dataset: Dataset, name: str) -> FaceSet:
    """Return the test images of a data set, only those of unseen identities if its pairs show only them."""
    images, people, pairs = dataset.test.inputs, dataset.test.targets, dataset.pairs
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise DataError(
            f"the data set '{dataset.name}' must contain images (uint8), got {images.dtype}: evaluate on faces"
        )
    unseen = people >= len(dataset.classes)
    if pairs is None or not bool(unseen[torch.cat([pairs.first, pairs.second])].all()):
        return FaceSet(name, images, people, pairs, names=dataset.classes)
    index = unseen.cumsum(0) - 1
    moved = replace(pairs, first=index[pairs.first], second=index[pairs.second])
    return FaceSet(name, images[unseen], people[unseen], moved)


# Examples of the model's classes.


def class_names_of(on: On, trained: TrainedModel) -> tuple[str, ...]:
    """Return the class names of the data, if they have any, without reading images where possible."""
    if isinstance(on, Dataset):
        return on.classes
    if not isinstance(on, str | Path):
        return ()
    place = resolve_path(str(on))
    if place is None:
        name, settings = read_word(str(on))
        return load(name, **_input_settings(name, settings, trained)).classes
    return tuple(sorted(set(list_images(place).classes))) if place.is_dir() else ()


def read_labeled(on: On, trained: TrainedModel) -> LabeledSet:
    """Read the examples of the model's classes, with its class numbers; others are left out and counted."""
    if isinstance(on, Dataset):
        return _match_classes(on.name, on.known_test, on.classes, trained)
    if not isinstance(on, str | Path):
        return labeled_tensors("tensors", *tensors_of(on), trained)
    place = resolve_path(str(on))
    if place is None:
        name, settings = read_word(str(on))
        dataset = load(name, **_input_settings(name, settings, trained))
        return _match_classes(str(on), dataset.known_test, dataset.classes, trained)
    if not place.is_dir():
        raise ConfigError(f"classification needs a folder of class folders or a data set, got '{on}'")
    listing = list_images(place)
    names = tuple(sorted(set(listing.classes)))
    images = read_images(listing.paths, gray=trained.shape[0] == 1, size=(trained.shape[1], trained.shape[2]))
    return _match_classes(place.name, Split(images, indices(listing.classes, names)), names, trained)


def _input_settings(name: str, settings: dict[str, Any], trained: TrainedModel) -> dict[str, Any]:
    """Set the data set's fields `size` and `gray` to the model's input, if they exist and are not given."""
    known, shape = fields(DATASETS[name]), trained.shape
    if "size" in known and len(shape) == 3:
        settings.setdefault("size", shape[1] if shape[1] == shape[2] else shape[1:])
    if "gray" in known and len(shape) == 3:
        settings.setdefault("gray", shape[0] == 1)
    return settings


def _match_classes(name: str, split: Split, classes: Sequence[str], trained: TrainedModel) -> LabeledSet:
    numbering = {known: number for number, known in enumerate(trained.classes)}
    numbers = torch.tensor([numbering.get(known, -1) for known in classes])
    targets = numbers[split.targets]
    matched = targets >= 0
    if not bool(matched.any()):
        raise ConfigError(
            f"'{name}' must have a class of the model ({', '.join(trained.classes[:3])}, ...), got none among its "
            f"{len(classes)} classes: give the classes the same names, or compare embeddings (protocol 'verification')"
        )
    dropped = int((~matched).sum())
    note = (
        f"{dropped:,} of {len(targets):,} examples of '{name}' belong to other classes and are left out"
        if dropped
        else None
    )
    return replace(labeled_tensors(name, split.inputs[matched], targets[matched], trained), note=note)


def labeled_tensors(name: str, inputs: Tensor, targets: Tensor, trained: TrainedModel) -> LabeledSet:
    """Check tensors whose labels are the model's class numbers."""
    if inputs.shape[1:] != trained.shape:
        raise ConfigError(
            f"examples must have the model's input shape {trained.shape}, got {tuple(inputs.shape[1:])} in "
            f"'{name}': resize them"
        )
    if trained.in_bytes != (inputs.dtype == torch.uint8):
        wanted = "bytes (uint8)" if trained.in_bytes else "floating-point numbers"
        raise ConfigError(f"examples must be {wanted}, got {inputs.dtype} in '{name}': convert them")
    if trained.classes and not 0 <= int(targets.min()) <= int(targets.max()) < len(trained.classes):
        raise ConfigError(
            f"labels must be between 0 and {len(trained.classes) - 1}, the model's classes, got {int(targets.min())} "
            f"to {int(targets.max())} in '{name}'"
        )
    return LabeledSet(name, Examples(inputs, targets, trained.transform))
