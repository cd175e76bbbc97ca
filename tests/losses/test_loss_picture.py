from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedra.errors import ConfigError
from fedra.losses import LOSSES
from fedra.losses.loss_plot import draw


def test_pictures_are_written_whole(tmp_path: Path) -> None:
    draw(["arcface", "elastic-arcface-plus", "sphereface", "uniface"], tmp_path / "curves.png")
    assert [it.name for it in tmp_path.iterdir()] == ["curves.png"]
    with Image.open(tmp_path / "curves.png") as image:
        image.load()
        assert image.width > 1000
        assert len(image.convert("L").getcolors()) > 20


def test_every_loss_can_be_drawn(tmp_path: Path) -> None:
    draw(list(LOSSES), tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text()
    assert text.count("<path") > 2 * len(LOSSES)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must end in"):
        draw(["arcface"], tmp_path / "curves.doc")
    with pytest.raises(ConfigError, match="there is no loss 'arkface'"):
        draw(["arkface"], tmp_path / "curves.png")
    with pytest.raises(ConfigError, match="at least one loss"):
        draw([], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
