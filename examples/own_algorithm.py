"""A new algorithm is a part and a recipe: `python examples/own_algorithm.py [ROUNDS]`."""

import sys
from dataclasses import dataclass

import fedra
from fedra.parts import ClientState, Term, tree


# --- the algorithm: begin
@dataclass(frozen=True)
class OwnPast(Term, ClientState):
    """Ties a client to where it ended the last time it took part; the first time, to what it received."""

    mu: float = 0.1

    def init_client(self, origin):
        return {"last": origin.params}

    def loss(self, output, params, view):
        apart = tree.subtract(params, view.client.memory[self.name]["last"])
        return self.mu / 2 * tree.dot(apart, apart)

    def finish_client(self, local):
        return {"last": local.weights.params}, {}


def fedpast(*, mu: float = 0.1):
    """FedAvg whose clients remember."""
    return fedra.algorithms.fedavg().plus(OwnPast(mu))


fedra.algorithms.register("fedpast", fedpast, neutral={"mu": 0.0})
# --- the algorithm: end

if __name__ == "__main__":
    for method in ({"name": "fedavg"}, {"name": "fedpast", "mu": 0.0}, {"name": "fedpast", "plus": ["fedsam"]}):
        setting = {"rounds": int((sys.argv[1:] or [20])[0]), "model": {"name": "mlp"}, "local": {"lr": 0.1}}
        print(f"{fedra.run({**setting, 'algorithm': method}).summary['final_accuracy']:6.1%}  {method}")
