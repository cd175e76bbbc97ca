"""Draws keyed by purpose and place."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedra.core.random import generator, key, scoped_seed, shuffles


@given(
    st.integers(0, 2**64),
    st.sampled_from(["shuffle", "augment", "layers"]),
    st.lists(st.integers(0, 10**6), max_size=3),
)
def test_a_key_is_a_seed_torch_takes(seed: int, purpose: str, where: list[int]) -> None:
    assert 0 <= key(seed, purpose, *where) < 2**63
    generator(seed, purpose, *where)


def test_keys_differ_by_every_word() -> None:
    keys = [
        key(seed, purpose, round, client)
        for seed in range(4)
        for purpose in ("shuffle", "augment")
        for round in range(12)
        for client in range(12)
    ]
    assert len(set(keys)) == len(keys)
    assert key(1, "shuffle", 1, 11) != key(1, "shuffle", 11, 1)


def test_a_key_is_the_same_tomorrow() -> None:
    assert key(0, "shuffle", 0, 0) == 2084696019275353285


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    torch.randperm(5, generator=generator(0, "shuffle"))
    with scoped_seed(3):
        first = torch.rand(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with scoped_seed(3):
        assert torch.equal(torch.rand(2), first)


def test_threads_do_not_draw_from_each_others_seed() -> None:
    def draws(seed: int) -> list[float]:
        found = []
        with scoped_seed(seed):
            for _ in range(20):
                found.append(float(torch.rand(())))
                time.sleep(1e-4)
        return found

    alone = [draws(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draws, range(4))) == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_thread_that_it_lacks() -> None:
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with scoped_seed(1):
            begun.set()
            end.wait()

    def child() -> None:
        with scoped_seed(2):
            torch.rand(())

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(timeout=30)
    end.set()
    thread.join()
    hung = process.is_alive()
    process.kill()
    assert not hung
    assert process.exitcode == 0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 30)), min_size=1, max_size=6), st.integers(1, 3))
def test_orders_of_many_clients_are_those_of_each_alone(clients: list[tuple[int, int]], epochs: int) -> None:
    numbers, sizes = zip(*clients, strict=True)
    together = shuffles(3, 1, numbers, sizes, epochs)
    for (client, size), own in zip(clients, np.split(together, np.cumsum(sizes)[:-1], axis=1), strict=True):
        assert np.array_equal(own, shuffles(3, 1, [client], [size], epochs))
        assert (np.sort(own, axis=1) == np.arange(size)).all()


def test_every_order_is_as_likely() -> None:
    found = shuffles(0, 0, range(24_000), [4] * 24_000, 1).reshape(-1, 4)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square of 23: beyond it once in a thousand seeds


def test_orders_differ_by_seed_round_client_and_epoch() -> None:
    orders = [
        shuffles(seed, round, [client], [30], 2)[epoch].tobytes()
        for seed in range(3) for round in range(3) for client in range(3) for epoch in range(2)
    ]  # fmt: skip
    assert len(set(orders)) == len(orders)


def test_an_order_is_the_same_tomorrow() -> None:
    assert shuffles(0, 0, [0], [8], 1).tolist() == [[7, 0, 5, 6, 2, 3, 1, 4]]


def test_equal_hashes_keep_the_order_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedra.core.random._mix", np.zeros_like)
    assert shuffles(0, 0, [4, 5], [300, 200], 1)[0].tolist() == [*range(300), *range(200)]
    assert shuffles(0, 0, [4, 5], [300, 300], 1)[0].tolist() == [*range(300), *range(300)]
