"""Margins and decision boundaries of two classes against the equations of table 1 of Han et al. 2026."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from fedra.errors import ConfigError
from fedra.losses import LOSSES
from fedra.losses.boundaries import COMPARED, advantage, draw_margins, margin

DEGREES = np.array([1.0, 20.0, 45.0, 60.0, 89.0, 110.0, 125.0])
OWN = np.radians(DEGREES)


def test_margins_of_the_papers_losses() -> None:
    assert margin(LOSSES["normalized-softmax"](), OWN) == pytest.approx(np.zeros(len(OWN)), abs=1e-4)
    assert margin(LOSSES["softmax"](), OWN) == pytest.approx(np.zeros(len(OWN)), abs=1e-4)
    assert margin(LOSSES["arcface"](margin=0.4), OWN) == pytest.approx(np.full(len(OWN), 0.4), abs=1e-4)
    assert margin(LOSSES["elastic-arcface"](), OWN) == pytest.approx(np.full(len(OWN), 0.5), abs=1e-4)
    assert margin(LOSSES["cosface"](), OWN) == pytest.approx(np.arccos(np.cos(OWN) - 0.35) - OWN, abs=1e-4)
    assert margin(LOSSES["adaptive-margin"](), OWN) == pytest.approx(0.03 * np.sin(OWN) ** 2 + 0.5, abs=1e-4)


def test_the_margin_of_cvm_solves_its_equation() -> None:
    loss = LOSSES["cvm"](m1=0.3, m2=0.1)
    rival = OWN + margin(loss, OWN)
    residual = np.cos(OWN) - np.cos(rival) - (0.3 * np.sin(OWN) ** 2 + 0.1 * np.cos(rival) ** 2)
    assert residual == pytest.approx(np.zeros(len(OWN)), abs=1e-4)


def test_no_margin_where_no_rival_is_far_enough() -> None:
    found = margin(LOSSES["arcface"](margin=0.5), np.array([math.pi - 0.51, math.pi - 0.49]))
    assert found[0] == pytest.approx(0.5, abs=1e-3)
    assert math.isnan(found[1])


def test_the_scale_moves_no_boundary_and_state_is_settled() -> None:
    for name in ("arcface", "circle", "sphereface"):
        small, large = (LOSSES[name](scale=scale) for scale in (2.0, 50.0))
        np.testing.assert_allclose(advantage(small, OWN, OWN), advantage(large, OWN, OWN))
    settled = LOSSES["sphereface"](lambda_base=0.0, lambda_min=5.0)
    np.testing.assert_allclose(advantage(LOSSES["sphereface"](), OWN, OWN), advantage(settled, OWN, OWN), atol=1e-3)


def test_a_hard_rival_is_judged_beside_its_own_angle() -> None:
    """CurricularFace turns a rival's cosine c into c^2 (t = 0 at the start) only where it beats cos(t_own + m)."""
    own, rival = np.radians([30.0]), np.radians([40.0, 80.0])
    hard, easy = advantage(LOSSES["curricularface"](), own, rival)[0]
    assert hard == pytest.approx(math.cos(own[0] + 0.5) - math.cos(rival[0]) ** 2)
    assert easy == pytest.approx(math.cos(own[0] + 0.5) - math.cos(rival[1]))


def test_the_papers_losses_are_drawn_by_name(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    path = tmp_path / "new" / "margins.svg"
    draw_margins({f"{name} here": LOSSES[name]() for name in COMPARED}, path)
    text = path.read_text()
    ElementTree.fromstring(text)
    for name in COMPARED:
        assert f"<!-- {name} here -->" in text
    draw_margins({f"{name} here": LOSSES[name]() for name in COMPARED}, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text
    assert torch.equal(before, torch.get_rng_state())


def test_random_margins_show_their_spread(tmp_path: Path) -> None:
    for name, sigma in (("wide", 0.4), ("none", 0.0)):
        draw_margins({name: LOSSES["elastic-arcface"](sigma=sigma)}, tmp_path / f"{name}.svg")
    dashes = [(tmp_path / f"{name}.svg").read_text().count("stroke-dasharray") for name in ("wide", "none")]
    assert dashes[0] > dashes[1]


@pytest.mark.parametrize("name", sorted(set(LOSSES) - set(COMPARED)))
def test_every_other_loss_has_a_margin(name: str) -> None:
    found = margin(LOSSES[name](), OWN[:3])
    assert np.isfinite(found).all()
    assert (found > -1e-4).all()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must have at least one loss"):
        draw_margins({}, tmp_path / "a.svg")
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png or \.pdf"):
        draw_margins({"arcface": LOSSES["arcface"]()}, tmp_path / "a.doc")
