"""From scores to decisions: thresholds for a false accept rate, kept beside the model they are for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from fedra.errors import DataError
from fedra.faces.recognition.model_source import ModelSource
from fedra.storage.claims import claim
from fedra.writing import write_atomically

Interval = tuple[float, float]
"""Lower and upper end of a 95 % interval."""


@dataclass(frozen=True)
class ErrorRate:
    """A probability that was estimated from data.

    Attributes:
        value: The estimate.
        low: Lower end of its 95 % interval over people, None if there were too few to tell.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"about {100 * self.value:.3g} % (too few errors were seen for an interval)"
        return f"about {100 * self.value:.3g} % (95 % interval {100 * self.low:.3g} to {100 * self.high:.3g} %)"


class TemplateThreshold(BaseModel):
    """The threshold for templates of so many photographs, measured as single photographs of others against them.

    Attributes:
        photos: Photographs of a template.
        value: The threshold.
        attained: The share of the `impostors` comparisons that reach it.
        impostors: Comparisons of a photograph with another person's template.
        people: People who had enough photographs for a template.
        interval: 95 % interval of `attained`, by a bootstrap over people; None if too few errors were seen.
    """

    photos: int
    value: float
    attained: float
    impostors: int
    people: int
    interval: Interval | None = None


class Decision(BaseModel):
    """A threshold and where it comes from: photographs are one person's from the score `value` on.

    Attributes:
        fingerprint: The model it is for.
        value: The threshold for two photographs.
        far: The false accept rate that was asked for.
        attained: The share of the `impostors` pairs of the data that reach the value.
        impostors: Pairs of photographs of different people.
        genuine: Pairs of photographs of one person.
        tar: The share of the genuine pairs that reach the value, where there are any.
        data: What it was measured on.
        people: How many people that shows.
        interval: 95 % interval of `attained`, by a bootstrap over people; None if too few errors were seen.
        templates: Thresholds for templates of several photographs, which score higher with other people too.
        warning: A sentence if the rate could not be measured.

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
        """Whether a score is one person's, against a template of so many photographs."""
        return score >= self.at(photos).value

    def at(self, photos: int) -> TemplateThreshold:
        """The threshold for templates of so many photographs: the next larger number measured, else the largest."""
        single = TemplateThreshold(
            photos=1,
            value=self.value,
            attained=self.attained,
            impostors=self.impostors,
            people=self.people,
            interval=self.interval,
        )
        measured = (single, *sorted(self.templates, key=lambda one: one.photos))
        return next((one for one in measured if one.photos >= photos), measured[-1])

    def gallery_rate(self, photos: Iterable[int]) -> ErrorRate | None:
        """About how likely a gallery of people with so many photographs each accepts somebody who is not enrolled.

        1 - prod (1 - rate of each person): an estimate and no bound, for the rates are measured on other people.
        None where too few errors were seen to measure them.
        """
        used = [self.at(count) for count in photos]
        if not used or self.warning or any(one.attained == 0 for one in used):
            return None
        value = _any_of(one.attained for one in used)
        ends = [one.interval for one in used if one.interval is not None]
        if len(ends) < len(used):
            return ErrorRate(value)
        return ErrorRate(value, _any_of(end[0] for end in ends), _any_of(end[1] for end in ends))


def _any_of(rates: Iterable[float]) -> float:
    return -math.expm1(math.fsum(math.log1p(-min(rate, 1 - 1e-12)) for rate in rates))


def decision_path(source: ModelSource) -> Path:
    """The file beside the model: RUN/threshold.json, or FILE.threshold.json."""
    return source.file.with_name("threshold.json" if source.network is None else f"{source.file.name}.threshold.json")


def save_decision(source: ModelSource, decision: Decision) -> Path:
    """Keep a threshold beside its model."""
    path = decision_path(source)
    claim(path.parent, path.name)
    write_atomically(path, (decision.model_dump_json(indent=2) + "\n").encode(), private=True)
    return path


def stored_decision(source: ModelSource, fingerprint: str) -> Decision | None:
    """The threshold beside the model; None if there is none, or if it is for the model as it was before."""
    path = decision_path(source)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = Decision.model_validate_json(content)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise DataError(f"the threshold in '{path}' is damaged ({reason}): calibrate the model again") from None
    return found if found.fingerprint == fingerprint else None
