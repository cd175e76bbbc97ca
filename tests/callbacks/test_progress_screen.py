"""What a person sees: a bar on a terminal, lines in a pipe, nothing where nobody looks."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

import fedra
import tiny
from fedra.algorithms import fedavg
from fedra.callbacks.callback import RoundReport
from fedra.callbacks.screen import Bar, Lines
from fedra.console import format_duration, steps
from fedra.experiment import run as experiment


def told(terminal: bool, **sections: object) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, color_system=None, _environ={})
    experiment.run(tiny.table(**sections), console=console)
    return text.getvalue()


def test_a_bar_on_a_terminal() -> None:
    shown = told(True, rounds=4)
    assert re.search(r"fedavg .*round 4/4 accuracy \d+\.\d\d% [\d,]+ examples/s 0:00:\d\d left", shown), shown


def test_lines_elsewhere() -> None:
    shown = told(False, rounds=4).splitlines()
    pattern = r"fedavg  round (\d)/4  accuracy \d+\.\d\d%  train loss \d\.\d{4}  [\d,]+ examples/s  \d+ s left"
    numbers = [match[1] for line in shown if (match := re.fullmatch(pattern, line))]
    assert len(numbers) == len(shown)
    assert (numbers[0], numbers[-1]) == ("1", "4")
    assert "\x1b" not in "".join(shown)


@pytest.mark.parametrize("terminal", [True, False])
def test_rounds_without_evaluation(terminal: bool) -> None:
    shown = told(terminal, rounds=3, evaluation={"every": 9})
    assert "round 3/3" in shown
    assert "accuracy" in shown  # the last round is always tested


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_without_a_test_set(terminal: bool) -> None:
    import torch

    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, _environ={})
    model = fedra.models.build("logistic", (3,), 2, seed=0)
    clients = [(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))] * 2
    result = fedra.simulate(fedavg(), model, clients, rounds=2, console=console)
    assert "round 2/2" in text.getvalue()
    assert "accuracy" not in text.getvalue()
    assert [line["accuracy"] for line in result.metrics] == [None, None]


def report(round: int) -> RoundReport:
    return RoundReport({"round": round, "accuracy": None, "train_loss": 1.0}, [], 10)


def test_lines_do_not_flood_a_log() -> None:
    text = io.StringIO()
    lines = Lines(Console(file=text, width=100), "name", 1000, 0)
    started = time.monotonic()
    for round in range(1, 1001):
        lines.show_round(report(round))
    assert text.getvalue().count("\n") <= 3 + (time.monotonic() - started)


def test_a_resumed_run_counts_from_where_it_was() -> None:
    text = io.StringIO()
    lines = Lines(Console(file=text, width=100), "name", 10, 7)
    lines.show_round(report(8))
    assert "round 8/10" in text.getvalue()
    bar = Bar(Console(file=io.StringIO(), force_terminal=True), "name", 10, 7, 4)
    try:
        for _ in range(4):
            bar.show_client()
        assert 7 < bar._progress.tasks[0].completed < 8
        for _ in range(9):  # the next round goes on before this one is told, and may be repeated
            bar.show_client()
        assert 8 < bar._progress.tasks[0].completed < 9
        bar.show_round(report(8))
        assert bar._progress.tasks[0].completed == 8
        bar.show_client()
        assert 9 < bar._progress.tasks[0].completed < 10
    finally:
        bar.stop()


def test_a_long_round_is_told_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    lines = Lines(Console(file=text, width=100), "name", 4, 1, 8)
    for _ in range(6):
        now += 4.0
        lines.show_client()
    assert text.getvalue().splitlines() == [
        "name  round 2/4  38% done  1.4 min left",  # 12 s for three of 24 clients
        "name  round 2/4  75% done  1.2 min left",
    ]
    lines.show_round(report(2))
    now += 10.0
    lines.show_client()
    assert text.getvalue().splitlines()[-1].startswith("name  round 3/4  12% done")


def test_no_line_of_a_round_comes_before_the_last_one_of_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a round is evaluated, the clients of the next one train already."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    lines = Lines(Console(file=text, width=100), "name", 5, 0, 2)
    for _ in range(3):
        now += 12.0
        lines.show_client()
    lines.show_round(report(1))
    now += 12.0
    lines.show_client()
    told = [re.match(r"name  round (\d)/5  (.*?)  ", line) for line in text.getvalue().splitlines()]
    assert [(match[1], match[2]) for match in told if match] == [
        ("1", "50% done"),
        ("1", "100% done"),
        ("1", "trained, being evaluated"),
        ("1", "train loss 1.0000"),
        ("2", "100% done"),
    ]


def test_a_long_task_has_fewer_lines_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    with steps(Console(file=text, width=100), "embedding", 600) as advance:
        for _ in range(600):
            now += 1.0
            advance(1)
    assert 20 < text.getvalue().count("\n") < 50  # one every two seconds would be 300


def test_a_terminal_keeps_the_history_of_rounds() -> None:
    text = io.StringIO()
    bar = Bar(Console(file=text, force_terminal=True, width=100, color_system=None, _environ={}), "name", 40, 0, 1)
    for round in range(1, 41):
        bar.show_round(report(round))
    bar.stop()
    told = re.findall(r"round (\d+)/40  train loss 1\.0000", text.getvalue())
    assert told == [str(round) for round in range(4, 41, 4)]


def test_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fedra.run(tiny.table(rounds=2))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (90, "1.5 min"), (5400, "1.5 h")])
def test_times(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
