"""A short run of every fuzzing target: seeds are read, kept inputs fail no more, and some mutations are tried.

`make fuzz` runs the same targets for as long as it is given.
"""

from __future__ import annotations

import random
import warnings

import hypothesis
import pytest
from fuzz_mutation import mutate
from fuzz_targets import all_targets
from hypothesis import Phase, strategies

TRIES, SLOW_TRIES = 15, 4
"""Mutations of a target, and of one that draws pictures."""
CASES = [pytest.param(name, marks=pytest.mark.slow) if target.slow else name for name, target in all_targets().items()]


@pytest.mark.parametrize("name", CASES)
def test_reader_returns_or_raises_an_error_of_its_own(name: str) -> None:
    target = all_targets()[name]
    with target.session() as examine, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd pixels and numbers, which a campaign ignores too

        def check(data: bytes) -> None:
            failure = examine(data)
            assert failure is None, f"{failure.name} on {data[:200]!r}...\n{failure.report}"

        for data in (*target.seeds, *target.corpus):
            check(data)

        @hypothesis.settings(
            derandomize=True,
            max_examples=SLOW_TRIES if target.slow else TRIES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
        )
        @hypothesis.given(
            strategies.sampled_from(target.seeds + target.corpus), strategies.randoms(use_true_random=True)
        )
        def try_mutations(seed: bytes, chance: random.Random) -> None:
            check(mutate(seed, target.seeds, target.form, chance))

        try_mutations()
