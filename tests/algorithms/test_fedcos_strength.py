"""FedCos's default strength acts: AUROC on unseen identities, against FedPE's, in the world of docs/results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from fedra.algorithms import fedcos, fedpe
from fedra.losses import NormalizedSoftmax

SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "scripts" / "fedcos_strength.py"
SMALLEST = 5e-4


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("fedcos_strength", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_raises_auroc(script: Any, seed: int) -> None:
    base, _ = script.measure(fedpe(), seed)
    found, run = script.measure(fedcos(), seed)
    old, _ = script.measure(fedcos(strength=1.0), seed)
    assert found - base > SMALLEST
    assert abs(old - base) < SMALLEST
    longer, _ = script.measure(fedpe().plus(script.RowsOfLength(1.0)), seed)
    assert longer - base > SMALLEST  # the control: longer class vectors alone do as much
    assert max(line["server_turn_mean"] for line in run.metrics) > 10


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_directions_alone_raise_it_too(script: Any, seed: int) -> None:
    """With normalized softmax lengths have no effect and stay FedPE's."""
    margin = NormalizedSoftmax(scale=8.0)
    base, plain = script.measure(fedpe(margin=margin), seed)
    found, run = script.measure(fedcos(margin=margin), seed)
    assert found - base > SMALLEST
    lengths = [one.metrics[-1]["vector_length_mean"] for one in (plain, run)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.01)
    nearest = [one.metrics[-1]["nearest_cosine_mean"] for one in (plain, run)]
    assert nearest[1] < nearest[0] - 0.01
