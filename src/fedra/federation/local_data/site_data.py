"""A site's data as its clients train on them: read, labeled, divided, and checked against the plan's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedra.data import load
from fedra.data.dataset import Dataset
from fedra.data.images import Listing, list_images, read_usable_images, shorten_list
from fedra.errors import DataError
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.data_warnings import (
    count_resized,
    find_doubles,
    read_headers,
    warn_of_headers,
    warn_of_pixels,
)
from fedra.federation.local_data.held_out import HeldOut
from fedra.federation.local_data.identities import open_identities
from fedra.federation.local_data.labels import describe_mapping, map_labels
from fedra.federation.site_config import FOLDER, SiteConfig, data_path

ONE = ""
"""The name of the only client of a site that is not divided into clients."""


@dataclass(frozen=True)
class SiteData:
    """Examples with their labels, clients and splits. Names of people, files and folders stay at the site.

    Args:
        inputs: All examples.
        targets: Agreed class, or number of the person among those of its client.
        client: Number of the client of each example.
        held_out: Whether the example is for the site's own test.
        clients: Names of the clients, for the site's own eyes.
        classes: Number of classes of each client: all agreed ones, or its people.
        counts: Number of examples per local name, for the site's own eyes.
        notes: What was done to the data: images resized, folders renamed.
        warnings: What may be wrong.
    """

    inputs: Tensor
    targets: Tensor
    client: Tensor
    held_out: Tensor
    clients: tuple[str, ...]
    classes: tuple[int, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def train(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's training examples and their labels."""
        rows = (self.client == client) & ~self.held_out
        return self.inputs[rows], self.targets[rows]

    def test(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's held-out examples and their labels."""
        rows = (self.client == client) & self.held_out
        return self.inputs[rows], self.targets[rows]

    def sizes(self) -> list[int]:
        """Return the number of training examples of each client."""
        return torch.bincount(self.client[~self.held_out], minlength=len(self.clients)).tolist()

    def test_sizes(self) -> list[int]:
        """Return the number of held-out examples of each client."""
        return torch.bincount(self.client[self.held_out], minlength=len(self.clients)).tolist()


@dataclass(frozen=True)
class _Read:
    """Examples before they are labeled: the local class, client and name of each."""

    inputs: Tensor
    classes: Sequence[str]
    clients: Sequence[str]
    names: Sequence[str]
    tested: Tensor | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_data(folder: Path, site: SiteConfig, schema: DataSchema) -> SiteData:
    """Read a site's data and prepare them for its clients.

    Args:
        folder: The site's folder, which keeps the numbers of people and the held-out images.
        site: The content of `site.toml`.
        schema: What the plan asks of the data.

    Returns:
        The data; whatever does not fit the schema raises with a sentence.
    """
    found = _read_folder(folder, site, schema) if site.data.name == FOLDER else _read_dataset(site, schema)
    _check_shape(found.inputs, schema)
    clients = tuple(sorted(set(found.clients)))
    targets, classes = _label(folder, site, schema, found, clients)
    used = targets >= 0
    tested = found.tested if found.tested is not None else _hold_out(folder, schema, found, targets)
    data = SiteData(
        inputs=found.inputs[used],
        targets=targets[used],
        client=torch.tensor([clients.index(name) for name in found.clients])[used],
        held_out=tested[used],
        clients=clients,
        classes=classes,
        counts=dict(Counter(name for name, use in zip(found.classes, used.tolist(), strict=True) if use)),
        notes=found.notes,
        warnings=(*found.warnings, *warn_of_pixels(found.inputs[used], schema)),
    )
    return _without_doubles(data)


def _read_folder(folder: Path, site: SiteConfig, schema: DataSchema) -> _Read:
    base = data_path(folder, site)
    if schema.size is None or schema.shape[0] not in (1, 3):
        raise DataError(
            f"a folder of images needs a plan for gray or color images, got shape {schema.shape}: use a loader "
            "(data.name = 'module:function')"
        )
    parts = [base / "train", base / "test"] if _has_splits(base) else [base]
    listings = [list_images(part, groups=site.data.clients) for part in parts]
    whole = Listing(
        *(tuple(value for one in listings for value in getattr(one, key)) for key in Listing.__annotations__)
    )
    headers = read_headers(whole.paths)
    inputs, problems = read_usable_images(whole.paths, gray=schema.gray, size=schema.size)
    usable = [index for index in range(len(whole.paths)) if index not in problems]
    resized = count_resized([headers[index] for index in usable], schema)
    tested = torch.arange(len(whole.paths)) >= len(listings[0].paths)
    unusable = [f"{whole.paths[index].name} ({why})" for index, why in problems.items()]
    return _Read(
        inputs=inputs[torch.tensor(usable)],
        classes=[whole.classes[index] for index in usable],
        clients=[whole.groups[index] for index in usable],
        names=[whole.paths[index].relative_to(base).as_posix() for index in usable],
        tested=tested[torch.tensor(usable)] if len(parts) == 2 else None,
        notes=(f"{resized:,} {'image' if resized == 1 else 'images'} resized to {schema}",) if resized else (),
        warnings=(
            *(
                (f"{len(unusable):,} images cannot be read and are left out: {shorten_list(unusable)}",)
                if unusable
                else ()
            ),
            *warn_of_headers(headers),
        ),
    )


def _read_dataset(site: SiteConfig, schema: DataSchema) -> _Read:
    """Read data by a loader; the site's own file names it, so its code may be imported."""
    dataset = load(site.data.name, trust=True, **site.data.settings)
    grouped = site.data.clients and dataset.groups is not None
    known, train = dataset.known_test, dataset.train
    count = len(train) if grouped else len(train) + len(known)
    targets = train.targets if grouped else torch.cat([train.targets, known.targets])
    return _Read(
        inputs=train.inputs if grouped else torch.cat([train.inputs, known.inputs]),
        classes=[str(dataset.classes[label]) for label in targets.tolist()],
        clients=_group_names(dataset) if grouped else [ONE] * count,
        names=[str(row) for row in range(count)],
        tested=None if grouped or not len(known) else torch.arange(count) >= len(train),
    )


def _group_names(dataset: Dataset) -> list[str]:
    assert dataset.groups is not None
    numbers = dataset.groups.tolist()
    return [str(dataset.group_names[number]) if dataset.group_names else f"{number:06}" for number in numbers]


def _check_shape(inputs: Tensor, schema: DataSchema) -> None:
    shape = tuple(inputs.shape[1:])
    if shape != schema.shape:
        raise DataError(f"examples must have the plan's shape {schema.shape}, got {shape}: change the loader")
    if not inputs.dtype.is_floating_point and inputs.dtype != torch.uint8:
        raise DataError(f"examples must be uint8 or floating-point numbers, got {inputs.dtype}: change the loader")
    if inputs.dtype.is_floating_point and not bool(torch.isfinite(inputs).all()):
        raise DataError("examples must be finite, got NaN or infinity: repair the data")


def _label(
    folder: Path, site: SiteConfig, schema: DataSchema, found: _Read, clients: Sequence[str]
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the label of every example (-1 for those left out) and the number of classes of every client."""
    if schema.identities == "agreed":
        numbers = map_labels(found.classes, schema.classes, site.data.labels)
        labels = [-1 if (number := numbers[name]) is None else number for name in found.classes]
        return torch.tensor(labels), (len(schema.classes),) * len(clients)
    if site.data.labels:
        raise DataError(
            f"data.labels must be empty, because this plan has no agreed classes, got "
            f"{describe_mapping(site.data.labels)}: remove it"
        )
    book = open_identities(folder)
    people = {client: book.number(client, _people(found, client)) for client in clients}
    labels = [people[client][name] for client, name in zip(found.clients, found.classes, strict=True)]
    return torch.tensor(labels), tuple(book.count(client) for client in clients)


def _people(found: _Read, client: str) -> set[str]:
    return {name for name, owner in zip(found.classes, found.clients, strict=True) if owner == client}


def _hold_out(folder: Path, schema: DataSchema, found: _Read, targets: Tensor) -> Tensor:
    groups = zip(found.names, found.clients, targets.tolist(), strict=True)
    labels = {name: (client, label) for name, client, label in groups if label >= 0}
    chosen = HeldOut.open(folder / "held-out.json").choose(labels, schema.held_out)
    return torch.tensor([name in chosen for name in found.names], dtype=torch.bool)


def _has_splits(base: Path) -> bool:
    """Return whether the top level is train and test instead of classes or clients."""
    if not base.is_dir():
        raise DataError(f"the folder of the data '{base}' must exist, got no such folder: set data.path in site.toml")
    return {entry.name for entry in base.iterdir() if entry.is_dir() and entry.name[0] != "."} == {"train", "test"}


def _without_doubles(data: SiteData) -> SiteData:
    """Leave held-out examples out that are in the training data too."""
    rows = data.held_out.nonzero()[:, 0]
    double = find_doubles(data.inputs[~data.held_out], data.inputs[rows])
    if not bool(double.any()):
        return data
    keep = torch.ones(len(data.inputs), dtype=torch.bool)
    keep[rows[double]] = False
    count = int(double.sum())
    which = "image is" if count == 1 else "images are"
    return replace(
        data,
        inputs=data.inputs[keep],
        targets=data.targets[keep],
        client=data.client[keep],
        held_out=data.held_out[keep],
        warnings=(*data.warnings, f"{count:,} {which} in train and test alike (left out of the test)"),
    )
