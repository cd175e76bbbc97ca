"""The command line: help without torch, every command's output, and one sentence for every mistake."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fedra
import tiny
from fedra.catalog import _registries, list_entries
from fedra.core.part import known_parts
from tiny import call, mistake


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    Path("c.toml").write_text("")
    Path("broken.toml").write_text("rounds = = 3")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom fedra import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'sklearn'} & sys.modules.keys()\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("run", "compare", "split", "list", "show", "sweep", "demo", "doctor", "embed", "plot"):
        assert re.search(rf"\b{command}\b", done.stdout)


@pytest.mark.parametrize(
    "command", ["run", "compare", "split", "list", "show", "sweep", "demo", "doctor", "embed", "plot"]
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, shown, _ = call(capsys, command, "--help")
    assert code == 0
    assert f"fedra {command}" in shown or f"{command} [OPTIONS]" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"fedra \d+\.\d+\.\d+\S*\n", call(capsys, "--version")[1])


CONFIG_MISTAKES = {
    "roundz=3": "unknown key 'roundz' in the override 'roundz=3': did you mean 'rounds'?",
    "lokal.lr=1": "unknown key 'lokal' in the override 'lokal.lr=1': did you mean 'local'?",
    "local.epoch=1": "unknown key 'local.epoch' in the override 'local.epoch=1': did you mean 'epochs'?",
    "local.epochs=many": "local.epochs must be an integer, got 'many' in the override 'local.epochs=many'",
    "rounds=0": "rounds must be at least 1, got 0 in the override 'rounds=0'",
    "local.lr=-0.1": "local.lr must be greater than 0, got -0.1",
    "local.lr=nan": "local.lr must be a finite number, got nan",
    "local=5": "local must be a table, got 5",
    "rounds": "an override must have the form key.sub=value, such as local.epochs=5, got 'rounds'",
    "=3": "an override must have the form key.sub=value, such as local.epochs=5, got '=3'",
    "data.name=digitz": "there is no data set 'digitz': did you mean 'digits'?",
    "data.color=true": "the data set 'synthetic' has no field 'color'",
    "data.classes=1": "the field 'classes' of the data set 'synthetic' must be greater than 1, got 1",
    "data.augment=['spin']": "spin",
    "model.name=mlpp": "there is no model 'mlpp': did you mean 'mlp'?",
    "model.width=5": "the model 'mlp' has no field 'width'",
    "model.name=resnet18": "the model 'resnet18'",
    "partition.name=iidd": "there is no partition 'iidd': did you mean 'iid'?",
    "partition.beta=1": "the partition 'quantity' has no field 'beta'",
    "partition.alpha=0": "the field 'alpha' of the partition 'quantity' must be at least 0.000001, got 0",
    "partition={name='dirichlet', alpha=-1}": "'dirichlet' must be at least 0.000001, got -1",
    "partition={name='iid', clients=91}": "at most 90 (the number of examples) for the partition 'iid', got 91",
    "partition={name='natural', clients=0}": "must have a data set with groups, got one without",
    "runner.name=procesess": "there is no runner 'procesess': did you mean 'processes'?",
    "runner.thread=1": "the runner 'sequential' has no field 'thread': did you mean 'threads'?",
    "runner.threads=0": "the field 'threads' of the runner 'sequential' must be at least 1, got 0",
    "device=cuda:77": "), got 'cuda:77'",
    "device=meta": "), got 'meta'",
    "device=gpu": "the device must be one that torch can use here (cpu",
    "device=hpu": "the device must be one that torch can use here (cpu",
    "algorithm.name=fedproxx": "there is no algorithm 'fedproxx': did you mean 'fedprox'?",
    "algorithm={name='fedprox', nu=1}": "the algorithm 'fedprox' has no field 'nu'",
    "algorithm={name='fedprox', mu='strong'}": "'fedprox' must be a number, got 'strong'",
    "algorithm={name='fedsol', proximal={name='server-adam'}}": "'proximal' must be a Term, got 'server-adam'",
    "algorithm={name='fedsol', proximal='proximall'}": "there is no part 'proximall': did you mean 'proximal'?",
    "algorithm={name='fedsol', proximal={mu=1}}": "proximal must have a name, such as { name = 'proximal', mu = 0.1",
    "algorithm={name='fedsol', proximal={name='proximal', nu=1}}": "the part 'proximal' has no field 'nu'",
    "algorithm={name='fedsol', scope='head', proximal='model-contrast'}": "scope must be 'all' or 'body'",
    "algorithm={name='fedsol', scope='tail'}": "'fedsol' must be 'all', 'head' or 'body', got 'tail'",
    "algorithm.plus=['clipp']": "algorithm.plus: there is no part 'clipp': did you mean 'clip'?",
    "algorithm.name=nowhere:mine": "the algorithm 'nowhere:mine' cannot be imported",
    "algorithm.name=:mine": "the algorithm ':mine' cannot be imported",
    "algorithm.name=os:sep": "the algorithm 'os:sep' must be a function, got a str",
    "algorithm.name=os:getcwd": "must return a fedra Algorithm, got a str",
}


@pytest.mark.parametrize("word", CONFIG_MISTAKES)
def test_a_broken_configuration_is_one_sentence(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert CONFIG_MISTAKES[word] in mistake(capsys, "run", "c.toml", *tiny.WORDS, word, "--out", "out")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "word",
    [word for word in CONFIG_MISTAKES if word.startswith(("data.n", "model.w", "algo", "run")) and ":" not in word],
)
def test_show_finds_wrong_names_too(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert CONFIG_MISTAKES[word] in mistake(capsys, "show", "c.toml", *tiny.WORDS, word)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "broken.toml"], "broken.toml is not valid TOML: invalid value (at line 1"),
        (["run", "nowhere.toml"], "the configuration file 'nowhere.toml' does not exist"),
        (["run", "."], "the configuration file '.' cannot be read"),
        (["run", "binary.toml"], "the configuration file 'binary.toml' cannot be read"),
        (["run"], "exactly one of CONFIG and --resume DIR must be given, got neither"),
        (["run", "c.toml", "--resume", "x"], "exactly one of CONFIG and --resume DIR must be given, got both"),
        (["run", "--resume", "nowhere"], "must contain a run, got 'nowhere' without a config.toml"),
        (["run", "c.toml", "--out", "c.toml"], "must be a folder, got the file 'c.toml': choose another"),
        (["run", "c.toml", "--out", "c.toml/below"], "the output folder 'c.toml/below' cannot be created"),
        (["compare", "nowhere"], "must contain a run, got 'nowhere'"),
        (["list", "modles"], ", parts, runners, schedules, got 'modles': did you mean 'models'?"),
        (["split", "c.toml", "--out", "split.doc"], "must end in .svg, .png or .pdf, got"),
        (["sweep", "c.toml", "local.lr"], "settings of a sweep must have the form key=a,b,c, got 'local.lr'"),
        (["sweep", "c.toml", "seed=0,1"], "a sweep cannot vary 'seed': set the number of seeds with --seeds"),
    ],
)
def test_other_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert told in mistake(capsys, *words)


def test_missing_and_truncated_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    monkeypatch.setenv("FEDRA_DATA", "data")
    told = mistake(capsys, "run", "c.toml", "data.name=mnist", "--out", "out", code=1)
    assert "train-images-idx3-ubyte.gz must be in" in told
    assert "downloads are disabled" in told
    Path("data/mnist").mkdir(parents=True)
    for name, shape in (("train-images-idx3", (4, 28, 28)), ("train-labels-idx1", (4,))):
        for kind in (name, name.replace("train", "t10k")):
            header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
            content = header + bytes(int(np.prod(shape)) - (kind == "train-images-idx3"))
            Path(f"data/mnist/{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    told = mistake(capsys, "run", "c.toml", "data.name=mnist", "--out", "out", code=1)
    assert "train-images-idx3-ubyte.gz must contain 3136 values, got 3135" in told
    Path("data/mnist/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content)[:-9])
    assert "damaged gzip" in mistake(capsys, "run", "c.toml", "data.name=mnist", "--out", "out", code=1)


def test_a_folder_without_rights_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "run", "c.toml", *tiny.WORDS, "rounds=1", "--out", "out")
    assert "'/proc" in mistake(capsys, "compare", "out", "--out", "/proc/nowhere/x.svg", code=1)


def test_run_compare_and_the_default_folder(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = call(capsys, "run", "c.toml", *tiny.WORDS)
    assert code == 0
    assert re.search(r"fedavg  round 1/3  accuracy \d+\.\d\d%  train loss \d", shown)
    assert re.search(r"accuracy \d+\.\d\d% after 3 rounds; everything is in runs/c\n", shown)
    assert "replace the run with --force" in mistake(capsys, "run", "c.toml", *tiny.WORDS)
    assert "is finished: nothing is left to resume" in mistake(capsys, "run", "--resume", "runs/c")
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "--force")[0] == 0
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "algorithm.name=fedprox", "--out", "runs/[prox]")[0] == 0
    code, shown, _ = call(capsys, "compare", "runs/c", "runs/[prox]", "--out", "pictures/both.svg")
    assert code == 0
    assert re.search(r"fedavg .*│.*\d\d\.\d\d", shown)
    assert "fedprox" in shown
    assert "curves saved to pictures/both.svg" in shown
    ElementTree.parse("pictures/both.svg")
    assert "must end in .svg, .png or .pdf" in mistake(capsys, "compare", "runs/c", "--out", "both.doc")
    assert call(capsys, "compare", "runs/c", "runs/c", "--out", "twice.png")[0] == 0
    assert Path("twice.png").read_bytes().startswith(b"\x89PNG")


def test_the_device_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be one that torch can use here" in mistake(capsys, "run", "c.toml", "--device", "hpu")
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "rounds=1", "--device", "cpu", "--out", "out")[0] == 0


def test_paths_are_told_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = "a/[bold]folder/whose/name/is/longer/than/forty/columns"
    assert f"everything is in {out}\n" in call(capsys, "run", "c.toml", *tiny.WORDS, "rounds=1", "--out", out)[1]


def test_standard_input_names_its_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("rounds = 9"))
    _, shown, _ = call(capsys, "run", "-", *tiny.WORDS, "rounds=1", "evaluation.validation=0.2")
    assert re.search(r"(?m)^validation accuracy \d+\.\d\d% after 1 round; everything is in runs/stdin$", shown)


def test_show_gives_the_file_and_the_parts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "a folder whose name is a good deal longer than the sixty columns of this terminal"
    words = (f"data={{name='imagefolder', path='{name}'}}", "algorithm.name=fedlc", "algorithm.plus=['fedsol']")
    code, shown, _ = call(capsys, "show", "c.toml", *words)
    assert code == 0
    assert f'path = "{name}"\n' in shown
    assert "[y_i]" in re.sub(r"\s+│?\s*", " ", shown)
    for word in ("calibrated-cross-entropy", "perturb", "distillation", "weighted-mean", "tau = 1.0"):
        assert word in shown
    head = shown.partition("\nalgorithm\n")[0]
    Path("resolved.toml").write_text(head)
    assert call(capsys, "show", "resolved.toml")[1].partition("\nalgorithm\n")[0] == head


def test_formulas_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(
        capsys, "show", "c.toml", "algorithm={name='fedsol-ablation', variant='A2'}", "algorithm.plus=['fedntd']"
    )[1]
    for part in ("also-descend", "not-true-distillation"):
        assert known_parts()[part].formula in shown


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", ("fedavg", "fedsol", "scaffold")),
        ("datasets", ("digits", "synthetic", "mnist")),
        ("models", ("mlp", "resnet18")),
        ("partitions", ("iid", "dirichlet")),
        ("parts", ("proximal", "perturb", "server-adam")),
        ("runners", ("auto", "sequential", "processes", "stacked", "ray")),
        ("losses", ("arcface",)),
    ],
)
def test_lists(capsys: pytest.CaptureFixture[str], kind: str, names: tuple[str, ...]) -> None:
    code, shown, _ = call(capsys, "list", kind)
    assert code == 0
    for name in names:
        assert re.search(rf"│ {name}\s", shown), name
    assert all(about.strip() for about in list_entries(kind).columns[2].cells)


def test_a_list_of_nothing_lists_the_kinds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown, _ = call(capsys, "list")
    assert code == 0
    assert set(re.findall(r"fedra list (\w+)", shown)) == {*_registries(), "parts"}
    _, methods, _ = call(capsys, "list", "methods")
    assert max(map(len, methods.splitlines())) <= 120


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["serve"], "fedra federate serve"),
        (["train"], "fedra run"),
        (["evaluate"], "fedra eval"),
        (["lst"], "fedra list"),
        (["identify"], "fedra faces identify"),
        (["faces", "enrll"], "fedra faces enroll"),
        (["faces", "gallery", "delete"], "fedra faces gallery --help"),
        (["xyzzy"], "fedra --help"),
    ],
)
def test_an_unknown_command_gets_one_suggestion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], wanted: str
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, _, told = call(capsys, *words)
    assert code == 2
    assert f"There is no command 'fedra {' '.join(words)}'" in told
    assert re.findall(r"`(.+?)`", told) == [wanted]


def test_a_file_under_its_default_name_is_never_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("split.svg").write_text("mine")
    for name in ("split-2.svg", "split-3.svg"):
        _, shown, _ = call(capsys, "split", "c.toml")
        assert f"plot saved to {name}" in shown
    assert Path("split.svg").read_text() == "mine"
    _, shown, _ = call(capsys, "split", "c.toml", "--out", "split.svg")  # asked for by its name
    assert Path("split.svg").read_text() != "mine"
    Path("margins.csv").write_text("mine")
    call(capsys, "plot", "margins", "arcface")
    assert Path("margins-2.csv").exists()
    assert Path("margins.csv").read_text() == "mine"


def test_the_centralized_runner_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`mode = "centralized"` selects it, and `runner.name` must not."""
    code, shown, _ = call(capsys, "list", "runners")
    assert code == 0
    assert "sequential" in shown
    assert "centralized" not in shown


def test_split_draws_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = call(capsys, "split", "c.toml", *tiny.WORDS, "--out", "split.svg")
    assert code == 0
    assert "plot saved to split.svg" in shown
    assert re.search(r"\b4 clients\b", shown)
    assert "class 3" in shown
    ElementTree.parse("split.svg")


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRA_DATA", "data")
    monkeypatch.setenv("FEDRA_OFFLINE", "0")
    code, shown, _ = call(capsys, "doctor")
    assert code == 0
    assert re.search(r"torch\s+\d", shown)
    assert "data (does not exist yet" in shown
    assert re.search(r"downloads\s+on", shown)
    Path("data/mnist").mkdir(parents=True)
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    shown = call(capsys, "doctor")[1]
    assert "data: mnist" in shown
    assert re.search(r"downloads\s+off", shown)


def test_doctor_names_every_extra_and_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"all", "docs", "dev"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    shown = call(capsys, "doctor")[1]
    assert set(re.findall(r"missing: pip install 'fedra\[(\w+)\]'", shown)) == extras


def test_a_missing_extra_leaves_no_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    told = mistake(capsys, "run", "c.toml", *tiny.WORDS, "log.tensorboard=true", "--out", "run")
    assert "tensorboard" in told
    assert not Path("run").exists()
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "--out", "run")[0] == 0


def test_a_sweep_is_compared_as_its_runs_and_tables_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    fedra.sweep(tiny.table(rounds=1), {"local.lr": [0.1, 0.2]}, out="swept")
    names = ["lr-0.1_seed-0", "lr-0.2_seed-0"]
    for words in (["swept"], sorted(str(path) for path in Path("swept").iterdir())):
        code, shown, _ = call(capsys, "compare", *words, "--out", "both.svg", "--table", "both.tex")
        assert code == 0
        assert all(f"swept/{name}" in shown for name in names)
    text = Path("both.tex").read_text()
    assert text.startswith("\\begin{tabular}{lrrrrrr}")
    assert r"final \%" in text
    assert text.count(r"seed-0) &") == 2
    call(capsys, "compare", "swept", "--table", "both.json")
    rows = json.loads(Path("both.json").read_text())
    assert [row["rounds"] for row in rows] == [1, 1]
    call(capsys, "compare", "swept", "--table", "both.md")
    assert Path("both.md").read_text().startswith("| run | final % |")
    call(capsys, "compare", "swept", "--table", "both.csv")
    assert float(Path("both.csv").read_text().splitlines()[1].split(",")[1]) == rows[0]["final"]
    assert "must end in .csv, .json, .md or .tex" in mistake(capsys, "compare", "swept", "--table", "both.txt")
    assert "got 'swept/table.md'" in mistake(capsys, "compare", "swept/table.md")
    call(capsys, "plot", "curves", "swept")
    assert Path("curves.svg").exists()


def test_compare_says_what_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    fedra.run(tiny.table(rounds=2), out="a")
    fedra.run(tiny.table(rounds=1, data={"name": "digits"}, partition={"name": "iid", "clients": 4}), out="b")
    assert "note:" not in call(capsys, "compare", "a", "a")[1]
    Path("a/summary.json").unlink()
    file = Path("a/config.toml")
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 9"))
    shown = call(capsys, "compare", "a", "b")[1]
    assert "note: the runs have different data sets: digits, synthetic" in shown
    assert "(a) is not finished: 2 of 9 rounds" in shown


def test_a_users_own_algorithm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my_methods.py").write_text(
        "from fedra.algorithms import fedprox\n\n"
        "def gentle(*, strength: float = 0.01):\n    return fedprox(mu=strength)\n"
    )
    monkeypatch.syspath_prepend(os.getcwd())
    words = (*tiny.WORDS, "rounds=1", "algorithm={name='my_methods:gentle'}")
    assert call(capsys, "run", "c.toml", *words, "--out", "own")[0] == 0
    assert "strength = 0.01" in Path("own/config.toml").read_text()
    told = mistake(capsys, "run", "c.toml", *words, "algorithm.strenght=1", "--out", "other")
    assert told == "the algorithm 'my_methods:gentle' has no field 'strenght': did you mean 'strength'?"
