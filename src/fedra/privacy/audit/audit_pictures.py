"""Pictures of an audit, in the common style; all of them are readable by their owner alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from fedra.pictures import COLORS, DASHED, INK, QUIET, SMALL, line_style, make_panels, place_legend, set_title
from fedra.privacy.audit.canaries import CanaryScores
from fedra.privacy.audit.membership import Membership, allowed_rate
from fedra.writing import save_figure

BINS = 40
MOST_SHOWN = 12
"""Largest number of pictures in a row."""


def draw_membership(curves: Mapping[str, Membership], bound: tuple[float, float] | None, path: Path | str) -> None:
    """Draw ROC curves of membership on logarithmic axes, with chance, and with what epsilon allows.

    Args:
        curves: The scores by name of the attack.
        bound: The epsilon and delta of one photograph; None without a guarantee.
        path: The file.
    """
    figure, (axes,) = make_panels(width=5.4, height=4.2)
    smallest = min(1 / max(len(one.others), len(one.members)) for one in curves.values())
    for number, (name, one) in enumerate(curves.items()):
        false, true = one.roc()
        label = f"{name} (AUC {one.auc:.3f})"
        axes.plot(np.maximum(false, smallest), np.maximum(true, smallest), label=label, **line_style(number))
    grid = np.geomspace(smallest, 1, 200)
    axes.plot(grid, grid, color=QUIET, linewidth=1, linestyle=DASHED, label="chance")
    if bound is not None:
        most = [allowed_rate(rate, *bound) for rate in grid]
        axes.plot(grid, most, color=INK, linewidth=1.2, label=f"most that epsilon {bound[0]:.2f} allows")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(smallest, 1),
        ylim=(smallest, 1.1),
        xlabel="false positive rate",
        ylabel="true positive rate",
    )
    place_legend(axes)
    save_figure(figure, path, private=True)


def draw_people(tests: Mapping[str, Membership], path: Path | str) -> None:
    """Draw how close together the photographs of people lie, of those trained on and of others.

    Args:
        tests: The scores by the kind of photographs.
        path: The file.
    """
    figure, panels = make_panels(1, len(tests), sharey=True)
    for axes, (name, test) in zip(panels, tests.items(), strict=True):
        _histograms(axes, {"trained on": test.members, "not trained on": test.others})
        axes.set(xlabel="mean cosine between photographs of a person", ylabel="density")
        set_title(axes, f"{name} (AUC {test.auc:.3f})")
        place_legend(axes)
    save_figure(figure, path, private=True)


def draw_canaries(scores: CanaryScores, path: Path | str) -> None:
    """Draw the scores of canaries that took part and of those that did not.

    Args:
        scores: The scores.
        path: The file.
    """
    figure, (axes,) = make_panels()
    _histograms(axes, {"took part": scores.inside, "did not": scores.outside})
    axes.set(xlabel="correlation with all releases, in units of the noise", ylabel="density")
    place_legend(axes)
    save_figure(figure, path, private=True)


def _histograms(axes: Axes, groups: Mapping[str, np.ndarray]) -> None:
    values = np.concatenate(list(groups.values()))
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    for color, (name, scores) in zip(COLORS, groups.items(), strict=False):
        density = np.histogram(scores, edges)[0] / (len(scores) * (edges[1] - edges[0]))
        axes.stairs(density, edges, fill=True, color=color, alpha=0.35, label=f"{name}, {len(scores):,}")
        axes.stairs(density, edges, color=color, linewidth=1.2)


def draw_rows(
    start: Tensor, found: Tensor, photographs: Tensor, ranks: Sequence[float], candidates: int, path: Path | str
) -> None:
    """Draw faces computed from class vectors above the mean photographs of the same people.

    Args:
        start: The picture that all computations started from (c, h, w).
        found: The computed faces (n, c, h, w).
        photographs: The mean photograph of each person (n, c, h, w).
        ranks: The rank of the right person by pixels.
        candidates: Number of people.
        path: The file.
    """
    count = min(len(found), MOST_SHOWN)
    figure, panels = make_panels(2, count + 1, width=1.3, height=1.6)
    top, bottom = panels[: count + 1], panels[count + 1 :]
    _show(top[0], start, "start")
    _blank(bottom[0])
    for index in range(count):
        _show(top[index + 1], found[index], f"rank {ranks[index]:.0f} of {candidates}")
        _show(bottom[index + 1], photographs[index], "mean photo")
    save_figure(figure, path, private=True)


def draw_uploads(
    truth: Mapping[str, Tensor], found: Mapping[str, Tensor], quality: Mapping[str, np.ndarray], path: Path | str
) -> None:
    """Draw true and reconstructed pictures, two rows for each kind of upload.

    Args:
        truth: The true pictures by what was attacked.
        found: The reconstructed pictures.
        quality: Their PSNR in dB.
        path: The file.
    """
    columns = min(max(map(len, truth.values())), MOST_SHOWN)
    figure, panels = make_panels(2 * len(truth), columns, width=1.5, height=1.7)
    for row, name in enumerate(truth):
        upper = panels[2 * row * columns : (2 * row + 1) * columns]
        lower = panels[(2 * row + 1) * columns : (2 * row + 2) * columns]
        for index in range(columns):
            if index >= len(truth[name]):
                _blank(upper[index])
                _blank(lower[index])
                continue
            _show(upper[index], truth[name][index], "true")
            _show(lower[index], found[name][index], f"{quality[name][index]:.1f} dB")
        upper[0].set_title(name, fontsize=SMALL, color=INK, loc="left", pad=16)
    save_figure(figure, path, private=True)


def _show(axes: Axes, picture: Tensor, title: str) -> None:
    _blank(axes)
    shown = picture.clamp(0, 1).permute(1, 2, 0).numpy()
    axes.imshow(shown if shown.shape[2] == 3 else shown[:, :, 0], cmap="gray", vmin=0, vmax=1)
    axes.set_title(title, fontsize=SMALL, color=INK)


def _blank(axes: Axes) -> None:
    axes.set_axis_off()
