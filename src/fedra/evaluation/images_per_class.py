"""Accuracy by the number of training images of a class: do small classes suffer?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

GROUPS = 5
"""Largest number of groups of classes."""


class ImageGroup(NamedTuple):
    """Classes with about the same number of training images.

    Args:
        fewest: Smallest number of training images of a class in the group.
        most: Largest number.
        classes: Number of classes that have test images.
        accuracy: Mean of the classes' accuracies.

    Example:
        >>> ImageGroup(5, 8, 40, 0.5).label
        '5 to 8'
    """

    fewest: int
    most: int
    classes: int
    accuracy: float

    @property
    def label(self) -> str:
        """The range of numbers of images."""
        return f"{self.fewest}" if self.fewest == self.most else f"{self.fewest} to {self.most}"


def group_by_images(counts: Tensor, class_accuracy: Tensor, groups: int = GROUPS) -> list[ImageGroup]:
    """Group classes by their numbers of training images, each group about as large as the others.

    Args:
        counts: Number of training images of each class (C,).
        class_accuracy: Accuracy of each class (C,), NaN for a class without test images, which is left out.
        groups: Largest number of groups; classes with the same number of images stay together.

    Returns:
        The groups, from few images to many; a single group if all classes have the same number.

    Example:
        >>> import torch
        >>> [group.label for group in group_by_images(torch.tensor([5, 5, 20, 30]), torch.ones(4), groups=2)]
        ['5', '20 to 30']
    """
    known = ~class_accuracy.isnan()
    counts, accuracy = counts[known], class_accuracy[known]
    order = counts.argsort(stable=True)
    bounds = {int(counts[order[len(order) * number // groups]]) for number in range(1, groups)} if len(order) else set()
    edges = sorted(bounds - {int(counts.min())}) if len(order) else []
    index = torch.bucketize(counts, torch.tensor(edges, dtype=counts.dtype), right=True)
    found = []
    for number in range(len(edges) + 1):
        inside = index == number
        if bool(inside.any()):
            own = counts[inside]
            found.append(ImageGroup(int(own.min()), int(own.max()), len(own), float(accuracy[inside].mean())))
    return found


def draw_images_per_class(groups: Sequence[ImageGroup], path: Path) -> None:
    """Plot the accuracy of each group of classes."""
    from fedra.pictures import COLORS, SMALL, make_panels, save_picture  # slow to import and only needed here

    figure, (axes,) = make_panels(width=4.8, height=3.2)
    accuracies = [100 * group.accuracy for group in groups]
    bars = axes.bar([group.label for group in groups], accuracies, color=COLORS[0])
    axes.bar_label(bars, [f"{group.classes:,} classes" for group in groups], fontsize=SMALL, padding=2)
    axes.set(xlabel="training images of a class", ylabel="accuracy (%)", ylim=(0, 108))
    save_picture(figure, path, [group._asdict() for group in groups])
