"""What each method costs: the time of its round against FedAvg's.

The CNN on one client's 600 images of 1 x 28 x 28, batch 50, five local epochs, no augmentation, sequential, one
thread. All methods take turns in one process, after a round that gives the client its memory.
"""

from __future__ import annotations

import torch
from bare import Work
from measure import Row, in_turns, main, parser

from federation import Federation, cnn_job
from fedra.algorithms import ALGORITHMS

EPOCHS = 5
TARGETS = {
    "fedprox": 1.12,
    "scaffold": 1.12,
    "fedntd": 1.15,
    "fedsol, head": 1.15,
    "moon": 1.25,
    "fedsam": 2.1,
    "fedasam": 2.1,
    "fedsol, all": 2.2,
}


def measure(quick: bool) -> list[Row]:
    """Round time of every registered algorithm at its defaults; FedSoL for both of its scopes."""
    torch.set_num_threads(1)
    work, epochs = (Work(1, 10, 10), 1) if quick else (Work(1, 600, 50), EPOCHS)
    recipes = {name: ALGORITHMS[name]() for name in ALGORITHMS if name != "fedsol"}
    recipes |= {f"fedsol, {scope}": ALGORITHMS["fedsol"](scope=scope) for scope in ("head", "all")}
    rivals = {name: Federation(cnn_job(work, recipe, epochs), "sequential") for name, recipe in recipes.items()}
    timings = in_turns(rivals, repeats=1 if quick else 3)
    return [
        Row(f"{name} against fedavg, round time", timings.ratio(name, "fedavg"), target=TARGETS.get(name))
        for name in sorted(rivals)
        if name != "fedavg"
    ]


if __name__ == "__main__":
    main(measure, parser(__doc__))
