"""`fedra eval`: a trained model judged by the field's protocols, with a record, a table and pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from torch import Tensor

from fedra.config.names import read_word
from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.device import build_device
from fedra.core.evaluate import Counts, count, portions
from fedra.core.model import Model, Weights
from fedra.data import DATASETS, Dataset, data_root, load
from fedra.data.dataset import Pairs
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError, DataError, nearest
from fedra.evaluation.results import RUN_ONLY, ModelEvaluation, Protocol, ProtocolResult
from fedra.experiment.build import build_dataset, split_dataset
from fedra.faces.benchmarks.protocols import (
    FaceSet,
    client_verification,
    collapsed_result,
    identification,
    open_identification,
    verification,
)
from fedra.faces.datasets import verification_set
from fedra.faces.metrics.collapse import Directed, collapse_warning, give_directions
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.registry import fields
from fedra.storage.evaluation_record import TEST
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import TrainedModel, embedder_of_run, trained_by_run


def check_protocols(names: Sequence[str]) -> tuple[Protocol, ...]:
    """The protocols of those names, each once."""
    known: tuple[Protocol, ...] = get_args(Protocol)
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no protocol '{name}': {nearest(name, known)}")
    return tuple(protocol for protocol in known if protocol in names)


def evaluate_on(
    embedder: Embedder,
    on: str,
    protocols: Sequence[Protocol] = (),
    *,
    pairs: int | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> ModelEvaluation:
    """A model on a set of faces, by verification unless told.

    `on` is a data set with its fields, an InsightFace .bin file, a folder with LFW's pairs.txt, or a folder of
    identity folders; paths are tried from here, then under the data root.
    """
    for protocol in RUN_ONLY:
        if protocol in protocols:
            raise ConfigError(
                f"the protocol '{protocol}' goes with the run's own data: leave out --on, or choose another"
            )
    if "megaface" in protocols:
        raise ConfigError(f"the protocol 'megaface' needs its own lists, and '{on}' is no MegaFace folder: name one")
    place = _place(on)
    source = on if place is None else str(place.resolve())
    faces = read_faces(on, max(embedder.shape[1:]), pairs, seed)
    outcomes = _judged(faces, _embedded(embedder, faces.images, faces.name, console), protocols, pairs, seed, console)
    return ModelEvaluation(_file_name(on), faces.name, outcomes, source)


def evaluate_run_test(
    folder: Path | str,
    protocols: Sequence[Protocol] = (),
    *,
    flip: Flip = "none",
    pairs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    console: Console | None = None,
) -> ModelEvaluation:
    """A run's model on its own test data: verification where the set has pairs, else accuracy by class."""
    if "megaface" in protocols:
        raise ConfigError("the protocol 'megaface' needs its own lists: name a MegaFace folder by --on")
    config = RunFolder(folder).config()
    trained = trained_by_run(folder)
    dataset = build_dataset(config)
    wanted = protocols or (("classification",) if dataset.pairs is None else ("verification",))
    outcomes: dict[Protocol, ProtocolResult] = {}
    if "classification" in wanted:
        outcomes["classification"] = classification(trained, dataset, device, console)
    if others := [protocol for protocol in wanted if protocol not in RUN_ONLY]:
        faces = faces_of(dataset, dataset.name)
        features = _embedded(embedder_of_run(folder, flip=flip, device=device), faces.images, faces.name, console)
        outcomes |= _judged(faces, features, others, pairs, seed, console)
    if "clients" in wanted:
        parts = [torch.as_tensor(part) for part in split_dataset(config, dataset)]
        outcomes["clients"] = by_client(embedder_of_run(folder, flip=flip, device=device), dataset, parts, console)
    return ModelEvaluation(TEST, f"{dataset.name} (the run's test data)", outcomes, TEST)


def read_faces(on: str, side: int, pairs: int | None = None, seed: int = 0) -> FaceSet:
    """Faces by name or path, at the size the model reads where that can be chosen."""
    if _place(on) is None:
        name, settings = read_word(on)
        if "size" in fields(DATASETS[name]):
            settings.setdefault("size", side)
        return faces_of(load(name, **settings), on)
    here = Path(on).expanduser()
    found = verification_set(here.resolve() if here.exists() else on, size=side, pairs=pairs, seed=seed)
    return FaceSet(found.name, found.images, found.people, found.pairs, named=bool(found.names))


def _place(on: str) -> Path | None:
    """Where a path leads, from here or from the data root; None where a data set is meant."""
    name, _, rest = on.partition(":")
    here, there = Path(on).expanduser(), data_root() / Path(on).expanduser()
    if name in DATASETS and (rest or not (here.exists() or there.exists())):
        return None
    return here if here.exists() else there


def faces_of(dataset: Dataset, name: str) -> FaceSet:
    """The test images of a data set: of the people whom training never sees, where there are any."""
    images, people, pairs = dataset.test.inputs, dataset.test.targets, dataset.pairs
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise DataError(f"the data set '{dataset.name}' does not hold images: evaluate on one of faces")
    strange = people >= len(dataset.classes)
    if pairs is None or not bool(strange[torch.cat([pairs.first, pairs.second])].all()):
        return FaceSet(name, images, people, pairs)
    place = strange.cumsum(0) - 1
    moved = replace(pairs, first=place[pairs.first], second=place[pairs.second])
    return FaceSet(name, images[strange], people[strange], moved)


def classification(trained: TrainedModel, dataset: Dataset, device: str, console: Console | None) -> ProtocolResult:
    """The share of right answers on the test images of the training classes, over all and by class."""
    known = dataset.known_test
    if not len(known):
        raise DataError(f"the data set '{dataset.name}' has no test images of the training classes: verify instead")
    model = Model(trained.module, build_device(device))
    weights = Weights(*(model.arrange(values) for values in model.weights()))
    test = Examples(known.inputs, known.targets, trained.transform)
    parts: list[Counts] = []
    with steps(console, "counting right answers", len(known)) as done:
        for cut in portions(len(known)):
            parts += count(model, weights, test, len(dataset.classes), [cut])
            done(cut[1] - cut[0])
    counts = Counts.total(parts)
    tested = {
        name: share
        for name, share in zip(dataset.classes, counts.class_accuracy.tolist(), strict=True)
        if share == share
    }
    mean = sum(tested.values()) / len(tested)
    table = {
        "images": f"{len(known):,}",
        "accuracy": f"{counts.accuracy:.2%}",
        "mean over classes": f"{mean:.2%}",
        "loss": f"{counts.mean_loss:.4f}",
    }
    figures = {"images": len(known), "accuracy": counts.accuracy, "class_mean": mean, "loss": counts.mean_loss}
    return ProtocolResult({**figures, "class_accuracy": tested}, table)


def by_client(embedder: Embedder, dataset: Dataset, parts: Sequence[Tensor], console: Console | None) -> ProtocolResult:
    """The federation's own view: every client's people, enrolled by their training images, among all held-out ones."""
    known = dataset.known_test
    if not len(known):
        raise DataError(f"the data set '{dataset.name}' holds out no images of the people it trains on")
    classes = {client: torch.unique(dataset.train.targets[rows]).tolist() for client, rows in enumerate(parts)}
    owner: dict[int, int] = {}
    for client, own in classes.items():
        for number in own:
            if owner.setdefault(number, client) != client:
                raise ConfigError(
                    f"'{dataset.classes[number]}' lies with the clients {owner[number]} and {client}: the protocol "
                    "'clients' needs a partition that keeps people together, such as identity"
                )
    features = _embedded(embedder, dataset.train.inputs, "training images", console)
    probes = _embedded(embedder, known.inputs, "held-out images", console)
    if probes.collapsed is not None:
        return collapsed_result("clients", probes.collapsed, len(known))
    enrolled = features.features, dataset.train.targets
    return client_verification(classes, enrolled, (probes.features, known.targets))


def _judged(
    faces: FaceSet,
    embedded: Directed,
    protocols: Sequence[Protocol],
    pairs: int | None,
    seed: int,
    console: Console | None,
) -> dict[Protocol, ProtocolResult]:
    found: dict[Protocol, ProtocolResult] = {}
    features = embedded.features
    for protocol in protocols or ("verification",):
        if embedded.collapsed is not None:
            found[protocol] = collapsed_result(protocol, embedded.collapsed, len(features))
            continue
        with steps(console, protocol, len(features) ** 2) as done:
            if protocol == "verification":
                found[protocol] = verification(faces, _pairs(faces, pairs, seed), features)
            elif protocol == "identification":
                found[protocol] = identification(faces, features, done)
            elif protocol == "open-set":
                found[protocol] = open_identification(faces, features, seed, done)
            else:
                raise ConfigError(f"the protocol '{protocol}' does not go with '{faces.name}': choose another")
    return found


def _pairs(faces: FaceSet, count: int | None, seed: int) -> Pairs:
    return draw_pairs(faces.people, count, seed=seed) if faces.pairs is None else faces.pairs


def _embedded(embedder: Embedder, images: Tensor, name: str, console: Console | None) -> Directed:
    with steps(console, f"embedding {name}", len(images)) as done:
        found = give_directions(embedder(images, done))
    if found.collapsed is not None:
        tell(console, collapse_warning(found.collapsed))
    elif found.zeros:
        tell(
            console,
            f"the model gives {found.zeros:,} of {len(images):,} images no features: they are unlike all others",
        )
    return found


def _file_name(on: str) -> str:
    """A set's name in a file name: the last part of a path, with nothing that a shell or a disk dislikes."""
    last = on if ":" in on else Path(on).stem
    return re.sub(r"[^\w.=-]+", "-", last).strip("-.") or "set"
