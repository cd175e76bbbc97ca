"""What is particular to each of the other partitions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from fedra.data.partition import aligned_test, split
from fedra.data.partition.deal import even_counts, proportional_counts
from fedra.data.partition.legacy import PUBLISHED_SEED, label_table, stream
from fedra.errors import ConfigError, DataError

CIFAR10 = np.repeat(np.arange(10), 5000)
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def classes_held(parts: list[np.ndarray], targets: np.ndarray) -> list[int]:
    return [len(np.unique(targets[part])) for part in parts]


def test_iid_without_shuffle_is_stratified_k_fold() -> None:
    targets = np.random.default_rng(0).permutation(MNIST)[:3000]
    folds = StratifiedKFold(7).split(targets, targets)
    for part, (_, fold) in zip(split("iid", targets, 7, 0, shuffle=False), folds, strict=True):
        assert np.array_equal(part, fold)


def test_iid_spreads_every_class_within_one_example() -> None:
    parts = split("iid", MNIST, 100, 0)
    counts = np.stack([np.bincount(MNIST[part]) for part in parts])
    assert np.ptp(counts, axis=0).max() <= 1
    assert {len(part) for part in parts} == {600}


def test_iid_with_classes_smaller_than_the_cohort() -> None:
    parts = split("iid", np.arange(30) // 2, 10, 0)
    assert {len(part) for part in parts} == {3}


def test_shards_of_mnist_are_mcmahans() -> None:
    """200 shards of 300 examples, two per client, at most two classes each."""
    parts = split("shards", MNIST, 100, 0)
    assert {len(part) for part in parts} == {600}
    assert 2 <= max(classes_held(parts, MNIST)) <= 4
    for part in parts:
        for shard in np.split(part, 2):
            assert shard[0] % 300 == 0
            assert np.array_equal(shard, np.arange(shard[0], shard[0] + 300))


def test_shards_remainder_is_dealt_or_dropped() -> None:
    targets = np.arange(23) // 6
    dealt = split("shards", targets, 5, 0)
    dropped = split("shards", targets, 5, 0, drop_remainder=True)
    assert sum(map(len, dealt)) == 23
    assert [len(part) for part in dropped] == [4] * 5
    assert max(map(np.max, dropped)) == 19


def test_class_shards_never_mix_classes() -> None:
    parts = split("class-shards", CIFAR10, 100, 0)
    assert {len(part) for part in parts} == {500}
    assert set(classes_held(parts, CIFAR10)) == {1, 2}


def test_class_shards_use_every_example_of_nine_classes() -> None:
    """PathMNIST's case: 400 shards do not divide by nine classes."""
    parts = split("class-shards", np.repeat(np.arange(9), 1000), 200, 0)
    assert max(classes_held(parts, np.repeat(np.arange(9), 1000))) == 2


def test_class_shards_published_table() -> None:
    rows = label_table(stream(PUBLISHED_SEED), 10, 100, 2)
    assert rows[:5].tolist() == [[5, 6], [9, 2], [5, 9], [2, 0], [5, 4]]
    assert (rows[:, 0] == rows[:, 1]).sum() == 10
    parts = split("class-shards", CIFAR10, 100, PUBLISHED_SEED, legacy=True)
    for part, row in zip(parts, rows, strict=True):
        assert CIFAR10[part[[0, 250]]].tolist() == row.tolist()


def test_class_shards_legacy_repeats_labels_until_they_divide() -> None:
    rows = label_table(stream(PUBLISHED_SEED), 9, 200, 2).ravel()
    assert rows.shape == (400,)
    assert np.array_equal(rows[396:], rows[1:5])


def test_class_shards_legacy_refuses_to_copy_a_client() -> None:
    with pytest.raises(ConfigError, match="without a shard"):
        split("class-shards", np.repeat(np.arange(10), 10), 19, 0, shards=1, legacy=True)


def test_class_shards_need_a_shard_per_class() -> None:
    with pytest.raises(ConfigError, match="shards must be at least 4"):
        split("class-shards", CIFAR10, 3, 0, shards=2)


@pytest.mark.parametrize("law", ["dirichlet", "lognormal"])
def test_quantity_skews_sizes_but_not_labels(law: str) -> None:
    parts = split("quantity", MNIST, 20, 0, law=law, min_size=50)
    sizes = sorted(map(len, parts))
    assert sizes[0] >= 50
    assert sizes[-1] > 5 * sizes[0]
    mix = np.bincount(MNIST[max(parts, key=len)], minlength=10) / sizes[-1]
    assert mix == pytest.approx(np.bincount(MNIST) / len(MNIST), abs=0.02)


def test_quantity_min_size_out_of_reach() -> None:
    with pytest.raises(ConfigError, match="min_size must be at most 3"):
        split("quantity", np.arange(10), 3, 0)


@pytest.mark.parametrize("balance", ["balanced", "lognormal"])
def test_no_identity_is_on_two_clients(balance: str) -> None:
    people = np.random.default_rng(0).integers(0, 100, 2000)
    parts = split("identity", people, 9, 0, balance=balance)
    owned = [set(people[part]) for part in parts]
    assert sum(map(len, owned)) == 100
    spread = max(map(len, owned)) - min(map(len, owned))
    assert spread <= 1 if balance == "balanced" else spread > 5


def test_identity_without_clients_is_one_each() -> None:
    parts = split("identity", np.array([4, 2, 4, 9]), None, 0)
    assert sorted(map(len, parts)) == [1, 1, 2]


@pytest.mark.parametrize("balance", ["balanced", "lognormal"])
@pytest.mark.parametrize("holders", [2, 3])
def test_some_identities_are_on_several_clients(balance: str, holders: int) -> None:
    people = np.repeat(np.arange(40), 7)
    plain = split("identity", people, 8, 3, balance=balance)
    parts = split("identity", people, 8, 3, balance=balance, shared=0.25, holders=holders)
    held = np.array([[int((people[part] == person).sum()) for part in parts] for person in range(40)])
    owners = (held > 0).sum(axis=1)
    assert sorted(set(owners.tolist())) == [1, holders]
    assert (owners == holders).sum() == 10
    assert (held.sum(axis=1) == 7).all()
    assert held[owners == holders].max() <= -(-7 // holders)
    for client, part in enumerate(plain):  # whoever had a person before still has some of their images
        assert set(people[part]) <= set(people[parts[client]])


def test_identities_with_too_few_images_cannot_be_shared() -> None:
    people = np.array([0, 0, 0, 1, 2, 3])
    assert len(split("identity", people, 3, 0, shared=0.25)) == 3
    with pytest.raises(ConfigError, match=r"at most 1 identities \(those with at least 2 images\), got 2"):
        split("identity", people, 3, 0, shared=0.5)
    with pytest.raises(ConfigError, match="holders must be at most 3 \\(the number of clients\\), got 4"):
        split("identity", people, 3, 0, shared=0.25, holders=4)


def test_identity_refuses_more_clients_than_people() -> None:
    with pytest.raises(ConfigError, match=r"at most 5 \(the number of identities\) .* got 10"):
        split("identity", np.arange(50) % 5, 10, 0)


@pytest.mark.parametrize(("clients", "held"), [(None, 1), (10, 1), (30, 1), (37, 1), (5, 2)])
def test_one_class_per_client(clients: int | None, held: int) -> None:
    parts = split("one-class", MNIST, clients, 0)
    assert len(parts) == (clients or 10)
    assert set(classes_held(parts, MNIST)) == {held}


def test_one_class_gives_a_rare_class_no_more_clients_than_examples() -> None:
    parts = split("one-class", np.array([0, 1, 1, 1, 1, 1]), 4, 0)
    assert sorted(map(len, parts)) == [1, 1, 2, 2]


def test_natural_clients_are_the_groups() -> None:
    groups = np.array([7, 3, 7, 5, 3, 7])
    parts = split("natural", np.zeros(6, int), None, 0, groups)
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2, 5]]


def test_natural_merges_the_largest_first() -> None:
    groups = np.repeat(np.arange(5), [50, 10, 30, 20, 10])
    parts = split("natural", np.zeros(120, int), 2, 0, groups)
    assert sorted(map(len, parts)) == [60, 60]
    assert all(len({int(g) for g in groups[part]}) in (2, 3) for part in parts)


def test_natural_needs_groups() -> None:
    with pytest.raises(ConfigError, match="must have a data set with groups, got one without: choose another"):
        split("natural", MNIST, 10, 0)


def test_natural_cannot_make_up_groups() -> None:
    with pytest.raises(ConfigError, match=r"at most 2 \(the number of groups\) .* got 5"):
        split("natural", np.zeros(6, int), 5, 0, np.arange(6) % 2)


def test_even_counts_respect_capacities() -> None:
    assert even_counts(11, np.array([9, 1, 9, 3])).tolist() == [3, 1, 4, 3]


def test_proportional_counts_add_up() -> None:
    assert proportional_counts(np.ones(100), 50_000, 1).tolist() == [500] * 100
    assert proportional_counts(np.array([1.0, 3.0, 0.0]), 11, 1).tolist() == [3, 7, 1]


def test_aligned_test_follows_the_clients_mix() -> None:
    train = np.array([0] * 60 + [2] * 30 + [3] * 10)
    test = np.repeat(np.arange(4), [1000, 1000, 100, 1000])
    chosen = aligned_test(train, test, rng=np.random.default_rng(0))
    assert np.bincount(test[chosen], minlength=4).tolist() == [600, 0, 100, 100]
    assert len(np.unique(chosen)) == len(chosen)
    assert np.all(np.diff(test[chosen]) >= 0)


def test_aligned_test_without_common_classes_is_told() -> None:
    with pytest.raises(DataError, match="must have at least one example, got none of 2"):
        aligned_test(np.array([1, 2]), np.array([3, 4]), rng=np.random.default_rng(0))
