"""Both Dirichlet partitions, and the published FedSoL splits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from fedra.data.partition import split, summary
from fedra.data.partition.deal import log_gammas, weights
from fedra.data.partition.legacy import PUBLISHED_SEED, dirichlet
from fedra.data.partition.report import QUANTILES
from fedra.errors import ConfigError

CIFAR10 = np.repeat(np.arange(10), 5000)
SVHN = np.repeat(np.arange(10), [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659])


@pytest.mark.parametrize(
    ("targets", "alpha", "tries", "first", "quantiles", "classes"),
    [
        (CIFAR10, 0.1, 4, [2670, 305, 157, 161, 807], [18, 58, 137, 431, 651, 1175, 2670], 3.2),
        pytest.param(
            CIFAR10,
            0.05,
            3482,
            [2103, 1563, 1036, 376, 971],
            [10, 36, 115, 315, 640, 978, 4361],
            2.4,
            marks=pytest.mark.slow,
        ),
        (CIFAR10, 0.5, 1, [639, 554, 278, 505, 506], [134, 276, 408, 506, 569, 718, 1004], 6.7),
        (SVHN, 0.1, 1, [534, 1476, 1135, 476, 248], [11, 142, 338, 714, 1029, 1478, 2487], None),
    ],
)
def test_published_splits(
    targets: np.ndarray, alpha: float, tries: int, first: list[int], quantiles: list[int], classes: float | None
) -> None:
    found = dirichlet(
        np.split(np.arange(len(targets)), np.flatnonzero(np.diff(targets)) + 1),
        100,
        PUBLISHED_SEED,
        alpha,
        10,
        True,
        tries,
    )
    assert found is not None
    parts, taken = found
    numbers = summary(parts, targets)
    assert taken == tries
    assert [len(part) for part in parts[:5]] == first
    assert [numbers[name] for name in QUANTILES] == pytest.approx(quantiles, abs=1.0)
    assert classes is None or numbers["classes"] == pytest.approx(classes, abs=0.05)


def test_legacy_through_the_entry_point() -> None:
    parts = split("dirichlet", CIFAR10, 100, PUBLISHED_SEED, alpha=0.1, legacy=True)
    assert np.bincount(CIFAR10[parts[0]], minlength=10).tolist() == [18, 0, 0, 0, 34, 0, 41, 0, 2577, 0]


def test_legacy_gives_the_examples_of_a_plain_loop() -> None:
    """The published procedure written plainly, on lists: same examples, same order, after several tries."""
    targets = np.random.default_rng(0).integers(0, 3, 90)
    rng = np.random.RandomState(5)
    pools = [np.flatnonzero(targets == label).tolist() for label in range(3)]
    held: list[list[int]] = [[]]
    tries = 0
    while min(map(len, held)) < 12:
        tries += 1
        held = [[] for _ in range(5)]
        for pool in pools:
            rng.shuffle(pool)
            share = rng.dirichlet([0.5] * 5) * [len(own) < 90 // 5 for own in held]
            ends = [*(np.cumsum(share / share.sum()) * len(pool)).astype(int)[:-1], len(pool)]
            for own, start, end in zip(held, [0, *ends], ends, strict=False):
                own.extend(pool[start:end])
        for own in held:
            rng.shuffle(own)
    parts = split("dirichlet", targets, 5, 5, alpha=0.5, min_size=12, legacy=True)
    assert tries > 3
    assert [part.tolist() for part in parts] == held


def test_sizes_follow_the_law_of_the_legacy_stream() -> None:
    """Both streams accept a draw equally often and skew it equally: sizes of 60 splits, pooled."""
    sizes = {
        legacy: np.concatenate(
            [
                [len(p) for p in split("dirichlet", CIFAR10[::10], 20, seed, alpha=0.3, legacy=legacy)]
                for seed in range(60)
            ]
        )
        for legacy in (False, True)
    }
    assert np.mean(sizes[False] > 250) == pytest.approx(np.mean(sizes[True] > 250), abs=0.06)
    assert sizes[False].std() == pytest.approx(sizes[True].std(), rel=0.15)


def test_many_tries_still_end_with_every_client_served() -> None:
    parts = split("dirichlet", CIFAR10, 100, 3, alpha=0.05)
    assert min(map(len, parts)) >= 10
    assert summary(parts, CIFAR10)["classes"] < 3.5


def test_the_cap_keeps_full_clients_from_further_classes() -> None:
    """Whoever holds an even share before the last class gets nothing of it."""
    targets = np.repeat(np.arange(3), 100)
    for seed in range(5):
        parts = split("dirichlet", targets, 4, seed, alpha=0.5, min_size=1)
        counts = np.stack([np.bincount(targets[part], minlength=3) for part in parts])
        full = counts[:, :2].sum(axis=1) >= 300 // 4
        assert full.any()
        assert counts[full, 2].sum() == 0


def test_without_the_cap_a_full_client_goes_on() -> None:
    targets = np.repeat(np.arange(10), 100)
    counts = [len(part) for part in split("dirichlet", targets, 4, 0, alpha=0.5, min_size=1, cap=False)]
    capped = [len(part) for part in split("dirichlet", targets, 4, 0, alpha=0.5, min_size=1)]
    assert np.std(counts) > np.std(capped)


def test_everybody_full_before_the_last_class() -> None:
    """One client is full at once; the last example still finds an owner."""
    parts = split("dirichlet", np.array([0] * 10 + [1]), 1, 0, min_size=1)
    assert len(parts[0]) == 11


@pytest.mark.parametrize("legacy", [False, True])
def test_too_skewed_says_what_to_change(legacy: bool) -> None:
    with pytest.raises(ConfigError, match=r"no split in 50 tries .* increase alpha or tries, lower min_size"):
        split("dirichlet", CIFAR10, 100, 0, alpha=0.02, tries=50, legacy=legacy)


def test_a_min_size_out_of_reach_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"min_size must be at most 7 .* got 8"):
        split("dirichlet", np.arange(30), 4, 0, min_size=8)


def test_legacy_refuses_what_its_stream_cannot_do() -> None:
    with pytest.raises(ConfigError, match="below 2\\^32"):
        split("dirichlet", CIFAR10, 10, 2**32, legacy=True)


def test_log_gammas_are_gamma() -> None:
    draws = np.exp(log_gammas(np.random.default_rng(0), 0.3, (4000,)))
    assert kstest(draws, "gamma", args=(0.3,)).pvalue > 0.01


def test_weights_survive_a_tiny_alpha_and_a_barred_favorite() -> None:
    logs = np.array([[5e6, -4e6, -4e6 - 1.0]])
    assert weights(logs, np.array([[False, True, True]])).ravel() == pytest.approx([0.0, 1.0, np.exp(-1.0)])


def test_dirichlet_clients_have_equal_sizes_and_their_own_mix() -> None:
    parts = split("dirichlet-clients", CIFAR10, 50, 0, alpha=0.05)
    assert {len(part) for part in parts} == {1000}
    assert summary(parts, CIFAR10)["classes"] < 4
    even = split("dirichlet-clients", CIFAR10, 50, 0, alpha=1000.0)
    counts = np.stack([np.bincount(CIFAR10[part], minlength=10) for part in even])
    assert counts.min() > 60


def test_dirichlet_clients_sigma_spreads_the_sizes() -> None:
    sizes = [len(part) for part in split("dirichlet-clients", CIFAR10, 50, 0, alpha=1.0, sigma=1.0)]
    assert max(sizes) > 5 * min(sizes)
