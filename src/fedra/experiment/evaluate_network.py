"""Evaluate a user's module or function like a run's model, and run benchmarks that have their own lists."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from fedra.config.names import read_word
from fedra.data import Dataset, data_root, load
from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.results import ModelEvaluation, Protocol
from fedra.experiment.evaluate_model import classify_on, evaluate_on
from fedra.experiment.evaluation_data import On, resolve_path, tensors_of
from fedra.faces.benchmarks.ijb import evaluate_ijb
from fedra.faces.benchmarks.ijb_folder import is_ijb
from fedra.faces.benchmarks.megaface import evaluate_megaface, is_feature_folder
from fedra.faces.benchmarks.megaface_lists import is_megaface
from fedra.models import Embedder, RecognitionModel
from fedra.models.embedder import Flip
from fedra.models.recognition_model import has_body_and_head
from fedra.storage.trained_model import TrainedModel

Network = nn.Module | Callable[[Tensor], Tensor]
FACE_SIZE = (112, 112)


def to_face_input(images: Tensor) -> Tensor:
    """Scale bytes to -1..1, as face networks are trained: x / 127.5 - 1."""
    return images.float() / 127.5 - 1


@dataclass(frozen=True)
class EvaluationOptions:
    """The arguments of `fedra.evaluate`."""

    protocols: tuple[Protocol, ...]
    metrics: tuple[Metric, ...]
    network: str | None
    size: tuple[int, int] | None
    prepare: Callable[[Tensor], Tensor]
    flip: Flip
    detector: Path | str | None
    pairs: int | None
    seed: int
    batch: int
    device: str | None
    console: Console | None
    trust: bool = False

    def compare(self, embedder: Embedder, on: On, protocols: Sequence[Protocol]) -> ModelEvaluation:
        """Run the protocols that compare embeddings."""
        return evaluate_on(
            embedder,
            on,
            protocols,
            pairs=self.pairs,
            seed=self.seed,
            detector=self.detector,
            console=self.console,
        )


def find_benchmark(on: On) -> Path | None:
    """Return the folder of IJB-B, IJB-C or MegaFace, relative to here or to the data root, if `on` is one."""
    if not isinstance(on, str | Path):
        return None
    places = (Path(on).expanduser(), data_root() / on)
    return next((place for place in places if place.is_dir() and (is_ijb(place) or is_megaface(place))), None)


def evaluate_benchmark(
    path: Path | None, opened: Callable[[], Embedder], folder: Path, options: EvaluationOptions
) -> ModelEvaluation:
    """Evaluate on a benchmark that comes with the positions of its faces; `path` may be a folder of features."""
    if options.detector is not None:
        raise ConfigError(
            f"a detector must not be given for '{folder}', which has the positions of its faces: leave it out"
        )
    if is_ijb(folder):
        return evaluate_ijb(opened(), folder, options.protocols, console=options.console)
    features = path if path is not None and is_feature_folder(path) else opened()
    return evaluate_megaface(features, folder, options.protocols, seed=options.seed, console=options.console)


def evaluate_network(model: Network | Embedder, on: On, options: EvaluationOptions) -> ModelEvaluation:
    """Evaluate a module or function, by verification if no protocol is given."""
    benchmark = find_benchmark(on)
    if benchmark is not None:
        return evaluate_benchmark(None, partial(_embedder, model, (3, *FACE_SIZE), options), benchmark, options)
    if isinstance(on, str | Path) and resolve_path(str(on)) is None:
        name, settings = read_word(str(on))
        on = replace(load(name, **settings), name=str(on))
    if "classification" not in options.protocols:
        return options.compare(_embedder(model, _shape_of(on), options), on, options.protocols)
    if options.protocols != ("classification",):
        raise ConfigError(
            "classification must be the only protocol for a module, got others too: evaluate them in separate calls"
        )
    return _classify(model, on, options)


def _embedder(model: Network | Embedder, shape: tuple[int, ...], options: EvaluationOptions) -> Embedder:
    if isinstance(model, Embedder):
        return model
    read = (shape[0], *options.size) if options.size else shape
    return Embedder(
        model, options.prepare, read, fit="crop", flip=options.flip, batch=options.batch, device=options.device
    )


def _shape_of(on: On) -> tuple[int, ...]:
    """Return the default input shape: that of the images, or 112x112 crops for files."""
    if isinstance(on, str | Path):
        return (3, *FACE_SIZE)
    if isinstance(on, Dataset):
        return tuple(on.test.inputs.shape[1:])
    return tuple(tensors_of(on)[0].shape[1:])


def _classify(model: Network | Embedder, on: On, options: EvaluationOptions) -> ModelEvaluation:
    """Classify a data set or tensors with a module whose outputs are logits."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"classification needs a module that outputs logits or a run's folder, got a {type(model).__name__}"
        )
    if isinstance(on, str | Path):
        raise ConfigError(
            f"classification by a module needs tensors or a data set with class numbers, got the folder '{on}'"
        )
    if isinstance(on, Dataset):
        inputs, targets, classes = on.known_test.inputs, on.known_test.targets, on.classes
    else:
        inputs, targets = tensors_of(on)
        classes = ()
    whole = copy.deepcopy(model).eval()
    first = next(whole.parameters(), torch.zeros(0))
    device = torch.device(options.device or first.device)
    ready = inputs if inputs.is_floating_point() else options.prepare(inputs)
    with torch.no_grad():
        width = whole.to(device)(ready[:2].to(device, first.dtype)).shape[1]
    split = whole if has_body_and_head(whole) else RecognitionModel(whole, nn.Identity())
    names = classes if len(classes) == width else tuple(str(number) for number in range(width))
    trained = TrainedModel(split, tuple(ready.shape[1:]), False, (), (), names)
    return classify_on(trained, (ready, targets), options.metrics, device=device, console=options.console)
