import math

import pytest

from fedra.errors import ConfigError
from fedra.privacy.accounting import Mechanism, gaussian_epsilon, noise_for, total_epsilon

# (rate, noise, releases, delta, epsilon by PLD, bracket of Microsoft's prv-accountant)
SAMPLED = {
    "classic": (0.01, 1.1, 1000, 1e-5, 1.51537, (1.50526, 1.52547)),
    "silos": (0.1, 1.0, 100, 1e-3, 4.78435, (4.77449, 4.79557)),
    "photos": (1 / 12, 1.0, 600, 1e-4, 13.11234, (13.10153, 13.12314)),
    "devices": (0.001, 0.8, 2000, 1e-8, 1.11169, (1.10153, 1.12182)),
}
EXACT = [(8.0, 50, 1e-5, 3.796536), (4.0, 10, 1e-5, 3.3414), (1.0, 10, 1e-3, 14.0794), (1.1, 20, 1e-5, 24.9225)]


@pytest.mark.parametrize("case", SAMPLED.values(), ids=SAMPLED)
def test_sampled_epsilon_lies_in_the_brackets_of_an_independent_accountant(case):
    rate, noise, releases, delta, known, (low, high) = case
    found = Mechanism(noise, rate).epsilon(releases, delta)
    assert found == pytest.approx(known, abs=1e-4)
    assert low < found < high


@pytest.mark.parametrize(("noise", "releases", "delta", "known"), EXACT)
def test_without_sampling_epsilon_is_exact(noise, releases, delta, known):
    assert Mechanism(noise).epsilon(releases, delta) == pytest.approx(known, abs=1e-4)


def test_exact_epsilon_solves_the_equation_of_the_gaussian_mechanism():
    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for mu in (0.1, 1.0, 3.0):
        epsilon = gaussian_epsilon(mu, 1e-6)
        delta = normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-6, rel=1e-4)


def test_the_exact_and_the_sampled_accountant_meet_where_everybody_is_sampled():
    assert Mechanism(8.0, 1 - 1e-9).epsilon(50, 1e-5) == pytest.approx(Mechanism(8.0).epsilon(50, 1e-5), abs=1e-3)


def test_epsilon_grows_with_releases_and_rate_and_falls_with_noise():
    base = Mechanism(1.0, 0.1).epsilon(20, 1e-5)
    assert Mechanism(1.0, 0.1).epsilon(40, 1e-5) > base
    assert Mechanism(1.0, 0.2).epsilon(20, 1e-5) > base
    assert Mechanism(2.0, 0.1).epsilon(20, 1e-5) < base


def test_no_release_costs_nothing_and_no_noise_hides_nothing():
    assert Mechanism(1.0, 0.1).epsilon(0, 1e-5) == 0
    assert Mechanism(0.0, 0.1).epsilon(1, 1e-5) == math.inf
    assert Mechanism(0.0).releases_within(5.0, 1e-5) == 0


@pytest.mark.parametrize(("noise", "budget"), [(8.0, 4.0), (50.0, 4.0), (1.0, 3.0), (20.0, 0.5)])
def test_the_last_release_within_a_budget(noise, budget):
    count = Mechanism(noise).releases_within(budget, 1e-5)
    assert Mechanism(noise).epsilon(count, 1e-5) <= budget < Mechanism(noise).epsilon(count + 1, 1e-5)


def test_the_last_sampled_release_within_a_budget():
    assert Mechanism(1.0, 0.05).releases_within(3.0, 1e-5) == 68


@pytest.mark.parametrize(("epsilon", "rate", "releases"), [(2.0, 1.0, 10), (0.01, 1.0, 10), (50.0, 1.0, 1)])
def test_calibrated_noise_is_the_least_that_keeps_the_budget(epsilon, rate, releases):
    noise = noise_for(epsilon, 1e-5, rate, releases)
    assert Mechanism(noise, rate).epsilon(releases, 1e-5) <= epsilon
    assert Mechanism(noise - 1e-4, rate).epsilon(releases, 1e-5) > epsilon


@pytest.mark.slow
def test_calibrated_noise_of_sampled_releases():
    assert noise_for(2.0, 1e-5, 0.05, 100) == pytest.approx(1.3445, abs=1e-4)  # 1.344476, rounded up


def test_several_runs_on_the_same_people_add_up():
    half = Mechanism(1.0, 0.1)
    assert total_epsilon([(half, 10), (half, 10)], 1e-5) == pytest.approx(half.epsilon(20, 1e-5), abs=1e-6)
    assert total_epsilon([(half, 10), (Mechanism(2.0, 0.1), 10)], 1e-5) > half.epsilon(10, 1e-5)
    assert total_epsilon([], 1e-5) == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_must_be_a_probability(delta):
    with pytest.raises(ConfigError, match="delta must be above 0 and below 1"):
        Mechanism(1.0).epsilon(1, delta)
