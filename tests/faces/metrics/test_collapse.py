"""Embeddings that point one way, or nowhere, are recognized as collapsed; any that differ are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedra.faces.metrics.collapse import BLOCK, collapse_reason, collapse_warning, separate_zero_embeddings


def rows(count: int, length: int = 8) -> Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(0))


def near(spread: float, count: int = 20) -> Tensor:
    """Rows of many lengths about one direction, each turned by an angle of about `spread`."""
    center = torch.nn.functional.normalize(rows(1).double(), dim=1)
    turned = center + spread * torch.nn.functional.normalize(rows(count).double(), dim=1)
    return (turned * torch.logspace(-3, 5, count).double()[:, None]).float()


@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-4])
def test_one_direction_is_a_collapse_whatever_the_lengths(spread: float) -> None:
    assert collapse_reason(near(spread)) == "all 20 embeddings point in one direction"


@pytest.mark.parametrize("spread", [0.02, 0.1, 1.0])
def test_directions_that_differ_are_none(spread: float) -> None:
    assert collapse_reason(near(spread)) is None


def test_one_row_that_differs_is_enough_wherever_it_is() -> None:
    for place in (0, 7, 19):
        features = near(0.0)
        features[place] *= -1
        assert collapse_reason(features) is None


def test_zeros_have_no_direction() -> None:
    assert collapse_reason(torch.zeros(5, 3)) == "all 5 embeddings are zero"
    assert collapse_reason(torch.full((5, 3), 1e-30)) == "all 5 embeddings are zero"
    some = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])
    assert collapse_reason(some) == "1 of 3 embeddings are zero, and the others point in one direction"
    assert collapse_reason(torch.cat([some, torch.tensor([[1.0, 0.0]])])) is None


def test_what_is_not_finite_or_alone_is_told_by_others() -> None:
    assert collapse_reason(torch.full((4, 2), torch.nan)) is None
    assert collapse_reason(torch.tensor([[1.0, 1.0], [torch.inf, 1.0]])) is None
    assert collapse_reason(torch.ones(1, 4)) is None
    assert collapse_reason(torch.empty(0, 4)) is None


def test_coarser_numbers_round_more() -> None:
    features = near(3e-3)
    assert collapse_reason(features) is None
    assert collapse_reason(features, torch.bfloat16) is not None
    assert collapse_reason(near(0.02), torch.bfloat16) is None


def test_a_difference_in_a_later_block_is_seen() -> None:
    features = torch.ones(BLOCK + 2, 2)
    assert collapse_reason(features) == f"all {BLOCK + 2:,} embeddings point in one direction"
    features[-1, 0] = 2
    assert collapse_reason(features) is None


def test_embeddings_keep_their_cosines_and_zeros_get_an_axis() -> None:
    features = rows(4)
    features[2] = 0
    found = separate_zero_embeddings(features)
    assert torch.equal(found.features[:, :-1], features)
    assert found.features[:, -1].tolist() == [0, 0, 1, 0]
    assert (found.zeros, found.collapsed) == (1, None)
    assert separate_zero_embeddings(torch.zeros(3, 2)).collapsed == "all 3 embeddings are zero"


def test_the_warning_says_why_and_what_to_do() -> None:
    told = collapse_warning("all 5 embeddings are zero")
    assert told.startswith("warning: ")
    assert "(all 5 embeddings are zero)" in told
    assert "lower learning rate" in told
