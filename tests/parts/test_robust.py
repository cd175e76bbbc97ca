"""Robust combine rules against plain loops over vectors, their symmetries, and attacks."""

import pytest
import torch

import fedra
from fedra.config.privacy_sections import AttackSection
from fedra.core.model import Weights
from fedra.core.robust_fold import inner_products
from fedra.core.round import Fold, init_server
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Upload
from fedra.errors import ConfigError, RunError
from fedra.experiment.attacks import forge
from fedra.parts import Bulyan, CenteredClip, GeometricMedian, Median, MultiKrum, NormBound, TrimmedMean, WeightedMean
from fedra.parts.combine import sort_clients
from fedra.parts.robust import _choose_by_krum, squared_distances

RULES = [
    NormBound(bound=3.0),
    MultiKrum(malicious=0.2),
    MultiKrum(malicious=0.2, keep=1),
    GeometricMedian(),
    CenteredClip(radius=3.0),
    Bulyan(malicious=0.1),
]
NAMES = [f"{rule.name}-{index}" for index, rule in enumerate(RULES)]


def uploads(rows, examples=None):
    examples = examples or [10] * len(rows)
    return [
        Upload(
            delta={"a": row[:3].clone(), "b": row[3:].view(3, -1).clone()},
            buffers={},
            examples=count,
            steps=1,
            effective_steps=1.0,
            extras={},
            metrics={},
        )
        for row, count in zip(rows, examples, strict=True)
    ]


def combined(rule, rows, examples=None):
    total = rule.start()
    for upload in uploads(rows, examples):
        total = rule.add(total, upload)
    change = rule.finish(total).params
    return torch.cat([change["a"], change["b"].flatten()])


def vectors(count=11, seed=0):
    return torch.randn(count, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1


def naive(rule, rows):
    count = len(rows)
    if isinstance(rule, NormBound):
        return sum(row * min(1, rule.bound / row.norm()) for row in rows) / count
    if isinstance(rule, MultiKrum):
        bad = 3
        scores = []
        for one in range(count):
            near = sorted(float((rows[one] - rows[other]).square().sum()) for other in range(count) if other != one)
            scores.append(sum(near[: count - bad - 2]))
        best = sorted(range(count), key=lambda one: scores[one])[: rule.keep or count - bad]
        return sum(rows[one] for one in best) / len(best)
    if isinstance(rule, GeometricMedian):
        center = rows.mean(dim=0)
        for _ in range(8):
            weights = [1 / max(1e-6, float((row - center).norm())) for row in rows]
            center = sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)
        return center
    if isinstance(rule, CenteredClip):
        center = torch.zeros(rows.shape[1], dtype=rows.dtype)
        for _ in range(3):
            parts = [(row - center) * min(1, rule.radius / float((row - center).norm())) for row in rows]
            center = center + sum(parts) / count
        return center
    bad, left, kept = 2, list(range(count)), []
    while len(kept) < count - 2 * bad:
        scores = {}
        for one in left:
            near = sorted(float((rows[one] - rows[other]).square().sum()) for other in left if other != one)
            scores[one] = (sum(near[: max(len(left) - min(bad, max(len(left) - 3, 0)) - 2, 0)]), sum(near))
        best = min(left, key=lambda one: scores[one])
        kept.append(best)
        left.remove(best)
    found = []
    for column in range(rows.shape[1]):
        values = sorted(float(rows[one, column]) for one in kept)
        median = values[(len(values) - 1) // 2]
        near = sorted(values, key=lambda value: abs(value - median))[: count - 4 * bad]
        found.append(sum(near) / len(near))
    return torch.tensor(found, dtype=rows.dtype)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_equal_to_a_plain_loop(rule):
    rows = vectors()
    assert torch.allclose(combined(rule, rows), naive(rule, rows), atol=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_order_of_clients_does_not_matter(rule):
    rows = vectors()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(combined(rule, rows), combined(rule, rows[order]), atol=1e-9)


@pytest.mark.parametrize("rule", [RULES[1], RULES[3], RULES[5]], ids=lambda rule: rule.name)
def test_moving_all_updates_moves_the_result(rule):
    rows, step = vectors(), torch.arange(9.0, dtype=torch.float64)
    assert torch.allclose(combined(rule, rows + step), combined(rule, rows) + step, atol=1e-8)


def test_inner_products_of_nearly_equal_updates_keep_their_distances():
    base = 1e4 * torch.ones(1, 9, dtype=torch.float64)
    rows = base + 1e-3 * vectors(4)
    gram = inner_products([{"a": row} for row in rows])
    distance = gram[0, 0] + gram[1, 1] - 2 * gram[0, 1]
    assert distance.item() == pytest.approx(float((rows[0] - rows[1]).square().sum()), rel=0.2)


@pytest.mark.parametrize("attack", ["replacement", "flip", "noise"])
@pytest.mark.parametrize("rule", [*RULES, Median(), TrimmedMean(trim=0.2)], ids=[*NAMES, "median", "trimmed"])
def test_a_minority_cannot_steer_the_result_as_it_steers_the_mean(rule, attack):
    if attack == "replacement" and isinstance(rule, MultiKrum) and rule.keep == 1:
        pytest.skip("Krum keeps one update, whose own noise decides the distance")
    generator = torch.Generator().manual_seed(2)
    truth = torch.ones(900, dtype=torch.float64) / 30
    honest = truth + 0.02 * torch.randn(18, 900, generator=generator, dtype=torch.float64)
    bad = {
        "replacement": 100 * torch.ones(2, 900, dtype=torch.float64),
        "flip": -20 * truth.expand(2, -1),
        "noise": torch.randn(2, 900, generator=generator, dtype=torch.float64),
    }[attack]
    rows = torch.cat([honest, bad])
    mean_error = (rows.mean(dim=0) - truth).norm()
    assert (combined(rule, rows) - truth).norm() < 0.7 * mean_error


@pytest.mark.parametrize("attack", ["alie", "min-max"])
@pytest.mark.parametrize("rule", [*RULES, Median(), TrimmedMean(trim=0.2)], ids=[*NAMES, "median", "trimmed"])
def test_an_attack_within_the_spread_moves_no_rule_out_of_it(rule, attack):
    generator = torch.Generator().manual_seed(2)
    truth = torch.ones(900, dtype=torch.float64) / 30
    honest = truth + 0.02 * torch.randn(14, 900, generator=generator, dtype=torch.float64)
    section = AttackSection(name=attack)
    bad = forge(section, {"a": honest[0]}, [{"a": row} for row in honest], 6, generator)["a"]
    found = combined(rule, torch.cat([honest, bad.expand(6, -1)]))
    assert not torch.allclose(bad, honest.mean(dim=0), atol=1e-3)  # the attack does something
    assert (honest - found).norm(dim=1).max() <= torch.cdist(honest, honest).max() * (1 + 1e-4)


@pytest.mark.parametrize(
    ("rule", "clients", "least"), [(MultiKrum(malicious=0.4), 8, 11), (Bulyan(malicious=0.25), 8, 11)]
)
def test_too_few_clients(rule, clients, least):
    with pytest.raises(RunError, match=f"at least {least} uploads"):
        combined(rule, vectors(clients))


def test_bulyan_and_control_variates_are_refused():
    with pytest.raises(ConfigError, match="multi-krum or geometric-median"):
        fedra.algorithms.scaffold().plus(Bulyan())


def test_other_parts_follow_the_choice_of_a_rule():
    algorithm = fedra.algorithms.feddyn(alpha=1.0).plus(MultiKrum(malicious=0.2, keep=1))
    rows = vectors().float()
    fold = Fold(algorithm)
    for upload in uploads(rows):
        fold.add_stack(Uploads.of(upload))
    algorithm.combine.finish(fold._combined, fold._see)
    total = fold._totals["dynamic-regularizer"]["drift"]
    kept = combined(MultiKrum(malicious=0.2, keep=1), rows)
    assert torch.allclose(torch.cat([total["a"], total["b"].flatten()]), len(rows) * kept, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_in_blocks_has_the_bits_of_torch(dtype):
    values = torch.randn(7, 3, 40_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sort_clients(values), values.sort(dim=0).values)


@pytest.mark.parametrize("length", [1, 4095, 4097, 9000])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.2), Bulyan(malicious=0.1)], ids=lambda rule: rule.name)
def test_blocks_of_coordinates_have_the_bits_of_whole_tensors(rule, length):
    values = torch.randn(20, length, generator=torch.Generator().manual_seed(1))
    total = rule.start()
    for row in values:
        upload = Upload(
            delta={"w": row}, buffers={}, examples=1, steps=1, effective_steps=1.0, extras={}, metrics={}
        )  # fmt: skip
        total = rule.add(total, upload)
    found = rule.finish(total).params["w"]
    ordered = values.sort(dim=0).values
    if isinstance(rule, Median):
        expected = (ordered[9] + ordered[10]) / 2
    elif isinstance(rule, TrimmedMean):
        expected = ordered[4:16].mean(dim=0)
    else:
        kept = values[_choose_by_krum(squared_distances(inner_products([{"w": row} for row in values])), 2)]
        ordered = kept.sort(dim=0).values
        nearest = (ordered - ordered.median(dim=0).values).abs().argsort(dim=0, stable=True)[:12]
        expected = ordered.gather(0, nearest).mean(dim=0)
    assert torch.equal(found, expected)


def test_a_rule_weighs_the_uploads_once(monkeypatch):
    calls = []
    monkeypatch.setattr(GeometricMedian, "choose_weights", lambda *_: calls.append(1) or torch.full((4,), 0.25))
    algorithm = fedra.algorithms.fedavg().plus(GeometricMedian())
    fold = Fold(algorithm)
    for upload in uploads(vectors(4).float()):
        fold.add(upload)
    weights = Weights({"a": torch.zeros(3), "b": torch.zeros(3, 2)}, {})
    fold.finish(init_server(algorithm, weights), Population(clients=4, examples=4))
    assert calls == [1]


def test_a_run_with_a_robust_rule_and_buffers():
    table = {
        "rounds": 2,
        "data": {"name": "digits", "fraction": 0.2},
        "partition": {"name": "iid", "clients": 8},
        "model": {"name": "mlp"},
        "runner": {"name": "sequential"},
        "algorithm": {"name": "scaffold", "plus": ["geometric-median"]},
    }
    assert fedra.run(table).summary["rounds"] == 2
    assert WeightedMean().is_plain
