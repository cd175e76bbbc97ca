"""FedPE and FedGC where the network fits: a small network on frozen features of real faces, 24 clients, 20 rounds.

python docs/results/scripts/fedgc_fitted.py WEIGHTS   (MobileFaceNet, 112x96; FEDRA_DATA holds lfw/ and celeba-faces/)
python docs/results/scripts/fedgc_fitted.py WEIGHTS --folds 0 1 2 3 4 5 6 7 8 9 --seeds 1   (each fold left out in turn)
python docs/results/scripts/fedgc_fitted.py WEIGHTS --lengths equal   (class vectors of unit length)
python docs/results/scripts/fedgc_fitted.py WEIGHTS --lengths equal --methods "fedgc 20"   (FedPE and some methods)
"""

from __future__ import annotations

import argparse
import hashlib
import statistics

import torch
from fedgc_world import with_equal_lengths
from scipy.stats import ttest_rel
from torch import Tensor, nn
from torch.nn import functional as F

import fedra
from fedra.algorithms import fedgc, fedpe
from fedra.core.random import scoped_seed
from fedra.data import load
from fedra.faces.metrics import Scores, verify
from fedra.parts import Algorithm
from fedra.storage.trained_model import load_embedder_weights

CLIENTS, ROUNDS = 24, 20
COMPARED = ("fedpe", "fedpe fixed", "fedcos 20", "fedgc 20", "fedgc 100")
"""The methods with class vectors of equal length."""


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


class Features:
    """Frozen features of images; those of people that several folds train on are computed once."""

    def __init__(self, weights: str) -> None:
        self._embed = load_embedder_weights(weights, "mobilefacenet", shape=(3, 112, 96))
        self._known: dict[bytes, Tensor] = {}

    def __call__(self, images: Tensor) -> Tensor:
        names = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]
        new = list({name: row for row, name in enumerate(names) if name not in self._known}.values())
        if new:
            found = self._embed(images[new][..., 8:104].contiguous())
            self._known |= {names[row]: features for row, features in zip(new, found, strict=True)}
        return torch.stack([self._known[name] for name in names])


def methods(lengths: str) -> dict[str, Algorithm]:
    """The methods to compare; the first is FedPE."""
    if lengths == "equal":
        found = with_equal_lengths()
        return {name: found[name] for name in COMPARED}
    return {"fedpe": fedpe(), "fedgc": fedgc(), "fedpe fixed": fedpe(fixed=True)}


def compare(
    features: Features, fold: int, seeds: int, compared: dict[str, Algorithm]
) -> dict[str, list[tuple[float, float]]]:
    """Accuracy and AUROC of each method on a fold's pairs, seed by seed; prints a line for each."""
    faces = load("lfw", fold=fold, also=("celeba-faces",), size=112, least=5, faults="skip")
    train, test = features(faces.train.inputs), features(faces.test.inputs)
    targets, pairs, classes = faces.train.targets, faces.pairs, len(faces.classes)
    assert pairs is not None
    figures: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(100 + seed))
        owners = torch.empty(classes, dtype=torch.long)
        for client in range(CLIENTS):
            owners[order[client::CLIENTS]] = client
        clients = [(train[rows], targets[rows]) for rows in (owners[targets] == client for client in range(CLIENTS))]
        for name, algorithm in compared.items():
            network = Network(classes, seed)
            settings = {"epochs": 2, "batch": 16, "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
            found = fedra.simulate(
                algorithm, network, clients, rounds=ROUNDS, seed=seed, runner="sequential", **settings
            )
            with torch.no_grad():
                own, among_all, rival = nearest_mean(found.model.body(train), targets, owners)
                embedded = F.normalize(found.model.body(test), dim=1)
            first, second = embedded[pairs.first], embedded[pairs.second]
            auroc = Scores.of_pairs((first * second).sum(dim=1).double(), pairs.same).auroc()
            accuracy = verify(first, second, pairs.same).accuracy
            figures.setdefault(name, []).append((accuracy, auroc))
            print(
                f"fold {fold}, {name} {seed}: {accuracy:.2%} {auroc:.4f}, "
                f"own {own:.1%}, all {among_all:.1%}, rival {rival:.3f}",
                flush=True,
            )
    return figures


def main() -> None:
    """Every fold in turn, and the means over all of them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("weights")
    options.add_argument("--folds", type=int, nargs="+", default=[9], choices=range(10), metavar="FOLD")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--lengths", choices=["free", "equal"], default="free")
    options.add_argument("--methods", nargs="+", help="the methods to compare; all by default")
    given = options.parse_args()
    known = methods(given.lengths)
    if unknown := set(given.methods or ()) - set(known):
        options.error(f"--methods must be among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    compared = {name: known[name] for name in ("fedpe", *known) if name in {"fedpe", *(given.methods or known)}}
    torch.set_num_threads(1)
    features, everything = Features(given.weights), {}
    for fold in given.folds:
        for name, figures in compare(features, fold, given.seeds, compared).items():
            everything.setdefault(name, []).extend(figures)
    for name, figures in everything.items():
        accuracy, auroc = (statistics.mean(column) for column in zip(*figures, strict=True))
        ahead = sum(mine[1] > theirs[1] for mine, theirs in zip(figures, everything["fedpe"], strict=True))
        line = f"{name}: {accuracy:.2%} {auroc:.4f}, AUROC above FedPE's in {ahead} of {len(figures)}"
        if name != "fedpe" and len(figures) > 1:
            p = ttest_rel([auroc for _, auroc in figures], [auroc for _, auroc in everything["fedpe"]]).pvalue
            line += f", p = {p:.1g} (paired t-test)"
        print(line)


if __name__ == "__main__":
    main()
