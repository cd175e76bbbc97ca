"""Thresholds for a false accept rate, stored next to the model they belong to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from fedra.errors import DataError
from fedra.faces.recognition.model_source import ModelSource
from fedra.file_reading import SMALL, read_file
from fedra.storage.claims import claim
from fedra.writing import write_atomically

Interval = tuple[float, float]
"""Lower and upper bound of a 95 % confidence interval."""


@dataclass(frozen=True)
class ErrorRate:
    """An estimated probability.

    Args:
        value: The estimate.
        low: Lower bound of the 95 % interval over people; None if too few errors were observed.
        high: Upper bound of the interval.

    Example:
        >>> print(fedra.faces.ErrorRate(0.008, 0.003, 0.02))
        about 0.8 % (95 % interval 0.3 to 2 %)
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"about {100 * self.value:.3g} % (too few errors for an interval)"
        return f"about {100 * self.value:.3g} % (95 % interval {100 * self.low:.3g} to {100 * self.high:.3g} %)"


class TemplateThreshold(BaseModel):
    """The threshold for templates of a given number of photos, measured with single photos of other people.

    Attributes:
        photos: Number of photos in a template.
        value: The threshold.
        attained: Share of the `impostors` comparisons that reach the threshold.
        impostors: Number of comparisons of a photo with another person's template.
        people: Number of people with enough photos for a template.
        interval: 95 % interval of `attained`, from a bootstrap over people; None if too few errors were observed.

    Example:
        >>> calibrate(recognizer, "others").decision.at(photos=3).value
        0.47
    """

    photos: int
    value: float
    attained: float
    impostors: int
    people: int
    interval: Interval | None = None


class Decision(BaseModel):
    """A threshold and the measurement behind it: two photos with a score of at least `value` are accepted.

    Attributes:
        version: Version of the file format.
        fingerprint: Fingerprint of the model it belongs to.
        value: The threshold for two photos.
        far: The requested false accept rate.
        attained: Share of the `impostors` pairs that reach the threshold.
        impostors: Number of pairs of photos of different people.
        genuine: Number of pairs of photos of the same person.
        tar: True accept rate: share of the genuine pairs that reach the threshold; None without genuine pairs.
        data: Name of the data it was measured on.
        people: Number of people in the data.
        interval: 95 % interval of `attained`, from a bootstrap over people; None if too few errors were observed.
        templates: Thresholds for templates of several photos, which have a higher similarity to other people too.
        warning: Why the rate could not be measured; None if it could.

    Example:
        >>> calibrate(recognizer, "others", far=1e-3).decision.accepts(0.45)
        True
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
    people: int = 0
    interval: Interval | None = None
    templates: tuple[TemplateThreshold, ...] = ()
    warning: str | None = None

    def accepts(self, score: float, photos: int = 1) -> bool:
        """Decide whether a score is accepted.

        Args:
            score: Similarity of a photo and a template.
            photos: Number of photos in the template.

        Returns:
            Whether the score reaches the threshold for such templates.

        Example:
            >>> decision.accepts(0.45, photos=3)
            False
        """
        return score >= self.at(photos).value

    def at(self, photos: int) -> TemplateThreshold:
        """Return the threshold for templates of a given number of photos.

        Args:
            photos: Number of photos in the template.

        Returns:
            The threshold of the smallest measured template size that is at least `photos`, otherwise of the largest.

        Example:
            >>> decision.at(4).photos
            5
        """
        single = TemplateThreshold(
            photos=1,
            value=self.value,
            attained=self.attained,
            impostors=self.impostors,
            people=self.people,
            interval=self.interval,
        )
        measured = (single, *sorted(self.templates, key=lambda entry: entry.photos))
        return next((entry for entry in measured if entry.photos >= photos), measured[-1])

    def gallery_rate(self, photos: Iterable[int]) -> ErrorRate | None:
        """Estimate the probability that a gallery accepts a person who is not enrolled.

        Args:
            photos: Number of photos of each enrolled person.

        Returns:
            1 - prod (1 - rate of each person). This is an estimate, not a bound: the rates were measured on other
            people. None if too few errors were observed to measure a rate.

        Example:
            >>> print(decision.gallery_rate([1] * 8))
            about 0.8 % (95 % interval 0.3 to 2 %)
        """
        used = [self.at(count) for count in photos]
        if not used or self.warning or any(entry.attained == 0 for entry in used):
            return None
        value = _probability_of_any(entry.attained for entry in used)
        bounds = [entry.interval for entry in used if entry.interval is not None]
        if len(bounds) < len(used):
            return ErrorRate(value)
        return ErrorRate(
            value, _probability_of_any(low for low, _ in bounds), _probability_of_any(high for _, high in bounds)
        )


class StoredDecision(Decision):
    """A threshold with its digest, by which a changed file is noticed; files of older versions have none."""

    digest: str | None = None


def _probability_of_any(rates: Iterable[float]) -> float:
    """Return 1 - prod (1 - rate), accurate for tiny rates."""
    return -math.expm1(math.fsum(math.log1p(-min(rate, 1 - 1e-12)) for rate in rates))


def decision_path(source: ModelSource) -> Path:
    """Return the file next to the model: RUN/threshold.json, or FILE.threshold.json."""
    of_run = source.network is None and not source.is_onnx
    return source.file.with_name("threshold.json" if of_run else f"{source.file.name}.threshold.json")


def save_decision(source: ModelSource, decision: Decision) -> Path:
    """Store a threshold next to its model."""
    path = decision_path(source)
    claim(path.parent, path.name)
    stored = StoredDecision(**decision.model_dump(), digest=_digest(decision))
    write_atomically(path, (stored.model_dump_json(indent=2) + "\n").encode(), private=True)
    return path


def read_decision(source: ModelSource, fingerprint: str) -> Decision | None:
    """Return the threshold next to the model; None if there is none, or if the model has changed since."""
    path = decision_path(source)
    try:
        content = read_file(path, SMALL)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        stored = StoredDecision.model_validate_json(content)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise DataError(f"the threshold file '{path}' is damaged ({reason}): calibrate the model again") from None
    found = Decision(**stored.model_dump(exclude={"digest"}))
    if stored.digest not in (None, _digest(found)):
        raise DataError(f"the threshold file '{path}' is damaged (its digest differs): calibrate the model again")
    return found if found.fingerprint == fingerprint else None


def _digest(decision: Decision) -> str:
    return hashlib.sha256(decision.model_dump_json().encode()).hexdigest()[:32]
