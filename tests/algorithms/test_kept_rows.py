"""FedCos with class vectors that stay with their clients: against a plain loop, alone and under privacy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from naive import Scene, Setting, train
from naive_owned import Owned
from torch import Tensor, nn

import fedra
import toy
from fedra.algorithms import fedcos, fedgc, fedpe
from fedra.algorithms.fedgc import PushApart
from fedra.core.released_fold import Layout, ReleasedFold, upload_blocks
from fedra.core.uploads import Uploads
from fedra.core.view import Server
from fedra.errors import ConfigError
from fedra.experiment.private_run import release_terms
from fedra.parts import PlainMean
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret

EVERYONE = ((0, 1, 2), (0, 1, 2), (0, 1, 2))
LATECOMER = ((0, 1), (1,), (0, 2))
NAME = PushApart.name


def head(net: nn.Module) -> nn.Linear:
    assert isinstance(net.head, nn.Linear)
    return net.head


@dataclass
class KeptApart(Owned):
    """A net per client of which the head never leaves; every step adds strength (I - u u')(s - r) / (|W| C)."""

    strength: float = 0.0
    heads: dict[int, nn.Linear] = field(default_factory=dict)
    total: Tensor | None = None
    now: Scene | None = None

    def step(self, scene: Scene, x: Tensor, y: Tensor) -> list[Tensor | None]:
        if self.now is not scene:
            self.now = scene
            for net in (scene.net, scene.sent):
                head(net).load_state_dict(self.heads.get(scene.client, head(net)).state_dict())
        found = super().step(scene, x, y)
        if self.total is None:
            return found
        own = scene.counts.nonzero()[:, 0].tolist()
        rows, first = head(scene.net).weight.detach(), head(scene.sent).weight.detach()
        others = self.total - sum((first[a] / first[a].norm() for a in own), torch.zeros_like(first[0]))
        push = torch.zeros_like(rows)
        for a in own:
            unit = rows[a] / rows[a].norm()
            away = torch.eye(len(unit), dtype=unit.dtype) - torch.outer(unit, unit)
            push[a] = self.strength * (away @ others) / (rows[a].norm() * len(rows))
        names = [name for name, _ in scene.net.named_parameters()]
        return [g + push if n == "head.weight" and g is not None else g for n, g in zip(names, found, strict=True)]

    def aggregate(self, server: nn.Module, scenes: list[Scene], setting: Setting) -> None:
        before = deepcopy(head(server).state_dict())
        super().aggregate(server, scenes, setting)
        head(server).load_state_dict(before)
        self.heads |= {scene.client: deepcopy(head(scene.net)) for scene in scenes}
        told = [
            sum(row / row.norm() for row in head(scene.net).weight.detach()[scene.counts > 0])
            for scene in scenes
        ]  # fmt: skip
        self.total = torch.as_tensor(sum(told)) * len(setting.data) / len(scenes)


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
@pytest.mark.parametrize("cohorts", [EVERYONE, LATECOMER], ids=["everyone", "latecomer"])
def test_equals_the_formula_in_a_plain_loop(cohorts: tuple[tuple[int, ...], ...], runner: str) -> None:
    work = toy.job(fedcos(kept=True, strength=3.0))
    net, naive = toy.mlp(), KeptApart(strength=3.0)
    net.load_state_dict(toy.start(work).params)
    pairs, local = [(own.inputs, own.targets) for own in toy.sharers().examples], toy.LOCAL
    setting = Setting(
        pairs, toy.SEED, local.epochs, local.batch or 0, local.lr, local.lr_decay, local.momentum, local.weight_decay
    )
    wanted = train(naive, net, cohorts, setting)
    found = toy.run(work, cohorts, runner)
    assert toy.distance(found.params, {name: value.detach() for name, value in wanted.named_parameters()}) < 1e-9
    assert work.owners is not None
    for client, own in naive.heads.items():
        kept = found.memory[client]["sharing"]["head.weight"]
        assert torch.allclose(kept, own.weight.detach()[work.owners.holdings[client]], rtol=0, atol=1e-9)
    assert toy.distance(found.params, toy.run(toy.job(fedpe(kept=True)), cohorts).params) > 1e-3
    assert naive.total is not None
    assert torch.allclose(found.server.memory[NAME]["mean"] * toy.CLASSES, naive.total, rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_loss() -> None:
    algorithm = fedcos(kept=True, strength=3.0)
    scene = toy.scene(algorithm, stir=0.3)
    term, view, params = algorithm.objective[1], scene.view(), scene.params
    rows = params["head.weight"].detach().clone().requires_grad_()
    output: Any = None
    (wanted,) = torch.autograd.grad(term.loss(output, {**params, "head.weight": rows}, view), rows)
    gradient = {name: torch.zeros_like(value) for name, value in params.items()}
    term.add_gradient(gradient, params, view)
    assert torch.allclose(gradient["head.weight"], wanted, rtol=1e-9, atol=1e-12)
    assert wanted.norm() > 1e-2
    assert not any(value.any() for name, value in gradient.items() if name != "head.weight")


def test_without_strength_it_is_fedpe_with_kept_rows() -> None:
    plain, found = (toy.run(toy.job(one), EVERYONE) for one in (fedpe(kept=True), fedcos(kept=True, strength=0.0)))
    assert toy.same_bits(found.params, plain.params)


def test_only_one_vector_of_the_rows_is_uploaded() -> None:
    for upload in toy.run(toy.job(fedcos(kept=True)), EVERYONE).uploads:
        assert upload.extras.keys() == {NAME}
        assert {path: value.shape for path, value in upload.extras[NAME].items()} == {"sum": (6,)}
        assert upload.extras[NAME]["sum"].norm() <= 2 + 1e-9  # two people
        assert not any(name.startswith("head.") for name in upload.delta)


def release(clip: float, factor: float, members: tuple[int, ...] = (0, 1, 2)) -> tuple[Tensor, Server, list[Tensor]]:
    """One round without noise: the released vector, the server, and what the clients tell."""
    algorithm = fedcos(kept=True, factor=factor).plus(PlainMean())
    work = toy.job(algorithm)
    history = toy.run(work, ((0, 1, 2),))
    uploads = [Uploads.of(history.uploads[client]) for client in members]
    terms = release_terms(work, 0)
    layout = Layout.of(upload_blocks(algorithm, uploads[0], terms))
    mechanism = ClipAndNoise(clip=clip, noise=0.0, divisor=3.0, expected=3.0)
    inner = PrivateSum(mechanism, layout.length, Secret(bytes(32)), 0, 0)
    fold = ReleasedFold(algorithm, inner, layout, terms)
    for one in uploads:
        fold.add_stack(one)
    server = fold.finish(toy.start(work).server, work.population)
    return inner.finish().total, server, [upload.extras[NAME]["sum"][0] for upload in uploads]


@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_one_client_moves_all_that_is_released_by_at_most_the_clip_norm(factor: float) -> None:
    whole, _, _ = release(0.5, factor)
    for left_out in range(3):
        without, _, _ = release(0.5, factor, tuple({0, 1, 2} - {left_out}))
        moved = float((whole - without).norm())
        assert moved <= 0.5 * (1 + 1e-5)
        if factor >= 1:
            assert moved == pytest.approx(0.5, rel=1e-4)  # the sum of two unit vectors alone reaches the clip norm


@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_the_released_sum_is_the_sum_of_unit_rows_whatever_the_factor(factor: float) -> None:
    _, server, told = release(1e6, factor)
    assert torch.allclose(server.memory[NAME]["mean"] * toy.CLASSES, sum(told, torch.zeros(())).double(), atol=1e-5)


CONFIG: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "identity", "clients": 5},
    "model": {"name": "mlp"},
    "runner": {"name": "sequential"},
    "local": {"lr": 0.1, "batch": 10},
}
ALGORITHM = {"name": "fedcos", "kept": True, "factor": 0.1}
PRIVATE = {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 0.5}


def test_runs_with_privacy_and_reports_epsilon() -> None:
    cohort = {"fraction": 0.5, "sampling": "poisson"}
    result = fedra.run({**CONFIG, "algorithm": ALGORITHM, "privacy": PRIVATE, "cohort": cohort})
    same = fedra.run({**CONFIG, "algorithm": "fedavg", "privacy": PRIVATE, "cohort": cohort})
    assert result.summary["privacy"]["epsilon"] == same.summary["privacy"]["epsilon"]


def test_an_endless_clip_without_noise_is_the_plain_mean() -> None:
    endless = {**PRIVATE, "clip": 1e6, "noise": 0.0, "figures": "all", "amplification": "none"}
    private = fedra.run({**CONFIG, "algorithm": ALGORITHM, "privacy": endless})
    plain = fedra.run({**CONFIG, "algorithm": {**ALGORITHM, "plus": [PlainMean.name]}})
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(private.model.state_dict()[name], value, atol=2e-5), name


def test_a_secure_sum_runs() -> None:
    secure = {"aggregation": "masks", "bound": 4.0}
    plain, hidden = (fedra.run({**CONFIG, "algorithm": ALGORITHM, **more}) for more in ({}, {"secure": secure}))
    assert hidden.summary["rounds"] == 3
    # The secure sum weights unit rows by numbers of examples, which are nearly equal here.
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(hidden.model.state_dict()[name], value, atol=2e-2), name


def test_a_resumed_run_has_the_same_bits(tmp_path: Any) -> None:
    config = {**CONFIG, "algorithm": ALGORITHM}
    whole = fedra.run(config)

    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run: Any, report: Any) -> None:
            if report.metrics["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(fedra.FedraError):
        fedra.run(config, out=tmp_path / "run", callbacks=[Stop()])
    resumed = fedra.resume(tmp_path / "run")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="unit length"):
        fedcos(kept=True, normalized=False)
    for other in (fedra.algorithms.fedavg(), fedpe(), fedgc()):
        with pytest.raises(ConfigError, match="must stay with their clients"):
            other.plus(PushApart())
