"""Its place puts `tests` on the import path, for the toy federation that several folders share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAINING = ("algorithms", "analysis", "demo", "evaluation", "experiment", "faces", "runners", "test_examples.py")
"""The folders and files whose tests look at what was trained; the others compare formulas and files within rounding."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test-portable` runs, and put those of whole pages and programs first.

    They take longest: begun last, one of them would run on while the other processes wait.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)
    for item in items:
        if item.path.relative_to(here).parts[0] in TRAINING:
            item.add_marker(pytest.mark.trains)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> Iterator[None]:
    """A test run started in the background has Ctrl-C ignored, and so would everything it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of a loader reaches the network; those of the download switch it on for their own server."""
    monkeypatch.setenv("FEDRA_OFFLINE", "1")


@pytest.fixture
def real_data(tmp_path: Path) -> Path:
    """A root that shows the real sets; a file in the cache's place keeps decoded copies from piling up."""
    source = os.environ.get("FEDRA_TEST_DATA")
    if not source:
        pytest.skip("FEDRA_TEST_DATA is not set: no real data to read")
    for entry in Path(source).iterdir():
        if entry.is_dir() and entry.name != ".cache":
            (tmp_path / entry.name).symlink_to(entry.resolve())
    (tmp_path / ".cache").touch()
    return tmp_path


@pytest.fixture
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of a tiny run's time."""
    from fedra.callbacks.callback import Callback
    from fedra.callbacks.curves import Curves

    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)
