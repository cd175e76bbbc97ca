"""A threshold from a folder of people or from a data set."""

from __future__ import annotations

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
from fedra.faces.recognition.enrollment import embed_people, people_in
from fedra.faces.recognition.recognizer import FaceRecognizer
from fedra.faces.recognition.thresholds import Decision, calibrate_people


def calibrate(
    recogniser: FaceRecognizer, on: str, far: float, *, console: Console | None = None
) -> tuple[Decision, tuple[str, ...]]:
    """The recogniser's threshold for a FAR, and a sentence for each photograph that could not be used.

    `on` is a data set with its fields, `lfw:fold=3`, of which the test images are taken as they are, or a folder with a
    folder of photographs for each person.
    """
    check_rate("far", far)  # before the photographs, which take long
    name = on.partition(":")[0]
    features, people, problems = (
        _of_set(recogniser, on, console) if name in DATASETS else _of_folder(recogniser, on, console)
    )
    if reason := collapse_reason(features):
        raise DataError(
            f"no threshold can be chosen on '{on}', because the model's embeddings have collapsed ({reason})"
        )
    with steps(console, "comparing all pairs", len(people) ** 2) as done:
        decision = calibrate_people(features, people, far, fingerprint=recogniser.fingerprint, data=on, done=done)
    return decision, problems


Embeddings = tuple[Tensor, Tensor, tuple[str, ...]]


def _of_set(recogniser: FaceRecognizer, on: str, console: Console | None) -> Embeddings:
    name, settings = read_word(on)
    test = load(name, **settings).test
    if test.inputs.dtype != torch.uint8 or test.inputs.dim() != 4:
        raise DataError(f"the data set '{name}' does not hold images: calibrate on one of faces")
    with steps(console, f"embedding {name}", len(test)) as done:
        return recogniser.embedder(test.inputs, done), test.targets, ()


def _of_folder(recogniser: FaceRecognizer, on: str, console: Console | None) -> Embeddings:
    found = people_in(Path(on).expanduser())
    features, problems = embed_people(recogniser, found.photographs, console)
    if not features:
        raise DataError(f"no photograph under '{on}' can be used: {problems[0]}")
    people = torch.cat([torch.full((len(rows),), number) for number, rows in enumerate(features.values())])
    return torch.cat(list(features.values())), people, (*found.problems, *problems)
