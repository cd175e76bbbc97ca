"""Runs whose runner is chosen for them: the choice is told, recorded and repeated."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedra
import tiny
from fedra.config import reading as config
from fedra.core.job import Job
from fedra.experiment import build
from fedra.experiment.execution import Interrupted
from fedra.runners import Choice

POOL = Choice("processes", "it was wanted", {"workers": 2, "threads": 1})


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A pool is chosen; the list is what the choice was asked with."""
    asked: list[dict[str, Any]] = []

    def choose(job: Job, cohort: int, cores: int | None = None, also: tuple[Job, ...] = ()) -> Choice:
        asked.append({"cohort": cohort, "cores": cores, "rounds": job.local.rounds, "also": len(also)})
        return POOL

    monkeypatch.setattr(build, "choose", choose)
    return asked


def auto(**sections: Any) -> dict[str, Any]:
    return tiny.table(**{"runner": {"name": "auto"}, **sections})


def test_auto_is_the_default() -> None:
    assert config.Config().runner.name == "auto"


def test_the_choice_is_told_recorded_and_the_same_as_by_hand(tmp_path: Path, chosen: list[dict[str, Any]]) -> None:
    console = Console(width=200, file=(said := io.StringIO()))
    result = fedra.run(auto(cohort={"fraction": 0.5}), out=tmp_path / "auto", console=console)
    assert chosen == [{"cohort": 2, "cores": None, "rounds": 3, "also": 0}]
    assert "auto: processes, 2 workers, 1 thread each (it was wanted)" in said.getvalue().splitlines()
    section = {"name": "processes", "workers": 2, "threads": 1}
    written = tomllib.loads((tmp_path / "auto" / "config.toml").read_text())["runner"]
    assert written == {**section, "auto": str(POOL)}
    assert result.summary["runner"] == written
    fedra.run(tiny.table(cohort={"fraction": 0.5}, runner=section), out=tmp_path / "hand")
    assert tiny.record(tmp_path / "auto") == tiny.record(tmp_path / "hand")


def test_a_record_that_is_run_again_or_resumed_is_not_chosen_anew(
    tmp_path: Path, chosen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fedra.run(auto(), out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("fedra.experiment.plan.Fold.finish", _interrupt_in_round_two())
        with pytest.raises(Interrupted):
            fedra.run(auto(), out=tmp_path / "half")
    assert len(chosen) == 2
    fedra.resume(tmp_path / "half")
    fedra.run(tmp_path / "whole" / "config.toml", out=tmp_path / "again")
    assert len(chosen) == 2
    assert tiny.record(tmp_path / "half") == tiny.record(tmp_path / "whole") == tiny.record(tmp_path / "again")


def _interrupt_in_round_two() -> Any:
    from fedra.experiment.plan import Fold

    finish, calls = Fold.finish, []

    def interrupted(self: Fold, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return finish(self, *arguments)

    return interrupted


def test_cores_and_the_personalizers_job_are_handed_on(chosen: list[dict[str, Any]]) -> None:
    fedra.run(auto(runner={"name": "auto", "cores": 5}, algorithm={"name": "fedbabu"}))
    assert (chosen[0]["cores"], chosen[0]["also"]) == (5, 1)


def test_a_tiny_run_stays_sequential() -> None:
    summary = fedra.run(auto()).summary
    assert summary["runner"]["name"] == "sequential"
    assert "s of training in total" in summary["runner"]["auto"]


def test_show_shows_auto(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    code, shown, _ = tiny.call(capsys, "show", tmp_path / "c.toml")
    assert code == 0
    assert '[runner]\nname = "auto"\n' in shown


def test_simulate_chooses_too(chosen: list[dict[str, Any]]) -> None:
    module = torch.nn.Sequential()
    module.add_module("body", torch.nn.Linear(3, 4))
    module.add_module("head", torch.nn.Linear(4, 2))
    clients = [(torch.ones(6, 3) * k, torch.tensor([0, 1] * 3)) for k in range(4)]
    result = fedra.simulate(fedra.algorithms.fedavg(), module, clients, rounds=2, fraction=0.75)
    assert chosen == [{"cohort": 3, "cores": None, "rounds": 2, "also": 0}]
    assert result.summary["runner"]["name"] == "processes"


def test_a_wrong_field_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    told = tiny.mistake(capsys, "run", tmp_path / "c.toml", *tiny.WORDS, "runner={name='auto', core=1}")
    assert "the runner 'auto' has no field 'core': did you mean 'cores'?" in told
