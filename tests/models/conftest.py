"""Modules that tests make by hand draw the same weights every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedra.core.random import scoped_seed


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with scoped_seed(0):
        yield
