"""Seconds to divide 50,000 examples of 10 classes (CIFAR-10's size) among 100 clients, for every partition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from measure import Row, in_turns, main, parser

from fedra.data.partition import PARTITIONS, split

EXAMPLES, CLASSES, CLIENTS = 50_000, 10, 100
CASES: dict[str, list[dict[str, Any]]] = {
    "dirichlet": [{"alpha": alpha} for alpha in (0.5, 0.1, 0.05)],
    "dirichlet-clients": [{"alpha": alpha} for alpha in (0.5, 0.1, 0.05)],
    "quantity": [{"law": law} for law in ("dirichlet", "lognormal")],
}
"""Settings to measure; a partition that is not named here runs with its defaults."""
WHOLE_CLASSES = {"identity"}
"""Partitions that deal out whole classes, and so have as many clients as there are classes."""


def measure(quick: bool) -> list[Row]:
    """The time of each partition and setting, its proof included."""
    examples, clients, repeats = (2_000, 10, 1) if quick else (EXAMPLES, CLIENTS, 5)
    rng = np.random.default_rng(0)
    targets = rng.permutation(np.arange(examples) % CLASSES)
    groups = rng.integers(clients, size=examples)
    rivals = {}
    for name in PARTITIONS:
        count = CLASSES if name in WHOLE_CLASSES else clients
        for settings in CASES.get(name, [{}]):
            title = " ".join([name, *(f"{key}={value}" for key, value in settings.items())])
            rivals[title] = partial(split, name, targets, count, 0, groups, **settings)
    timings = in_turns(rivals, repeats)
    return [Row(title, timings.best(title), "s") for title in rivals]


if __name__ == "__main__":
    main(measure, parser(__doc__))
