"""Learning-rate schedules against their formulas, and where they are looked at."""

from __future__ import annotations

import math
import pickle
from functools import partial
from itertools import pairwise

import pytest

from fedra.core.local_training import LocalTraining
from fedra.core.optimizer import Adam, Sgd
from fedra.core.rates import SCHEDULES, cosine, exponential, polynomial, step
from fedra.errors import ConfigError


@pytest.mark.parametrize("t", [0, 1, 2.5, 9, 10])
def test_the_constant_rate(t: float) -> None:
    assert SCHEDULES["constant"](t, 10) == 1


@pytest.mark.parametrize("t", [0, 1, 2.5, 9])
def test_exponential_is_what_lr_decay_does(t: float) -> None:
    assert exponential(t, 10, decay=0.7) == pytest.approx(0.7**t, rel=1e-15)
    short = LocalTraining(lr=0.3, lr_decay=0.7, rounds=10)
    long = LocalTraining(lr=0.3, schedule=partial(exponential, decay=0.7), rounds=10)
    assert short.at(t).lr == pytest.approx(long.at(t).lr, rel=1e-15)


@pytest.mark.parametrize(
    ("t", "falls"), [(0, 0), (4, 0), (4.999, 0), (5, 1), (7, 1), (7.5, 2), (8, 2), (9, 3), (9.9, 3)]
)
def test_steps_at_rounds_and_fractions(t: float, falls: int) -> None:
    assert step(t, 10, milestones=(0.5, 0.75, 9), gamma=0.2) == pytest.approx(0.2**falls, rel=1e-15)


def test_a_fraction_meets_its_round_in_spite_of_rounding() -> None:
    assert 0.55 * 100 > 55
    assert step(55, 100, milestones=(0.55,)) == 0.1
    assert step(54.99, 100, milestones=(0.55,)) == 1


@pytest.mark.parametrize("power", [1.0, 2.0, 0.5])
@pytest.mark.parametrize(("t", "left"), [(2, 1.0), (4, 0.75), (6, 0.5), (9, 0.125), (10, 0.0)])
def test_polynomial(t: float, left: float, power: float) -> None:
    assert polynomial(t, 10, power=power, warmup=2) == pytest.approx(left**power, abs=1e-15)
    assert polynomial(t, 10, power=power, warmup=2, floor=0.1) == pytest.approx(0.1 + 0.9 * left**power, abs=1e-15)


@pytest.mark.parametrize(
    ("t", "factor"), [(2, 1.0), (4, (1 + math.sqrt(0.5)) / 2), (6, 0.5), (8, (1 - math.sqrt(0.5)) / 2), (10, 0.0)]
)
def test_cosine(t: float, factor: float) -> None:
    assert cosine(t, 10, warmup=2) == pytest.approx(factor, abs=1e-15)
    assert cosine(t, 10, warmup=2, floor=0.2) == pytest.approx(0.2 + 0.8 * factor, abs=1e-15)


@pytest.mark.parametrize("schedule", [cosine, polynomial])
@pytest.mark.parametrize(("t", "factor"), [(0, 0.25), (0.5, 0.375), (1, 0.5), (2, 0.75), (2.999999999999, 1.0)])
def test_a_warm_up_rises_in_a_line_and_never_stands_still(schedule: partial[float], t: float, factor: float) -> None:
    assert schedule(t, 8, warmup=3) == pytest.approx(factor, rel=1e-12)
    assert schedule(3, 8, warmup=3) == 1


@pytest.mark.parametrize("schedule", [cosine, polynomial])
def test_a_warm_up_as_long_as_the_run_is_refused(schedule: partial[float]) -> None:
    with pytest.raises(ConfigError, match=r"warmup must be less than 5 \(the number of rounds\), got 5: lower it"):
        schedule(0, 5, warmup=5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_starts_at_the_whole_rate_and_never_grows(name: str) -> None:
    course = [SCHEDULES[name](t / 7, 12) for t in range(12 * 7)]
    assert course[0] == 1
    assert all(later <= now for now, later in pairwise(course))
    assert min(course) > 0


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("cosine", {"floor": 1.0}, "the field 'floor' of the schedule .* must be.*, got 1.0"),
        ("cosine", {"warmup": -1}, "the field 'warmup' of the schedule .* must be.*, got -1"),
        ("cosine", {"power": 2}, "the schedule 'cosine' has no field 'power'"),
        ("step", {"milestones": []}, "the field 'milestones' of the schedule .* must be"),
        ("step", {"milestones": [0.5, -1]}, "the field 'milestones' of the schedule .* must be"),
        ("polynomial", {"power": 0}, "the field 'power' of the schedule .* must be.*, got 0"),
        ("exponential", {"decay": 1.5}, "the field 'decay' of the schedule .* must be.*, got 1.5"),
    ],
)
def test_wrong_fields_are_refused(name: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SCHEDULES.settings(name, settings)


def test_the_optimizer_follows_its_schedule() -> None:
    local = LocalTraining(lr=0.8, momentum=0.9, weight_decay=0.1, schedule=partial(cosine, floor=0.5), rounds=4)
    assert local.at(2) == Sgd(0.8 * 0.75, 0.9, 0.1)
    assert LocalTraining(optimizer="adam", lr=0.8, schedule=partial(step, milestones=(1,)), rounds=4).at(1.5) == Adam(
        pytest.approx(0.08)
    )


def test_a_schedule_travels_between_processes() -> None:
    local = LocalTraining(lr=0.8, schedule=partial(cosine, warmup=1.0), rounds=4)
    assert pickle.loads(pickle.dumps(local)).at(3) == local.at(3)
