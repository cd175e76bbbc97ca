"""Your own module and your own tensors: `python examples/simulate_own_model.py [ROUNDS]`."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedra


class Network(nn.Module):
    """Any module whose last layer has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(64, 50), nn.Linear(50, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.hidden(inputs)))
        return logits


def main(rounds: int) -> None:
    """Five clients with two digits each; every seventh example is for the test."""
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    tested = torch.arange(len(targets)) % 7 == 0
    clients = [(inputs[own], targets[own]) for k in range(5) for own in [(targets // 2 == k) & ~tested]]
    algorithm = fedra.algorithms.fedprox(mu=0.1).plus(fedra.algorithms.fedavgm(momentum=0.5))
    model = fedra.models.named_head(Network(), "fc")
    result = fedra.simulate(algorithm, model, clients, (inputs[tested], targets[tested]), rounds=rounds, lr=0.1)
    print(f"accuracy {result.metrics[-1]['accuracy']:.1%} after {len(result.metrics)} rounds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
