"""Every shipped configuration can be read, and every point of its sweep names things that exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.errors import ConfigError
from fedra.experiment.config import Config, Named
from fedra.experiment.naming import build_algorithm
from fedra.experiment.sweep import Point, expand, read_grid
from fedra.models import MODELS
from fedra.registry import Registry
from fedra.runners import RUNNERS

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").rglob("*.toml"))
SECTIONS: dict[str, Registry] = {"data": DATASETS, "partition": PARTITIONS, "model": MODELS, "runner": RUNNERS}
CELLS = {
    "table1.toml": 8 * 6,
    "table6.toml": 7,
    "table7.toml": 5 * 2,
    "table8.toml": 3 * 4,
    "table9.toml": 3 * 4,
}
"""The numbers a table of the paper prints for CIFAR-10."""


@cache
def points(path: Path) -> list[Point]:
    config, grid = read_grid(str(path), ())
    return expand(config, grid, 1, Path("runs"))


def configs(path: Path) -> list[Config]:
    return [config for point in points(path) for _, config, _ in point.runs]


def check(section: Named, registry: Registry) -> None:
    registry.settings(section.name, section.settings)


def test_there_are_files() -> None:
    assert {path.name for path in FILES} >= {"quickstart.toml", *CELLS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_point_can_be_built(path: Path) -> None:
    for config in configs(path):
        assert build_algorithm(config.algorithm).objective
        for name, registry in SECTIONS.items():
            check(getattr(config, name), registry)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_point_is_another_run_in_another_folder(path: Path) -> None:
    folders = [folder for point in points(path) for _, _, folder in point.runs]
    assert len(set(folders)) == len(folders)
    assert max(len(folder.name) for folder in folders) < 200
    texts = [config.model_dump_json() for config in configs(path)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", CELLS)
def test_a_table_has_as_many_cells_as_in_the_paper(name: str) -> None:
    assert len(points(ROOT / "configs" / "fedsol" / name)) == CELLS[name]


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "fedsol"], ids=lambda path: path.stem)
def test_fedsol_files_keep_to_the_papers_protocol(path: Path) -> None:
    for config in configs(path):
        local = config.local
        assert (local.epochs, local.batch, local.lr, local.lr_decay, local.momentum) == (5, 50, 0.01, 0.99, 0.9)
        assert local.weight_decay == 1e-5
        assert config.partition.clients is not None
        assert round(config.partition.clients * config.cohort.fraction) == 10
        assert config.cohort.sampling == "legacy"
        assert config.partition.settings["legacy"] is True


def test_the_check_finds_a_wrong_field() -> None:
    config, _ = read_grid(str(ROOT / "configs" / "quickstart.toml"), ["model.width=3"])
    with pytest.raises(ConfigError, match="the model 'mlp' has no field 'width'"):
        check(config.model, MODELS)
