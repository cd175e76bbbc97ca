"""Methods and losses that other libraries have too, run in their own code from the same start: largest difference.

    make peers                                    environments with fluke and pfl in .bench/
    python benchmarks/agreement.py                the table
    python benchmarks/agreement.py --page         writes docs/results/agreement.md

Weights and data are float64, and the order of examples cannot matter: clients train on full batches, or, where numbers
of steps must differ, on copies of one example. Where a peer differs, a plain version of the paper's formula (from
tests/algorithms, without fedra's code) decides.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import FOLDER
from peers import PEERS, python_of
from torch import Tensor, nn

import fedra
from fedra import algorithms, losses

sys.path.insert(0, str(FOLDER.parent / "tests" / "algorithms"))

import naive
import naive_peers as cause
from naive_extras import Contrast, Distance, Dyn, Variates
from naive_methods import Nova, Sam, Served, calibrated, restricted

ROUNDS, EPOCHS, LR = 3, 2, 0.1
CLASSES, INPUTS = 3, 5
EQUAL = 1e-6
PAGE = FOLDER.parent / "docs" / "results" / "agreement.md"


@dataclass(frozen=True)
class Case:
    """A method of fedra, its plain version, and what the peer calls it and its settings."""

    name: str
    algorithm: fedra.Algorithm
    plain: Callable[[], naive.Method]
    peer: str
    method: str
    client: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    data: str = "full"
    reason: str = ""
    theirs: Callable[[], naive.Method] | None = None


ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
V_START = (
    "fluke multiplies the mean change by the server's learning rate before the optimizer does so again, and its second "
    "moment starts at 0; in the paper (algorithm 2) v_-1 is at least tau^2"
)


def adagrad(lr: float, beta1: float, beta2: float, tau: float) -> fedra.Algorithm:
    """FedAdagrad, which has no beta2."""
    return algorithms.fedadagrad(lr=lr, beta1=beta1, tau=tau)


CASES = [
    Case("FedAvg", algorithms.fedavg(), naive.Method, "fluke", "fedavg.FedAVG"),
    Case("FedAvg, different steps", algorithms.fedavg(), naive.Method, "fluke", "fedavg.FedAVG", data="copies"),
    Case(
        "FedProx",
        algorithms.fedprox(mu=0.6),
        lambda: naive.Method(Distance(0.6)),
        "fluke",
        "fedprox.FedProx",
        {"mu": 0.6},
    ),
    Case(
        "SCAFFOLD",
        algorithms.scaffold(),
        lambda: naive.Method(Variates(setting=setting("full"))),
        "fluke",
        "scaffold.SCAFFOLD",
        server={"global_step": 1.0},
    ),
    Case(
        "SCAFFOLD, different steps",
        algorithms.scaffold(),
        lambda: naive.Method(Variates(setting=setting("copies"))),
        "fluke",
        "scaffold.SCAFFOLD",
        server={"global_step": 1.0},
        data="copies",
    ),
    Case(
        "MOON",
        algorithms.moon(mu=2.0, temperature=0.5),
        lambda: naive.Method(Contrast(2.0)),
        "fluke",
        "moon.MOON",
        {"mu": 2.0, "tau": 0.5},
    ),
    Case("FedNova, equal steps", algorithms.fednova(), Nova, "fluke", "fednova.FedNova"),
    Case(
        "FedNova, different steps",
        algorithms.fednova(),
        Nova,
        "fluke",
        "fednova.FedNova",
        data="copies",
        reason="fluke adds up models with weights tau p_k / a_k, which do not sum to one; the paper adds up normalized "
        "changes to the global model",
        theirs=cause.SummedNova,
    ),
    Case(
        "FedSAM",
        algorithms.fedsam(rho=0.3),
        lambda: Sam(rho=0.3),
        "fluke",
        "fedsam.FedSAM",
        {"rho": 0.3},
        reason="fluke does not clear the gradient between steps, so a perturbation is along the sum of this gradient "
        "and the last perturbed one",
        theirs=lambda: cause.KeptSam(rho=0.3),
    ),
    Case(
        "FedDyn",
        algorithms.feddyn(alpha=0.2),
        lambda: naive.Method(Dyn(0.2)),
        "fluke",
        "feddyn.FedDyn",
        {"alpha": 0.2},
        {"alpha": 0.2},
        reason="fluke divides alpha by relative client sizes, its dual variable has an additional factor alpha and the "
        "opposite sign, and it reports the mean without the correction that it sends",
        theirs=lambda: naive.Method(cause.ScaledDyn(0.2, setting("full"), ROUNDS)),
    ),
    Case(
        "FedAvgM",
        algorithms.fedavgm(lr=1.0, momentum=0.5),
        lambda: Served(lr=1.0, beta1=0.5),
        "fluke",
        "fedavgm.FedAVGM",
        server={"momentum": 0.5},
        reason="fluke's momentum starts empty in the first round, whose change is lost",
        theirs=lambda: cause.LateMomentum(momentum=0.5),
    ),
    *(
        Case(
            name,
            build(**ADAM),
            lambda kind=kind: Served(kind=kind, **ADAM),  # type: ignore[misc]
            "fluke",
            "fedopt.FedOpt",
            server={"mode": kind, **ADAM},
            reason=V_START,
            theirs=lambda kind=kind: cause.SlowOptimizer(kind=kind, **ADAM),  # type: ignore[misc]
        )
        for name, build, kind in (
            ("FedAdam", algorithms.fedadam, "adam"),
            ("FedYogi", algorithms.fedyogi, "yogi"),
            ("FedAdagrad", adagrad, "adagrad"),
        )
    ),
    Case(
        "FedLC",
        algorithms.fedlc(tau=0.7),
        lambda: naive.Method(head_loss=calibrated(0.7)),
        "fluke",
        "fedlc.FedLC",
        {"tau": 0.7},
    ),
    Case(
        "FedRS",
        algorithms.fedrs(alpha=0.4),
        lambda: naive.Method(head_loss=restricted(0.4)),
        "fluke",
        "fedrs.FedRS",
        {"alpha": 0.4, "count_as_missing": 0},
        data="missing",
    ),
    Case(
        "Ditto, global model",
        algorithms.ditto(),
        naive.Method,
        "fluke",
        "ditto.Ditto",
        {"tau": 2, "lam": 0.1},
    ),
    Case("FedAvg", algorithms.fedavg(), naive.Method, "pfl", "fedavg"),
    Case(
        "FedProx",
        algorithms.fedprox(mu=0.6),
        lambda: naive.Method(Distance(0.6)),
        "pfl",
        "fedprox",
        {"mu": 0.6},
    ),
]


class Network(nn.Module):
    """Five inputs, six features, three classes, in float64."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.body = nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh())
            self.head = nn.Linear(6, CLASSES)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def sample_clients(kind: str) -> list[tuple[Tensor, Tensor]]:
    """Three clients: different examples ("full"), copies of one ("copies"), or without one class each ("missing")."""
    draw = torch.Generator().manual_seed(3)
    clients = []
    for client, size in enumerate((9, 12, 18)):
        if kind == "copies":
            inputs = torch.randn(1, INPUTS, generator=draw, dtype=torch.float64).repeat(4 * (client + 1), 1)
            clients.append((inputs, torch.full((len(inputs),), client)))
            continue
        labels = torch.arange(size) % CLASSES
        if kind == "missing":
            labels = torch.where(labels == client, (client + 1) % CLASSES, labels)
        clients.append((torch.randn(size, INPUTS, generator=draw, dtype=torch.float64), labels))
    return clients


def batch_size(kind: str) -> int:
    """The number of copies in a step, or all examples."""
    return 4 if kind == "copies" else 64


def setting(kind: str) -> naive.Setting:
    """The same federation for the plain versions."""
    return naive.Setting(sample_clients(kind), 0, EPOCHS, batch_size(kind), LR, 1.0, 0.0, 0.0)


def train_ours(case: Case) -> list[Tensor]:
    """The global model's parameters after training with fedra."""
    found = fedra.simulate(
        case.algorithm,
        Network(),
        sample_clients(case.data),
        rounds=ROUNDS,
        epochs=EPOCHS,
        batch=batch_size(case.data),
        lr=LR,
        runner="sequential",
    )
    return [value.detach() for value in found.model.parameters()]


def train_plain(case: Case, method: naive.Method) -> list[Tensor]:
    """The same by a formula."""
    trained = naive.train(method, Network(), [(0, 1, 2)] * ROUNDS, setting(case.data))
    return [value.detach() for value in trained.parameters()]


def train_peers(cases: list[Case]) -> dict[int, list[Tensor] | str]:
    """The same in the peers' own code and environments; an error message if a case failed."""
    found: dict[int, list[Tensor] | str] = {}
    for peer in dict.fromkeys(case.peer for case in cases):
        numbers = [number for number, case in enumerate(cases) if case.peer == peer]
        if not python_of(peer).exists():
            found |= dict.fromkeys(numbers, "not installed: run make peers")
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.savez(folder / "start.npz", *(value.detach().numpy() for value in Network().parameters()))
            for kind in {cases[number].data for number in numbers}:
                arrays = {
                    f"{part}{c}": pair[i].numpy()
                    for c, pair in enumerate(sample_clients(kind))
                    for i, part in enumerate("xy")
                }
                np.savez(folder / f"{kind}.npz", **arrays)
            jobs = [
                {
                    "number": n,
                    "method": c.method,
                    "client": c.client,
                    "server": c.server,
                    "data": c.data,
                    "batch": batch_size(c.data),
                }
                for n in numbers
                for c in [cases[n]]
            ]
            (folder / "jobs.json").write_text(json.dumps({"jobs": jobs, "rounds": ROUNDS, "epochs": EPOCHS, "lr": LR}))
            command = [str(python_of(peer)), "-m", f"peer_jobs.agreement_{peer}", str(folder)]
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=900)
            for number in numbers:
                path = folder / f"found{number}.npz"
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                error = folder / f"error{number}.txt"
                found[number] = _read(path) if path.exists() else (error.read_text() if error.exists() else last)
    return found


def _read(path: Path) -> list[Tensor]:
    with np.load(path) as arrays:
        return [torch.from_numpy(arrays[f"arr_{number}"]) for number in range(len(arrays.files))]


def largest(left: list[Tensor], right: list[Tensor]) -> float:
    """The largest absolute difference of any parameter."""
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(left, right, strict=True))


def compare_losses() -> list[tuple[str, float]]:
    """The largest difference of loss and gradients from pytorch-metric-learning's, by loss."""
    from pytorch_metric_learning import distances, reducers
    from pytorch_metric_learning import losses as peer

    draw = torch.Generator().manual_seed(0)
    features = (3 * torch.randn(48, 6, generator=draw, dtype=torch.float64)).requires_grad_()
    weight = torch.randn(8, 6, generator=draw, dtype=torch.float64).requires_grad_()
    labels = torch.arange(48) % 8

    def with_rows(loss: Any) -> Callable[[], Tensor]:
        del loss.W
        loss.W = weight.T
        return lambda: loss(features, labels)

    def ours(loss: losses.AngularLoss) -> Callable[[], Tensor]:
        return lambda: loss(features, weight, labels, state=loss.init_state(weight))

    circle = peer.CircleLoss(m=0.4, gamma=80, reducer=reducers.MeanReducer())
    squared = distances.LpDistance(normalize_embeddings=True, p=2, power=2)
    triplet = peer.TripletMarginLoss(margin=0.2, distance=squared, reducer=reducers.MeanReducer())
    sphere = losses.SphereFace(scale=2.0, lambda_base=0.0, lambda_min=0.0)
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "ArcFace": (ours(losses.ArcFace()), with_rows(peer.ArcFaceLoss(8, 6, margin=math.degrees(0.5), scale=64))),
        "CosFace": (ours(losses.CosFace()), with_rows(peer.CosFaceLoss(8, 6, margin=0.35, scale=64))),
        "SphereFace without annealing": (ours(sphere), with_rows(peer.SphereFaceLoss(8, 6, margin=4, scale=2))),
        "normalized softmax": (
            ours(losses.NormalizedSoftmax(scale=16.0)),
            with_rows(peer.NormalizedSoftmaxLoss(8, 6, temperature=1 / 16)),
        ),
        "CircleLoss": (
            ours(losses.CircleLoss(margin=0.4, scale=80.0)),
            lambda: circle(features, labels, ref_emb=weight, ref_labels=torch.arange(8)),
        ),
        "triplet, all": (ours(losses.Triplet(mining="all")), lambda: triplet(features, labels)),
    }
    rows = []
    for name, (mine, theirs) in pairs.items():
        values, gradients = [], []
        for loss in (mine, theirs):
            value = loss()
            values.append(value.detach()[None])
            gradients.append(torch.autograd.grad(value, [features, weight], allow_unused=True))
        found = [largest([values[0]], [values[1]])]
        found += [largest([a], [b]) for a, b in zip(*gradients, strict=True) if a is not None and b is not None]
        rows.append((name, max(found)))
    return rows


def verdict(case: Case, found: list[Tensor] | str, theirs: float | None, plain: float) -> str:
    """Whose formula is the paper's, and how close a plain version with the peer's deviation comes to the peer."""
    if plain > EQUAL:
        return "fedra differs from the plain version"
    if theirs is None or isinstance(found, str) or theirs <= EQUAL:
        return "" if theirs is None else "equal"
    if case.theirs is None:
        return f"the paper's is fedra's; {case.reason}"
    remaining = largest(found, train_plain(case, case.theirs()))
    return f"the paper's is fedra's; {case.reason} (a plain version with this: {remaining:.1e} from {case.peer})"


def table() -> str:
    """Both tables as Markdown."""
    peers = train_peers(CASES)
    lines = ["| method | peer | difference | plain version | |", "| --- | --- | ---: | ---: | --- |"]
    for number, case in enumerate(CASES):
        mine, found = train_ours(case), peers[number]
        plain = largest(mine, train_plain(case, case.plain()))
        theirs = None if isinstance(found, str) else largest(mine, found)
        shown = str(found) if theirs is None else f"{theirs:.1e}"
        lines.append(f"| {case.name} | {case.peer} | {shown} | {plain:.1e} | {verdict(case, found, theirs, plain)} |")
        print(lines[-1], flush=True)
    lines += ["", "| loss | largest difference of value and gradients |", "| --- | ---: |"]
    lines += [f"| {name} | {difference:.1e} |" for name, difference in compare_losses()]
    return "\n".join(lines)


def page(tables: str) -> str:
    """The page of the results."""
    releases = ", ".join(peer.requirement for name, peer in PEERS.items() if name in ("fluke", "pfl"))
    return f"""# Agreement with other libraries

Methods and losses that another library has too, run in that library's own code from the same initial weights on the
same examples: {releases}, pytorch-metric-learning {version("pytorch-metric-learning")}. Three clients of different
size, {ROUNDS} rounds, {EPOCHS} local epochs, plain SGD at {LR}, float64. The order of examples cannot matter: every
client trains on full batches, or ("different steps") on copies of one example, in batches of four.

"Difference" is the largest absolute difference of any parameter of the global model between fedra and the peer, "plain
version" that between fedra and a few lines of Python that follow the paper's formula and use nothing of fedra but
the order of batches (`tests/algorithms/naive*.py`). Where a peer differs, the plain version decides.

{tables}

Differences of about 1e-8 have the size of rounding in float32 (fluke's FedNova, for one, holds its weights in it).
Where a cause is given with a number, a plain version with that deviation (`tests/algorithms/naive_peers.py`) was
compared with the peer as well. The losses are compared with pytorch-metric-learning's, in value and in the gradients of
features and class vectors. Not compared yet: personal models, methods with private layers (FedPer, FedRep, LG-FedAvg,
FedBABU, APFL, Per-FedAvg), FedAwS, and pfl's SCAFFOLD.

```sh
make peers
.venv/bin/python benchmarks/agreement.py --page
```
"""


def main() -> None:
    """Print the tables, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write docs/results/agreement.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables = table()
    if given.page:
        PAGE.write_text(page(tables))
    else:
        print(tables.partition("\n\n")[2])


if __name__ == "__main__":
    main()
