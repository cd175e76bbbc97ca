"""Noise by clients: its law by moments, its epsilon by the fixture, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedra
from fedra.config.reading import read
from fedra.errors import ConfigError
from fedra.experiment.privacy_budget import plan_budget, planned_epsilon
from fedra.privacy.accounting import Mechanism, noise_for
from fedra.privacy.secret import Secret
from fedra.privacy.secure.ring_vectors import RingVectors
from fedra.privacy.secure.secure_messages import SecureRoundError
from fedra.privacy.skellam import SkellamMechanism, draw_skellam

CONFIG = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1},
    "runner": {"name": "sequential"},
    "privacy": {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 1.0, "where": "clients", "seed": "run"},
    "secure": {"aggregation": "masks"},
}


def config(**changes):
    """The configuration with some sections changed."""
    sections = {name: {**CONFIG.get(name, {}), **change} for name, change in changes.items()}
    return {**CONFIG, **sections}


def test_epsilon_is_the_gaussian_one_by_the_same_orders():
    """Setting C of the accountants' table: 50 releases with noise 8, vectors of a million numbers."""
    found = SkellamMechanism(noise=8.0, scale=2.0**20, length=10**6).epsilon(50, 1e-5)
    assert found == pytest.approx(4.1056616, abs=2e-7)
    assert found > Mechanism(8.0).epsilon(50, 1e-5)  # an upper bound of the exact value, 3.7965


def test_a_coarse_ring_costs_more():
    fine, coarse = (SkellamMechanism(noise=1.0, scale=2.0**bits, length=10**6) for bits in (20, 2))
    assert coarse.epsilon(10, 1e-5) > fine.epsilon(10, 1e-5) * 1.01
    assert fine.epsilon(0, 1e-5) == 0
    assert math.isinf(SkellamMechanism(noise=0.0).epsilon(1, 1e-5))


def test_noise_for_a_budget_stays_within_it():
    noise = noise_for(2.0, 1e-5, 1.0, 20, SkellamMechanism)
    assert SkellamMechanism(noise=noise).epsilon(20, 1e-5) <= 2.0
    assert SkellamMechanism(noise=noise - 1e-3).epsilon(20, 1e-5) > 2.0
    assert SkellamMechanism(noise=noise).releases_within(2.0, 1e-5) == 20


@pytest.mark.parametrize("variance", [0.5, 19.0, 25.0, 1e4, 1e13])
def test_moments_of_skellam_numbers(variance):
    count = 100_000
    drawn = draw_skellam(count, variance, Secret(bytes(range(32))), 3) / math.sqrt(variance)
    assert abs(drawn.mean()) < 5 / math.sqrt(count)
    assert drawn.var() == pytest.approx(1.0, abs=5 * math.sqrt((2 + 1 / variance) / count))
    assert (drawn**4).mean() == pytest.approx(3 + 1 / variance, rel=0.1)
    assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(0, abs=5 / math.sqrt(count))


def test_small_means_have_the_right_law():
    from scipy.stats import skellam

    drawn = draw_skellam(50_000, 30.0, Secret(bytes(32)), 1)
    for value in (-6, -1, 0, 2, 7):
        share = skellam.pmf(value, 15.0, 15.0)
        assert (drawn == value).mean() == pytest.approx(share, abs=5 * math.sqrt(share / 50_000))


def test_shares_of_the_noise_add_up():
    vectors = RingVectors(clients=10, length=20_000, bound=0.5, clip=0.5, noise=2.0, fewest=5)
    numbers = [vectors.encode(torch.zeros(20_000), 1.0, Secret(bytes(32)), client, 1) for client in range(10)]
    five, ten = (np.sum(numbers[:count], axis=0, dtype=np.uint32) for count in (5, 10))
    assert vectors.decode(five, 5).total.std() == pytest.approx(1.0, rel=0.03)
    assert vectors.decode(ten, 10).total.std() == pytest.approx(math.sqrt(2), rel=0.03)
    with pytest.raises(SecureRoundError, match="at least 5 clients must add their noise, got 4"):
        vectors.decode(five, 4)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=30),
    st.integers(1, 200),
    st.floats(1e-3, 1e3),
)
def test_integers_of_a_client_are_no_longer_than_the_clip(values, clients, clip):
    vectors = RingVectors(clients=clients, length=len(values), bound=clip, clip=clip)
    numbers = vectors.encode(torch.tensor(values), 1.0).view(np.int32).astype(np.float64)
    assert np.linalg.norm(numbers) <= 2.0**vectors.ring.bits
    assert np.linalg.norm(numbers, 1) <= min(math.sqrt(len(values)), 2.0**vectors.ring.bits) * 2.0**vectors.ring.bits


def test_the_ring_has_room_for_the_noise_of_all_clients():
    vectors = RingVectors(clients=6, length=1000, bound=1.0, clip=1.0, noise=50.0, fewest=3)
    for sign in (1.0, -1.0):
        one = torch.zeros(1000)
        one[0] = sign
        numbers = [vectors.encode(one, 1.0, Secret(bytes([7] * 32)), client) for client in range(6)]
        total = vectors.decode(np.sum(numbers, axis=0, dtype=np.uint32), 6).total
        assert total.abs().max() < 8 * 50 * math.sqrt(2) + 6  # a wrap would be four times as far


def test_a_run_states_whom_to_trust_and_what_was_spent():
    result = fedra.run(config())
    found = result.summary["privacy"]
    assert "at least 50% of the clients of every round add their noise" in found["trust"]
    assert found["rate"] == 1.0
    assert "Skellam" in found["accountant"]
    expected = SkellamMechanism(noise=1.0, scale=2.0**10, length=2**30).epsilon(3, 1e-3)
    assert found["epsilon_if_secret"] == pytest.approx(expected)
    assert result.metrics[-1]["noise_share"] > 0.5


def test_noise_by_clients_is_keyed_by_client_and_round():
    one, other = (fedra.run(config()) for _ in range(2))
    for name, value in one.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], value)
    secret = fedra.run(config(privacy={"seed": "secret"}))
    assert not torch.equal(secret.model.state_dict()[name], value)


def test_without_noise_clip_and_ring_give_the_private_mean_to_rounding():
    """Clients that clip themselves give the server's clipped mean, with fixed and with adaptive norms."""
    for clip in (0.5, "adaptive"):
        change = {"where": "server", "noise": 0.0, "clip": clip}
        secure = fedra.run(config(privacy=change))
        plain = fedra.run(config(privacy=change, secure={"aggregation": "none"}))
        for name, value in plain.model.state_dict().items():
            assert torch.allclose(secure.model.state_dict()[name], value, atol=1e-5), (clip, name)
        assert secure.metrics[-1]["clip"] == pytest.approx(plain.metrics[-1]["clip"])


def test_the_server_adds_the_same_noise_with_and_without_masks():
    change = {"where": "server"}
    secure = fedra.run(config(privacy=change))
    plain = fedra.run(config(privacy=change, secure={"aggregation": "none"}))
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(secure.model.state_dict()[name], value, atol=1e-4), name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"secure": {"aggregation": "none"}}, "needs \\[secure\\]"),
        ({"privacy": {"clip": "adaptive"}}, "set privacy.clip to a number"),
        (
            {"privacy": {"where": "server"}, "cohort": {"fraction": 0.5, "sampling": "poisson"}},
            "fewer than 3 clients cannot be added up",
        ),
    ],
)
def test_refusals(change, reason):
    with pytest.raises(ConfigError, match=reason):
        fedra.run(config(**change))


def test_the_budget_counts_on_no_sampling():
    found = read(config(cohort={"fraction": 0.5, "sampling": "poisson"}))
    budget = plan_budget(found)
    assert budget.rate == 1.0
    assert budget.epsilons[1.0][-1] == pytest.approx(SkellamMechanism(noise=1.0).epsilon(3, 1e-3), rel=1e-4)
    assert planned_epsilon(found) is None  # privacy.seed = "run"


def test_dropouts_at_every_stage_leave_the_sum_of_the_others():
    faults = {"dropout": 0.2, "quorum": 0.3}
    result = fedra.run({**config(privacy={"level": "none"}), "faults": faults, "rounds": 4})
    assert sum(line["dropped"] for line in result.metrics) > 0
