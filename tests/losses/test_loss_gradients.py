"""The gradients that are written by hand: first and second order, inside vmap, in half precision and compiled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedra.losses.angle import cosine, with_true_class


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def plain(features: Tensor, weight: Tensor) -> Tensor:
    return F.normalize(features, dim=1) @ F.normalize(weight, dim=1).T


LABELS = torch.tensor([2, 0, 2, 4])


def test_cosines_against_finite_differences() -> None:
    inputs = drawn(4, 3), drawn(5, 3)
    assert torch.autograd.gradcheck(cosine, inputs)
    assert torch.autograd.gradgradcheck(cosine, inputs)


def test_the_true_column_against_finite_differences() -> None:
    def logits(others: Tensor, own: Tensor) -> Tensor:
        return with_true_class(others, own, LABELS, 3.0)

    inputs = drawn(4, 5), drawn(4)
    assert torch.autograd.gradcheck(logits, inputs)
    assert torch.autograd.gradgradcheck(logits, inputs)
    assert torch.equal(logits(*inputs)[range(4), LABELS], 3 * inputs[1])


def test_a_row_without_direction_gets_no_gradient() -> None:
    features, weight = drawn(4, 3), drawn(5, 3)
    weight.data[1] = 0
    values = cosine(features, weight)
    assert not values[:, 1].any()
    (slope,) = torch.autograd.grad(values.sum(), weight)
    assert not slope[1].any()
    assert slope[0].any()


def test_inside_vmap_it_is_the_same() -> None:
    features, weight = drawn(6, 4, 3).detach(), drawn(6, 5, 3).detach()

    def loss(weight: Tensor, features: Tensor) -> Tensor:
        values = cosine(features, weight)
        return F.cross_entropy(with_true_class(values, values[:, 0] - 0.2, LABELS, 8.0), LABELS)

    found = torch.func.vmap(torch.func.grad(loss))(weight, features)
    alone = [torch.func.grad(loss)(w, f) for w, f in zip(weight, features, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_the_products_alone_in_half(dtype: torch.dtype) -> None:
    features, weight = drawn(4, 3).detach().float(), drawn(5, 3).detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        values = cosine(features, weight)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, plain(features, weight), rtol=0, atol=0.02)
    found, wanted = (torch.autograd.grad(it.square().sum(), weight)[0] for it in (values, plain(features, weight)))
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
