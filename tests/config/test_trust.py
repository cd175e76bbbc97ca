"""Names of the form module:function: imported where training was asked for, never by what only looks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedra
from fedra.callbacks import Callback
from fedra.config.imports import imported_names
from fedra.config.reading import read
from fedra.config.resolve import resolve_defaults
from fedra.data import load
from fedra.errors import RunError
from fedra.experiment.embed_run import embed_run
from fedra.experiment.evaluate_model import evaluate_run_test
from fedra.experiment.export import export
from fedra.models import build
from fedra.storage.trained_model import load_embedder, load_trained_model
from fedra.trust import ImportRefused, allow_imports
from tiny import call, metrics, mistake

MODULE = """
from __future__ import annotations
from pathlib import Path
import numpy as np
from torch import nn
from fedra.algorithms import fedprox

Path("imported").touch()

def net(shape, classes, *, width: int = 6):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.ReLU(), nn.Linear(width, classes))

def data(*, count: int = 60, spread: float = 1.0):
    labels = np.arange(count) % 2
    inputs = spread * np.random.RandomState(0).randn(count, 5) + 3 * labels[:, None]
    return inputs, labels

def gentle(*, strength: float = 0.01):
    return fedprox(mu=strength)

def broken(shape, classes):
    raise KeyError("weights")

def positional(shape, classes, width=3):
    return net(shape, classes, width=width)

def text():
    return "a text"

def unreadable(shape, classes, *, size: Nowhere = 1):
    return None

def unwritable(shape, classes, *, kind=nn.ReLU):
    return None

number = 3
"""

CONFIG = """
rounds = 2
data = "mine_of_a_test:data"
partition = { name = "iid", clients = 2 }
model = { name = "mine_of_a_test:net", width = 4 }
algorithm = "mine_of_a_test:gentle"
runner = "sequential"
local = { lr = 0.1 }
"""

ALL = {
    "data.name": "mine_of_a_test:data",
    "model.name": "mine_of_a_test:net",
    "algorithm.name": "mine_of_a_test:gentle",
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setenv("COLUMNS", "200")
    Path("mine_of_a_test.py").write_text(MODULE)
    Path("c.toml").write_text(CONFIG)
    yield
    sys.modules.pop("mine_of_a_test", None)


def forget() -> None:
    """As a new process would begin."""
    sys.modules.pop("mine_of_a_test", None)
    sys.path[:] = [place for place in sys.path if place != str(Path.cwd())]
    Path("imported").unlink(missing_ok=True)


@pytest.mark.usefixtures("without_curves")
def test_a_run_of_ones_own_model_data_and_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, told = call(capsys, "run", "c.toml", "--out", "run")
    assert code == 0, told
    assert "everything is in run" in shown
    recorded = read("run/config.toml")
    assert recorded.model.settings == {"width": 4}
    assert recorded.data.settings == {"count": 60, "spread": 1.0}
    assert recorded.algorithm.settings == {"strength": 0.01}
    again = fedra.run("run/config.toml").metrics
    assert [line["train_loss"] for line in again] == [line["train_loss"] for line in metrics(Path("run"))]


class Interrupting(Callback):
    """Ctrl-C after the first round."""

    def on_round_end(self, *_: object) -> None:
        raise KeyboardInterrupt


@pytest.mark.usefixtures("without_curves")
def test_resuming_imports() -> None:
    with pytest.raises(RunError, match="interrupted after round 1"):
        fedra.run("c.toml", out="run", callbacks=[Interrupting()])
    forget()
    assert len(fedra.resume("run").metrics) == 2
    assert Path("imported").exists()


@pytest.mark.usefixtures("without_curves")
def test_looking_imports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    fedra.run("c.toml", out="run")
    forget()
    code, shown, _ = call(capsys, "show", "c.toml")
    assert code == 0
    for key, name in ALL.items():
        assert f"{key} = '{name}' would be imported by `fedra run`" in shown
    assert call(capsys, "compare", "run", "run")[0] == 0
    assert call(capsys, "doctor", "run")[0] == 0
    for kind in ("models", "datasets", "methods"):
        assert call(capsys, "list", kind)[0] == 0
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    "section",
    [
        "'os:abort'",
        "{ name = 'fedavg', plus = ['os:abort'] }",
        "{ name = 'fedavg', plus = [{ name = 'os:abort' }] }",
        "{ name = 'fedsol', proximal = 'os:abort' }",
        "{ name = 'fedsol', proximal = { name = 'os:abort' } }",
    ],
)
def test_a_strangers_configuration_is_only_shown(capsys: pytest.CaptureFixture[str], section: str) -> None:
    code, shown, _ = call(capsys, "show", "c.toml", f"algorithm={section}", "data=digits", "model=mlp")
    assert code == 0
    assert "= 'os:abort' would be imported" in shown


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize(
    "words", [["eval", "run"], ["embed", "run"], ["export", "run", "m.onnx"], ["plot", "angles", "run"]], ids=str
)
def test_reading_a_run_asks_for_trust(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    if words[0] == "export":
        pytest.importorskip("onnxruntime")
    fedra.run("c.toml", out="run")
    forget()
    told = mistake(capsys, *words)
    assert "the run in 'run' names " in told
    assert "'mine_of_a_test:net'" in told
    assert "allow it with --trust (trust=True in Python)" in told
    assert not Path("imported").exists()
    code, _, told = call(capsys, *words, "--trust")
    assert code == 0, told
    assert Path("imported").exists()


def test_drawing_the_split_asks_for_trust(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the configuration names 'mine_of_a_test:data'" in mistake(capsys, "split", "c.toml")
    assert not Path("imported").exists()
    assert call(capsys, "split", "c.toml", "--trust")[0] == 0


@pytest.mark.usefixtures("without_curves")
def test_python_asks_for_trust_too() -> None:
    fedra.run("c.toml", out="run")
    forget()
    for refused in (
        lambda: embed_run("run"),
        lambda: evaluate_run_test("run"),
        lambda: export("run", "m.onnx"),
        lambda: load_trained_model("run"),
        lambda: load_embedder("run"),
        lambda: load("mine_of_a_test:data"),
        lambda: build("mine_of_a_test:net", (5,), 2),
        lambda: resolve_defaults(read("c.toml")),
    ):
        with pytest.raises(ImportRefused, match="mine_of_a_test:"):
            refused()
    assert not Path("imported").exists()
    assert len(embed_run("run", trust=True)) == 12
    assert evaluate_run_test("run", trust=True).outcomes
    assert load_trained_model("run", trust=True).shape == (5,)
    assert load("mine_of_a_test:data", trust=True, count=20).shape == (5,)
    assert build("mine_of_a_test:net", (5,), 2, trust=True).head.weight.shape == (2, 6)
    with pytest.raises(ImportRefused):
        load("mine_of_a_test:data")


def test_a_permission_ends_with_its_block() -> None:
    with allow_imports():
        assert load("mine_of_a_test:data")
        with allow_imports(False), pytest.raises(ImportRefused):
            load("mine_of_a_test:data")
        assert load("mine_of_a_test:data")
    with pytest.raises(ImportRefused):
        load("mine_of_a_test:data")


def test_names_are_found_without_importing() -> None:
    config = read("c.toml")
    assert imported_names(config) == ALL
    assert imported_names(config, ["model"]) == {"model.name": "mine_of_a_test:net"}
    assert imported_names(read({"public": "a:b"})) == {"public.name": "a:b"}
    assert not Path("imported").exists()


MISTAKES = {
    "model.name=mine_of_a_test:ned": r"the module 'mine_of_a_test' \(.*mine_of_a_test.py\) has no 'ned': did you mean",
    "model.name=nowhere_at_all:net": "the module 'nowhere_at_all' must be in the current folder",
    "model.name=mine_of_a_test.more:net": "the module 'mine_of_a_test.more' must be in the current folder",
    "model.name=broken_import:net": r"cannot be imported \(ZeroDivisionError: division by zero, broken_import.py",
    "model.name=lacking:net": r"cannot be imported \(ModuleNotFoundError: No module named 'absent_package', lacking.py",
    "model.name=wrong_syntax:net": r"cannot be imported \(SyntaxError: ",
    "model.name=mine_of_a_test:": "must have the form module:function",
    "model.name=mine_of_a_test:number": "must be a function, got a int",
    "model.name=mine_of_a_test:broken": r"the model 'mine_of_a_test:broken' failed \(KeyError: 'weights', mine_",
    "model.name=mine_of_a_test:positional": r"must take \(shape, classes\) or nothing by position, got \(",
    "model.name=mine_of_a_test:text": "must return a torch nn.Module, got a str",
    "model.name=mine_of_a_test:unreadable": r"must have annotations that can be resolved: NameError: name 'Nowhere'",
    "model.name=mine_of_a_test:unwritable": "the field 'kind' must be a number, .* which a configuration can record",
    "model.widht=3": "the model 'mine_of_a_test:net' has no field 'widht': did you mean 'width'?",
    "model.width=wide": "the field 'width' of the model 'mine_of_a_test:net' must be an integer, .*got 'wide'",
    "data.spread=[1]": "the field 'spread' of the data set 'mine_of_a_test:data' must be",
    "data.name=mine_of_a_test:text": "the data set 'mine_of_a_test:text' must return a fedra.data.Dataset,.* got a str",
    "algorithm.name=mine_of_a_test:text": "must return a fedra Algorithm, got a str",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], word: str) -> None:
    Path("broken_import.py").write_text("x = 0\ny = 1 / x\n")
    Path("lacking.py").write_text("import absent_package\n")
    Path("wrong_syntax.py").write_text("def net(:\n")
    words = ["run", "c.toml", word, "--out", "out"]
    told = mistake(capsys, *words, code=1 if word == "data.name=mine_of_a_test:text" else 2)  # a DataError
    assert re.search(MISTAKES[word], told), told
    assert not Path("out").exists()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_modules_here_are_found_without_pythonpath_by_workers_too(method: str) -> None:
    """A console script's path has neither the current folder nor the script's."""
    program = "from fedra.cli import main; main()"
    runner = f"runner={{ name = 'processes', workers = 2, start_method = '{method}' }}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "run", "c.toml", runner, "--out", "run"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "everything is in run" in done.stdout
    alone = fedra.run("c.toml")
    weights = torch.cat([value.flatten() for value in alone.model.state_dict().values()])
    found = load_trained_model("run", trust=True).module
    torch.testing.assert_close(torch.cat([value.flatten() for value in found.state_dict().values()]), weights)


def test_a_file_here_never_replaces_an_installed_module() -> None:
    Path("tomli_w.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    with allow_imports():
        load("mine_of_a_test:data")
    assert sys.path[-1] == str(Path.cwd())
    assert sys.modules["tomli_w"].__file__ != str(Path.cwd() / "tomli_w.py")
