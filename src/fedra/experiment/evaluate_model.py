"""Evaluate a trained model with the field's protocols, on a run's own test data or on other data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from torch import Tensor

from fedra.config.imports import allow_trusted_imports
from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.device import build_device
from fedra.core.model import Model
from fedra.data import Dataset, transform_for
from fedra.data.dataset import Pairs
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError, DataError, RunError, nearest
from fedra.evaluation.classification import LabeledSet, default_metrics, evaluate_classifier
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.results import RUN_ONLY, ModelEvaluation, Protocol, ProtocolResult
from fedra.experiment.build import build_dataset, split_dataset
from fedra.experiment.evaluation_data import On, class_names_of, faces_of, read_faces, read_labeled, title_of
from fedra.experiment.evaluators.client_evaluator import ClientEvaluator
from fedra.experiment.evaluators.evaluator import choose_protocol
from fedra.faces.benchmarks.protocols import (
    FaceSet,
    client_verification,
    collapsed_result,
    identification,
    open_identification,
    verification,
)
from fedra.faces.metrics.collapse import Directed, collapse_warning, separate_zero_embeddings
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.storage.evaluation_record import TEST
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import TrainedModel, load_embedder, load_trained_model


def check_protocols(names: Sequence[str]) -> tuple[Protocol, ...]:
    """Return the protocols with these names, without duplicates."""
    known: tuple[Protocol, ...] = get_args(Protocol)
    for name in [names] if isinstance(names, str) else names:
        if name not in known:
            raise ConfigError(f"unknown protocol '{name}': {nearest(name, known)}")
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
    """Evaluate an embedder on faces, by verification if no protocol is given.

    `on` is a data set with its fields, an InsightFace .bin file, a folder with LFW's pairs.txt, a folder of identity
    folders (a path is looked up in the current folder, then in the data root), a `Dataset`, or a pair (images, labels).
    """
    refuse_run_only(protocols)
    height, width = embedder.shape[1:]
    side = max(height, width)
    faces = read_faces(
        on, side, pairs, seed, width=width if height == side else None, detector=detector, console=console
    )
    if faces.note is not None:
        tell(console, f"warning: {faces.note}" + ("" if detector else ", or use a detector"))
    outcomes = _run_protocols(
        faces, _embed(embedder, faces.images, faces.name, console), protocols, pairs, seed, console
    )
    name, source = title_of(on)
    return ModelEvaluation(name, faces.name, outcomes, source)


def refuse_run_only(protocols: Sequence[Protocol]) -> None:
    """Raise on protocols that need the run's own data or the lists of MegaFace."""
    for protocol in RUN_ONLY:
        if protocol in protocols:
            raise ConfigError(
                f"the protocol '{protocol}' needs the run's own data, got another data set: leave `on` out, or "
                "choose another protocol"
            )
    if "megaface" in protocols:
        raise ConfigError(
            "the protocol 'megaface' needs a MegaFace folder with its lists, got other data: evaluate on one"
        )


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
    outcome = evaluate_classifier(trained.module, data, trained.classes, chosen, torch.device(device), console)
    name, source = title_of(on)
    return ModelEvaluation(name, data.name, {"classification": outcome}, source)


def trained_for(folder: Path) -> str | None:
    """Return the protocol that a run was tested with during training; None if its folder does not say."""
    run = RunFolder(folder)
    try:
        return str(run.summary(interim=True).get("protocol"))
    except RunError:
        return None if run.config().evaluation.protocol == "auto" else run.config().evaluation.protocol


def protocols_for_run(folder: Path, on: On, console: Console | None, trust: bool = False) -> tuple[Protocol, ...]:
    """Choose the default protocol of a run on other data: that of its training, if the data allow it."""
    purpose = trained_for(folder)
    if purpose not in ("classification", None):
        return ("verification",)
    trained = load_trained_model(folder, trust=trust)
    names = class_names_of(on, trained)
    shared = len(set(names) & set(trained.classes))
    if shared or not isinstance(on, str | Path | Dataset):
        tell(console, "the run was trained to classify, so it is evaluated by classification")
        return ("classification",)
    why = (
        f"none of its {len(names)} classes is one of the run's {len(trained.classes)}" if names else "it has no classes"
    )
    tell(console, f"'{title_of(on)[0]}' is evaluated by verification (pairs of embeddings), because {why}")
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
    """Evaluate a run's model on its own test data, by verification if they have pairs and by classification otherwise.

    Functions that the run names as `module:function` are imported only with `trust`.
    """
    if "megaface" in protocols:
        raise ConfigError(
            "the protocol 'megaface' needs a MegaFace folder with its lists, got other data: evaluate on one"
        )
    config = RunFolder(folder).config()
    with allow_trusted_imports(config, trust, f"the run in '{folder}'", ("data", "model")):
        trained = load_trained_model(folder, trust=trust)
        dataset = build_dataset(config)
    wanted = protocols or (("classification",) if dataset.pairs is None else ("verification",))
    outcomes: dict[Protocol, ProtocolResult] = {}
    if "classification" in wanted:
        outcomes["classification"] = classification(trained, dataset, metrics, device, console)
    if others := [protocol for protocol in wanted if protocol not in (*RUN_ONLY, "classification")]:
        faces = faces_of(dataset, dataset.name)
        features = _embed(
            load_embedder(folder, flip=flip, device=device, trust=trust), faces.images, faces.name, console
        )
        outcomes |= _run_protocols(faces, features, others, pairs, seed, console)
    parts = [torch.as_tensor(part) for part in split_dataset(config, dataset)]
    if "clients" in wanted:
        choose_protocol("clients", dataset)
        owned = [torch.unique(dataset.train.targets[rows]) for rows in parts]
        transform = transform_for(dataset, config.data.augment)
        evaluator = ClientEvaluator(dataset, transform, owned, config.evaluation, config.partition.seed)
        outcomes["clients"] = evaluate_clients(evaluator, Model(trained.module, build_device(device)), console)
    if "training-gallery" in wanted:
        embedder = load_embedder(folder, flip=flip, device=device, trust=trust)
        outcomes["training-gallery"] = evaluate_training_gallery(embedder, dataset, parts, console)
    return ModelEvaluation(TEST, f"{dataset.name} (the run's test data)", outcomes, TEST)


def classification(
    trained: TrainedModel, dataset: Dataset, metrics: Sequence[Metric], device: str, console: Console | None
) -> ProtocolResult:
    """Compute metrics on the test images of the training classes, overall and by class."""
    known = dataset.known_test
    if not len(known):
        raise DataError(
            f"the data set '{dataset.name}' must have test images of the training classes, got none: use verification"
        )
    trained_on = torch.bincount(dataset.train.targets, minlength=len(dataset.classes))
    examples = Examples(known.inputs, known.targets, trained.transform)
    data = LabeledSet(dataset.name, examples, train_counts=trained_on)
    chosen = metrics or default_metrics(len(dataset.classes))
    return evaluate_classifier(trained.module, data, dataset.classes, chosen, build_device(device), console)


def evaluate_clients(evaluator: ClientEvaluator, model: Model, console: Console | None = None) -> ProtocolResult:
    """Repeat the test of `evaluation.protocol = "clients"`, with people enrolled from held-out images."""
    found = evaluator.shared(model, model.weights())
    if reason := found.collapse_of_all():
        tell(console, collapse_warning(reason))
        return collapsed_result("clients", reason, sum(len(device.rows) for device in evaluator.devices))
    figures = evaluator.metrics(found)
    table = {
        "clients": f"{len(evaluator.devices):,}",
        "AUROC": f"{figures['auroc']:.4f}",
        "AUROC, mean of clients": f"{figures['auroc_macro']:.4f} +- {figures['auroc_macro_std']:.4f}",
        "EER": f"{figures['eer']:.2%}",
        f"TPIR at FPIR {evaluator.fpir:g}": f"{figures['tpir']:.2%}",
    }
    return ProtocolResult({"clients": len(evaluator.devices), **figures}, table)


def evaluate_training_gallery(
    embedder: Embedder, dataset: Dataset, parts: Sequence[Tensor], console: Console | None
) -> ProtocolResult:
    """Enroll each client's people from their training images, and test against all held-out images."""
    known = dataset.known_test
    if not len(known):
        raise DataError(
            f"the data set '{dataset.name}' must have test images of the training identities, got none: raise "
            "data.test_fraction"
        )
    classes = {client: torch.unique(dataset.train.targets[rows]).tolist() for client, rows in enumerate(parts)}
    owner: dict[int, int] = {}
    for client, own in classes.items():
        for number in own:
            if owner.setdefault(number, client) != client:
                raise ConfigError(
                    f"each person must belong to one client for the protocol 'training-gallery', got "
                    f"'{dataset.classes[number]}' at clients {owner[number]} and {client}: use a partition such "
                    "as identity"
                )
    features = _embed(embedder, dataset.train.inputs, "training images", console)
    probes = _embed(embedder, known.inputs, "held-out images", console)
    if probes.collapsed is not None:
        return collapsed_result("training-gallery", probes.collapsed, len(known))
    enrolled = features.features, dataset.train.targets
    return client_verification(classes, enrolled, (probes.features, known.targets))


def _run_protocols(
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
                raise ConfigError(f"the protocol '{protocol}' cannot be used on '{faces.name}': choose another")
    return found


def _pairs(faces: FaceSet, count: int | None, seed: int) -> Pairs:
    return draw_pairs(faces.people, count, seed=seed) if faces.pairs is None else faces.pairs


def _embed(embedder: Embedder, images: Tensor, name: str, console: Console | None) -> Directed:
    with steps(console, f"embedding {name}", len(images)) as done:
        ready = images.is_floating_point()
        found = separate_zero_embeddings(embedder.embed_prepared(images, done) if ready else embedder(images, done))
    if found.collapsed is not None:
        tell(console, collapse_warning(found.collapsed))
    elif found.zeros:
        tell(
            console,
            f"the embeddings of {found.zeros:,} of {len(images):,} images are zero: they match no other image",
        )
    return found
