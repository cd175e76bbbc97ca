"""Runs that differ only in their seed are one setting; its mean and spread are over seeds."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from fake_runs import write_run
from fedra.reports.record_groups import RunGroup, Spread, group_records
from fedra.reports.run_record import load_record


def groups_of(*folders: Path) -> list[RunGroup]:
    return group_records([load_record(folder) for folder in folders])


def test_seeds_of_a_setting_are_one_group_with_the_sample_deviation(tmp_path: Path) -> None:
    finals = (0.5, 0.6, 0.8)
    (group,) = groups_of(*(write_run(tmp_path / str(s), [0.1, value], seed=s) for s, value in enumerate(finals)))
    spread = group.spread("accuracy")
    assert spread == Spread(statistics.fmean(finals), statistics.stdev(finals), 3)
    assert spread.deviation == pytest.approx(0.152753, abs=1e-6)  # divided by n - 1


def test_one_value_has_no_deviation() -> None:
    assert Spread.of([0.5]) == Spread(0.5, None, 1)
    assert Spread.of([]) is None


def test_a_repeated_seed_and_a_failed_run_are_not_counted(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, [0.6], seed=1) for name in ("a", "b")]
    folders.append(write_run(tmp_path / "c", [0.1], seed=2, status="failed"))
    folders.append(write_run(tmp_path / "d", [0.2], seed=3, status=None))
    (group,) = groups_of(*folders)
    assert group.spread("accuracy") == Spread(0.6, None, 1)
    assert group.note() == "1 of 4 failed, 1 of 4 stopped, 1 with a repeated seed"


def test_labels_name_what_differs_and_nothing_else(tmp_path: Path) -> None:
    groups = groups_of(
        write_run(tmp_path / "a", algorithm={"name": "fedavg"}, local={"lr": 0.1}),
        write_run(tmp_path / "b", algorithm={"name": "fedprox", "mu": 0.1}, local={"lr": 0.1}),
        write_run(tmp_path / "c", algorithm={"name": "fedprox", "mu": 0.5}, local={"lr": 0.1}),
        write_run(tmp_path / "d", algorithm={"name": "fedprox", "mu": 0.5}, local={"lr": 0.3}),
    )
    assert [group.label for group in groups] == [
        "fedavg, lr=0.1",
        "fedprox, mu=0.1, lr=0.1",
        "fedprox, mu=0.5, lr=0.1",
        "fedprox, mu=0.5, lr=0.3",
    ]


def test_a_field_of_one_algorithm_is_not_part_of_the_label(tmp_path: Path) -> None:
    groups = groups_of(
        write_run(tmp_path / "a", algorithm={"name": "fedavg"}),
        write_run(tmp_path / "b", algorithm={"name": "fedprox", "mu": 0.1}),
    )
    assert [group.label for group in groups] == ["fedavg", "fedprox"]


def test_the_runner_does_not_make_another_setting(tmp_path: Path) -> None:
    groups = groups_of(
        write_run(tmp_path / "a", seed=0, runner={"name": "sequential"}),
        write_run(tmp_path / "b", seed=1, runner={"name": "processes", "workers": 2}),
    )
    assert len(groups) == 1
