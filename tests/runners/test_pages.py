"""Memory that a training process freed stays with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would hide most of the faults that are counted
import torch
from fedra.runners.pages import keep_freed_memory
if "keep" in sys.argv:
    print(int(keep_freed_memory()))

def step():
    blocks = [torch.empty(size).fill_(1.0) for size in 10 * [1_000_000]]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", STEPS, *arguments], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only the C library of Linux gives memory back so eagerly")
def test_freed_blocks_are_taken_again_without_new_pages() -> None:
    taken, kept = faults("keep")
    if not taken:
        pytest.skip("this C library has no mallopt")
    [given_back] = faults()
    assert kept * 3 < given_back
