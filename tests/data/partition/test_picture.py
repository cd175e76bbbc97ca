"""The table, the summary and the picture."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedra.data.partition import client_names, label_counts, split, summary, table
from fedra.data.partition.split_plot import draw
from fedra.errors import ConfigError, DataError

TARGETS = np.repeat(np.arange(3), 40)
NAMES = ("cat", "dog", "a name too long for an axis")


def text(parts: list[np.ndarray], targets: np.ndarray, names: tuple[str, ...], clients: tuple[str, ...] = ()) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(table(parts, targets, names, clients))
    return capture.get()


def test_label_counts_and_summary() -> None:
    parts = split("one-class", TARGETS, 3, 0)
    assert label_counts(parts, TARGETS, 3).tolist() == [[40, 0, 0], [0, 40, 0], [0, 0, 40]]
    numbers = summary(parts, TARGETS)
    assert (numbers["clients"], numbers["examples"], numbers["median"], numbers["classes"]) == (3, 120, 40, 1)


def test_summary_counts_classes_above_one_percent() -> None:
    targets = np.array([0] * 995 + [1] * 5)
    assert summary([np.arange(1000)], targets)["classes"] == 1


def test_table_shows_every_class_of_a_few_clients() -> None:
    shown = text(split("one-class", TARGETS, 3, 0), TARGETS, NAMES)
    assert "dog" in shown
    assert "40 │   · │" in shown
    assert "median" not in shown


def test_table_of_many_clients_shows_the_ends_and_quantiles() -> None:
    shown = text(split("iid", TARGETS, 40, 0), TARGETS, NAMES)
    assert " 11 │" in shown
    assert " 39 │" in shown
    assert " 20 │" not in shown
    assert "median" in shown


def test_table_of_many_classes_names_the_most_frequent() -> None:
    targets = np.repeat(np.arange(20), 10)
    shown = text(split("one-class", targets, 20, 0), targets, tuple(f"kind {n}" for n in range(20)))
    assert "kind 3 10" in shown


@pytest.mark.parametrize(("clients", "classes"), [(10, 2), (100, 10), (1000, 100)])
def test_png_is_an_image_and_nothing_else_is_left(tmp_path: Path, clients: int, classes: int) -> None:
    targets = np.arange(4000) % classes
    parts = split("quantity", targets, clients, 0, min_size=1)
    file = draw(parts, targets, [f"class {n}" for n in range(classes)], tmp_path / "new" / "split.png")
    with Image.open(file) as image:
        assert min(image.size) > 400
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or []) > 20
    assert sorted(file.parent.iterdir()) == [file.with_suffix(".csv"), file]


def test_svg_names_the_classes(tmp_path: Path) -> None:
    file = draw(split("iid", TARGETS, 5, 0), TARGETS, NAMES, tmp_path / "split.svg")
    written = file.read_text()
    assert written.startswith("<?xml")
    assert "dog" in written


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png or \.pdf, got"):
        draw([np.arange(120)], TARGETS, NAMES, tmp_path / "split.bmp")


def test_unnamed_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="targets must be below 2 \\(the number of class names\\), got 2"):
        draw([np.arange(120)], TARGETS, NAMES[:2], tmp_path / "split.png")


def test_natural_groups_keep_their_names() -> None:
    groups, names = np.arange(120) % 3, ("St. Mary", "[bold]", "north")
    apart = split("natural", TARGETS, None, 0, groups)
    assert client_names(apart, groups, names) == names
    shown = text(apart, TARGETS, NAMES, names)
    assert "St. Mary" in shown
    assert "[bold]" in shown
    merged = client_names(split("natural", TARGETS, 2, 0, groups), groups, names)
    assert sorted(" + ".join(merged).split(" + ")) == sorted(names)
    assert client_names(split("iid", TARGETS, 4, 0), groups, names) == ()
    assert client_names(apart, groups, ()) == ()


def test_clients_that_are_not_shown_are_dots() -> None:
    assert "..." in text(split("iid", TARGETS, 20, 0), TARGETS, NAMES)
    assert "..." not in text(split("iid", TARGETS, 16, 0), TARGETS, NAMES)
