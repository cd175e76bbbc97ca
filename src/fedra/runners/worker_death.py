"""Why a worker process died, from its exit code."""

from __future__ import annotations

import multiprocessing
import signal
import sys

NO_GUARD = 87
"""Exit code of a worker that was about to run its parent's script again instead of a task."""

GUARD = (
    'a script that uses worker processes must call fedra below `if __name__ == "__main__":`, because every worker '
    "imports the script again: move the call there, or use the runner 'sequential'"
)

CAUSES = {
    "SIGKILL": "perhaps for lack of memory: use fewer workers, or the runner 'sequential' to see the cause",
    "SIGILL": "because torch used an instruction that this processor does not have: set precision = 'float32', or the "
    "environment variable ONEDNN_MAX_CPU_ISA=AVX2",
    "SIGBUS": "perhaps because shared memory is full (/dev/shm; containers often have 64 MB): enlarge it, use fewer "
    "workers, or the runner 'sequential'",
    "SIGSEGV": "which is a bug in a library: use the runner 'sequential' to see where",
}
"""What a signal that ended a worker means."""


def end_reimported_script() -> None:
    """End a worker that runs its parent's script because the script has no guard; do nothing elsewhere."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        sys.exit(NO_GUARD)


def describe_death(exit_code: int | None) -> str:
    """Return how a worker process ended and what to do, as the end of a sentence."""
    if exit_code is None:
        return "for an unknown reason: use the runner 'sequential' to see it"
    if exit_code >= 0:
        return f"with exit code {exit_code}: use fewer workers, or the runner 'sequential' to see the cause"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"by {name}, {CAUSES.get(name, 'which another process sent: resume the run')}"
