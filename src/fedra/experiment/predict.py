"""`fedra.predict`: what a trained classifier says about images, class by class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from fedra.config.imports import allow_trusted_imports
from fedra.config.names import build_algorithm
from fedra.console import steps
from fedra.core.evaluate import EVALUATION_BATCH
from fedra.core.model import Model
from fedra.data.images import SUFFIXES, read_usable_images
from fedra.errors import ConfigError, DataError
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import load_trained_model
from fedra.writing import write_atomically


@dataclass(frozen=True)
class Prediction:
    """What a classifier says about one image.

    Args:
        image: The file.
        classes: Names of the most probable classes, the first one first; none if the image cannot be used.
        probabilities: Their probabilities.
        problem: Why the image cannot be used, if it cannot.
    """

    image: Path
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    problem: str = ""


def predict(
    folder: Path | str,
    images: Sequence[Path | str] | Path | str,
    *,
    top: int = 1,
    trust: bool = False,
    console: Console | None = None,
) -> list[Prediction]:
    """Classify images with the model of a run, prepared as in its training.

    Args:
        folder: The folder of a run whose model classifies images.
        images: Image files, or folders whose images are taken at any depth, sorted by name.
        top: Number of classes per image.
        trust: Whether to import the network that the run names as `module:function`.
        console: Where progress is shown.

    Returns:
        One prediction per image, in order.

    Example:
        >>> fedra.predict("runs/xray", ["a.png", "b.png"])[0].classes
        ('pneumonia',)
    """
    run = RunFolder(folder)
    config, summary = run.config(), run.summary(interim=True)
    with allow_trusted_imports(config, trust, f"the run in '{folder}'", ("model", "algorithm")):
        trained, sharing = load_trained_model(folder, trust=trust), build_algorithm(config.algorithm).sharing
    if any(prefix.startswith("head") for prefix in sharing.private):
        raise ConfigError(f"the run must have a shared head, got '{folder}', whose clients keep their heads private")
    if summary["protocol"] != "classification" or len(trained.shape) != 3:
        raise ConfigError(
            f"the run must be a classifier of images, got '{folder}' with the protocol '{summary['protocol']}' on "
            f"inputs of shape {trained.shape}: compare faces with `fedra faces identify`"
        )
    paths = find_images([images] if isinstance(images, str | Path) else images)
    model, found = Model(trained.module), []
    weights, channels, size = model.weights(), trained.shape[0], (trained.shape[1], trained.shape[2])
    with torch.no_grad(), steps(console, "classifying images", len(paths)) as done:
        for start in range(0, len(paths), EVALUATION_BATCH):
            some = paths[start : start + EVALUATION_BATCH]
            pixels, problems = read_usable_images(some, gray=channels == 1, size=size)
            shares = model.output(weights, model.ready(trained.transform.prepare(pixels))).logits.softmax(dim=1)
            highest = shares.topk(min(top, len(trained.classes)))
            for number, path in enumerate(some):
                if number in problems:
                    found.append(Prediction(path, problem=problems[number]))
                    continue
                names = tuple(trained.classes[row] for row in highest.indices[number].tolist())
                found.append(Prediction(path, names, tuple(highest.values[number].tolist())))
            done(len(some))
    return found


def find_images(given: Sequence[Path | str]) -> list[Path]:
    """Return the image files among paths, and those below folders."""
    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not below:
                raise DataError(f"the folder '{path}' must contain images, got none: check the path")
            found += below
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"the image '{path}' does not exist: check the path")
    return found


def save_predictions(predictions: Sequence[Prediction], path: Path) -> None:
    """Write one line per image and class: image, rank, class, probability, problem."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "rank", "class", "probability", "problem"))
    for one in predictions:
        if one.problem:
            writer.writerow((one.image, "", "", "", one.problem))
        for rank, (name, share) in enumerate(zip(one.classes, one.probabilities, strict=True), start=1):
            writer.writerow((one.image, rank, name, f"{share:.6f}", ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))
