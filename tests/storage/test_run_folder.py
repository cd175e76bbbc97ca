"""A run's folder: which files, which keys, the same bits twice."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import fedra
import tiny
from fedra.errors import ConfigError, RunError
from fedra.storage.checkpoint import load_model
from fedra.storage.run_folder import RunFolder

ROUND = ["round", "accuracy", "loss", "train_loss", "clients", "dropped", "bytes_up", "bytes_down", "seconds"]
CLIENT = {"round", "client", "examples", "steps", "train_loss", "update_norm", "bytes_up"}
SUMMARY = {
    "model_digest",
    "status", "algorithm", "final_accuracy", "best_accuracy", "best_round", "best_by", "rounds", "seconds",
    "parameters", "clients",
    "bytes_up", "bytes_down", "buffers", "runner", "protocol", "seeds", "versions",
}  # fmt: skip
PARAMETERS = 6 * 8 + 8 + 8 * 4 + 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    fedra.run(tiny.table(seed=3, evaluation={"every": 2}, cohort={"fraction": 0.5}), out=folder)
    return folder


def test_the_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        "config.toml", "metrics.jsonl", "clients.jsonl", "summary.json", "model.safetensors",
        "checkpoint", "curves.svg", "data.json", ".fedra",
    }  # fmt: skip
    assert not [path for path in finished.rglob("*") if path.suffix == ".tmp"]
    assert ElementTree.parse(finished / "curves.svg").getroot().tag.endswith("svg")


def test_the_rounds(finished: Path) -> None:
    rounds = tiny.metrics(finished)
    assert [list(line) for line in rounds] == [ROUND] * 3
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert [line["accuracy"] is None for line in rounds] == [True, False, False]  # every second, and the last
    for line in rounds:
        assert (line["clients"], line["dropped"]) == (2, 0)
        assert line["bytes_up"] == line["bytes_down"] == 2 * 4 * PARAMETERS
        assert line["seconds"] > 0


def test_the_clients(finished: Path) -> None:
    clients = tiny.lines(finished / "clients.jsonl")
    assert all(line.keys() == CLIENT for line in clients)
    assert [line["round"] for line in clients] == [1, 1, 2, 2, 3, 3]
    for number, line in enumerate(tiny.metrics(finished)):
        own = clients[2 * number : 2 * number + 2]
        mean = sum(client["train_loss"] * client["examples"] for client in own) / sum(c["examples"] for c in own)
        assert line["train_loss"] == pytest.approx(mean)
        assert all(client["steps"] == -(-client["examples"] // 10) for client in own)
        assert all(client["update_norm"] > 0 for client in own)


def test_the_summary(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    rounds = tiny.metrics(finished)
    assert summary.keys() == SUMMARY
    assert summary["status"] == "finished"
    assert summary["final_accuracy"] == rounds[-1]["accuracy"]
    assert summary["best_accuracy"] == max(line["accuracy"] or 0 for line in rounds)
    assert (summary["rounds"], summary["clients"], summary["parameters"]) == (3, 4, PARAMETERS)
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in rounds)
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in rounds), abs=0.01)
    assert summary["seeds"] == {"run": 3, "partition": 0}
    assert summary["versions"].keys() == {"fedra", "python", "torch", "numpy"}


def test_the_model_is_the_one_that_was_tested(finished: Path) -> None:
    params, about = load_model(finished / "model.safetensors")
    assert list(params) == ["body.1.bias", "body.1.weight", "head.bias", "head.weight"]
    assert about["model"]["name"] == "mlp"
    assert about["classes"] == ["class 0", "class 1", "class 2", "class 3"]
    module = fedra.models.build("mlp", (6,), 4, seed=0, hidden=(8,))
    module.load_state_dict(params)
    settings = {key: value for key, value in tiny.TINY["data"].items() if key != "name"}
    test = fedra.data.load("synthetic", **settings).test
    accuracy = float((module(test.inputs).argmax(dim=1) == test.targets).double().mean())
    assert accuracy == tiny.metrics(finished)[-1]["accuracy"]


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize("runner", ["sequential", "processes"])
@pytest.mark.parametrize("algorithm", ["scaffold", "moon"])
def test_the_same_configuration_gives_the_same_bytes(tmp_path: Path, algorithm: str, runner: str) -> None:
    config = tiny.table(algorithm={"name": algorithm}, cohort={"fraction": 0.5})
    fedra.run(config, out=tmp_path / "first")
    runner_section = {"name": runner, **({"workers": 2} if runner == "processes" else {})}
    fedra.run({**config, "runner": runner_section}, out=tmp_path / "second")
    assert tiny.record(tmp_path / "first") == tiny.record(tmp_path / "second")
    other = fedra.run({**config, "seed": 1}, out=tmp_path / "third")
    assert other.folder == tmp_path / "third"
    assert tiny.record(tmp_path / "first")["model"] != tiny.record(tmp_path / "third")["model"]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedra.run(tiny.table(rounds=1))
    assert result.folder is None
    assert result.summary["final_accuracy"] == result.metrics[0]["accuracy"]
    assert isinstance(result.model, torch.nn.Module)
    assert not list(tmp_path.iterdir())


def test_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    fedra.run(tiny.table(rounds=1, algorithm={"name": "fedsam"}))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_is_replaced_only_by_force_and_then_wholly(tmp_path: Path) -> None:
    config = tiny.table(algorithm={"name": "moon"})
    fedra.run(config, out=tmp_path)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "old").touch()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is finished: choose another folder, or replace the run with --force"):
        fedra.run(config, out=tmp_path)
    fedra.run(tiny.table(rounds=1), out=tmp_path, force=True)
    assert len(tiny.metrics(tmp_path)) == 1
    assert not list((tmp_path / "checkpoint").rglob("clients/*"))
    assert (tmp_path / "tensorboard" / "old").exists()  # not fedra's
    assert (tmp_path / "notes.txt").read_text() == "mine"


MINE = ("model.safetensors", "summary.json", "curves.svg", "eval-mine.json", "checkpoint/epoch-90.pt", "notes.txt")


@pytest.mark.parametrize("name", MINE)
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_files_of_the_users_own_is_refused(tmp_path: Path, name: str, force: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"must be empty or contain a run, got .* choose another"):
        fedra.run(tiny.table(), out=tmp_path, force=force)
    assert (tmp_path / name).read_text() == "mine"
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / name}


@pytest.mark.parametrize(
    "name", ["eval-mine.json", "recognition.svg", "checkpoint/epoch-90.pt", "embeddings-test.safetensors"]
)
def test_force_removes_only_what_fedra_wrote(tmp_path: Path, name: str) -> None:
    fedra.run(tiny.table(rounds=2), out=tmp_path)
    (tmp_path / name).write_text("mine")
    fedra.run(tiny.table(rounds=1), out=tmp_path, force=True)
    assert (tmp_path / name).read_text() == "mine"
    assert len(tiny.metrics(tmp_path)) == 1


def test_a_list_that_points_outside_of_the_folder_removes_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    fedra.run(tiny.table(rounds=1), out=tmp_path / "run")
    with open(tmp_path / "run" / ".fedra", "a") as file:
        file.write("../other\n")
    fedra.run(tiny.table(rounds=1), out=tmp_path / "run", force=True)
    assert (tmp_path / "other").read_text() == "mine"


def test_a_run_that_was_begun_is_told_apart(tmp_path: Path) -> None:
    fedra.run(tiny.table(), out=tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(ConfigError, match="was started and can be resumed"):
        fedra.run(tiny.table(), out=tmp_path)
    with pytest.raises(RunError, match="is not finished: continue it with fedra run --resume"):
        RunFolder(tmp_path).summary()


def test_damaged_records_are_told(tmp_path: Path) -> None:
    for content in (b"{", b"[1]\n", b'{"rounds": 1}\n', b"\xff\xfe\n"):
        whole = b'{"round": 1, "accuracy": null, "seconds": 1.0, "bytes_down": 5}\n'
        (tmp_path / "metrics.jsonl").write_bytes(whole + content + b"\n")
        with pytest.raises(RunError, match=r"metrics.jsonl' is damaged in line 2"):
            RunFolder(tmp_path).metrics()
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary.json' is damaged"):
        RunFolder(tmp_path).summary()
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(RunError, match="cannot be read"):
        load_model(tmp_path / "model.safetensors")


def test_figures_that_are_not_finite_become_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append("clients.jsonl", [{"round": 1, "a": float("nan"), "b": float("-inf"), "c": 0.5, "d": [1, None]}])
    folder.close()
    assert tiny.lines(tmp_path / "clients.jsonl") == [{"round": 1, "a": None, "b": None, "c": 0.5, "d": [1, None]}]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra 'tensorboard' is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fedra.run(tiny.table(log={"tensorboard": True}), out=tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(ROUND) - {"round"}
    found = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert found == [(line["round"], pytest.approx(line["accuracy"])) for line in tiny.metrics(tmp_path)]


def test_tensorboard_needs_a_folder() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("the extra 'tensorboard' is not installed")
    with pytest.raises(ConfigError, match="must have a folder if the run has none"):
        fedra.run(tiny.table(log={"tensorboard": True}))
