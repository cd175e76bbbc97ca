"""From scores to decisions: a threshold chosen for a false accept rate, kept beside the model it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import check_rate, sorted_scores
from fedra.faces.metrics.error_rates import Threshold, allowed_errors, operating_point, threshold_at
from fedra.faces.metrics.search import Done, Tail, nobody, similarity_blocks
from fedra.faces.recognition.recognizer import ModelSource
from fedra.writing import write_atomically


class Decision(BaseModel):
    """A threshold and where it comes from: photographs are one person's from the score `value` on.

    `far` is what was asked for, `attained` the share of the `impostors` pairs of the data that reach the value, and
    `tar` that of their `genuine` pairs, where there are any.
    """

    version: Literal[1] = 1
    fingerprint: str
    value: float
    far: float
    attained: float
    impostors: int
    genuine: int
    tar: float | None
    data: str
    warning: str | None = None

    def accepts(self, score: float) -> bool:
        """Whether a score is one person's."""
        return score >= self.value


def calibrate_people(
    features: Tensor, people: Tensor, far: float, *, fingerprint: str, data: str, done: Done = nobody
) -> Decision:
    """The threshold for a FAR over all pairs of different people among embeddings (N, d) labelled by person (N,)."""
    check_rate("far", far)
    counts = torch.unique(people, return_counts=True)[1]
    genuine = int((counts * (counts - 1) // 2).sum())
    impostors = len(people) * (len(people) - 1) // 2 - genuine
    if not impostors:
        raise DataError(f"'{data}' shows one person only: a threshold needs photographs of two or more people")
    tail, matching = Tail(allowed_errors(far, impostors) + 1), []
    place = torch.arange(len(people))
    for block in similarity_blocks(features, features, done=done):
        lines = slice(block.query, block.query + len(block.scores))
        columns = slice(block.row, block.row + block.scores.shape[1])
        once = place[lines, None] < place[columns]
        same = people[lines, None] == people[columns]
        tail.add(block.scores[once & ~same])
        matching.append(block.scores[once & same])
    threshold = threshold_at(far, sorted_scores("impostor scores", tail.largest()), impostors)
    tar = _accepted(torch.cat(matching), threshold) if genuine else None
    return Decision(
        fingerprint=fingerprint,
        value=threshold.value,
        far=far,
        attained=threshold.attained,
        impostors=impostors,
        genuine=genuine,
        tar=tar,
        data=data,
        warning=threshold.warning,
    )


def _accepted(scores: Tensor, threshold: Threshold) -> float:
    genuine = sorted_scores("genuine scores", scores)
    return operating_point(threshold, genuine, len(genuine)).rate


def decision_path(source: ModelSource) -> Path:
    """The file beside the model: RUN/threshold.json, or FILE.threshold.json."""
    return source.file.with_name("threshold.json" if source.network is None else f"{source.file.name}.threshold.json")


def save_decision(source: ModelSource, decision: Decision) -> Path:
    """Keep a threshold beside its model."""
    path = decision_path(source)
    write_atomically(path, (decision.model_dump_json(indent=2) + "\n").encode())
    return path


def stored_decision(source: ModelSource, fingerprint: str) -> Decision | None:
    """The threshold beside the model; None if there is none, or if it is for the model as it was before."""
    path = decision_path(source)
    if not path.is_file():
        return None
    try:
        found = Decision.model_validate_json(path.read_bytes())
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise DataError(
            f"the threshold in '{path}' is damaged ({reason}): make it anew with `fedra calibrate`"
        ) from None
    return found if found.fingerprint == fingerprint else None
