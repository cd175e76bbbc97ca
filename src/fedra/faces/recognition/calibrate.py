"""Choose a recognizer's threshold on a folder of photos or on a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from fedra.config.names import read_word
from fedra.console import steps
from fedra.data import DATASETS, load
from fedra.errors import DataError
from fedra.faces.metrics.collapse import collapse_reason
from fedra.faces.metrics.embedding_checks import check_rate
from fedra.faces.recognition.choose_threshold import calibrate_people, count_comparisons
from fedra.faces.recognition.enrollment import embed_people, list_people_photos
from fedra.faces.recognition.recognizer import FaceRecognizer
from fedra.faces.recognition.thresholds import Decision


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        decision: The threshold and how it was measured; the recognizer uses it.
        problems: One sentence for each photo that was skipped or may be unreliable.
        path: The file next to the model that stores the threshold; None if it was not saved.

    Example:
        >>> calibrate(recognizer, "others", far=1e-3).path
        PosixPath('runs/faces/threshold.json')
    """

    decision: Decision
    problems: tuple[str, ...]
    path: Path | None


def calibrate(
    recognizer: FaceRecognizer,
    on: Path | str,
    far: float = 1e-3,
    *,
    save: bool = True,
    console: Console | None = None,
) -> Calibration:
    """Choose the recognizer's threshold for a false accept rate.

    Args:
        recognizer: The recognizer; it uses the threshold afterwards.
        on: Folder with one subfolder of photos per person, of people who were not in the training data; or a data set
            with its fields, such as "lfw:fold=3", whose test images are used without detection.
        far: False accept rate: the share of comparisons of different people that may be accepted.
        save: Store the threshold next to the model, where other recognizers of the same model find it.
        console: Console that shows progress; default: none.

    Returns:
        The threshold, the number of comparisons behind it, and a confidence interval over people.

    Example:
        >>> calibrate(recognizer, "others", far=1e-3).decision.value
        0.41
    """
    check_rate("far", far)  # check before the slow embedding of photos
    fingerprint = recognizer.fingerprint
    is_dataset = str(on).partition(":")[0] in DATASETS
    features, people, problems = (
        _embed_dataset(recognizer, str(on), console) if is_dataset else _embed_folder(recognizer, Path(on), console)
    )
    if reason := collapse_reason(features):
        raise DataError(
            f"the embeddings of '{on}' must not be collapsed to choose a threshold, but they are ({reason}): train the "
            "model again"
        )
    name = str(on) if is_dataset else Path(on).resolve().name  # not the path: it would tell about the machine
    with steps(console, "comparing all pairs", count_comparisons(people)) as done:
        decision = calibrate_people(features, people, far, fingerprint=fingerprint, data=name, done=done)
    recognizer.decision = decision
    return Calibration(decision, problems, recognizer.save_decision(decision) if save else None)


Embeddings = tuple[Tensor, Tensor, tuple[str, ...]]


def _embed_dataset(recognizer: FaceRecognizer, on: str, console: Console | None) -> Embeddings:
    name, settings = read_word(on)
    test = load(name, **settings).test
    if test.inputs.dtype != torch.uint8 or test.inputs.dim() != 4:
        raise DataError(f"the data set '{name}' does not contain images: calibrate on a face data set")
    with steps(console, f"embedding {name}", len(test)) as done:
        return recognizer.embed_images(test.inputs, done), test.targets, ()


def _embed_folder(recognizer: FaceRecognizer, on: Path, console: Console | None) -> Embeddings:
    listed = list_people_photos(on.expanduser())
    found = embed_people(recognizer, listed.photographs, console)
    if not found.features:
        raise DataError(f"'{on}' contains no usable photo: {found.problems[0]}")
    people = torch.cat([torch.full((len(rows),), number) for number, rows in enumerate(found.features.values())])
    problems = (*listed.problems, *found.problems, *found.notes)
    return torch.cat(list(found.features.values())), people, problems
