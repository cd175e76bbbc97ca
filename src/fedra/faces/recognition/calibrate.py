"""A threshold from a folder of people or from a data set."""

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
from fedra.faces.recognition.choose_threshold import calibrate_people, comparisons
from fedra.faces.recognition.enrollment import embed_people, people_in
from fedra.faces.recognition.recognizer import FaceRecognizer
from fedra.faces.recognition.thresholds import Decision


@dataclass(frozen=True)
class Calibration:
    """What became of a calibration.

    Attributes:
        decision: The threshold and where it comes from; the recognizer uses it from now on.
        problems: A sentence for each photograph that could not be used, or only with a doubt.
        path: The file beside the model that keeps it; None if it was not kept.
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
        recognizer: Uses the threshold from now on.
        on: A folder with a folder of photographs for each person, whom training has not seen; or a data set with its
            fields, "lfw:fold=3", of which the test images are taken as they are.
        far: The share of comparisons of different people that may pass.
        save: Keep the threshold beside the model, where other recognizers of the same model find it.
        console: Where to show progress, if anywhere.

    Returns:
        The threshold, how many comparisons it comes from, and its interval over people.

    Example:
        >>> calibrate(recognizer, "others", far=1e-3).decision.value
        0.41
    """
    check_rate("far", far)  # before the photographs, which take long
    fingerprint = recognizer.fingerprint
    known = str(on).partition(":")[0] in DATASETS
    features, people, problems = (
        _of_set(recognizer, str(on), console) if known else _of_folder(recognizer, Path(on), console)
    )
    if reason := collapse_reason(features):
        raise DataError(
            f"no threshold can be chosen on '{on}', because the model's embeddings have collapsed ({reason})"
        )
    with steps(console, "comparing all pairs", comparisons(people)) as done:
        decision = calibrate_people(features, people, far, fingerprint=fingerprint, data=str(on), done=done)
    recognizer.decision = decision
    return Calibration(decision, problems, recognizer.save_decision(decision) if save else None)


Embeddings = tuple[Tensor, Tensor, tuple[str, ...]]


def _of_set(recognizer: FaceRecognizer, on: str, console: Console | None) -> Embeddings:
    name, settings = read_word(on)
    test = load(name, **settings).test
    if test.inputs.dtype != torch.uint8 or test.inputs.dim() != 4:
        raise DataError(f"the data set '{name}' does not hold images: calibrate on one of faces")
    with steps(console, f"embedding {name}", len(test)) as done:
        return recognizer.embed_images(test.inputs, done), test.targets, ()


def _of_folder(recognizer: FaceRecognizer, on: Path, console: Console | None) -> Embeddings:
    listed = people_in(on.expanduser())
    found = embed_people(recognizer, listed.photographs, console)
    if not found.features:
        raise DataError(f"no photograph under '{on}' can be used: {found.problems[0]}")
    people = torch.cat([torch.full((len(rows),), number) for number, rows in enumerate(found.features.values())])
    problems = (*listed.problems, *found.problems, *found.notes)
    return torch.cat(list(found.features.values())), people, problems
