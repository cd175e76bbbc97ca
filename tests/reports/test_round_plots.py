"""Plots of runs with several seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedra
from fedra.errors import ConfigError
from fedra.reports.factor_plot import draw_factors, read_factor
from fedra.reports.round_plots import draw_divergence, layer_names
from fedra.reports.run_groups import group_runs, read_client_series, read_series, smooth, spread
from tiny import cli, table


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    measured = {"diagnostics": dict.fromkeys(("proximal", "divergence", "preservation", "classes"), True)}
    for name in ("fedavg", "fedsol"):
        for seed in (0, 1):
            fedra.run(table(algorithm={"name": name}, seed=seed, **measured), out=folder / f"{name}-{seed}")
    return sorted(folder.iterdir())


def test_seeds_are_grouped_and_averaged(runs: list[Path]) -> None:
    groups = group_runs(runs)
    assert {name: len(members) for name, members in groups.items()} == {"fedavg": 2, "fedsol": 2}
    rounds, values = read_series(groups["fedavg"], "accuracy", 100.0)
    assert rounds == [1, 2, 3]
    first = groups["fedavg"][0].metrics()
    assert values[0].tolist() == pytest.approx([100 * line["accuracy"] for line in first])
    rounds, losses = read_client_series(groups["fedsol"], "proximal_loss")
    own = [line["proximal_loss"] for line in groups["fedsol"][0].clients() if line["round"] == 1]
    assert losses[0, 0] == pytest.approx(np.mean(own))


def test_groups_of_one_algorithm_are_named_by_what_differs(tmp_path: Path) -> None:
    for rho in (0.5, 2.0):
        fedra.run(table(algorithm={"name": "fedsol", "rho": rho}), out=tmp_path / f"{rho}")
    assert list(group_runs(sorted(tmp_path.iterdir()))) == ["fedsol, rho=0.5", "fedsol, rho=2.0"]


@pytest.mark.parametrize("kind", ["curves", "local-models", "proximal", "drift", "divergence"])
def test_every_kind_is_drawn(kind: str, runs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.svg"
    with pytest.raises(SystemExit) as ended:
        cli.main(["plot", kind, *map(str, runs), "--out", str(path)])
    assert ended.value.code == 0
    assert path.read_text().startswith("<?xml")


def test_layers_are_in_the_networks_order(runs: list[Path]) -> None:
    assert layer_names(group_runs(runs))[-1] == "head"


def test_runs_without_the_diagnostic_are_refused(tmp_path: Path) -> None:
    fedra.run(table(), out=tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"diagnostics\.divergence=true"):
        draw_divergence(group_runs([tmp_path / "plain"]), tmp_path / "d.svg")


def test_a_factor_is_read_off_the_configurations(tmp_path: Path) -> None:
    for rate in (0.1, 0.01):
        for seed in (0, 1):
            fedra.run(table(local={"lr": rate}, seed=seed), out=tmp_path / f"{rate}-{seed}")
    found = read_factor("local.lr", sorted(tmp_path.iterdir()))
    assert [position for position, _ in found["fedavg"]] == [0.01, 0.1]
    assert [len(values) for _, values in found["fedavg"]] == [2, 2]
    draw_factors({"learning rate": found}, tmp_path / "f.svg", "accuracy")
    assert (tmp_path / "f.svg").is_file()
    with pytest.raises(ConfigError, match="must be a number"):
        read_factor("model.name", [tmp_path / "0.1-0"])


def test_smoothing_keeps_constants_and_starts_at_the_first_value() -> None:
    np.testing.assert_allclose(smooth(np.full((2, 5), 3.0), 0.9), 3.0)
    values = np.array([[1.0, 3.0, 2.0]])
    assert smooth(values, 0.0).tolist() == values.tolist()
    assert smooth(values, 0.5)[0].tolist() == pytest.approx([1.0, (0.25 * 1 + 0.5 * 3) / 0.75, 1.875 / 0.875])
    with pytest.raises(ConfigError, match="below 1"):
        smooth(values, 1.0)


def test_the_band_is_the_sample_deviation() -> None:
    assert spread(np.array([[1.0], [3.0]]))[0] == pytest.approx(2**0.5)
    assert spread(np.array([[1.0]]))[0] == 0.0
