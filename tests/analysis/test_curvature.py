"""Curvature and landscapes against the dense Hessian and closed forms."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn import functional as F

from fedra.analysis.curvature import curvature_steps, measure_curvature, tridiagonalize
from fedra.analysis.global_loss import GlobalLoss
from fedra.analysis.landscape import measure_landscape, random_directions
from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.model import Model, Weights
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError

EXAMPLES = 300  # more than one evaluation batch


def make_loss(*, normalized: bool = False, dtype: torch.dtype = torch.float32) -> GlobalLoss:
    draw = generator(0, "test")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        middle = [nn.BatchNorm1d(7)] if normalized else []
        body = nn.Sequential(nn.Linear(5, 7), *middle, nn.Tanh(), nn.Dropout(0.5))
        module = nn.Sequential(OrderedDict(body=body, head=nn.Linear(7, 4))).to(dtype)
    model = Model(module)
    weights = model.weights()
    if normalized:
        weights.buffers["body.1.running_mean"].copy_(torch.linspace(-1, 1, 7))
        weights.buffers["body.1.running_var"].copy_(torch.linspace(0.5, 2, 7))
    inputs = torch.randn(EXAMPLES, 5, generator=draw).to(dtype)
    targets = torch.randint(0, 4, (EXAMPLES,), generator=draw)
    return GlobalLoss(model, weights, Examples(inputs, targets))


def dense_hessian(loss: GlobalLoss) -> np.ndarray:
    """The whole Hessian in float64, by an independent way: all examples at once, through the plain module."""
    (inputs, targets) = (torch.cat(parts) for parts in zip(*loss._batches, strict=True))
    module = loss._model.module.double().eval()
    buffers = {name: value.double() for name, value in loss._buffers.items() if value.is_floating_point()}

    def value(vector: torch.Tensor) -> torch.Tensor:
        start, params = 0, {}
        for name, own in loss.params.items():
            params[name] = vector[start : start + own.numel()].reshape(own.shape)
            start += own.numel()
        hidden = functional_call(module, {**params, **buffers}, (inputs.double(),))
        return F.cross_entropy(hidden, targets)

    found = hessian(value, torch.cat([own.double().reshape(-1) for own in loss.params.values()]))
    return np.asarray(found.numpy())


@pytest.mark.parametrize("normalized", [False, True])
def test_eigenvalues_vectors_and_trace_equal_those_of_the_dense_hessian(normalized: bool) -> None:
    loss = make_loss(normalized=normalized)
    found = measure_curvature(loss, top=5, probes=60, steps=2)
    matrix = dense_hessian(make_loss(normalized=normalized))
    values, vectors = np.linalg.eigh(matrix)
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:5], rtol=1e-4)
    for number, params in enumerate(found.eigenvectors):
        cosine = loss.flatten(params).double().numpy() @ vectors[:, -1 - number]
        assert abs(cosine) == pytest.approx(1, abs=1e-4)
    assert abs(found.trace - np.trace(matrix)) < 4 * found.trace_error
    assert 0 < found.trace_error < 0.2 * np.trace(matrix)
    assert found.metrics()["lambda_1_over_lambda_5"] == pytest.approx(values[-1] / values[-5], rel=1e-4)


def test_products_of_the_hessian_are_finite_differences_of_the_gradient() -> None:
    loss = make_loss(dtype=torch.float64)
    vector = torch.randn(loss.dimension, generator=generator(1, "test"), dtype=torch.float64)
    direction, step = loss.unflatten(vector), 1e-4
    ends = [loss.value(tree.add(loss.params, direction, side * step)) for side in (-1, 0, 1)]
    curvature = (ends[0] - 2 * ends[1] + ends[2]) / step**2
    assert float(vector @ loss.product(vector)) == pytest.approx(curvature, rel=1e-5)


def test_the_density_with_all_steps_has_the_moments_of_the_spectrum() -> None:
    loss = make_loss(dtype=torch.float64)
    values = np.linalg.eigvalsh(dense_hessian(make_loss(dtype=torch.float64)))
    found = measure_curvature(loss, top=2, probes=20, steps=30)
    assert found.masses.sum() == pytest.approx(1)
    assert found.masses @ found.nodes == pytest.approx(found.trace / loss.dimension)
    assert found.nodes.max() == pytest.approx(values[-1], rel=1e-3)
    assert found.nodes.min() == pytest.approx(values[0], rel=1e-3)
    inside = found.masses[found.nodes > values[-1] / 2].sum()
    assert inside == pytest.approx(np.mean(values > values[-1] / 2), rel=0.5)


def test_lanczos_gives_the_eigenvalues_of_a_small_matrix_and_ends_in_an_invariant_subspace() -> None:
    matrix = torch.diag(torch.tensor([3.0, 1.0, -2.0, 0.0, 5.0], dtype=torch.float64))
    main, beside = tridiagonalize(lambda vector: matrix @ vector, torch.full((5,), 5**-0.5, dtype=torch.float64), 5)
    whole = np.diag(main) + np.diag(beside, 1) + np.diag(beside, -1)
    np.testing.assert_allclose(np.linalg.eigvalsh(whole), [-2, 0, 1, 3, 5], atol=1e-10)
    start = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64) / 2**0.5
    main, beside = tridiagonalize(lambda vector: matrix @ vector, start, 5)
    assert (len(main), len(beside)) == (2, 1)


def test_the_same_seed_repeats_and_progress_adds_up_to_its_total() -> None:
    counted: list[int] = []
    first = measure_curvature(make_loss(), top=3, probes=2, steps=5, seed=4, done=counted.append)
    again = measure_curvature(make_loss(), top=3, probes=2, steps=5, seed=4)
    assert sum(counted) == curvature_steps(3, 2, 5)
    assert first.metrics() == again.metrics()
    for one, other in zip(first.eigenvectors, again.eigenvectors, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert measure_curvature(make_loss(), top=3, probes=2, steps=5, seed=5).trace != first.trace


def test_evaluation_mode_leaves_running_statistics_alone() -> None:
    loss = make_loss(normalized=True)
    before = {name: value.clone() for name, value in loss._buffers.items()}
    measure_curvature(loss, top=1, probes=1, steps=2)
    measure_landscape(loss, *random_directions(loss), points=3)
    assert all(torch.equal(before[name], value) for name, value in loss._buffers.items())


def test_a_landscape_is_the_loss_on_a_plane_and_curves_by_the_eigenvalues() -> None:
    loss = make_loss(dtype=torch.float64)
    found = measure_curvature(loss, top=2, probes=1, steps=2)
    counted: list[int] = []
    plane = measure_landscape(loss, *found.eigenvectors, radius=1e-3, points=3, done=counted.append)
    assert (sum(counted), plane.values.shape) == (9, (3, 3))
    assert plane.values[1, 1] == pytest.approx(loss.value(loss.params), rel=1e-12)
    across = (plane.values[1, 0] - 2 * plane.values[1, 1] + plane.values[1, 2]) / 1e-6
    down = (plane.values[0, 1] - 2 * plane.values[1, 1] + plane.values[2, 1]) / 1e-6
    assert (across, down) == pytest.approx(tuple(found.eigenvalues), rel=1e-3)


def test_random_directions_have_the_lengths_of_the_filters_and_leave_vectors_alone() -> None:
    loss = make_loss(normalized=True)
    for direction in random_directions(loss, seed=2):
        for name in ("body.0.weight", "head.weight"):
            torch.testing.assert_close(direction[name].norm(dim=1), loss.params[name].norm(dim=1))
        assert not any(direction[name].any() for name in ("body.0.bias", "body.1.weight", "body.1.bias", "head.bias"))
    first, second = random_directions(loss, seed=2)
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert torch.equal(random_directions(loss, seed=2)[0]["head.weight"], first["head.weight"])


def test_mistakes_are_explained() -> None:
    loss = make_loss()
    with pytest.raises(ConfigError, match=r"top must be below 74 \(the number of parameters\), got 74"):
        measure_curvature(loss, top=74)
    with pytest.raises(ConfigError, match="steps must be at least 2, got 1"):
        measure_curvature(loss, steps=1)
    with pytest.raises(ConfigError, match="points must be odd and at least 3, got 4"):
        measure_landscape(loss, *random_directions(loss), points=4)
    with pytest.raises(ConfigError, match="radius must be positive, got 0"):
        measure_landscape(loss, *random_directions(loss), radius=0)
    model, weights = loss._model, Weights(tree.scale(loss.params, float("nan")), loss._buffers)
    with pytest.raises(DataError, match="must be finite"):
        GlobalLoss(model, weights, Examples(torch.ones(2, 5), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(DataError, match="at least one example"):
        GlobalLoss(model, weights, Examples(torch.ones(0, 5), torch.zeros(0, dtype=torch.long)))


def test_a_layer_without_a_second_derivative_is_refused() -> None:
    module = nn.Sequential(OrderedDict(body=nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid()), head=nn.Linear(4, 2)))
    model = Model(module)
    loss = GlobalLoss(model, model.weights(), Examples(torch.randn(8, 3), torch.zeros(8, dtype=torch.long)))
    with pytest.raises(ConfigError, match="second derivative to measure curvature"):
        measure_curvature(loss, top=1)
