"""Modules and functions of the user's own, judged as a run's model is; and benchmarks with lists of their own."""

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
from fedra.experiment.evaluation_data import On, place_of_path, tensors_of
from fedra.faces.benchmarks.ijb import evaluate_ijb
from fedra.faces.benchmarks.ijb_folder import is_ijb
from fedra.faces.benchmarks.megaface import evaluate_megaface, is_feature_folder
from fedra.faces.benchmarks.megaface_lists import is_megaface
from fedra.models import Embedder, RecognitionModel
from fedra.models.embedder import Flip
from fedra.models.recognition_model import keeps_contract
from fedra.storage.trained_model import TrainedModel

Network = nn.Module | Callable[[Tensor], Tensor]
FACE_SIZE = (112, 112)


def to_face_input(images: Tensor) -> Tensor:
    """Bytes to -1..1, as face networks are trained: x / 127.5 - 1."""
    return images.float() / 127.5 - 1


@dataclass(frozen=True)
class EvaluationOptions:
    """What `fedra.evaluate` was asked for."""

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
        """The protocols that compare embeddings."""
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
    """The folder of IJB-B, IJB-C or MegaFace, here or under the data root, if it is one."""
    if not isinstance(on, str | Path):
        return None
    places = (Path(on).expanduser(), data_root() / on)
    return next((place for place in places if place.is_dir() and (is_ijb(place) or is_megaface(place))), None)


def evaluate_benchmark(
    path: Path | None, opened: Callable[[], Embedder], folder: Path, options: EvaluationOptions
) -> ModelEvaluation:
    """A benchmark that says itself where its faces are; `path` may be a folder of features."""
    if options.detector is not None:
        raise ConfigError(f"'{folder}' says where its faces are: leave the detector out")
    if is_ijb(folder):
        return evaluate_ijb(opened(), folder, options.protocols, console=options.console)
    features = path if path is not None and is_feature_folder(path) else opened()
    return evaluate_megaface(features, folder, options.protocols, seed=options.seed, console=options.console)


def evaluate_network(model: Network | Embedder, on: On, options: EvaluationOptions) -> ModelEvaluation:
    """A module or function on a set, by verification unless told."""
    benchmark = find_benchmark(on)
    if benchmark is not None:
        return evaluate_benchmark(None, partial(_embedder, model, (3, *FACE_SIZE), options), benchmark, options)
    if isinstance(on, str | Path) and place_of_path(str(on)) is None:
        name, settings = read_word(str(on))
        on = replace(load(name, **settings), name=str(on))
    if "classification" not in options.protocols:
        return options.compare(_embedder(model, _shape_of(on), options), on, options.protocols)
    if options.protocols != ("classification",):
        raise ConfigError("a module either classifies or embeds: ask for classification in a call of its own")
    return _classify(model, on, options)


def _embedder(model: Network | Embedder, shape: tuple[int, ...], options: EvaluationOptions) -> Embedder:
    if isinstance(model, Embedder):
        return model
    read = (shape[0], *options.size) if options.size else shape
    return Embedder(
        model, options.prepare, read, fit="crop", flip=options.flip, batch=options.batch, device=options.device
    )


def _shape_of(on: On) -> tuple[int, ...]:
    """What a network reads if nobody says: the images as they are, or crops of 112x112 from files."""
    if isinstance(on, str | Path):
        return (3, *FACE_SIZE)
    if isinstance(on, Dataset):
        return tuple(on.test.inputs.shape[1:])
    return tuple(tensors_of(on)[0].shape[1:])


def _classify(model: Network | Embedder, on: On, options: EvaluationOptions) -> ModelEvaluation:
    """A module whose outputs are logits, on a data set or tensors."""
    if not isinstance(model, nn.Module):
        raise ConfigError("classification needs a module whose outputs are logits, or a run's folder")
    if isinstance(on, str | Path):
        raise ConfigError(f"the classes of the folder '{on}' have no numbers for a module: give tensors or a data set")
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
    split = whole if keeps_contract(whole) else RecognitionModel(whole, nn.Identity())
    names = classes if len(classes) == width else tuple(str(number) for number in range(width))
    trained = TrainedModel(split, tuple(ready.shape[1:]), False, (), (), names)
    return classify_on(trained, (ready, targets), options.metrics, device=device, console=options.console)
