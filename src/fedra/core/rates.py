"""Learning-rate schedules: the factor on `local.lr` at progress t, of `rounds` in all.

A federation looks at the schedule at the start of every round (t = 0, 1, 2, ...), centralized training at every step
(t = epoch + step / steps). A schedule with a warm-up first rises in a line, from lr / (1 + warmup) at t = 0, so that
the first round moves too, to lr at t = warmup.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from fedra.errors import ConfigError
from fedra.registry import Positive, Registry, Share, Strength

RateSchedule = Callable[[float, int], float]
"""The factor on the rate, from the progress in rounds and the number of rounds."""

Factor = Annotated[float, Field(gt=0, le=1)]
"""What a rate is multiplied by: above zero, at most one."""

ROUNDING = 1e-9
"""A fraction of the rounds may fall a rounding error beside a whole round."""

SCHEDULES = Registry("schedule")


@SCHEDULES.add("constant")
def constant(t: float, rounds: int) -> float:
    """The same rate throughout."""
    return 1.0


@SCHEDULES.add("exponential")
def exponential(t: float, rounds: int, *, decay: Factor = 0.99) -> float:
    """The rate falls by the same factor every round; `local.lr_decay` is its short form.

    factor = decay^t
    """
    return math.pow(decay, t)


@SCHEDULES.add("step")
def step(
    t: float,
    rounds: int,
    *,
    milestones: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.5, 0.75),
    gamma: Factor = 0.1,
) -> float:
    """The rate falls by `gamma` at each milestone: a round, or below 1 a fraction of all rounds.

    factor = gamma^(number of milestones <= t)
    """
    places = (place * rounds if place < 1 else place for place in milestones)
    return gamma ** sum(place <= t + ROUNDING for place in places)


@SCHEDULES.add("polynomial")
def polynomial(t: float, rounds: int, *, power: Positive = 2.0, warmup: Strength = 0.0, floor: Share = 0.0) -> float:
    """After `warmup` rounds the rate falls as a power of the rounds left, to `floor` times itself.

    Before, it rises in a line: factor = (1 + t) / (1 + warmup).

    factor = floor + (1 - floor) (1 - s)^power
    s      = (t - warmup) / (rounds - warmup)
    """
    if t < _checked(warmup, rounds):
        return _rise(t, warmup)
    return floor + (1 - floor) * math.pow(1 - _share(t, rounds, warmup), power)


@SCHEDULES.add("cosine")
def cosine(t: float, rounds: int, *, warmup: Strength = 0.0, floor: Share = 0.0) -> float:
    """After `warmup` rounds the rate falls along half a cosine, to `floor` times itself (SGDR, ICLR 2017).

    Before, it rises in a line: factor = (1 + t) / (1 + warmup).

    factor = floor + (1 - floor) (1 + cos(pi s)) / 2
    s      = (t - warmup) / (rounds - warmup)
    """
    if t < _checked(warmup, rounds):
        return _rise(t, warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * _share(t, rounds, warmup))) / 2


def _checked(warmup: float, rounds: int) -> float:
    if warmup >= rounds:
        raise ConfigError(
            f"a warm-up of {warmup:g} rounds leaves nothing of {rounds}: lower the warm-up or raise the rounds"
        )
    return warmup


def _rise(t: float, warmup: float) -> float:
    return (1 + t) / (1 + warmup)


def _share(t: float, rounds: int, warmup: float) -> float:
    """How much of the way after the warm-up is done."""
    return (t - warmup) / (rounds - warmup)
