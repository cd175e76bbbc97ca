"""A sweep: the grid, its runs, and the tables made of them."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomli_w
from matplotlib.figure import Figure
from rich.console import Console

import tiny
from fedra.config.reading import read
from fedra.errors import ConfigError
from fedra.experiment import run as experiment
from fedra.experiment.execution import Interrupted
from fedra.experiment.sweep import expand, read_grid, split_values, sweep
from fedra.reports.comparison import _plot_mean
from fedra.reports.sweep_table import Cell, short
from fedra.storage.run_folder import RunFolder
from tiny import call, mistake

pytestmark = pytest.mark.usefixtures("without_curves")
SWEEP = """
[sweep]
seeds = 2
local.lr = [0.1, 0.5]
"algorithm.name" = ["fedavg", "moon"]
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = tomli_w.dumps(tiny.table(rounds=1))
    Path("c.toml").write_text(text)
    Path("swept.toml").write_text(text + SWEEP)


def silent() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2, 3", ["1", "2", "3"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{name='a', x=[1,2]},{name='b'}", ["{name='a', x=[1,2]}", "{name='b'}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"it\'s, so",d', ['"it\'s, so"', "d"]),
        ("alone", ["alone"]),
        ("", [""]),
    ],
)
def test_values_are_split_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_the_grid_of_the_file_and_of_the_words() -> None:
    config, grid = read_grid("swept.toml", ["rounds=2", "local.epochs=1,2", "algorithm.name=fedprox"])
    assert grid == {"local.lr": [0.1, 0.5], "local.epochs": [1, 2]}  # a word with one value sets
    assert (config.rounds, config.algorithm.name) == (2, "fedprox")
    assert read_grid("swept.toml", ["local.lr=1,2"])[1]["local.lr"] == [1, 2]


def test_points_and_seeds() -> None:
    config, grid = read_grid("swept.toml", ["seed=5"])
    points = expand(config, grid, 3, Path("out"))
    assert [point.label for point in points] == ["0.1, fedavg", "0.1, moon", "0.5, fedavg", "0.5, moon"]
    assert [seed for seed, _, _ in points[0].runs] == [5, 6, 7]
    for point in points:
        for seed, own, folder in point.runs:
            assert own.seed == seed
            assert (own.local.lr, own.algorithm.name) == tuple(value for _, value in point.settings)
            assert folder.name == f"lr-{own.local.lr}_name-{own.algorithm.name}_seed-{seed}"
    assert len({folder for point in points for _, _, folder in point.runs}) == 12


def test_a_sweep_of_two_keys_is_tabulated() -> None:
    cells = sweep("swept.toml", [], None, Path("out"), silent())
    assert [len(cell.accuracies) for _, cell in cells] == [2] * 4
    for point, cell in cells:
        for accuracy, (_, _, folder) in zip(cell.accuracies, point.runs, strict=True):
            assert accuracy == 100 * json.loads((folder / "summary.json").read_text())["final_accuracy"]
    table = [line.strip("| ").split(" | ") for line in Path("out/table.md").read_text().splitlines()]
    assert table[0] == ["local.lr \\ algorithm.name", "fedavg", "moon"]
    assert table[1] == ["---", "---:", "---:"]
    assert table[2:] == [
        ["0.1", cells[0][1].text(), cells[1][1].text()],
        ["0.5", cells[2][1].text(), cells[3][1].text()],
    ]
    rows = list(csv.DictReader(Path("out/table.csv").read_text().splitlines()))
    assert [(row["local.lr"], row["algorithm.name"]) for row in rows] == [
        ("0.1", "fedavg"),
        ("0.1", "moon"),
        ("0.5", "fedavg"),
        ("0.5", "moon"),
    ]
    for row, (_, cell) in zip(rows, cells, strict=True):
        assert float(row["mean"]) == pytest.approx(statistics.fmean(cell.accuracies), abs=1e-4)
        assert float(row["deviation"]) == pytest.approx(statistics.stdev(cell.accuracies), abs=1e-4)
        assert (row["seeds"], row["failed"]) == ("2", "0")
    records = json.loads(Path("out/cells.json").read_text())
    assert records[1]["settings"] == {"local.lr": 0.1, "algorithm.name": "moon"}
    assert records[1]["runs"] == ["lr-0.1_name-moon_seed-0", "lr-0.1_name-moon_seed-1"]
    assert records[1]["accuracies"] == list(cells[1][1].accuracies)
    ElementTree.parse("out/sweep.svg")


def test_one_key_and_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = call(capsys, "sweep", "c.toml", "local.epochs=1,2,3", "--out", "one")
    assert code == 0
    assert "3 runs, 0 already finished" in shown
    assert "tables and plots in one" in shown
    assert len(Path("one/table.md").read_text().splitlines()) == 5
    ElementTree.parse("one/sweep.svg")
    assert call(capsys, "sweep", "c.toml", "--seeds", "2", "--out", "none")[0] == 0
    assert "base_seed-1" in {path.name for path in Path("none").iterdir()}
    assert Path("none/table.md").read_text().splitlines()[2].startswith("| all | ")


def test_finished_runs_are_not_run_again_and_half_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["local.lr=0.1,0.2,0.3", "rounds=2"]
    whole = sweep("c.toml", words, 1, Path("whole"), silent())
    sweep("c.toml", words, 1, Path("out"), silent())
    for name in ("lr-0.2_seed-0", "lr-0.3_seed-0"):
        (Path("out") / name / "summary.json").unlink()
    (Path("out") / "lr-0.3_seed-0" / "config.toml").unlink()
    called: list[tuple[str, str]] = []
    real = {name: getattr(experiment, name) for name in ("run", "resume")}

    def note(name: str) -> Any:
        def go(*words: Any, **more: Any) -> Any:
            called.append((name, Path(more.get("out", words[0])).name))
            return real[name](*words, **more)

        return go

    for name in real:
        monkeypatch.setattr(experiment, name, note(name))
    again = sweep("c.toml", words, 1, Path("out"), silent())
    assert called == [("resume", "lr-0.2_seed-0"), ("run", "lr-0.3_seed-0")]
    assert [cell for _, cell in again] == [cell for _, cell in whole]


def test_an_interrupted_sweep_is_continued_by_calling_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = experiment.run, []

    def stop(*words: Any, **more: Any) -> Any:
        started.append(more["out"].name)
        if len(started) == 2:
            raise Interrupted("interrupted after round 1; continue with: fedra run --resume ...")
        return real(*words, **more)

    monkeypatch.setattr(experiment, "run", stop)
    told = r"interrupted in run 2 of 3 \(lr-0.2_seed-0\); continue by calling the same command again"
    with pytest.raises(Interrupted, match=told) as caught:
        sweep("c.toml", ["local.lr=0.1,0.2,0.3", "rounds=1"], 1, Path("out"), silent())
    assert caught.value.exit_code == 130
    assert started == ["lr-0.1_seed-0", "lr-0.2_seed-0"]


def test_a_run_that_was_killed_after_its_end_is_tidied_unless_another_process_has_it() -> None:
    """`.lock` goes after summary.json, so a kill between the two leaves it."""
    (point,) = sweep("c.toml", out="out", console=silent())
    (_, _, folder) = point[0].runs[0]
    (folder / ".lock").touch()
    (folder / "model.safetensors.0123456789abcdef.tmp").write_bytes(b"half")
    with open(folder / ".lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        sweep("c.toml", out="out", console=silent())
        assert (folder / ".lock").exists()
    sweep("c.toml", out="out", console=silent())
    assert not (folder / ".lock").exists()
    assert not list(folder.glob("*.tmp"))


def test_a_run_that_was_killed_before_its_configuration_was_written_is_started_again() -> None:
    (point,) = sweep("c.toml", out="whole", console=silent())
    folder = Path("out") / point[0].runs[0][2].name
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / ".fedra").touch()
    (again,) = sweep("c.toml", out="out", console=silent())
    assert again[1] == point[1]
    assert not (folder / ".lock").exists()


def test_a_failed_run_counts_at_chance_and_the_sweep_goes_on() -> None:
    console = silent()
    cells = sweep("c.toml", ["local.lr=1e9,0.1", "rounds=3"], 2, Path("out"), console)
    endings = tuple(RunFolder(folder).failure() for _, _, folder in cells[0][0].runs)
    assert all(re.fullmatch(r"diverged in round [123]", str(ending)) for ending in endings)
    assert cells[0][1] == Cell((25.0, 25.0), endings)
    assert cells[1][1].failed == 0
    assert console.file.getvalue().count("failed: the run diverged") == 2  # type: ignore[attr-defined]
    assert "2 failed runs counted at chance level" in console.file.getvalue()  # type: ignore[attr-defined]
    assert f"| 1000000000.0 | 25.00(0.00), {cells[0][1].failures()} |" in Path("out/table.md").read_text()
    assert json.loads(Path("out/cells.json").read_text())[0]["endings"] == list(endings)
    ElementTree.parse("out/curves.svg")
    assert sweep("c.toml", ["local.lr=1e9,0.1", "rounds=3"], 2, Path("out"), silent())[0][1].failed == 2


def test_cells_as_papers_print_them() -> None:
    assert Cell((60.0, 61.0, 62.0)).text() == "61.00(1.00)"
    assert Cell((60.123,)).text() == "60.12"
    late, early = "diverged in round 26", "diverged in round 4"
    assert Cell((10.0,), (late,)).text() == "10.00, diverged in round 26"
    assert Cell((10.0, 70.0, 10.0), (late, late)).text() == "30.00(34.64), 2 of 3 diverged in round 26"
    assert Cell((10.0, 70.0, 10.0), (late, early)).failures() == f"1 of 3 {late}, 1 of 3 {early}"


def test_the_exit_code_tells_of_failed_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "c.toml", "local.lr=1e9,0.1", "rounds=3", "--out", "out")
    for _ in range(2):  # also when nothing is left to run
        code, shown, _ = call(capsys, *words)
        assert code == 3
        assert re.search(r"diverged in round \d", shown)
    assert call(capsys, "sweep", "c.toml", "local.lr=0.1,0.2", "--out", "fine")[0] == 0


def test_failed_runs_have_their_row_in_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    sweep("c.toml", ["local.lr=1e9,0.1", "rounds=3"], 1, Path("out"), silent())
    runs = [Path("out") / f"lr-{rate}_seed-0" for rate in ("1000000000.0", "0.1")]
    ending = RunFolder(runs[0]).failure()
    code, shown, _ = call(capsys, "compare", *runs)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "fedavg" in line]
    assert code == 0
    assert [row[1] for row in rows] == [ending, f"{100 * RunFolder(runs[1]).summary()['final_accuracy']:.2f}"]
    ElementTree.parse("comparison.svg")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("local.epoch=1,2", "unknown key 'local.epoch'"),
        ("model.widht=1,2", "the model 'mlp' has no field 'widht'"),
        ("algorithm.mu=0.1,0.2", "the algorithm 'fedavg' has no field 'mu'"),
        ("algorithm.name=fedavg,fedprux", "there is no algorithm 'fedprux': did you mean 'fedprox'?"),
        ("data.name=synthetic,syntetic", "there is no data set 'syntetic'"),
        ("partition.clients=2,-1", "partition.clients must be at least 1, got -1"),
        ("runner.name=sequential,stackd", "there is no runner 'stackd'"),
        ("local.lr=0.1,0.1", "must have different folders, got 2 for 'momentum-0.1_lr-0.1_seed-0'"),
        ("seed=1,2", "a sweep cannot vary 'seed'"),
        ("local.lr", "must have the form key=a,b,c"),
    ],
)
def test_a_mistake_is_found_before_any_run_starts(capsys: pytest.CaptureFixture[str], word: str, told: str) -> None:
    assert told in mistake(capsys, "sweep", "c.toml", "local.momentum=0.1,0.2", word, "--out", "out")
    assert not Path("out").exists()


def test_a_folder_of_another_sweep_is_not_mixed_in() -> None:
    sweep("c.toml", ["local.lr=0.1,0.2"], 1, Path("out"), silent())
    with pytest.raises(ConfigError, match="must have the same configuration, got another one: choose another folder"):
        sweep("c.toml", ["local.lr=0.1,0.2", "rounds=2"], 1, Path("out"), silent())
    more = sweep("c.toml", ["local.lr=0.1,0.3", "runner={name='sequential', threads=2}"], 1, Path("out"), silent())
    assert len(more) == 2  # where it runs does not matter


def test_files_of_others_are_not_replaced() -> None:
    Path("notes").mkdir()
    Path("notes/todo.txt").write_text("mine")
    sweep("c.toml", ["rounds=1"], None, "notes", silent())
    sweep("c.toml", ["rounds=1"], None, "notes", silent())  # the tables there are a sweep's
    for name, text in (("table.md", "mine"), ("cells.json", "[1, 2]")):
        folder = Path(f"has-{name}")
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(ConfigError, match=f"must be new or that of a sweep, got '{folder}' with another '{name}'"):
            sweep("c.toml", ["rounds=1"], None, folder, silent())
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == text


def test_tables_as_values() -> None:
    word = "algorithm={name='fedprox', mu=0.1},{name='fedavg', plus=['fedsam', {name='clip', norm=1.0}]}"
    config, grid = read_grid("c.toml", [word])
    points = expand(config, grid, 1, Path("out"))
    assert short(grid["algorithm"][0]) == "fedprox(mu=0.1)"
    assert points[0].runs[0][1].algorithm.settings == {"mu": 0.1}
    assert points[0].runs[0][2].name == "algorithm-fedprox-mu=0.1_seed-0"
    assert points[1].runs[0][1].algorithm.plus[1] == {"name": "clip", "norm": 1.0}


def test_a_plain_run_ignores_the_grid(tmp_path: Path) -> None:
    assert len(experiment.run(read("swept.toml")).metrics) == 1


def test_mean_curves_end_where_the_first_run_does() -> None:
    axes = Figure().subplots()
    full = [{"round": number, "accuracy": number / 10} for number in (1, 2, 3)]
    short_run = [{"round": number, "accuracy": number / 5} for number in (1, 2)]
    _plot_mean(axes, [full, short_run], "accuracy", 100, 0)
    assert axes.lines[0].get_xydata().tolist() == [[1, pytest.approx(15)], [2, pytest.approx(30)]]
    band = axes.collections[0].get_paths()[0].vertices
    low, high = 15 - 50**0.5, 30 + 200**0.5  # one sample standard deviation around the mean
    assert (band[:, 1].min(), band[:, 1].max()) == (pytest.approx(low), pytest.approx(high))


def test_names_alone_are_swept_and_drop_the_fields_of_others() -> None:
    Path("named.toml").write_text("[algorithm]\nname = 'fedsol'\nrho = 0.5\nscope = 'head'\nplus = ['clip']\n")
    for word in ("algorithm=fedavg,fedsam,fedsol", "algorithm.name=fedavg,fedsam,fedsol"):
        config, grid = read_grid("named.toml", [word])
        found = [run.algorithm for point in expand(config, grid, 1, Path("out")) for _, run, _ in point.runs]
        assert [one.settings for one in found] == [{}, {"rho": 0.5}, {"rho": 0.5, "scope": "head"}]
        assert all(one.plus == ("clip",) for one in found)
