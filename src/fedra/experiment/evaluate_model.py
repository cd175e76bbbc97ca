"""A trained model judged by the field's protocols: on a run's own test data, or on any other set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from torch import Tensor

from fedra.config.imports import trusting
from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.device import build_device
from fedra.core.model import Model
from fedra.data import Dataset, transform_for
from fedra.data.dataset import Pairs
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError, DataError, RunError, nearest
from fedra.evaluation.classification import LabeledSet, default_metrics, judge_classifier
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.results import RUN_ONLY, ModelEvaluation, Protocol, ProtocolResult
from fedra.experiment.build import build_dataset, split_dataset
from fedra.experiment.evaluation_data import On, class_names_of, faces_of, read_faces, read_labeled, title_of
from fedra.experiment.evaluators.client_evaluator import ClientsJudge
from fedra.experiment.evaluators.evaluator import choose_protocol
from fedra.faces.benchmarks.protocols import (
    FaceSet,
    client_verification,
    collapsed_result,
    identification,
    open_identification,
    verification,
)
from fedra.faces.metrics.collapse import Directed, collapse_warning, give_directions
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.storage.evaluation_record import TEST
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import TrainedModel, embedder_of_run, trained_by_run


def check_protocols(names: Sequence[str]) -> tuple[Protocol, ...]:
    """The protocols of those names, each once."""
    known: tuple[Protocol, ...] = get_args(Protocol)
    for name in [names] if isinstance(names, str) else names:
        if name not in known:
            raise ConfigError(f"there is no protocol '{name}': {nearest(name, known)}")
    return tuple(protocol for protocol in known if protocol in names)


def evaluate_on(
    embedder: Embedder,
    on: On,
    protocols: Sequence[Protocol] = (),
    *,
    pairs: int | None = None,
    seed: int = 0,
    detector: Path | str | None = None,
    console: Console | None = None,
) -> ModelEvaluation:
    """An embedder on a set of faces, by verification unless told.

    `on` is a data set with its fields, an InsightFace .bin file, a folder with LFW's pairs.txt, a folder of identity
    folders (paths are tried from here, then under the data root), a `Dataset`, or a pair (images, labels).
    """
    refuse_run_only(protocols)
    height, width = embedder.shape[1:]
    side = max(height, width)
    faces = read_faces(
        on, side, pairs, seed, width=width if height == side else None, detector=detector, console=console
    )
    if faces.note is not None:
        tell(console, f"warning: {faces.note}" + ("" if detector else ", or give a detector"))
    outcomes = _judged(faces, _embedded(embedder, faces.images, faces.name, console), protocols, pairs, seed, console)
    name, source = title_of(on)
    return ModelEvaluation(name, faces.name, outcomes, source)


def refuse_run_only(protocols: Sequence[Protocol]) -> None:
    """Refuse protocols that another set than the run's own, or any set of images, does not allow."""
    for protocol in RUN_ONLY:
        if protocol in protocols:
            raise ConfigError(
                f"the protocol '{protocol}' goes with the run's own data: leave out the set, or choose another"
            )
    if "megaface" in protocols:
        raise ConfigError("the protocol 'megaface' needs a MegaFace folder with its lists: evaluate on one")


def classify_on(
    trained: TrainedModel,
    on: On,
    metrics: Sequence[Metric] = (),
    *,
    device: torch.device | str = "cpu",
    console: Console | None = None,
) -> ModelEvaluation:
    """A classifier on another labeled set: classes are matched by name, or by number where a set has no names."""
    data = read_labeled(on, trained)
    chosen = metrics or default_metrics(len(trained.classes))
    outcome = judge_classifier(trained.module, data, trained.classes, chosen, torch.device(device), console)
    name, source = title_of(on)
    return ModelEvaluation(name, data.name, {"classification": outcome}, source)


def trained_for(folder: Path) -> str | None:
    """By which protocol a run was tested while it trained; None where its folder does not say."""
    run = RunFolder(folder)
    try:
        return str(run.summary().get("protocol"))
    except RunError:
        return None if run.config().evaluation.protocol == "auto" else run.config().evaluation.protocol


def protocols_for_run(folder: Path, on: On, console: Console | None, trust: bool = False) -> tuple[Protocol, ...]:
    """What a run is judged by on another set when nobody says: what it was trained for, where the set allows that."""
    purpose = trained_for(folder)
    if purpose not in ("classification", None):
        return ("verification",)
    trained = trained_by_run(folder, trust=trust)
    names = class_names_of(on, trained)
    shared = len(set(names) & set(trained.classes))
    if shared or not isinstance(on, str | Path | Dataset):
        tell(console, "the run was trained to classify, so it is judged by classification")
        return ("classification",)
    why = (
        f"none of the {len(names)} classes is among the run's {len(trained.classes)}" if names else "it has no classes"
    )
    tell(console, f"'{title_of(on)[0]}' is judged by verification (pairs of embeddings), since {why}")
    return ("verification",)


def evaluate_run_test(
    folder: Path | str,
    protocols: Sequence[Protocol] = (),
    *,
    metrics: Sequence[Metric] = (),
    flip: Flip = "none",
    pairs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    trust: bool = False,
    console: Console | None = None,
) -> ModelEvaluation:
    """A run's model on its own test data: verification where the set has pairs, else classification.

    Functions of the user's own that the run names (`module:function`) are imported only with `trust`.
    """
    if "megaface" in protocols:
        raise ConfigError("the protocol 'megaface' needs a MegaFace folder with its lists: evaluate on one")
    config = RunFolder(folder).config()
    with trusting(config, trust, f"the run in '{folder}'", ("data", "model")):
        trained = trained_by_run(folder, trust=trust)
        dataset = build_dataset(config)
    wanted = protocols or (("classification",) if dataset.pairs is None else ("verification",))
    outcomes: dict[Protocol, ProtocolResult] = {}
    if "classification" in wanted:
        outcomes["classification"] = classification(trained, dataset, metrics, device, console)
    if others := [protocol for protocol in wanted if protocol not in (*RUN_ONLY, "classification")]:
        faces = faces_of(dataset, dataset.name)
        features = _embedded(
            embedder_of_run(folder, flip=flip, device=device, trust=trust), faces.images, faces.name, console
        )
        outcomes |= _judged(faces, features, others, pairs, seed, console)
    parts = [torch.as_tensor(part) for part in split_dataset(config, dataset)]
    if "clients" in wanted:
        choose_protocol("clients", dataset)
        owned = [torch.unique(dataset.train.targets[rows]) for rows in parts]
        transform = transform_for(dataset, config.data.augment)
        judge = ClientsJudge(dataset, transform, owned, config.evaluation, config.partition.seed)
        outcomes["clients"] = by_clients(judge, Model(trained.module, build_device(device)), console)
    if "training-gallery" in wanted:
        embedder = embedder_of_run(folder, flip=flip, device=device, trust=trust)
        outcomes["training-gallery"] = by_client(embedder, dataset, parts, console)
    return ModelEvaluation(TEST, f"{dataset.name} (the run's test data)", outcomes, TEST)


def classification(
    trained: TrainedModel, dataset: Dataset, metrics: Sequence[Metric], device: str, console: Console | None
) -> ProtocolResult:
    """Metrics on the test images of the training classes, over all and by class."""
    known = dataset.known_test
    if not len(known):
        raise DataError(f"the data set '{dataset.name}' has no test images of the training classes: verify instead")
    data = LabeledSet(dataset.name, Examples(known.inputs, known.targets, trained.transform))
    chosen = metrics or default_metrics(len(dataset.classes))
    return judge_classifier(trained.module, data, dataset.classes, chosen, build_device(device), console)


def by_clients(judge: ClientsJudge, model: Model, console: Console | None = None) -> ProtocolResult:
    """The test of `evaluation.protocol = "clients"` once more: everybody enrolled by held-out images."""
    found = judge.shared(model, model.weights())
    if reason := found.collapse_of_all():
        tell(console, collapse_warning(reason))
        return collapsed_result("clients", reason, sum(len(device.rows) for device in judge.devices))
    figures = judge.figures(found)
    table = {
        "clients": f"{len(judge.devices):,}",
        "AUROC": f"{figures['auroc']:.4f}",
        "AUROC, mean of clients": f"{figures['auroc_macro']:.4f} +- {figures['auroc_macro_std']:.4f}",
        "EER": f"{figures['eer']:.2%}",
        f"TPIR at FPIR {judge.fpir:g}": f"{figures['tpir']:.2%}",
    }
    return ProtocolResult({"clients": len(judge.devices), **figures}, table)


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
                    "'training-gallery' needs a partition that keeps people together, such as identity"
                )
    features = _embedded(embedder, dataset.train.inputs, "training images", console)
    probes = _embedded(embedder, known.inputs, "held-out images", console)
    if probes.collapsed is not None:
        return collapsed_result("training-gallery", probes.collapsed, len(known))
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
        ready = images.is_floating_point()
        found = give_directions(embedder.of_prepared(images, done) if ready else embedder(images, done))
    if found.collapsed is not None:
        tell(console, collapse_warning(found.collapsed))
    elif found.zeros:
        tell(
            console,
            f"the model gives {found.zeros:,} of {len(images):,} images no features: they are unlike all others",
        )
    return found
