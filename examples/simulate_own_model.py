"""Your own module and your own tensors: `python examples/simulate_own_model.py [ROUNDS]`."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedra

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


class Network(nn.Module):
    """Any module whose last layer has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 50)
        self.fc = nn.Linear(50, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.hidden(inputs)))
        return logits


def main() -> None:
    """Five clients with two digits each; every seventh example is for the test."""
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    tested = torch.arange(len(targets)) % 7 == 0
    clients = [(inputs[own], targets[own]) for k in range(5) for own in [(targets // 2 == k) & ~tested]]
    model = fedra.models.named_head(Network(), "fc")
    for algorithm in (fedra.algorithms.fedavg(), fedra.algorithms.fedntd()):
        result = fedra.simulate(algorithm, model, clients, (inputs[tested], targets[tested]), rounds=ROUNDS, lr=0.1)
        print(f"{algorithm.objective[-1].name}: {result.metrics[-1]['accuracy']:.1%}")


if __name__ == "__main__":
    main()
