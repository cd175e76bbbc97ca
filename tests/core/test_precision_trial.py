"""A precision is tried in a child process, so a processor that lacks its instructions ends the child, not the run."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedra
import tiny
from fedra.config.reading import read
from fedra.core import precision_trial
from fedra.core.precision import build_precision
from fedra.core.precision_trial import VARIABLE, describe_end, instructions_for, run_trial
from fedra.errors import ConfigError
from fedra.runners import fastest_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "remembered, so that it is restored")
    monkeypatch.delenv(VARIABLE)
    instructions_for.cache_clear()
    yield
    instructions_for.cache_clear()


def die_unless(working: str | None) -> Any:
    """A step that dies as one with AMX does where the hypervisor does not grant it."""

    def step(passes: torch.dtype) -> None:
        if os.environ.get(VARIABLE) != working:
            os.kill(os.getpid(), signal.SIGILL)

    return step


def test_a_working_precision_leaves_the_processor_alone() -> None:
    assert run_trial(torch.bfloat16, None) == 0
    build_precision("bfloat16", CPU)
    assert VARIABLE not in os.environ


def test_the_child_dies_and_this_process_does_not(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(precision_trial, "compute_step", die_unless("never"))
    assert run_trial(torch.bfloat16, None) == -signal.SIGILL
    with pytest.raises(ConfigError, match=r"got 'bfloat16', whose trial in another process died by SIGILL: set"):
        build_precision("bfloat16", CPU)
    assert VARIABLE not in os.environ
    assert capfd.readouterr().err == ""


def test_the_instruction_set_that_works_is_used_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "compute_step", die_unless("AVX512_CORE"))
    told = io.StringIO()
    fedra.run(tiny.table(rounds=1, precision="bfloat16"), console=Console(file=told, width=500))
    assert os.environ[VARIABLE] == "AVX512_CORE"
    assert "a trial of bfloat16 with all instructions of this processor died, so the run uses AVX512_CORE" in (
        told.getvalue()
    )


def test_a_user_who_chose_the_instructions_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "compute_step", die_unless("AVX2"))
    monkeypatch.setenv(VARIABLE, "AVX512_CORE")
    with pytest.raises(ConfigError, match="died by SIGILL"):
        build_precision("bfloat16", CPU)
    assert os.environ[VARIABLE] == "AVX512_CORE"


def test_a_run_is_refused_before_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precision_trial, "compute_step", die_unless("never"))
    (tmp_path / "c.toml").write_text("precision = 'bfloat16'\n")
    with pytest.raises(ConfigError, match="died by SIGILL"):
        fedra.run(tmp_path / "c.toml", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_step_that_raises_or_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(passes: torch.dtype) -> None:
        raise RuntimeError

    monkeypatch.setattr(precision_trial, "compute_step", fail)
    assert run_trial(torch.float16, None) == 1
    monkeypatch.setattr(precision_trial, "compute_step", lambda _: signal.pause())
    monkeypatch.setattr(precision_trial, "PATIENCE", 0.05)
    assert run_trial(torch.float16, None) == -signal.SIGKILL


def test_other_systems_use_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial.sys, "platform", "darwin")
    assert run_trial(torch.bfloat16, "AVX2") == 0


@pytest.mark.parametrize(("code", "told"), [(-4, "died by SIGILL"), (-99, "died by signal 99"), (3, "exit code 3")])
def test_ends_by_name(code: int, told: str) -> None:
    assert told in describe_end(code)


@pytest.mark.parametrize(("half", "chosen"), [(0.5, "bfloat16"), (0.9, "float32"), (3.0, "float32")])
def test_auto_takes_the_faster_and_records_it(
    half: float, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fastest_precision, "_seconds", lambda _, name: half if name == "bfloat16" else 1.0)
    told = io.StringIO()
    table = tiny.table(rounds=1, precision="auto")
    result = fedra.run(table, out=tmp_path / "run", console=Console(file=told, width=500))
    assert f"precision: {chosen} (bfloat16 takes {half:.2f} of float32's time" in told.getvalue()
    assert read(tmp_path / "run" / "config.toml").precision == chosen
    named = fedra.run(tiny.table(rounds=1, precision=chosen))
    assert result.metrics[-1]["loss"] == named.metrics[-1]["loss"]


def test_a_sweep_with_auto_can_be_called_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its runs have recorded what `auto` chose."""
    monkeypatch.setattr(fastest_precision, "_seconds", lambda _, name: 0.5 if name == "bfloat16" else 1.0)
    swept = [fedra.sweep(tiny.table(rounds=1, precision="auto"), out=tmp_path) for _ in range(2)]
    assert read(tmp_path / "base_seed-0" / "config.toml").precision == "bfloat16"
    assert swept[0].rows == swept[1].rows
    with pytest.raises(ConfigError, match="must have the same configuration"):
        fedra.sweep(tiny.table(rounds=1, precision="float32"), out=tmp_path)


def test_auto_is_float32_where_half_precision_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "compute_step", die_unless("never"))
    told = io.StringIO()
    fedra.run(tiny.table(rounds=1, precision="auto"), console=Console(file=told, width=500))
    assert "precision: float32 (bfloat16 does not work here" in told.getvalue()


def test_auto_times_the_network_itself() -> None:
    told = io.StringIO()
    fedra.run(tiny.table(rounds=1, precision="auto"), console=Console(file=told, width=500))
    assert "of float32's time with this network" in told.getvalue()


def test_a_run_of_objects_resumes_with_what_auto_chose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fastest_precision, "_seconds", lambda _, name: 0.5 if name == "bfloat16" else 1.0)
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 5, generator=draw), torch.randint(3, (8,), generator=draw)) for _ in range(2)]
    given = {"clients": data, "rounds": 1, "precision": "auto"}
    experiment = fedra.Experiment(fedra.algorithms.fedavg(), torch.nn.Linear(5, 3), **given)
    experiment.run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    monkeypatch.setattr(fastest_precision, "_seconds", lambda _, name: 2.0 if name == "bfloat16" else 1.0)
    experiment.run(tmp_path / "run", resume=True)
    assert read(tmp_path / "run" / "config.toml").precision == "bfloat16"
