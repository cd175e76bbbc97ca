"""At equal lengths of class vectors FedGC's correction raises AUROC: three seeds of fedgc_world.py."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "scripts"
SMALLEST = 1e-3


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("fedgc_world")


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_directions_alone_raise_auroc_and_more_so_at_a_larger_strength(script: Any, seed: int) -> None:
    methods = script.with_equal_lengths()
    found = {name: script.measure(methods[name], seed) for name in ("fedpe", "fedgc 20", "fedgc 100")}
    scores = {name: score for name, (score, _) in found.items()}
    assert scores["fedgc 20"] > scores["fedpe"] + SMALLEST
    assert scores["fedgc 100"] > scores["fedgc 20"] + SMALLEST
    for _, run in found.values():
        assert run.metrics[-1]["vector_length_mean"] == pytest.approx(1, abs=1e-5)
    nearest = {name: run.metrics[-1]["nearest_cosine_mean"] for name, (_, run) in found.items()}
    assert nearest["fedgc 20"] < nearest["fedpe"] - 0.1


@pytest.mark.slow
@pytest.mark.trains
def test_with_free_lengths_fedpe_from_long_class_vectors_has_the_gain_too(script: Any) -> None:
    methods = script.with_free_lengths()
    scores = {name: script.measure(methods[name], 0)[0] for name in methods if name != script.CENTRALIZED}
    assert scores["fedgc"] > scores["fedpe"] + SMALLEST
    assert scores["fedpe from length 5"] > scores["fedpe"] + SMALLEST
    assert scores["fedgc, no self term"] < scores["fedpe"] - SMALLEST
    assert scores["fedgc from length 5"] == pytest.approx(scores["fedpe from length 5"], abs=SMALLEST)


@pytest.mark.slow
@pytest.mark.trains
def test_the_methods_of_a_comparison_start_at_the_same_length(script: Any) -> None:
    score, run = script.measure(script.with_equal_lengths()["fedpe fixed"], 0)
    assert run.metrics[-1]["vector_length_mean"] == pytest.approx(1, abs=1e-5)
    assert 0.5 < score < 1
