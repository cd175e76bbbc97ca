"""Learning-rate schedules: the factor on `local.lr` at progress t of `rounds`.

Federated training evaluates the schedule at the start of every round (t = 0, 1, 2, ...), centralized training at every
step (t = epoch + step / steps). A warm-up rises linearly from lr / (1 + warmup) at t = 0 to lr at t = warmup; it does
not start at zero, so the first round trains too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from fedra.errors import ConfigError
from fedra.registry import Positive, Registry, Share, Strength

RateSchedule = Callable[[float, int], float]
"""The factor on the learning rate as a function of the progress in rounds and the number of rounds."""

Factor = Annotated[float, Field(gt=0, le=1)]
"""A factor on the learning rate: above zero, at most one."""

ROUNDING = 1e-9
"""Tolerance for milestones given as a fraction of the rounds, which may miss a whole round by rounding."""

SCHEDULES = Registry("schedule")


@SCHEDULES.add("constant")
def constant(t: float, rounds: int) -> float:
    """A constant learning rate."""
    return 1.0


@SCHEDULES.add("exponential")
def exponential(t: float, rounds: int, *, decay: Factor = 0.99) -> float:
    """The learning rate falls by the same factor every round; `local.lr_decay` is the short form.

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
    """The learning rate falls by `gamma` at each milestone: a round or, below 1, a fraction of all rounds.

    factor = gamma^(number of milestones <= t)
    """
    starts = (start * rounds if start < 1 else start for start in milestones)
    return gamma ** sum(start <= t + ROUNDING for start in starts)


@SCHEDULES.add("polynomial")
def polynomial(t: float, rounds: int, *, power: Positive = 2.0, warmup: Strength = 0.0, floor: Share = 0.0) -> float:
    """After `warmup` rounds the learning rate falls as a power of the remaining rounds, to `floor` times itself.

    During the warm-up it rises linearly: factor = (1 + t) / (1 + warmup).

    factor = floor + (1 - floor) (1 - s)^power
    s      = (t - warmup) / (rounds - warmup)
    """
    if t < _check_warmup(warmup, rounds):
        return _warm_up(t, warmup)
    return floor + (1 - floor) * math.pow(1 - _share(t, rounds, warmup), power)


@SCHEDULES.add("cosine")
def cosine(t: float, rounds: int, *, warmup: Strength = 0.0, floor: Share = 0.0) -> float:
    """After `warmup` rounds the learning rate falls along half a cosine, to `floor` times itself (SGDR, ICLR 2017).

    During the warm-up it rises linearly: factor = (1 + t) / (1 + warmup).

    factor = floor + (1 - floor) (1 + cos(pi s)) / 2
    s      = (t - warmup) / (rounds - warmup)
    """
    if t < _check_warmup(warmup, rounds):
        return _warm_up(t, warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * _share(t, rounds, warmup))) / 2


def _check_warmup(warmup: float, rounds: int) -> float:
    if warmup >= rounds:
        raise ConfigError(
            f"warmup must be less than {rounds} (the number of rounds), got {warmup:g}: lower it or raise the rounds"
        )
    return warmup


def _warm_up(t: float, warmup: float) -> float:
    return (1 + t) / (1 + warmup)


def _share(t: float, rounds: int, warmup: float) -> float:
    """The share of the rounds after the warm-up that is done."""
    return (t - warmup) / (rounds - warmup)
