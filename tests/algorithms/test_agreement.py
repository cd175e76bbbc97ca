"""The cases of benchmarks/agreement.py: fedra follows the papers' formulas, whichever peers are installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("agreement")


def test_every_case_equals_its_plain_version(script: Any) -> None:
    for case in script.CASES:
        difference = script.largest(script.train_ours(case), script.train_plain(case, case.plain()))
        assert difference < 1e-12, case.name


def test_a_stated_cause_is_a_different_formula(script: Any) -> None:
    stated = [case for case in script.CASES if case.theirs is not None]
    assert len(stated) >= 6
    for case in stated:
        plain, theirs = (script.train_plain(case, make()) for make in (case.plain, case.theirs))
        assert script.largest(plain, theirs) > 1e-4, case.name
        assert case.reason


@pytest.mark.filterwarnings("ignore")  # the peer warns about its own use of numpy
def test_losses_agree_with_the_peer(script: Any) -> None:
    pytest.importorskip("pytorch_metric_learning", reason="pytorch-metric-learning is not installed")
    found = dict(script.compare_losses())
    assert len(found) == 6
    assert max(found.values()) < 1e-8, found
