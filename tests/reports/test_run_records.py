"""A run's records are read as they are: finished, running, stopped, failed or damaged, and never outside its folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fake_runs import round_line, write_lines, write_run
from fedra.errors import ConfigError
from fedra.locking import hold_lock, is_held
from fedra.reports.run_files import RunFiles
from fedra.reports.run_record import load_brief, load_record
from fedra.reports.run_search import RunSearch, find_folders
from tiny import call, mistake


def test_a_lock_is_held_only_while_a_process_has_it(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    assert not is_held(lock)
    with hold_lock(lock, "busy"):
        assert is_held(lock)
        assert is_held(lock)  # looking does not take it
    assert not is_held(lock)
    lock.touch()  # what a killed process leaves
    assert not is_held(lock)


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.2], status=None)
    write_lines(folder / "metrics.jsonl", [round_line(1, 0.1)])
    stopped = load_record(folder)
    assert stopped.status == "stopped"
    assert stopped.describe() == (
        f"Not finished: stopped after 1 of 2 rounds; continue it with fedra run --resume {folder}"
    )
    with hold_lock(folder / ".lock", "busy"):
        running = load_record(folder)
    assert running.status == "running"
    assert running.seconds_left == 2.0
    assert running.describe() == "Running: 1 of 2 rounds finished, about 2 s left"


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    reason = "the run diverged in round 3"
    folder = write_run(tmp_path / "a", [0.1, None], status="failed", summary={"failure": reason})
    record = load_record(folder)
    assert (record.status, record.describe(), record.final("accuracy")) == ("failed", reason, None)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.toml", b"seed = = 1", "config.toml is damaged"),
        ("config.toml", None, "config.toml is missing."),
        ("summary.json", b'{"status": ', "summary.json is damaged"),
        ("summary.json", b"[1, 2]", "summary.json is damaged (it must hold a table)."),
        ("summary.json", b"\xff\xfe", "summary.json is damaged"),
        ("metrics.jsonl", b'{"round": 1}\nnonsense\n{"round": 3}\n', "metrics.jsonl is damaged in line 2"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "metrics.jsonl is damaged in line 1"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, file: str, content: bytes | None, sentence: str) -> None:
    folder = write_run(tmp_path / "a")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    record = load_record(folder)
    assert record.status == "damaged"
    assert sentence in record.describe()


def test_a_last_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.2])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    record = load_record(folder)
    assert (record.status, record.rounds) == ("finished", 2)


def test_values_of_a_wrong_type_are_no_numbers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.2], summary={"final_accuracy": "high"})
    write_lines(
        folder / "metrics.jsonl", [{"round": 1, "accuracy": 0.1}, {"round": 2, "accuracy": [1], "seconds": "x"}]
    )
    record = load_record(folder)
    assert record.final("accuracy") == 0.1
    assert record.seconds == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_neither_links_out_of_the_folder_nor_pipes_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    (folder / "inside").write_text("fine")
    (folder / "short").symlink_to(folder / "inside")
    os.mkfifo(folder / "pipe")
    files = RunFiles(folder)
    assert files.read_bytes("link") is None
    assert files.read_bytes("../secret.txt") is None
    assert files.read_bytes("pipe") is None
    assert files.read_last_lines("link") == []
    assert files.read_bytes("short") == b"fine"
    assert files.problems[:3] == [
        "link leads out of the folder and was not read.",
        "../secret.txt is not in the folder and was not read.",
        "pipe is not a file and was not read.",
    ]


def test_a_brief_record_knows_the_end_of_a_long_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status=None)
    write_lines(folder / "metrics.jsonl", [round_line(number, number / 5000) for number in range(1, 3001)])
    record, rounds = load_brief(folder, "a")
    assert rounds == 3000
    assert record.last("accuracy") == 0.6
    assert len(record.metrics) < 1000


def test_warnings_count_what_rounds_and_clients_recorded(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.1], extra={"dropped": 2, "only_class": 7})
    write_lines(folder / "clients.jsonl", [{"round": 1, "client": 3, "dropped": "it missed the deadline"}])
    assert load_record(folder).warnings() == [
        "4 uploads of sampled clients were not used (in 2 rounds, last in round 2).",
        "In round 2 the model predicted the same class for every example.",
        "Not used, 1 times: it missed the deadline.",
    ]


def test_runs_are_found_below_a_folder_but_not_through_links(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "sweep" / "b")
    outside = write_run(tmp_path / "outside" / "c")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "project").mkdir()
    (tmp_path / "runs" / "project" / "config.toml").write_text("x = 1")  # not a run's
    search = RunSearch(tmp_path / "runs")
    assert search.find() == ["a", "sweep/b"]
    write_run(tmp_path / "runs" / "sweep" / "new")
    assert search.find() == ["a", "sweep/b", "sweep/new"]


def test_names_are_short_where_they_stay_unique(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "x" / "a"), write_run(tmp_path / "y" / "a")
    assert find_folders([first, second, first]) == {"x/a": first, "y/a": second}
    assert find_folders([tmp_path / "x"]) == {"a": first}


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must contain a run, got"):
        find_folders([tmp_path])
    with pytest.raises(ConfigError, match="must exist, got"):
        find_folders([tmp_path / "missing"])
    with pytest.raises(ConfigError, match="at least one run, got none"):
        find_folders([])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode alone")
def test_a_run_whose_name_is_not_utf8_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / os.fsdecode(name), seed=seed) for seed, name in enumerate((b"plain", b"caf\xe9"))]
    code, _, told = call(capsys, "compare", *runs, "--out", tmp_path / "picture.svg")
    assert (code, told) == (0, ""), told
    assert "caf\\xe9" in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b'{"round": 1}\n'),
        ("metrics.jsonl", b'{"round": 1, "accuracy": "high", "seconds": 1, "bytes_down": 1}\n'),
        ("metrics.jsonl", b'{"round": 1, "accuracy": 0.5, "seconds": [1], "bytes_down": 1}\n'),
        ("metrics.jsonl", b'{"round": true, "accuracy": 0.5, "seconds": 1, "bytes_down": 1}\n'),
        ("metrics.jsonl", b"[" * 5000 + b"\n"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"status": "finished"}'),
        ("summary.json", b'{"status": 5, "algorithm": 1}'),
        ("summary.json", b"\xff"),
    ],
)
def test_records_that_somebody_changed_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content)
    assert "is damaged" in mistake(capsys, "compare", run, "--out", tmp_path / "picture.svg", code=1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "config.toml"])
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = write_run(tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    told = mistake(capsys, "compare", run, "--out", tmp_path / "picture.svg", code=2 if name == "config.toml" else 1)
    assert "it is a device or a pipe, not a file" in told or "without a config.toml" in told
