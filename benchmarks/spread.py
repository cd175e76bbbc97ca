"""The server's correction of class embeddings (FedGC) against the two blocked matrix products that it cannot avoid.

Rows of 512 numbers, 36 clients, one thread per core. The memory is that of a process that corrects 100,000 classes,
seen over its first blocks: all blocks are alike.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys

import torch
from measure import Row, cores, in_turns, main, parser
from torch import Tensor

from fedra.core.ownership import Owners
from fedra.losses import CosFace
from fedra.parts import spread

WIDTH, CLIENTS, BLOCKS = 512, 36, 3


def rows_of(classes: int) -> tuple[Tensor, Owners]:
    """Class embeddings of random directions, and who owns them."""
    draw = torch.Generator().manual_seed(0)
    holdings = torch.randperm(classes, generator=draw).chunk(CLIENTS)
    rows = torch.randn(classes, WIDTH, generator=draw) / WIDTH**0.5
    return rows, Owners([own.sort().values for own in holdings], classes)


def bare(rows: Tensor) -> None:
    """Similarities of every block, and their product with the rows."""
    height = max(1, spread.BLOCK_BYTES // (len(rows) * rows.element_size()))
    total = torch.zeros_like(rows)
    for anchors in torch.split(rows, height):
        total.addmm_((anchors @ rows.T).T, anchors)


def peak(classes: int) -> float:
    """The megabytes that a process of its own reaches in the first blocks."""
    command = [sys.executable, __file__, "--probe", str(classes)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def probe(classes: int) -> None:
    """Correct the first blocks and print the peak of this process in megabytes."""
    rows, owners = rows_of(classes)
    every = spread.blocks
    spread.blocks = lambda *given: itertools.islice(every(*given), BLOCKS)  # type: ignore[assignment]
    spread.CrossClientSoftmax(CosFace()).gradient(rows, owners, torch.Generator(), None)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(quick: bool) -> list[Row]:
    """The correction's time as a multiple of the bare products', and its memory."""
    torch.set_num_threads(cores())
    classes, repeats = (400, 2) if quick else (20_000, 3)
    rows, owners = rows_of(classes)
    draw = torch.Generator()
    rivals = {
        "bare": lambda: bare(rows),
        "softmax": lambda: spread.CrossClientSoftmax().gradient(rows, owners, draw, None),
        "cosface": lambda: spread.CrossClientSoftmax(CosFace()).gradient(rows, owners, draw, None),
    }
    timings = in_turns(rivals, repeats)
    found = [
        Row(f"FedGC ({name}) against two bare products, {classes:,} classes", timings.ratio(name, "bare"), target=1.5)
        for name in ("softmax", "cosface")
    ]
    many = 2_000 if quick else 100_000
    return [*found, Row(f"memory of the correction of {many:,} classes", peak(many), "MB", target=2048)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        probe(int(sys.argv[2]))
    else:
        main(measure, parser(__doc__))
