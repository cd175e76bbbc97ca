"""Pictures say what the figures say, and the same picture gives the same file."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics import ClosedSet, Scores
from fedra.faces.metrics.plots import draw_cmc, draw_roc, draw_scores, draw_worst, worst_errors
from fedra.writing import write_json


def scores() -> Scores:
    draw = torch.Generator().manual_seed(0)
    return Scores.of(torch.randn(50, generator=draw) + 1, torch.randn(300, generator=draw))


def flat(color: float) -> Tensor:
    return torch.full((3, 8, 8), color)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_every_picture_is_drawn_and_drawn_alike(tmp_path: Path, kind: str) -> None:
    found = ClosedSet((0.5, 0.75, 1.0), 4)
    values, same = torch.tensor([0.9, 0.1, 0.4]), torch.tensor([False, True, True])
    turns = ("a", "b") if kind == "svg" else ("a",)
    for turn in turns:
        folder = tmp_path / turn
        draw_roc({"first": scores(), "second": scores()}, folder / f"roc.{kind}")
        draw_scores(scores(), folder / f"scores.{kind}", threshold=0.5)
        draw_cmc({"first": found}, folder / f"cmc.{kind}")
        draw_worst(values, same, lambda row: (flat(0.2), flat(0.8)), folder / f"worst.{kind}")
    drawn = [{path.name: path.read_bytes() for path in (tmp_path / turn).iterdir()} for turn in turns]
    numbers = ["cmc.csv", "roc.csv", "scores.csv"]
    assert sorted(drawn[0]) == sorted([f"cmc.{kind}", f"roc.{kind}", f"scores.{kind}", f"worst.{kind}", *numbers])
    assert drawn[0] == drawn[-1]
    for path in (tmp_path / "a").glob(f"*.{kind}"):
        if kind == "svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert np.asarray(Image.open(path)).std() > 0


def test_rates_end_at_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("fedra.faces.metrics.plots.save_picture", lambda figure, path, rows: figures.append(figure))
    draw_roc({"mine": scores()}, tmp_path / "roc.svg")
    draw_cmc({"mine": ClosedSet((0.5, 0.75, 1.0), 4)}, tmp_path / "cmc.svg")
    for figure in figures:
        assert figure.axes[0].get_ylim()[1] == 1
        assert not figure.axes[0].lines[0].get_clip_on()  # a line at 1 is drawn in its full width
    assert all(float(tick) == int(tick) for tick in figures[1].axes[0].get_xticks())


def test_the_legend_tells_auroc_and_eer(tmp_path: Path) -> None:
    path = tmp_path / "roc.svg"
    draw_roc({"mine": scores()}, path)
    assert f"mine (AUROC {scores().auroc():.4f}, EER {scores().eer():.2%})" in path.read_text(encoding="utf-8")


def test_the_numbers_behind_a_curve_stand_beside_it(tmp_path: Path) -> None:
    draw_roc({"mine": scores()}, tmp_path / "roc.svg")
    with open(tmp_path / "roc.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    far, tar, _ = scores().curve()
    assert [float(row["far"]) for row in rows] == far.tolist()
    assert [float(row["tar"]) for row in rows] == tar.tolist()


def test_equal_scores_have_a_histogram(tmp_path: Path) -> None:
    draw_scores(Scores.of(torch.ones(3), torch.ones(4)), tmp_path / "flat.png")
    assert (tmp_path / "flat.png").stat().st_size > 0


def test_the_worst_errors_come_first() -> None:
    values = torch.tensor([0.1, 0.9, 0.8, 0.3, 0.9, 0.2])
    same = torch.tensor([True, False, True, False, False, True])
    impostor, genuine = worst_errors(values, same, 2)
    assert impostor.tolist() == [1, 4]
    assert genuine.tolist() == [0, 5]


def test_only_the_shown_images_are_loaded(tmp_path: Path) -> None:
    asked: list[int] = []

    def images_of(row: int) -> tuple[Tensor, Tensor]:
        asked.append(row)
        return torch.zeros(1, 4, 4, dtype=torch.uint8), torch.full((1, 4, 4), 255, dtype=torch.uint8)

    values = torch.linspace(0, 1, 100)
    draw_worst(values, values > 0.5, images_of, tmp_path / "worst.png", count=3)
    assert sorted(asked) == [47, 48, 49, 50, 51, 52]


def test_figures_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "figures.json"
    write_json(path, scores().metrics((0.1,)))
    assert json.loads(path.read_text(encoding="utf-8"))["auroc"] == scores().auroc()
    with pytest.raises(DataError, match="must be finite"):
        write_json(path, {"rate": math.nan})
    assert json.loads(path.read_text(encoding="utf-8"))["impostors"] == 300


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in .svg, .png or .pdf"):
        draw_roc({"mine": scores()}, tmp_path / "roc.gif")
    with pytest.raises(ConfigError, match="curves must have at least one entry"):
        draw_cmc({}, tmp_path / "cmc.svg")
    with pytest.raises(ConfigError, match="count must be at least 1, got 0"):
        worst_errors(torch.rand(2), torch.tensor([True, False]), 0)
    with pytest.raises(DataError, match="NaN"):
        worst_errors(torch.tensor([math.nan]), torch.tensor([True]))
    with pytest.raises(DataError, match=r"image of pair 0 must have shape .*, got \(4, 4\)"):
        draw_worst(torch.rand(1), torch.tensor([True]), lambda row: (torch.ones(4, 4),) * 2, tmp_path / "worst.png")
    with pytest.raises(DataError, match="at least one pair to draw"):
        draw_worst(torch.rand(0), torch.zeros(0, dtype=torch.bool), lambda row: (flat(0),) * 2, tmp_path / "w.png")
