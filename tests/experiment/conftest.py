"""What several tests of runs share."""

from __future__ import annotations

import pytest

from fedra.experiment import run


@pytest.fixture
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of a tiny run's time."""
    monkeypatch.setattr(run, "_curves", lambda *_: None)
