from __future__ import annotations

import pytest
import torch

from fedra.errors import ConfigError
from fedra.losses import ArcFace, PartialFC


def test_positives_are_always_in_and_labels_still_name_their_class() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([7, 93, 7, 41])
    for _ in range(50):
        sample = PartialFC(rate=0.1)(labels, classes=100, generator=generator)
        assert len(sample.classes) == 10
        assert sample.classes.diff().min() > 0
        assert torch.equal(sample.classes[sample.labels], labels)
    assert sample.inclusion == pytest.approx(7 / 97)


def test_more_positives_than_the_budget_are_all_kept() -> None:
    sample = PartialFC(rate=0.02)(torch.arange(9), classes=100)
    assert torch.equal(sample.classes, torch.arange(9))
    assert sample.inclusion == 0


def test_every_other_class_is_equally_likely() -> None:
    generator = torch.Generator().manual_seed(1)
    labels, counts = torch.tensor([0, 5]), torch.zeros(30)
    for _ in range(4000):
        sample = PartialFC(rate=0.3)(labels, classes=30, generator=generator)
        counts[sample.classes] += 1
    frequency = counts / 4000
    assert frequency[[0, 5]].tolist() == [1, 1]
    others = frequency[[j for j in range(30) if j not in (0, 5)]]
    # Five standard deviations of a frequency of 4000 draws.
    assert float((others - sample.inclusion).abs().max()) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_the_weighted_negative_sum_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(40, generator=generator, dtype=torch.float64), torch.tensor([3])
    whole = float(logits.exp().sum() - logits[3].exp())
    estimates = []
    for _ in range(4000):
        sample = PartialFC(rate=0.25)(labels, classes=40, generator=generator)
        negatives = float(logits[sample.classes].exp().sum() - logits[3].exp())
        estimates.append(negatives / sample.inclusion)
    values = torch.tensor(estimates)
    assert abs(float(values.mean()) - whole) < 5 * float(values.std()) / 4000**0.5


def test_only_the_sampled_rows_get_a_gradient_and_all_classes_give_the_full_loss() -> None:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(6, 4, generator=generator)
    weight = torch.randn(50, 4, generator=generator).requires_grad_()
    labels = torch.randint(0, 50, (6,), generator=generator)
    sample = PartialFC(rate=0.2)(labels, classes=50, generator=generator)
    ArcFace()(features, weight[sample.classes], sample.labels).backward()
    assert weight.grad is not None
    touched = torch.zeros(50, dtype=torch.bool).index_fill(0, sample.classes, True)
    assert weight.grad[~touched].abs().sum() == 0
    assert (weight.grad[labels].abs().sum(dim=1) > 0).all()
    everything = PartialFC(rate=1.0)(labels, classes=50, generator=generator)
    one = ArcFace()(features, weight[everything.classes], everything.labels)
    assert float(one) == pytest.approx(float(ArcFace()(features, weight, labels)))


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="rate of PartialFC must be above 0 and at most 1, got 0"):
        PartialFC(rate=0)
    with pytest.raises(ConfigError, match=r"between 0 and 9 \(10 classes\), got 3 to 12"):
        PartialFC()(torch.tensor([3, 12]), classes=10)
