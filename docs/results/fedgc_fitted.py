"""FedPE and FedGC where the network fits: a small network on frozen features of real faces, 24 clients, 20 rounds.

python docs/results/fedgc_fitted.py WEIGHTS   (a MobileFaceNet for 112x96; FEDRA_DATA holds lfw/ and celeba-faces/)
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedra
from fedra.algorithms import fedgc, fedpe
from fedra.core.random import scoped_seed
from fedra.data import load
from fedra.evaluation.faces import Scores, verify
from fedra.experiment.embedder import embedder_of_weights

CLIENTS, ROUNDS = 24, 20


class Network(nn.Module):
    """128 features to 128 others."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        with scoped_seed(seed):
            self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
            self.head = nn.Linear(128, classes, bias=False)


def nearest_mean(features: Tensor, targets: Tensor, owners: Tensor) -> tuple[float, float, float]:
    """Images nearest to their class's mean among the client's classes and among all; cosine of means across clients."""
    sums = torch.zeros(len(owners), features.shape[1]).index_add_(0, targets, F.normalize(features, dim=1))
    means = F.normalize(sums, dim=1)
    likeness = F.normalize(features, dim=1) @ means.T
    own = likeness.masked_fill(owners[targets][:, None] != owners, -2)
    rivals = (means @ means.T).masked_fill(owners[:, None] == owners, -2)
    share = [float((found.argmax(dim=1) == targets).float().mean()) for found in (own, likeness)]
    return share[0], share[1], float(rivals.max(dim=1).values.mean())


def main(weights: str) -> None:
    """Prints a line for each method and seed."""
    torch.set_num_threads(1)
    faces = load("lfw", fold=9, also=("celeba-faces",), size=112, least=5, faults="skip")
    embedder = embedder_of_weights(weights, "mobilefacenet", shape=(3, 112, 96))
    train, test = (embedder(split.inputs[..., 8:104].contiguous()) for split in (faces.train, faces.test))
    targets, pairs, classes = faces.train.targets, faces.pairs, len(faces.classes)
    assert pairs is not None
    for seed in range(3):
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(100 + seed))
        owners = torch.empty(classes, dtype=torch.long)
        for client in range(CLIENTS):
            owners[order[client::CLIENTS]] = client
        clients = [(train[rows], targets[rows]) for rows in (owners[targets] == client for client in range(CLIENTS))]
        for name, algorithm in {"fedpe": fedpe(), "fedgc": fedgc(), "fedpe fixed": fedpe(fixed=True)}.items():
            network = Network(classes, seed)
            settings = {"epochs": 2, "batch": 16, "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
            found = fedra.simulate(
                algorithm, network, clients, rounds=ROUNDS, seed=seed, runner="sequential", **settings
            )
            with torch.no_grad():
                own, among_all, rival = nearest_mean(found.model.body(train), targets, owners)
                features = F.normalize(found.model.body(test), dim=1)
            first, second = features[pairs.first], features[pairs.second]
            auroc = Scores.of_pairs((first * second).sum(dim=1).double(), pairs.same).auroc()
            accuracy = verify(first, second, pairs.same).accuracy
            print(f"{name} {seed}: {accuracy:.2%} {auroc:.4f}, own {own:.1%}, all {among_all:.1%}, rival {rival:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
