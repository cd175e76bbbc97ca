"""The common style of plots: colors, lines, legends, and files that repeat."""

from __future__ import annotations

import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedra import pictures
from fedra.errors import ConfigError
from fedra.pictures import COLORS, line_style, make_panels, name_ticks, place_legend, save_numbers, save_picture

# How readers with protanopia and deuteranopia see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def linear(color: str) -> np.ndarray:
    channels = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB coordinates, in which a distance of 2.3 is just noticeable."""
    relative = TO_XYZ @ light.clip(0, 1) / WHITE
    x, y, z = np.where(relative > 216 / 24389, np.cbrt(relative), (24389 / 27 * relative + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_eight_colors_stay_apart_for_color_blind_readers_and_on_white(sight: str) -> None:
    seen = [lab(SIGHT[sight] @ linear(color)) for color in COLORS]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 15
    assert min(np.linalg.norm(one - lab(np.ones(3))) for one in seen) > 35


def test_eight_lines_differ_in_color_dashes_and_marker_and_sixty_four_in_some() -> None:
    styles = [line_style(number, 20) for number in range(64)]
    for key in ("color", "linestyle", "marker"):
        assert len({str(style[key]) for style in styles[:8]}) == 8
    assert len({(style["color"], str(style["linestyle"]), style["marker"]) for style in styles}) == 64


def test_markers_are_few_on_a_long_line_and_at_every_point_of_a_short_one() -> None:
    assert line_style(0, 5)["markevery"] == (0, 1)
    offset, every = line_style(3, 400)["markevery"]
    assert len(range(offset, 400, every)) == 8
    assert "marker" not in line_style(0)


def test_a_legend_stays_in_a_free_corner_and_moves_out_where_it_would_cover_data() -> None:
    figure, (axes,) = make_panels()
    axes.plot([0, 1], [0, 1], label="rising")
    assert place_legend(axes) is axes.get_legend()
    figure, (axes,) = make_panels()
    axes.fill_between([0, 1], [0, 0], [1, 1], label="everything")
    legend = place_legend(axes)
    assert axes.get_legend() is None
    assert figure.legends == [legend]
    figure.draw_without_rendering()
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0


def test_long_names_of_ticks_are_cut_and_tilted() -> None:
    _, (axes,) = make_panels()
    name_ticks(axes, ["a", "b"])
    assert [label.get_rotation() for label in axes.get_xticklabels()] == [0, 0]
    name_ticks(axes, ["a very long name of a class"] * 6)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {40}
    assert {label.get_text() for label in axes.get_xticklabels()} == {"a very long name …"}
    name_ticks(axes, [str(number) for number in range(100)], axis="y", most=10)
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "10", "20"]


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_files_repeat_byte_for_byte_with_their_numbers_beside_them(tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        _, (axes,) = make_panels()
        axes.plot([1, 2], [3, 4], **line_style(0, 2))
        save_picture(axes.figure, tmp_path / f"{name}.{kind}", [{"x": 1, "y": 3.5}, {"x": 2, "y": None}])  # type: ignore[arg-type]
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    with open(tmp_path / "one.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [{"x": "1", "y": "3.5"}, {"x": "2", "y": ""}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", f"one.{kind}", "two.csv", f"two.{kind}"]


def test_another_ending_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    figure, _ = make_panels()
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png or \.pdf, got"):
        save_picture(figure, tmp_path / "a.jpg", [])
    assert not list(tmp_path.iterdir())
    assert save_numbers(tmp_path / "a.svg", []) == tmp_path / "a.csv"


def test_the_module_names_both_kinds_of_color_maps() -> None:
    from matplotlib import colormaps

    assert {pictures.SHADES, pictures.DIVERGING} <= set(colormaps)
