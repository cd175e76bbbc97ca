"""A new algorithm in one part and one recipe, registered and compared: `python examples/own_algorithm.py [ROUNDS]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import fedra
from fedra.parts import Algorithm, ClientState, Local, Output, Params, Term, Tree, View, Weights, tree


# --- the algorithm: begin
@dataclass(frozen=True)
class OwnPast(Term, ClientState):
    """Ties a client to where it ended the last time it took part; the first time, to what it received."""

    mu: float = 0.1
    formula: ClassVar[str] = "mu/2 ||w - w_last||^2,  w_last = the client's own last weights"

    def init_client(self, origin: Weights) -> Tree:
        return {"last": origin.params}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        apart = tree.subtract(params, view.client.memory[self.name]["last"])
        return self.mu / 2 * tree.dot(apart, apart)

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"last": local.weights.params}, {}


def fedpast(*, mu: float = 0.1) -> Algorithm:
    """FedAvg whose clients remember."""
    return fedra.algorithms.fedavg().plus(OwnPast(mu))


fedra.algorithms.register("fedpast", fedpast, neutral={"mu": 0.0})
# --- the algorithm: end


def main(rounds: int) -> None:
    """The new algorithm beside FedAvg, and joined with others."""
    setting: dict[str, Any] = {
        "rounds": rounds,
        "partition": {"name": "class-shards", "clients": 10},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"lr": 0.05, "batch": 20},
        "cohort": {"fraction": 0.5},
    }
    joined = {"name": "fedpast", "mu": 0.5, "plus": ["fedsam", "fedavgm"]}
    for method in ({"name": "fedavg"}, {"name": "fedpast", "mu": 0.0}, {"name": "fedpast", "mu": 0.5}, joined):
        result = fedra.run({**setting, "algorithm": method})
        print(f"{result.summary['final_accuracy']:6.1%}  {method}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
