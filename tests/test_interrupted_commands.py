"""Commands that are interrupted, or whose output is no longer read, end without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "fedra.cli":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
from fedra.__main__ import main
main()
"""

SLOW_COMMAND = """
import time
import fedra.cli.training as training

@training.app.command("wait")
def wait() -> None:
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        print("tidying up", flush=True)
        time.sleep(SECONDS)

import sys
sys.argv = ["fedra", "wait"]
from fedra.__main__ import main
main()
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def test_two_interrupts_during_the_imports() -> None:
    process = start(SLOW_IMPORT)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, told = process.communicate(timeout=30)
    assert told == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("interrupts", [1, 2])
def test_interrupts_of_a_command(interrupts: int) -> None:
    process = start(SLOW_COMMAND.replace("SECONDS", "0" if interrupts == 1 else "60"))
    assert process.stdout is not None
    for expected in ("working\n", "tidying up\n")[:interrupts]:
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert "Traceback" not in told
    assert process.returncode == (130 if interrupts == 1 else -signal.SIGINT)


def test_an_output_that_nobody_reads() -> None:
    process = start("import sys; sys.argv = ['fedra', 'list', 'losses']; from fedra.__main__ import main; main()")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141
