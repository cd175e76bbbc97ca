"""Try a precision in a child process, because a processor may end a process that computes in it.

A virtual machine may report instructions that its hypervisor does not grant, such as AMX. oneDNN then uses them for
half precision, and the process dies by SIGILL. With fewer instructions the same products may work.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch

from fedra.errors import ConfigError

INSTRUCTIONS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""Instruction sets to try instead of the processor's own, best first; the names are oneDNN's."""

VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""Environment variable with the largest instruction set, which oneDNN reads at its first product."""

PATIENCE = 60.0
"""Seconds after which a trial counts as failed."""


@cache
def instructions_for(passes: torch.dtype) -> str | None:
    """Return the instruction set that the CPU needs for a precision, and set it; None for the processor's own.

    Raises:
        ConfigError: If the trial dies with every instruction set.
    """
    first = end = run_trial(passes, None)
    if end == 0:
        return None
    for instructions in () if VARIABLE in os.environ else INSTRUCTIONS:
        end = run_trial(passes, instructions)
        if end == 0:
            os.environ[VARIABLE] = instructions
            return instructions
    raise ConfigError(
        f"precision must be one that this processor can compute, got '{dtype_name(passes)}', whose trial in "
        f"another process {describe_end(first)}: set 'float32', or start fedra with the environment variable "
        f"{VARIABLE}=AVX512_CORE"
    )


def compute_step(passes: torch.dtype) -> None:
    """Compute products and convolutions in a precision, forward and backward, large enough for every kind of kernel."""
    torch.set_num_threads(1)  # threads of a parent process do not exist in its fork
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 32, 16, 16, generator=generator)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 256, 64)
    )
    with torch.autocast("cpu", dtype=passes, cache_enabled=False):
        output = network(images)
    output.float().square().mean().backward()


def run_trial(passes: torch.dtype, instructions: str | None) -> int:
    """Compute a step in a child process; return its exit code, negative for a signal."""
    if sys.platform == "linux" and not torch.cuda.is_available():
        return _fork(passes, instructions)
    code = f"import torch; from {__name__} import compute_step; compute_step({passes})"
    limit = {} if instructions is None else {VARIABLE: instructions}
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **limit},
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -int(signal.SIGTERM)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def describe_end(exit_code: int) -> str:
    """Return how a trial ended, as a verb."""
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    with suppress(ValueError):
        return f"died by {signal.Signals(-exit_code).name}"
    return f"died by signal {-exit_code}"


def _fork(passes: torch.dtype, instructions: str | None) -> int:
    """Compute a step in a fork: it takes milliseconds, and has the instruction set that this process already uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork of a process with threads runs one thread only
        child = os.fork()
    if child == 0:  # pragma: no cover  (coverage ends with the process)
        _end_after(lambda: compute_step(passes), instructions)
    end = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def _end_after(action: Callable[[], None], instructions: str | None) -> None:
    """Run an action and end this process, without traces of a signal on the terminal or the disk."""
    code = 1
    try:
        import resource

        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if instructions is not None:
            os.environ[VARIABLE] = instructions
        action()
        code = 0
    finally:
        os._exit(code)
