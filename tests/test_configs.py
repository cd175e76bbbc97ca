"""Every shipped configuration can be read, and every point of its sweep names things that exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fedra.algorithms.fedfs import IntraSubject
from fedra.config.mode import without_federation
from fedra.config.names import build_algorithm, build_schedule
from fedra.config.schema import AlgorithmSection, Config, NamedSection
from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.errors import ConfigError
from fedra.experiment.sweep import expand, read_grid
from fedra.models import MODELS
from fedra.registry import Registry
from fedra.reports.sweep_table import Point
from fedra.runners import RUNNERS
from fedra.runners.centralized import check_centralized

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").rglob("*.toml"))
SECTIONS: dict[str, Registry] = {"data": DATASETS, "partition": PARTITIONS, "model": MODELS, "runner": RUNNERS}
CELLS = {
    "table1.toml": 8 * 6,
    "table4.toml": 4 + 4 + 4 + 4 + 4 + 4,
    "mnist.toml": 8 * 2,
    "table6.toml": 7,
    "table7.toml": 5 * 2,
    "table8.toml": 3 * 4,
    "table9.toml": 3 * 4,
}
"""The numbers a table of the paper prints for CIFAR-10, its searched candidates, and table 1 on MNIST."""
MARGIN_CELLS = {
    "fedarc/table1-mnist.toml": 4,
    "fedarc/table1-cifar100.toml": 4,
    "fedarc/table1-cifar10.toml": 4,
    "fedarc/table2.toml": 4,
    "adaptive-margin/table2.toml": 9,
    "adaptive-margin/table3.toml": 6,
    "adaptive-margin/table4.toml": 1,
    "adaptive-margin/table5.toml": 1,
}
"""The runs behind the tables on angular margins."""
MARGIN_FILES = [name for name in MARGIN_CELLS if name.startswith("adaptive-margin")]
FEDGC_CELLS = {1: 4 * 2, 2: 3, 3: 2 * 2, 4: 3, 5: 3 * 3, 6: 3 * 2, 7: 3 * 2}
"""The federated runs behind FedGC's tables; centralized rows come by the command in the file."""


@cache
def points(path: Path) -> list[Point]:
    config, grid = read_grid(str(path), ())
    return expand(config, grid, 1, Path("runs"))


def configs(path: Path) -> list[Config]:
    return [config for point in points(path) for _, config, _ in point.runs]


def check(section: NamedSection, registry: Registry) -> None:
    registry.settings(section.name, section.settings)


def test_there_are_files() -> None:
    assert {path.name for path in FILES} >= {"quickstart.toml", *CELLS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_point_can_be_built(path: Path) -> None:
    for config in map(without_federation, configs(path)):
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


@pytest.mark.parametrize("name", MARGIN_CELLS)
def test_a_table_on_margins_has_as_many_runs_as_the_paper_made(name: str) -> None:
    assert len(points(ROOT / "configs" / name)) == MARGIN_CELLS[name]


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "fedarc"], ids=lambda path: path.stem)
def test_fedarc_files_keep_to_the_papers_protocol(path: Path) -> None:
    found = configs(path)
    assert [config.algorithm.name for config in found] == ["fedavg", "fedprox", "moon", "fedarc"]
    for config in found:
        assert (config.rounds, config.local.epochs, config.local.lr) == (10_000, 5, 0.001)
        assert config.local.batch == (50 if config.data.name == "mnist" else 32)
        assert config.partition.clients == (125 if config.data.name == "cifar100" else 100)
        assert config.cohort.fraction == 0.1
    words = ["mode=centralized", 'algorithm={ name = "fedavg" },{ name = "fedarc" }']
    base, grid = read_grid(str(path), words)
    central = [config for point in expand(base, grid, 1, Path("runs")) for _, config, _ in point.runs]
    assert [config.algorithm.name for config in central] == ["fedavg", "fedarc"]
    for config in central:
        check_centralized(build_algorithm(config.algorithm))


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if str(path.relative_to(ROOT / "configs")) in MARGIN_FILES],
    ids=lambda path: path.stem,
)
def test_adaptive_margin_files_train_on_the_margin_alone(path: Path) -> None:
    for config in configs(path):
        check_centralized(build_algorithm(config.algorithm))
        build_schedule(config.local.schedule)
        (term,) = build_algorithm(config.algorithm).objective
        assert term.name == ("margin-head" if config.algorithm.plus else "cross-entropy")
        assert config.evaluation.protocol == "verification"
        assert config.data.settings["verify"] == "lfw"
        assert getattr(term, "weight", 1.0) == 1.0
        assert getattr(getattr(term, "margin", None), "scale", 64.0) == 64.0
        assert (config.local.lr, config.local.momentum, config.local.weight_decay) == (0.01, 0.9, 5e-4)


@pytest.mark.parametrize("number", FEDGC_CELLS)
@pytest.mark.parametrize("small", [False, True])
def test_fedgc_files_keep_to_the_papers_protocol(number: int, small: bool) -> None:
    found = configs(ROOT / "configs" / "fedgc" / f"table{number}{'-small' if small else ''}.toml")
    assert len(found) == FEDGC_CELLS[number]
    for config in found:
        algorithm = build_algorithm(config.algorithm)
        assert algorithm.sharing.owned == ("head.",)
        assert config.partition.name == "identity"
        assert config.evaluation.protocol == "verification"
        if config.algorithm.name == "fedgc" and number != 2:
            assert (config.algorithm.settings["strength"], config.algorithm.settings["lr"]) == (20.0, 0.1)
        if small:
            assert config.data.name == "synthetic-faces"
            continue
        local = config.local
        assert (config.partition.clients, config.model.name, config.data.name) == (36, "iresnet34", "record-faces")
        assert (local.batch, local.lr, local.momentum, local.weight_decay) == (256, 0.1, 0.9, 5e-4)
        assert (local.lr_decay, local.schedule) == (1.0, "constant")


def test_fedgc_files_of_both_sizes_compare_the_same() -> None:
    for number in FEDGC_CELLS:
        both = [ROOT / "configs" / "fedgc" / f"table{number}{kind}.toml" for kind in ("", "-small")]
        compared = [[(c.algorithm, c.cohort, c.partition.settings) for c in configs(path)] for path in both]
        assert compared[0] == compared[1]


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.parent.name == "fedfs" and "pretrain" not in p.stem], ids=lambda path: path.stem
)
def test_fedfs_files_keep_to_what_is_known_of_the_paper(path: Path) -> None:
    for config in configs(path):
        assert (config.cohort.rounds_per_client or config.rounds, config.local.epochs) == (5, 2)
        assert config.partition.name == "identity"
        assert config.evaluation.protocol == "clients"
        assert config.model.weights is not None
        assert config.model.settings["norm"] == "fixed"
        assert build_algorithm(config.algorithm).personalize is not None
    if path.stem in ("synthetic-comparison", "real-comparison", "real-faces"):
        assert {config.cohort.fraction for config in configs(path)} == {0.1, 0.5, 0.9}
        assert len(configs(path)) == 8 * 3
        assert {config.rounds for config in configs(path)} == {50, 10, 6}


@pytest.mark.parametrize("kind", ["synthetic", "real"])
def test_the_files_of_soft_labels_compare_the_default_with_raw_dot_products(kind: str) -> None:
    found = [
        build_algorithm(config.algorithm) for config in configs(ROOT / "configs" / "fedfs" / f"{kind}-labels.toml")
    ]
    assert found[0] == build_algorithm(AlgorithmSection(name="fedfs"))
    old = IntraSubject(label_similarity="dot", predict_over="all", symmetric=False, length_gradient=True)
    assert old in found[-1].objective  # its weight is the default too


def test_the_check_finds_a_wrong_field() -> None:
    config, _ = read_grid(str(ROOT / "configs" / "quickstart.toml"), ["model.width=3"])
    with pytest.raises(ConfigError, match="the model 'mlp' has no field 'width'"):
        check(config.model, MODELS)
