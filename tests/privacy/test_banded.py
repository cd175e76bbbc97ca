"""Correlated noise for clients that take turns: factorization, noise, cohorts, accounting, and whole runs."""

import json
import math

import numpy as np
import pytest
import torch

import fedra
from fedra.config.reading import read
from fedra.errors import ConfigError
from fedra.experiment import private_run
from fedra.experiment.cohort import CohortRule
from fedra.experiment.privacy_budget import plan_budget
from fedra.experiment.private_mechanism import mechanism_of
from fedra.privacy.accounting import Mechanism, gaussian_epsilon, noise_for, total_epsilon
from fedra.privacy.banded import BandedNoise, band_diagonals, inverse_diagonals, prefix_error
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret

SECRET = Secret(bytes(range(32)))


def dense(band, rounds):
    """C as a matrix, entry by entry from the recursion of its coefficients."""
    coefficients = [1.0]
    for j in range(1, band):
        coefficients.append(coefficients[-1] * (2 * j - 1) / (2 * j))
    scale = math.sqrt(sum(c * c for c in coefficients))
    matrix = np.zeros((rounds, rounds))
    for row in range(rounds):
        for column in range(max(0, row - band + 1), row + 1):
            matrix[row, column] = coefficients[row - column] / scale
    return matrix


def dense_noise(band, rounds, length, secret=SECRET):
    """C^-1 Z by solving the whole system at once."""
    normals = np.stack([secret.normals(length, "sum", round, 0).double().numpy() for round in range(rounds)])
    return torch.from_numpy(np.linalg.solve(dense(band, rounds), normals))


def test_the_coefficients_are_those_of_the_paper():
    diagonals = band_diagonals(6)
    expected = [1, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375]
    assert (diagonals / diagonals[0]).tolist() == pytest.approx(expected, abs=1e-12)
    assert np.linalg.norm(diagonals) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rounds", "band", "error"), [(100, 1, 7.11), (100, 10, 3.04), (100, 20, 2.59), (500, 1, 15.83), (500, 50, 3.59)]
)
def test_the_error_of_prefix_sums(rounds, band, error):
    assert prefix_error(band, rounds) == pytest.approx(error, abs=0.005)
    sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(dense(band, rounds))
    assert prefix_error(band, rounds) == pytest.approx(math.sqrt((sums**2).sum() / rounds), rel=1e-9)


@pytest.mark.parametrize(("band", "rounds"), [(1, 5), (2, 7), (5, 23), (9, 4)])
def test_noise_of_single_rounds_equals_a_dense_solution(band, rounds):
    expected, noise = dense_noise(band, rounds, 50), BandedNoise(SECRET, band, 50)
    for round in range(rounds):
        assert torch.allclose(noise.at(round).double(), expected[round], atol=1e-5)
        deviation = np.linalg.norm(np.linalg.inv(dense(band, rounds))[round])
        assert noise.deviation(round) == pytest.approx(deviation)
    assert inverse_diagonals(band, rounds).tolist() == pytest.approx(np.linalg.inv(dense(band, rounds))[:, 0].tolist())


def test_noise_is_the_same_from_any_round_on_and_if_a_round_is_repeated():
    whole = BandedNoise(SECRET, 4, 30)
    rows = [whole.at(round).clone() for round in range(12)]
    assert torch.equal(BandedNoise(SECRET, 4, 30).at(11), rows[11])  # a resumed run
    assert torch.equal(whole.at(11), rows[11])  # another attempt
    assert torch.equal(whole.at(5), rows[5])


def test_columns_of_rounds_that_are_a_band_apart_have_the_sensitivity_that_is_accounted():
    band, rounds = 6, 40
    matrix = dense(band, rounds)
    generator = np.random.default_rng(0)
    for first in range(band):
        turns = matrix[:, first::band]
        assert turns.shape[1] <= Mechanism(1.0, apart=band).participations(rounds)
        moved = generator.normal(size=(turns.shape[1], 8))
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)  # updates at the clip norm, in any directions
        assert np.linalg.norm(turns @ moved) <= math.sqrt(turns.shape[1]) * (1 + 1e-12)
    closer = matrix[:, :: band - 1]  # the control: equal updates that come too often exceed it
    assert np.linalg.norm(closer.sum(axis=1)) > math.sqrt(closer.shape[1])


def test_prefix_sums_have_less_noise_than_independent_noise_of_the_same_epsilon():
    rounds, band, length, budget = 60, 10, 3000, (4.0, 1e-5)
    mechanism = Mechanism(noise_for(*budget, 1.0, rounds, lambda z, rate: Mechanism(z, rate, band)), apart=band)
    turns = mechanism.participations(rounds)
    independent = Mechanism(noise_for(*budget, 1.0, turns))  # counts the turns of a client as well
    assert independent.epsilon(turns, 1e-5) == mechanism.epsilon(rounds, 1e-5) <= 4.0

    def error(noise, source):
        numbers = ClipAndNoise(clip=1.0, noise=noise, divisor=1.0, expected=1.0)
        released = [
            PrivateSum(numbers, length, SECRET, round, 0, banded=source).finish().total for round in range(rounds)
        ]
        return float(torch.stack(released).cumsum(dim=0).square().mean().sqrt())

    alone = error(independent.noise, None)
    together = error(mechanism.noise, BandedNoise(SECRET, band, length))
    assert together / alone == pytest.approx(prefix_error(band, rounds) / prefix_error(1, rounds), rel=0.05)
    assert together < 0.55 * alone


def test_a_band_of_one_is_independent_noise():
    numbers = ClipAndNoise(clip=0.5, noise=2.0, divisor=1.0, expected=1.0)
    for round in range(4):
        plain = PrivateSum(numbers, 20, SECRET, round, 0)
        banded = PrivateSum(numbers, 20, SECRET, round, 0, banded=BandedNoise(SECRET, 1, 20))
        assert torch.equal(plain.finish().total, banded.finish().total)
        assert plain.noise_share == banded.noise_share
    assert Mechanism(2.0, apart=1).epsilon(7, 1e-5) == Mechanism(2.0).epsilon(7, 1e-5)
    assert prefix_error(1, 9) == pytest.approx(math.sqrt(5))


def test_participations_are_counted_once_in_a_band():
    mechanism = Mechanism(noise=4.0, apart=10)
    assert [mechanism.participations(rounds) for rounds in (0, 1, 10, 11, 100)] == [0, 1, 1, 2, 10]
    assert mechanism.epsilon(100, 1e-5) == gaussian_epsilon(math.sqrt(10) / 4, 1e-5) == pytest.approx(3.3414, abs=1e-4)
    allowed = mechanism.releases_within(3.3415, 1e-5)
    assert allowed == 100
    # Two short runs are two participations, though their rounds together are less than a band.
    assert total_epsilon([(mechanism, 4), (mechanism, 4)], 1e-5) == Mechanism(4.0).epsilon(2, 1e-5)
    with pytest.raises(ConfigError, match="need a sampling rate of 1"):
        Mechanism(noise=1.0, rate=0.5, apart=2)


class Clients:
    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def size(self, client):
        return 1 + client % 3


@pytest.mark.parametrize(("clients", "fraction"), [(12, 0.25), (13, 0.25), (10, 0.34), (7, 0.15), (5, 1.0), (11, 0.6)])
def test_clients_in_rotation_keep_their_rounds_apart(clients, fraction):
    rule, roster = CohortRule(fraction, "rotation"), Clients(clients)
    apart, last, came = rule.rounds_apart(clients), {}, []
    for round in range(60):
        cohort = rule.sample(roster, 3, round, 0)
        assert len(set(cohort)) == rule.size(clients)
        assert cohort == rule.sample(roster, 3, round, 2)  # a repeated round asks the same clients
        came += [round - last[client] for client in cohort if client in last]
        last.update(dict.fromkeys(cohort, round))
    assert min(came) == apart == clients // rule.size(clients)
    assert max(came) <= apart + 1  # nobody waits longer than needed
    orders = [[rule.sample(roster, seed, round, 0) for round in range(apart)] for seed in range(6)]
    assert fraction == 1 or any(order != orders[0] for order in orders)


CONFIG = {
    "rounds": 7,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "iid", "clients": 12},
    "model": {"name": "mlp"},
    "runner": {"name": "sequential"},
    "cohort": {"fraction": 0.25, "sampling": "rotation"},
    "local": {"lr": 0.1, "batch": 10},
}
PRIVATE = {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 0.5, "band": 4}


def config(privacy=None, **changes):
    return {**CONFIG, "privacy": {**PRIVATE, **(privacy or {})}, **changes}


def test_a_run_adds_up_to_the_noise_of_the_dense_solution(monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    still = {"local": {"lr": 1e-12, "batch": 10}}  # nothing but noise moves the model
    noised, start = fedra.run(config(**still)), fedra.run(config({"noise": 0.0}, **still))
    pairs = zip(noised.model.parameters(), start.model.parameters(), strict=True)
    moved = torch.cat([(a - b).detach().flatten().double() for a, b in pairs])
    expected = dense_noise(4, 7, len(moved)).sum(dim=0) * 1.0 * 0.5 / 3
    assert float(moved.norm()) == pytest.approx(float(expected.norm()), rel=1e-4)
    independent = dense_noise(1, 7, len(moved)).sum(dim=0) * 1.0 * 0.5 / 3
    assert float(moved.norm()) < 0.8 * float(independent.norm())


def test_a_run_that_is_resumed_repeats_its_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    whole = fedra.run(config(), out=tmp_path / "whole")

    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            if report.metrics["round"] == 5:
                raise KeyboardInterrupt

    with pytest.raises(fedra.FedraError):
        fedra.run(config(), out=tmp_path / "broken", callbacks=[Stop()])
    resumed = fedra.resume(tmp_path / "broken")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)
    said = json.loads((tmp_path / "broken" / "summary.json").read_text())["privacy"]
    assert (said["band"], said["apart"], said["releases"], said["rate"]) == (4, 4, 2, 1.0)
    assert said["epsilon"] == Mechanism(1.0).epsilon(2, 1e-3) == resumed.metrics[-1]["epsilon"]


def test_masks_and_an_adaptive_clip_go_with_correlated_noise(monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    wide = {"cohort": {"fraction": 1 / 3, "sampling": "rotation"}, "rounds": 4}
    adaptive = {"clip": "adaptive", "noise": 0.3, "band": 3}
    plain = fedra.run(config(adaptive, **wide))
    masked = fedra.run(config(adaptive, **wide, secure={"aggregation": "masks"}))
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(masked.model.state_dict()[name], value, atol=1e-4), name
    assert masked.summary["privacy"]["releases"] == 2


def test_a_budget_counts_turns():
    table = read(config({"noise": "auto", "epsilon": 4.0}, rounds=40))
    budget = plan_budget(table)
    assert budget.chosen == noise_for(4.0, 1e-3, 1.0, 10)
    assert budget.target == (4.0, 40)
    single = np.linalg.norm(np.linalg.inv(dense(4, 40))[-1])
    assert budget.noise_ratio(9) == pytest.approx(budget.chosen * single * 3 / 3)
    assert budget.turns == (4, prefix_error(4, 40) / prefix_error(1, 40))
    assert mechanism_of(table, budget.chosen).epsilon(40, 1e-3) <= 4.0
    ended = fedra.run(config({"epsilon": 6.0}, rounds=30))
    turns = Mechanism(1.0).releases_within(6.0, 1e-3)
    assert ended.summary["stopped"] == "budget"
    assert ended.summary["rounds"] == 4 * turns


@pytest.mark.parametrize("band", [1, 2, 4])
def test_only_the_turns_of_a_client_count_whatever_the_band(band):
    table = config({"noise": "auto", "epsilon": 4.0, "band": band}, rounds=9)  # three of twelve: every fourth round
    assert plan_budget(read(table)).chosen == noise_for(4.0, 1e-3, 1.0, 3)
    said = fedra.run(table).summary["privacy"]
    assert (said["releases"], said["apart"], said.get("band")) == (3, 4, band if band > 1 else None)
    assert said["epsilon"] == Mechanism(said["noise"]).epsilon(3, 1e-3) <= 4.0


def test_turns_are_counted_for_noise_by_clients_and_not_in_a_federation_that_may_grow():
    secure = {"privacy": {"band": 1, "where": "clients", "noise": 3.0}, "secure": {"aggregation": "masks"}}
    said = fedra.run(config(**secure, rounds=5)).summary["privacy"]
    assert said["releases"] == 2
    counted = mechanism_of(read(config(**secure)), 3.0)
    assert said["epsilon"] == counted.epsilon(2, 1e-3) < counted.epsilon(5, 1e-3)
    assert mechanism_of(read(config({"band": 1})), 1.0).participations(8) == 8
    assert mechanism_of(read(config({"band": 1})), 1.0, clients=12).participations(8) == 2


REFUSED = {
    "twice within a band": ({"privacy": {"band": 5}}, "at most 4, got 5: with 3 of 12 clients per round, a client"),
    "everybody always": ({"cohort": {"fraction": 1.0, "sampling": "rotation"}}, "must be at most 1, got 4"),
    "poisson": ({"cohort": {"fraction": 0.25, "sampling": "poisson"}}, "set it to 'rotation'"),
    "keyed": ({"cohort": {"fraction": 0.25}, "privacy": {"amplification": "none"}}, "set it to 'rotation'"),
    "examples": ({"privacy": {"level": "example"}}, r"got privacy\.level = 'example'"),
    "noise by clients": (
        {"privacy": {"where": "clients"}, "secure": {"aggregation": "masks"}},
        r"got privacy\.where = 'clients'",
    ),
    "independent noise counts on sampling": (
        {"privacy": {"band": 1}, "cohort": {"fraction": 0.25}},
        "no proven amplification",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run(config(**changes))


def test_the_number_of_clients_that_the_data_decide_is_checked_too():
    pairs = {"name": "one-class", "clients": 0}
    with pytest.raises(ConfigError, match="at most 5, got 6: with 2 of 10 clients"):
        fedra.run(config({"band": 6, "delta": 1e-2}, partition=pairs, cohort={"fraction": 0.2, "sampling": "rotation"}))
