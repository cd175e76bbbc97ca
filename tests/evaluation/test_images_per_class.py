"""Accuracy by the number of training images of a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedra
from fedra.evaluation.images_per_class import draw_images_per_class, group_by_images


def test_groups_have_about_as_many_classes_and_keep_equal_numbers_together() -> None:
    counts = torch.tensor([30, 5, 5, 8, 9, 12, 5, 40, 10, 9])
    accuracy = torch.arange(10) / 10
    groups = group_by_images(counts, accuracy, groups=3)
    assert [(group.fewest, group.most, group.classes) for group in groups] == [(5, 5, 3), (8, 9, 3), (10, 40, 4)]
    assert [group.accuracy for group in groups] == pytest.approx([0.9 / 3, 1.6 / 3, 2.0 / 4])


def test_classes_without_test_images_are_left_out_and_equal_classes_are_one_group() -> None:
    groups = group_by_images(torch.tensor([5, 7, 9]), torch.tensor([1.0, torch.nan, 0.5]), groups=2)
    assert [(group.label, group.classes) for group in groups] == [("5", 1), ("9", 1)]
    assert len(group_by_images(torch.full((8,), 6), torch.rand(8))) == 1
    assert group_by_images(torch.tensor([4]), torch.tensor([torch.nan])) == []


def test_a_run_with_unequal_classes_reports_and_draws_them(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 40 + [1] * 10 + [2] * 4)
    inputs = torch.randn(len(labels), 4, generator=generator) + 3 * torch.eye(4)[labels]
    path = tmp_path / "unequal.npz"
    np.savez(path, x_train=inputs.numpy(), y_train=labels.numpy(), x_test=inputs.numpy(), y_test=labels.numpy())
    config = {
        "rounds": 2,
        "data": {"name": "npz", "path": str(path)},
        "partition": {"name": "iid", "clients": 2},
        "model": {"name": "logistic"},
    }
    run = fedra.run(config, out=tmp_path / "run")
    report = fedra.evaluate(run.folder)
    found = report.metrics["classification"]["accuracy_by_images"]
    assert [(group["fewest"], group["classes"]) for group in found] == [(4, 1), (10, 1), (40, 1)]
    by_class = report.metrics["classification"]["class_accuracy"]
    assert [group["accuracy"] for group in found] == pytest.approx([by_class[name] for name in ("2", "1", "0")])
    assert "accuracy, 40 training images" in report.outcomes["classification"].table


def test_the_plot_names_every_group(tmp_path: Path) -> None:
    draw_images_per_class(group_by_images(torch.tensor([5, 9]), torch.tensor([0.5, 1.0]), 2), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000
