"""Every table and figure of the five papers has an entry that can be built at each of its sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedra.config.names import build_algorithm
from fedra.config.resolve import resolve_defaults
from fedra.errors import ConfigError
from fedra.experiment.build import build
from fedra.reproduce.cell_values import split_metric
from fedra.reproduce.entries import PAPERS, SIZES, config_path, find_entry, list_entries
from fedra.reproduce.paper_points import build_grid
from fedra.reproduce.untrained import compare_settings, show_entry

INVENTORY = {
    "fedarc": {"table": 2, "figure": 2},
    "fedgc": {"table": 7, "figure": 3},
    "fedsol": {"table": 9, "figure": 10},
    "fedfs": {"table": 0, "figure": 0},
    "adaptive-margin": {"table": 5, "figure": 2},
}
"""The numbers of tables and figures in each paper; the text of FedFS at hand has none."""
STATEMENTS = {"fedfs": {"auroc", "participation", "lambda", "ratio"}, "fedgc": {"pretrained"}}
QUESTIONS = {"fedgc pretrained"}
"""Entries of ours, which no paper has at its own size."""
QUOTED = {"adaptive-margin table4", "adaptive-margin table5"}
"""Tables with rows that the paper quotes from others."""


def test_the_papers_are_known() -> None:
    assert set(INVENTORY) == set(PAPERS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_has_an_entry(paper: str) -> None:
    wanted = {f"{kind}{number + 1}" for kind, count in INVENTORY[paper].items() for number in range(count)}
    assert {entry.name for entry in list_entries(paper)} == wanted | STATEMENTS.get(paper, set())


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_and_numbers_name_rows_and_columns_that_exist(paper: str) -> None:
    for entry in list_entries(paper):
        rows, columns = {row.name for row in entry.rows}, {column.name for column in entry.columns}
        for claim in entry.claims:
            assert set(claim.left) | set(claim.right) <= rows, (entry.label, claim.text)
            assert set(claim.columns) | set(claim.other_columns) <= columns, (entry.label, claim.text)
            assert claim.where, (entry.label, claim.text)
        if entry.label not in QUOTED:
            assert {row for row, _ in entry.printed} <= rows, entry.label
        for column in entry.columns if entry.trains else ():
            split_metric(column.metric or entry.metric)


@pytest.mark.parametrize("paper", PAPERS)
def test_an_entry_trains_at_every_size_or_says_why_not(paper: str) -> None:
    for entry in list_entries(paper):
        if not entry.trains:
            assert entry.note or entry.command, entry.label
            continue
        unwanted = {"quick", "paper"} if entry.label in QUESTIONS else {"quick"}
        assert set(entry.available) >= set(SIZES) - unwanted, entry.label
        for size in entry.available:
            assert entry.sizes[size].data, (entry.label, size)
            rows, columns = entry.lines(size)
            assert rows, (entry.label, size)
            assert columns, (entry.label, size)
            assert len({row.name for row in rows}) == len(rows), (entry.label, size)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("size", SIZES)
def test_all_runs_can_be_built(paper: str, size: str) -> None:
    for entry in list_entries(paper):
        if entry.trains and size in entry.available:
            grid = build_grid(entry, size, 1, Path("out"))
            assert grid.cells
            algorithms = {run[1].algorithm.model_dump_json(): run[1].algorithm for p in grid.points for run in p.runs}
            for algorithm in algorithms.values():
                assert build_algorithm(algorithm).objective
            runs = [run[1] for p in (*grid.points, *([grid.first] if grid.first else [])) for run in p.runs]
            sections = {config.data.model_dump_json() + config.model.model_dump_json(): config for config in runs}
            for config in sections.values():
                assert resolve_defaults(config).rounds  # fields that a data set or network does not have are refused


def test_printed_numbers_are_the_papers() -> None:
    """A sample of each paper, read off its text a second time."""
    assert find_entry("fedsol", "table1").printed["FedSoL", "α = 0.1"] == (64.13, 0.46)
    assert find_entry("fedsol", "table1").printed["FedNTD", "TissueMNIST, s = 2"] == (52.63, 0.59)
    assert find_entry("fedsol", "table1").printed["Scaffold", "α = 0.05"] == (10.0, None)
    assert find_entry("fedsol", "table5").printed["kNN-Per", "SVHN, 5 epochs"] == (92.8, 6.2)
    assert find_entry("fedsol", "table7").printed["FedDyn, combined", "CINIC-10"] == (52.17, None)
    assert find_entry("fedsol", "table8").printed["Head", "rho 1.5"] == (64.13, None)
    assert find_entry("fedsol", "table9").printed["Res18, FedSoL", "PathMNIST"] == (80.59, 0.11)
    assert find_entry("fedarc", "table1").printed["FedArc", "CIFAR-10"] == (83.83, None)
    assert find_entry("fedarc", "table2").printed["FedArc", "98 %"] == (2568.0, None)
    assert find_entry("fedgc", "table5").printed["ArcFace, FedGC", "VGG2-FP"] == (84.80, None)
    assert find_entry("fedgc", "table7").printed["CosFace, FedPE", "IJB-C, identification"] == (79.10, None)
    assert find_entry("adaptive-margin", "table3").printed["CosFace", "CALFW"] == (94.12, None)
    assert find_entry("adaptive-margin", "table5").printed["adaptive margin", "TAR at 1e-6"] == (93.50, None)


def test_the_settings_of_a_column_stay_in_it() -> None:
    """FedSoL at rho = 4, the last column, leaves the paper's rho = 2 to the columns before it when built again."""
    entry = find_entry("fedsol", "figure2")
    for _ in range(2):
        cells = build_grid(entry, "small", 1, Path("out")).cells
        assert cells["FedSoL", "rho 4.0"][0][1].algorithm.model_dump()["rho"] == 4.0
        assert cells["FedSoL", "lr 0.003"][0][1].algorithm.model_dump()["rho"] == 2.0
    cells = build_grid(find_entry("fedsol", "table1"), "paper", 1, Path("out")).cells
    alphas = [cells["FedAvg", f"α = {alpha}"][0][1].partition.model_dump()["alpha"] for alpha in (0.05, 0.1, 0.5)]
    assert alphas == [0.05, 0.1, 0.5]


def test_equal_settings_share_their_runs() -> None:
    grid = build_grid(find_entry("fedsol", "table8"), "small", 1, Path("out"))
    plain = {grid.cells[row.name, "rho 0.0"][0][2] for row in grid.rows}
    assert len(plain) == 1
    assert grid.cells["All", "FLOPs"] == grid.cells["All", "rho 2.0"]
    whole = build_grid(find_entry("fedsol", "figure10"), "quick", 1, Path("out"))
    other = build_grid(find_entry("fedsol", "figure9"), "quick", 1, Path("out"))
    assert {p.runs[0][2] for p in whole.points} < {p.runs[0][2] for p in other.points}


@pytest.mark.parametrize("paper", ["fedarc", "fedsol"])
def test_digits_can_be_partitioned_as_the_quick_size_asks(paper: str) -> None:
    wanted = {}
    for entry in list_entries(paper):
        if entry.trains and "quick" in entry.available:
            for point in build_grid(entry, "quick", 1, Path("out")).points:
                config = point.runs[0][1]
                wanted[config.data.model_dump_json() + config.partition.model_dump_json()] = config
    assert wanted
    for config in wanted.values():
        clients = build(resolve_defaults(config)).job.clients
        assert len(clients) == config.partition.clients


def test_seeds_that_vary_give_every_run_its_own_data() -> None:
    entry = find_entry("fedfs", "auroc")
    grid = build_grid(entry, "small", 3, Path("out"))
    runs = grid.cells["FedFS", "personal AUROC"]
    assert [config.data.settings["seed"] for _, config, _ in runs] == [2, 3, 4]
    fixed = replace(entry, sizes={"small": replace(entry.sizes["small"], vary=())})
    same = build_grid(fixed, "small", 3, Path("out")).cells["FedFS", "personal AUROC"]
    assert {config.data.settings["seed"] for _, config, _ in same} == {2}
    assert {folder for _, _, folder in runs}.isdisjoint(folder for _, _, folder in same)


@pytest.mark.parametrize("name", ["table 1", "Table1", "t1", "tab1"])
def test_names_are_read_generously(name: str) -> None:
    assert find_entry("fedsol", name).name == "table1"
    assert find_entry("fedsol", name.replace("tab", "fig").replace("Tab", "Fig").replace("le", "ure")).paper == "fedsol"


def test_unknown_names_are_reported_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedsol'"):
        list_entries("fedsoll")
    with pytest.raises(ConfigError, match="table"):
        find_entry("fedsol", "table77")


def test_settings_equal_the_papers() -> None:
    lines = compare_settings(find_entry("fedsol", "table3"))
    assert len(lines) == 6
    assert not [line for line in lines if "DIFFERS" in line]


def test_pictures_are_drawn(tmp_path: Path) -> None:
    lines = show_entry(find_entry("adaptive-margin", "figure1"), tmp_path)
    assert (tmp_path / "adaptive-margin-figure1.svg").is_file()
    assert "plot saved" in lines[1]


def test_a_missing_configuration_is_reported() -> None:
    with pytest.raises(ConfigError, match="must exist"):
        config_path("no/such.toml")
