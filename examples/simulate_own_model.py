"""Your own module and your own data: `python examples/simulate_own_model.py [ROUNDS]`."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedra

digits = load_digits()
inputs, targets = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
tested = torch.arange(len(targets)) % 7 == 0
clients = [(inputs[own], targets[own]) for k in range(5) for own in [(targets // 2 == k) & ~tested]]  # two digits each
test = inputs[tested], targets[tested]

net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
algorithm = fedra.algorithms.fedprox(mu=0.1).plus(fedra.algorithms.fedavgm(momentum=0.5))
rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20

if __name__ == "__main__":  # worker processes import this file on some systems
    stop = fedra.callbacks.EarlyStopping(patience=10)
    result = fedra.simulate(algorithm, net, clients, test, rounds=rounds, lr=0.1, callbacks=[stop])
    print(f"accuracy {result.metrics[-1]['accuracy']:.1%} after {len(result.metrics)} rounds of {type(result.model)}")
