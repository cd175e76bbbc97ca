"""diagnostics.class_vectors: closed forms of hand-made server steps, equal on all runners, nothing when off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

import fedra
import tiny
import toy
from fedra import algorithms
from fedra.analysis.diagnostics import ClassVectors, class_vectors_of, nearest_cosines, observers
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.core.round import Fold
from fedra.core.sharing import Sharing
from fedra.core.uploads import Uploads
from fedra.core.view import Server
from fedra.errors import ConfigError
from fedra.parts.spread import Penalty, SpreadOut
from fedra.reports import class_vector_plot
from fedra.reports.class_vector_plot import COLUMNS

LENGTHS = {"vector_length_mean", "vector_length_min", "vector_length_max"}
STEPS = {"server_step_mean", "server_step_max", "server_turn_mean", "server_turn_max"}
COSINES = {"nearest_cosine_mean", "nearest_cosine_max"}
SPLIT = {"name": "one-class", "clients": 4}


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)


def server(rows: Tensor) -> Server:
    return Server(weights=Weights({"head.weight": rows}, {}), memory={})


def alone(classes: int) -> Owners:
    """Every class has a client of its own."""
    return Owners([torch.tensor([label]) for label in range(classes)], classes)


@dataclass(frozen=True)
class Quarter(Penalty):
    """The gradient is the row itself, turned by 90 degrees in the plane; `along` adds a part of the row."""

    along: float = 0.0

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        return torch.stack([-rows[:, 1], rows[:, 0]], dim=1) + self.along * rows


@pytest.mark.parametrize("size", [1e-6, 0.02, 1.0])
def test_a_step_of_known_size_and_angle(size: float) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.1, 0.0], [0.0, -2.0]], dtype=torch.float64)
    moved = rows - size * Quarter().gradient(rows, alone(3), torch.Generator(), None)
    watch = ClassVectors(alone(3))
    watch.server_step(server(rows), server(moved))
    found = watch.round(server(moved), None)
    assert found.keys() == LENGTHS | STEPS | COSINES
    for end in ("mean", "max"):
        assert found[f"server_step_{end}"] == pytest.approx(size, rel=1e-9)
        assert found[f"server_turn_{end}"] == pytest.approx(math.degrees(math.atan(size)), rel=1e-9)
    longer = math.hypot(1, size)
    assert found["vector_length_min"] == pytest.approx(0.1 * longer)
    assert found["vector_length_max"] == pytest.approx(5 * longer)
    assert found["vector_length_mean"] == pytest.approx(7.1 / 3 * longer)


def test_a_step_along_the_rows_does_not_turn_them() -> None:
    rows = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    watch = ClassVectors(alone(2))
    watch.server_step(server(rows), server(rows * torch.tensor([[1.5], [0.7]])))
    found = watch.round(server(rows), None)
    assert found["server_step_mean"] == pytest.approx(0.4, rel=1e-6)
    assert found["server_step_max"] == pytest.approx(0.5, rel=1e-6)
    assert found["server_turn_max"] < 1e-12


def test_nearest_cosines_by_hand() -> None:
    """Directions at 0, 10, 90 and 200 degrees; the first two share a client, so they are not compared."""
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 90.0, 200.0], dtype=torch.float64))
    rows = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.tensor([[1.0], [2.0], [0.5], [9.0]])
    owners = Owners([torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3])], 4)
    wanted = [math.cos(math.radians(angle)) for angle in (90, 80, 80, 110)]
    assert nearest_cosines(rows, owners).tolist() == pytest.approx(wanted, abs=1e-12)
    found = ClassVectors(owners).round(server(rows), None)
    assert found["nearest_cosine_max"] == pytest.approx(wanted[1])
    assert found["nearest_cosine_mean"] == pytest.approx(sum(wanted) / 4)


def test_one_client_with_all_classes_has_nothing_near() -> None:
    found = ClassVectors(Owners([torch.arange(3)], 3)).round(server(torch.eye(3)), None)
    assert found["nearest_cosine_mean"] is found["nearest_cosine_max"] is None


def test_blocks_do_not_change_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = nearest_cosines(rows, alone(9))
    monkeypatch.setattr("fedra.parts.spread.BLOCK_BYTES", 2 * 9 * 8)
    torch.testing.assert_close(nearest_cosines(rows, alone(9)), whole, rtol=0, atol=1e-14)


def test_only_the_server_rules_are_measured() -> None:
    """A rule of relative size 0.03 sqrt(2), although clients change the rows too."""
    step = SpreadOut(Quarter(along=1.0), strength=0.3, lr=0.1)
    rules = [algorithms.fedpe(), algorithms.fedpe().plus(step)]
    sizes = []
    for algorithm in rules:
        net = toy.Net(torch.nn.Linear(5, 2), torch.nn.Linear(2, toy.CLASSES)).double()
        work = toy.job(algorithm, net)
        history = toy.run(work, ((0, 1, 2),))
        (watch,) = observers(False, False, False, work, class_vectors=True)
        fold = Fold(algorithm)
        before = toy.start(work).server
        for number, upload in enumerate(history.uploads):
            fold.add_stack(work.add_classes([number], Uploads.of(upload)))
        fold.finish(before, work.population, watch.server_step)
        sizes.append(watch.round(history.server, None)["server_step_mean"])
    assert sizes[0] == 0
    assert sizes[1] == pytest.approx(0.03 * math.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("name", ["fedpe", "fedgc", "fedcos", "fedaws", "fedface"])
def test_the_switch_adds_its_keys_and_nothing_else(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"algorithm": {"name": name}, "partition": SPLIT, "rounds": 2}
    fedra.run(tiny.table(**settings), out=tmp_path / "off")
    fedra.run(tiny.table(**settings, diagnostics={"class_vectors": True}), out=tmp_path / "on")
    off, on = tiny.record(tmp_path / "off"), tiny.record(tmp_path / "on")
    assert off["model"] == on["model"]
    assert off["clients"] == on["clients"]
    for plain, line in zip(off["metrics"], on["metrics"], strict=True):
        assert line.keys() - plain.keys() == set(COLUMNS) == LENGTHS | STEPS | COSINES
        assert all(line[key] == value for key, value in plain.items())
        assert all(math.isfinite(line[key]) for key in COLUMNS)
        if name in {"fedpe", "fedgc", "fedcos"}:  # the others act only on rows above a threshold
            assert (line["server_step_max"] > 0) == (name != "fedpe")


@pytest.mark.parametrize("runner", ["processes", "stacked"])
def test_all_runners_measure_the_same(runner: str) -> None:
    table = tiny.table(
        rounds=2, algorithm={"name": "fedgc"}, partition=SPLIT, precision="float64", diagnostics={"class_vectors": True}
    )
    wanted = fedra.run(table).metrics
    found = fedra.run({**table, "runner": {"name": runner}}).metrics
    for one, other in zip(wanted, found, strict=True):
        assert [other[key] for key in COLUMNS] == pytest.approx([one[key] for key in COLUMNS], rel=1e-9, abs=1e-12)


def test_nothing_is_measured_when_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassVectors, "server_step", None)
    monkeypatch.setattr(ClassVectors, "round", None)
    seen = []
    finish = Fold.finish
    monkeypatch.setattr(Fold, "finish", lambda *given: seen.append(len(given)) or finish(*given))
    fedra.run(tiny.table(rounds=1, algorithm={"name": "fedgc"}, partition=SPLIT))
    assert seen == [3]  # the fold, the server and the population: no observer


@pytest.mark.parametrize(
    "sharing", [Sharing(), Sharing(private=("head.",)), Sharing(owned=("head.",), private=("head.",))]
)
def test_class_vectors_must_be_owned_and_returned(sharing: Sharing) -> None:
    with pytest.raises(ConfigError, match=r"'head.weight' must be owned by clients and held by the server"):
        class_vectors_of(algorithms.fedavg().plus(sharing))


def test_a_wrong_algorithm_is_reported_before_there_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"diagnostics\.class_vectors, got a sharing that averages them"):
        fedra.run(tiny.table(diagnostics={"class_vectors": True}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_rule_names_the_rows() -> None:
    """A rule on other rows is measured on those."""
    rule = replace(algorithms.fedgc().server[0], rows="body.0.weight")
    algorithm = algorithms.fedavg().plus(Sharing(owned=("body.0.",)), rule)
    assert class_vectors_of(algorithm) == "body.0.weight"
    assert class_vectors_of(algorithms.fedpe()) == "head.weight"


def test_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    saved: list[Figure] = []
    keep = class_vector_plot.save_figure
    monkeypatch.setattr(
        class_vector_plot, "save_figure", lambda figure, path: saved.append(figure) or keep(figure, path)
    )
    for name in ("fedpe", "fedgc"):
        table = tiny.table(rounds=2, algorithm={"name": name}, partition=SPLIT, diagnostics={"class_vectors": True})
        fedra.run(table, out=tmp_path / name)
    for end in ("svg", "png"):
        out = tmp_path / f"both.{end}"
        code, shown, _ = tiny.call(
            capsys, "plot", "class-vectors", tmp_path / "fedpe", tmp_path / "fedgc", "--out", out
        )
        assert code == 0
        assert out.stat().st_size > 5000
    assert "server step mean" in shown
    panels = {axes.get_ylabel(): axes for axes in saved[0].axes}
    assert set(panels) == {
        "length of class vectors", "nearest cosine across clients", "server step / length", "server turn (degrees)",
    }  # fmt: skip
    assert {axes.get_xlabel() for axes in panels.values()} == {"round"}
    (legend,) = saved[0].legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["fedpe (no server step)", "fedgc", "largest of all classes"]
    fedgc = tiny.metrics(tmp_path / "fedgc")
    (mean, largest) = panels["server step / length"].lines
    assert list(mean.get_ydata()) == [line["server_step_mean"] for line in fedgc]
    assert list(largest.get_ydata()) == [line["server_step_max"] for line in fedgc]
    assert panels["server step / length"].get_yscale() == "log"


def test_a_run_without_the_diagnostic_cannot_be_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedra.run(tiny.table(rounds=1), out=tmp_path / "run")
    told = tiny.mistake(capsys, "plot", "class-vectors", tmp_path / "run")
    assert "run it again with diagnostics.class_vectors=true" in told
