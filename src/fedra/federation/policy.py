"""A site's own policy: what a plan may ask of it. What the policy does not allow is refused with a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import time
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedra.config.schema import Section


def _check_hours(text: str) -> str:
    if text and _span(text) is None:
        raise ValueError("must be empty or have the form 19:00-07:00")
    return text


class PrivacyDemand(Section):
    """The privacy that a site demands of a plan."""

    epsilon: float | None = Field(
        None, gt=0, description="refuse a plan without differential privacy of at most this epsilon; none by default"
    )


class Policy(Section):
    """What a site allows. Every key has a careful default."""

    approve: Literal["every-plan", "within-policy"] = Field(
        "every-plan",
        description="'every-plan': a person approves each plan; 'within-policy': none is asked if all of this holds",
    )
    algorithms: tuple[str, ...] = Field(("*",), description="methods of fedra that may run here; * is any text")
    models: tuple[str, ...] = Field(("*",), description="networks of fedra that may run here")
    code: tuple[str, ...] = Field((), description="'module:function' names that a plan may have imported here")
    class_embeddings: bool = Field(
        False,
        description="FedPE, FedGC, FedCos, FedAwS and FedFace send a vector per person, from which a face may be "
        "approximated",
    )
    match_identities: bool = Field(
        False, description="whether keyed tokens of people may leave, which show who is at several sites"
    )
    epochs: int = Field(5, ge=1, description="most passes over the data per round")
    rounds: int = Field(500, ge=1, description="most rounds")
    attempts: int = Field(10, ge=1, description="most repetitions of one round")
    upload_mb: float = Field(500.0, gt=0, description="most MB that leave per round and client")
    other_sites: int = Field(
        1, ge=0, description="least number of other sites in a sum: of one site alone the new model shows its update"
    )
    examples: int = Field(50, ge=1, description="train on no fewer examples, in each client")
    counts: Literal["exact", "rounded", "none"] = Field(
        "rounded", description="numbers of examples that leave: 'rounded' to two digits; 'none' needs equal weights"
    )
    metrics: tuple[str, ...] = Field(
        ("train_loss", "accuracy"), description="metrics that may leave; * is any text, none is []"
    )
    test_examples: int = Field(20, ge=1, description="no metric of a smaller test leaves")
    pixel_statistics: bool = Field(
        False, description="whether mean and deviation of the pixels may leave, so wrong images are noticed"
    )
    hours: Annotated[str, AfterValidator(_check_hours)] = Field(
        "", description="train in these hours alone, such as 19:00-07:00; always if empty"
    )
    secure_aggregation: Literal["when-offered", "required"] = Field(
        "when-offered", description="'required': refuse a plan in which the coordinator sees single updates"
    )
    peers: tuple[str, ...] = Field(
        (),
        description="fingerprints of the sites that may be in secure rounds with this one; if empty, the key that each "
        "site has when it is first met",
    )
    privacy: PrivacyDemand = PrivacyDemand()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.counts == "exact" and self.privacy.epsilon is not None:
            raise ValueError("must not send exact counts while it demands privacy: set counts to 'rounded' or 'none'")
        return self

    def may_train_at(self, now: time) -> bool:
        """Return whether the policy allows training at a time of day."""
        span = _span(self.hours)
        if span is None:
            return True
        begin, end = span
        return begin <= now < end if begin <= end else now >= begin or now < end

    def shown_count(self, count: int) -> int | None:
        """Return a number of examples as it may leave: exact, rounded to two digits, or not at all."""
        if self.counts == "none":
            return None
        return count if self.counts == "exact" else round_to_two_digits(count)

    def may_leave(self, metric: str, examples: int | None = None) -> bool:
        """Return whether a metric may leave; `examples` is the size of the test that it comes from, if any."""
        large = examples is None or examples >= self.test_examples
        return large and any(fnmatchcase(metric, pattern) for pattern in self.metrics)


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What a plan asks of a site, in the terms of a policy."""

    algorithms: tuple[str, ...]
    model: str
    code: tuple[str, ...] = ()
    class_embeddings: bool = False
    match_identities: bool = False
    epochs: int = 1
    rounds: int = 1
    upload_bytes: int = 0
    least_sites: int = 2
    weighting: str = "examples"
    epsilon: float | None = None
    secure_aggregation: bool = False


def refuse(asked: Demands, policy: Policy) -> list[str]:
    """Return why a policy refuses a plan, one sentence per reason; an empty list allows it.

    Args:
        asked: What the plan asks.
        policy: What the site allows.

    Returns:
        Sentences that name the key of the policy and the value of the plan.
    """
    return [*_refuse_names(asked, policy), *_refuse_amounts(asked, policy), *_refuse_exposure(asked, policy)]


def _refuse_names(asked: Demands, policy: Policy) -> Iterator[str]:
    """Find methods, networks and code that the policy does not name; `code` alone decides about imported names."""
    for name in asked.algorithms:
        if ":" not in name and not _matches(name, policy.algorithms):
            yield f"policy.algorithms = {list(policy.algorithms)} does not name '{name}'"
    if ":" not in asked.model and not _matches(asked.model, policy.models):
        yield f"policy.models = {list(policy.models)} does not name '{asked.model}'"
    for name in asked.code:
        if name not in policy.code:
            yield f"policy.code = {list(policy.code)}: the plan has '{name}' imported, which runs code here"


def _refuse_amounts(asked: Demands, policy: Policy) -> Iterator[str]:
    for key, value, most in (
        ("epochs", asked.epochs, policy.epochs),
        ("rounds", asked.rounds, policy.rounds),
        ("upload_mb", round(asked.upload_bytes / 1e6, 1), policy.upload_mb),
    ):
        if value > most:
            yield f"policy.{key} = {most:g} at most: the plan has {value:g}"


def _refuse_exposure(asked: Demands, policy: Policy) -> Iterator[str]:
    """Find what would show more of this site to others than the policy allows."""
    if asked.class_embeddings and not policy.class_embeddings:
        yield f"policy.class_embeddings = false: {asked.algorithms[0]} sends a vector per person"
    if asked.match_identities and not policy.match_identities:
        yield "policy.match_identities = false: the plan asks for a token per person, to match people across sites"
    others = asked.least_sites - 1
    if others < policy.other_sites:
        yield (
            f"policy.other_sites = {policy.other_sites} at least: the plan combines with {others} other "
            f"{'site' if others == 1 else 'sites'} (federation.least = {asked.least_sites})"
        )
    if policy.counts == "none" and asked.weighting != "equal":
        yield (f"policy.counts = 'none' needs federation.weighting = 'equal': the plan weights by {asked.weighting}")
    if policy.secure_aggregation == "required" and not asked.secure_aggregation:
        yield "policy.secure_aggregation = 'required': in this plan the coordinator sees each update"
    demanded = policy.privacy.epsilon
    if demanded is not None and asked.epsilon is None:
        yield f"policy.privacy.epsilon = {demanded:g}: the plan has no differential privacy"
    elif demanded is not None and asked.epsilon is not None and asked.epsilon > demanded:
        yield f"policy.privacy.epsilon = {demanded:g} at most: the plan has {asked.epsilon:g}"


def round_to_two_digits(count: int) -> int:
    """Round a count to its first two digits: 1,204 becomes 1,200."""
    unit: int = 10 ** max(len(str(count)) - 2, 0)
    return (count + unit // 2) // unit * unit


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _span(text: str) -> tuple[time, time] | None:
    found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", text)
    if found is None:
        return None
    begin, end = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
    return None if begin == end else (begin, end)
