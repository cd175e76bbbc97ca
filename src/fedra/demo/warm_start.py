"""The network that the face demo starts from: the body of a model trained on synthetic portraits, without its head.

To make it again, in about ten minutes on one core, run in the root of the repository:

    fedra run configs/demo/warm-start.toml --out runs/warm-start
    python -m fedra.demo.warm_start runs/warm-start src/fedra/demo/warm-start.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch

from fedra.models.pretrained import RUN_MODEL, read_tensors
from fedra.writing import write_atomically

WEIGHTS = Path(__file__).with_name("warm-start.safetensors")
NETWORK = "mobilefacenet-tiny"
EMBEDDING = 128
SIDE = 48


def save_body(run: Path, file: Path) -> None:
    """Save the body of a run's network; the head is dropped, because the demo shows other people."""
    body = {name: value for name, value in read_tensors(run / RUN_MODEL).items() if name.startswith("body.")}
    write_atomically(file, safetensors.torch.save(body))


if __name__ == "__main__":
    save_body(Path(sys.argv[1]), Path(sys.argv[2]))
