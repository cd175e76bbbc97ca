"""FedGC's correction with class vectors of equal length: AUROC on unseen identities in a small synthetic world.

python docs/results/scripts/fedgc_world.py                    (60 clients with two people each, ten seeds, two minutes)
python docs/results/scripts/fedgc_world.py --clients 20 --people 6
python docs/results/scripts/fedgc_world.py --lengths free     (cross-entropy: the lengths grow, and act)

Equation 5 of FedGC's paper lengthens class vectors, and longer ones alone raise the AUROC. So by default every method
trains with normalized softmax, starts from unit vectors, and the server scales them to unit length after every round:
what differs is their directions. `--lengths free` shows the confounded comparison, with the control that resolves it:
FedPE whose class vectors merely start longer. Every row is compared with the first, seed by seed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from fedcos_strength import RowsOfLength, measure
from scipy.stats import ttest_rel

from fedra.algorithms import fedavg, fedaws, fedgc, fedpe
from fedra.algorithms.fedgc import CrossClientCosine
from fedra.losses import NormalizedSoftmax
from fedra.parts import Algorithm
from fedra.parts.margin import HeadMargin
from fedra.parts.spread import CrossClientSoftmax, SpreadOut

MARGIN = NormalizedSoftmax(scale=8.0)
CENTRALIZED = "centralized"


def with_equal_lengths() -> dict[str, Algorithm]:
    """All methods with class vectors of unit length at the start of every round; the first is FedPE."""

    def spread(penalty: CrossClientSoftmax | CrossClientCosine, strength: float) -> Algorithm:
        return fedpe(margin=MARGIN).plus(RowsOfLength(1.0), SpreadOut(penalty, strength, renormalize=True))

    softmax = CrossClientSoftmax(MARGIN)
    return {
        "fedpe": spread(softmax, 0.0),
        "fedpe fixed": fedpe(margin=MARGIN, fixed=True),
        "fedcos 20": spread(CrossClientCosine(reduction="mean"), 20.0),
        "fedgc 20": spread(softmax, 20.0),
        "fedgc 100": spread(softmax, 100.0),
        "fedaws": fedaws(),
        CENTRALIZED: fedavg().plus(HeadMargin(MARGIN)),
    }


def with_free_lengths() -> dict[str, Algorithm]:
    """All methods with cross-entropy, where a longer class vector has larger logits; the first is FedPE."""
    return {
        "fedpe": fedpe(),
        "fedpe from length 1": fedpe().plus(RowsOfLength(1.0)),
        "fedpe from length 5": fedpe().plus(RowsOfLength(5.0)),
        "fedpe fixed": fedpe(fixed=True),
        "fedgc": fedgc(),
        "fedgc, no self term": fedgc(self_term=False),
        "fedgc from length 5": fedgc().plus(RowsOfLength(5.0)),
        CENTRALIZED: fedavg(),
    }


METHODS: dict[str, Callable[[], dict[str, Algorithm]]] = {"equal": with_equal_lengths, "free": with_free_lengths}


def compare(scores: list[float], base: list[float]) -> str:
    """State the mean difference, in how many seeds it is positive, and the paired test's p-value."""
    differences = [score - own for score, own in zip(scores, base, strict=True)]
    ahead = sum(difference > 0 for difference in differences)
    p_value = f", p = {ttest_rel(scores, base).pvalue:.1g}" if len(scores) > 1 else ""
    return f"{statistics.mean(differences):+.4f} against fedpe, ahead in {ahead} of {len(scores)}{p_value}"


def main() -> None:
    """Print one line per method: mean AUROC, its spread, the difference from FedPE, and the class vectors' state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--lengths", choices=list(METHODS), default="equal")
    given = parser.parse_args()
    torch.set_num_threads(1)
    base: list[float] = []
    for name, algorithm in METHODS[given.lengths]().items():
        mode = "centralized" if name == CENTRALIZED else "federated"
        runs = [measure(algorithm, seed, given.clients, given.people, mode) for seed in range(given.seeds)]
        scores = [score for score, _ in runs]
        base = base or scores
        spread = f" +- {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        difference = "" if scores is base else f", {compare(scores, base)}"
        state = ""
        if mode == "federated":
            last = [run.metrics[-1] for _, run in runs]
            length = statistics.mean(line["vector_length_mean"] for line in last)
            nearest = statistics.mean(line["nearest_cosine_mean"] for line in last)
            state = f"; length {length:.2f}, nearest cosine {nearest:.2f}"
        print(f"{name:20} {statistics.mean(scores):.4f}{spread}{difference}{state}", flush=True)


if __name__ == "__main__":
    main()
