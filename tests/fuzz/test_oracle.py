"""What the fuzzing oracle notices, and that formats are taken apart and built again without a loss."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fuzz_oracle
import pytest
from fuzz_mutation import mutate
from fuzz_oracle import examine
from fuzz_targets import all_targets

from fedra.errors import DataError


def raising(error: Exception) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        raise error

    return read


def outside(folder: Path) -> None:
    with builtins.open(folder.parent / "outside", "w"):
        pass


def caught(folder: Path) -> None:
    try:
        pickle.Unpickler(io.BytesIO(b"cos\ngetcwd\n.")).load()
    except Exception:
        raise DataError("damaged") from None


def endless(folder: Path) -> None:
    while True:
        try:
            len(folder.parts)
        except Exception:
            continue


CASES: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "it returns": (lambda folder: None, None),
    "an error of fedra's": (raising(DataError("what must hold")), None),
    "an error without words": (raising(DataError("")), "DataError"),
    "another error": (raising(KeyError("x")), "KeyError in test_oracle.read"),
    "a file outside": (outside, "open outside of its folder"),
    "a file inside": (lambda folder: (folder / "inside").write_text(""), None),
    "a moved file": (lambda folder: os.rename(folder, folder.parent / "other"), "os.rename outside of its folder"),
    "a name out of a pickle, although the reader hides it": (caught, "pickle.find_class"),
    "a program": (lambda folder: subprocess.run([sys.executable, "-c", ""]), "subprocess.Popen"),
    "no end": (endless, "Hang"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_oracle_notices(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, name = CASES[case]
    monkeypatch.setattr(fuzz_oracle, "SECONDS", 0.2)
    (tmp_path / "inner").mkdir()
    failure = examine(read, tmp_path / "inner")
    if name is None:
        assert failure is None, failure
    else:
        assert failure is not None
        assert failure.name.startswith(name)


def test_the_oracle_notices_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, whose largest size is not yet that of other tests."""
    words = [
        "import fuzz_oracle, pathlib",
        "fuzz_oracle.MEMORY = 50 * 2**20",
        "print(fuzz_oracle.examine(lambda folder: bytearray(b'x') * (200 * 2**20), pathlib.Path('.')).name)",
        "fuzz_oracle.limit_memory(50 * 2**20)",
        "print(fuzz_oracle.examine(lambda folder: bytearray(900 * 2**20), pathlib.Path('.')).name)",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", "\n".join(words)], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n")[:1] == ["memory"], done.stderr
    assert done.stdout.split("\n")[1].startswith("MemoryError"), done.stderr


@pytest.mark.parametrize("name", all_targets())
def test_a_seed_survives_its_format(name: str) -> None:
    target = all_targets()[name]
    for seed in target.seeds:
        tree = target.form.parse(seed)
        assert target.form.parse(target.form.build(tree)) == tree


def test_a_mutation_repeats_from_its_generator() -> None:
    target = all_targets()["gallery"]
    made = [[mutate(target.seeds[0], target.seeds, target.form, random.Random(n)) for n in range(30)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 20
