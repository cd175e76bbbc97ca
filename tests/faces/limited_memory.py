"""Train on a record set in a process with limited memory: `limited_memory.py STREAM MODE MEGABYTES`, run by a test.

The limit counts what the process has allocated at the start plus some megabytes, for its workers too. Prints "done",
or "no memory".
"""

import json
import os
import resource
import sys

import torch

import fedra

SIZE = 256
CONFIG = {
    "rounds": 1,
    "partition": {"name": "iid", "clients": 40, "seed": 1},
    "model": {"name": "logistic"},
    "local": {"epochs": 2, "batch": 16, "lr": 0.01},
}


def allocated() -> int:
    """Bytes of private memory that the process may write to, which RLIMIT_DATA limits."""
    with open("/proc/self/status", encoding="ascii") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmData:"))


def train(stream: bool, mode: str, size: int) -> None:
    runner = {"name": "processes", "workers": 2, "start_method": "fork"} if mode == "processes" else {"name": "auto"}
    data = {"name": "record-faces", "path": "casia", "size": size, "test_fraction": 0.005, "stream": stream}
    others = {"mode": "centralized", "runner": {"threads": 1}} if mode == "centralized" else {"runner": runner}
    fedra.run({**CONFIG, "data": data, **others})


def main() -> None:
    stream, mode, megabytes = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    train(stream, mode, 32)  # imports and allocates what every such run does
    limit = allocated() + megabytes * 10**6
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        train(stream, mode, SIZE)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        print("no memory", flush=True)
        os._exit(0)  # an orderly end may need memory
    print("done")


if __name__ == "__main__":
    main()
