"""FedPE and FedCos at several strengths in a small synthetic world: AUROC on unseen identities, seed by seed.

python docs/results/scripts/fedcos_strength.py            (60 clients with two people each, three seeds, about a minute)
python docs/results/scripts/fedcos_strength.py --clients 20 --people 6 --seeds 10

With normalized softmax the length of a class vector has no effect, so a difference from FedPE is due to the directions
of the class vectors. With cross-entropy a large server step also lengthens them: the last row, FedPE from class vectors
of length 1, is the control.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

import fedra
from fedra.algorithms import fedcos, fedpe
from fedra.core.random import scoped_seed
from fedra.losses import NormalizedSoftmax
from fedra.parts import Algorithm, Params, StartRule

INPUTS, HALF, IMAGES, ROUNDS, EPOCHS = 32, 16, 20, 20, 2


class Network(nn.Module):
    """32 inputs to 32 features."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        with scoped_seed(seed):
            self.body = nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, 32))
            self.head = nn.Linear(32, classes, bias=False)


@dataclass(frozen=True)
class RowsOfLength(StartRule):
    """Class vectors start at a given length."""

    length: float = 1.0

    def init_weights(self, params: Params, draw: torch.Generator) -> Params:
        return {**params, "head.weight": self.length * F.normalize(params["head.weight"], dim=1)}


def sample_world(seed: int, people: int, images: int) -> tuple[Tensor, Tensor]:
    """Images of people: half of the latent values are the person's with little noise, the others are only noise."""
    draw = torch.Generator().manual_seed(1000 + seed)
    mixing = torch.randn(INPUTS, INPUTS, generator=torch.Generator().manual_seed(5)) / INPUTS**0.5
    centers = torch.randn(people, HALF, generator=draw)
    labels = torch.arange(people).repeat_interleave(images)
    own = centers[labels] + 0.5 * torch.randn(len(labels), HALF, generator=draw)
    latent = torch.cat([own, 2 * torch.randn(len(labels), HALF, generator=draw)], dim=1)
    return torch.tanh(latent @ mixing.T) @ mixing, labels


def measure(
    algorithm: Algorithm, seed: int, clients: int = 60, people: int = 2, mode: str = "federated"
) -> tuple[float, fedra.RunResult]:
    """Train, and return the AUROC over all pairs of eight images of 100 unseen identities.

    Centralized training takes as many epochs as a client takes in all rounds, in batches of 64.
    """
    central = mode == "centralized"
    inputs, labels = sample_world(seed, clients * people, IMAGES)
    owner = labels // people
    found = fedra.simulate(
        algorithm,
        Network(clients * people, seed),
        [(inputs[owner == client], labels[owner == client]) for client in range(clients)],
        rounds=ROUNDS * EPOCHS if central else ROUNDS,
        epochs=1 if central else EPOCHS,
        batch=64 if central else 16,
        lr=0.1,
        momentum=0.9,
        seed=seed,
        mode=mode,
        runner={"threads": 1} if central else "stacked",
        diagnostics=[] if central else ["class_vectors"],
    )
    inputs, labels = sample_world(seed + 500, 100, 8)
    with torch.no_grad():
        features = F.normalize(found.model.body(inputs), dim=1)  # type: ignore[operator]
    first, second = torch.triu_indices(len(labels), len(labels), 1)
    cosines = (features[first] * features[second]).sum(dim=1)
    return float(roc_auc_score(labels[first] == labels[second], cosines)), found


def main() -> None:
    """Print one line per algorithm: AUROC of every seed minus FedPE's, and the class vectors of the last round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    given = parser.parse_args()
    for title, margin in {"normalized softmax": NormalizedSoftmax(scale=8.0), "cross-entropy": None}.items():
        algorithms = {"fedpe": fedpe(margin=margin)}
        algorithms |= {f"fedcos {strength:g}": fedcos(margin=margin, strength=strength) for strength in given.strengths}
        if margin is None:
            algorithms["fedpe from length 1"] = fedpe().plus(RowsOfLength(1.0))
        print(title)
        base: list[float] = []
        for name, algorithm in algorithms.items():
            runs = [measure(algorithm, seed, given.clients, given.people) for seed in range(given.seeds)]
            scores = [score for score, _ in runs]
            base = base or scores
            differences = [f"{score - own:+.4f}" for score, own in zip(scores, base, strict=True)]
            shown = " ".join([f"{score:.4f}" for score in scores] if name == "fedpe" else differences)
            length = sum(run.metrics[-1]["vector_length_mean"] for _, run in runs) / len(runs)
            turn = sum(line["server_turn_mean"] for _, run in runs for line in run.metrics) / len(runs)
            print(f"  {name:20} {shown}   length {length:.2f}, turned by {turn:.1f} degrees in all", flush=True)


if __name__ == "__main__":
    main()
