"""`fedra doctor`: versions, devices and extras of this machine, and whether a run's checkpoint is intact."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedra import __version__
from fedra.console import steps, tell
from fedra.data import data_root
from fedra.data.download import offline
from fedra.errors import RunError
from fedra.storage.run_folder import RunFolder

PACKAGES = ("torch", "numpy", "scikit-learn", "pydantic", "typer", "rich", "safetensors", "pillow", "matplotlib")

EXTRAS = {
    "tensorboard": ("tensorboard",),
    "ray": ("ray",),
    "tsne": ("openTSNE",),
    "faces": ("onnx", "onnxruntime"),
    "onnx": ("onnx", "onnxruntime"),
    "index": ("faiss",),
    "federation": ("flwr", "cryptography"),
    "privacy": ("dp_accounting", "cryptography"),
    "dashboard": ("starlette", "uvicorn"),
}
"""Optional features and the packages they need."""


def examine_machine() -> Table:
    """Return a table of versions, devices, the data root and extras."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("fedra", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        table.add_row(package, importlib.metadata.version(package))
    table.add_row("cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads")
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    table.add_row("cuda", ", ".join(cuda) or "no device")
    root = data_root()
    if root.is_dir():
        found = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
        table.add_row("data root", escape(f"{root}: {', '.join(found) or 'empty'}"))
    else:
        table.add_row("data root", f"{root} (does not exist yet; set FEDRA_DATA to use another folder)")
    table.add_row("downloads", "off (FEDRA_OFFLINE)" if offline() else "on")
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        needed = escape(f"missing: pip install 'fedra[{extra}]'")  # brackets are markup
        table.add_row(f"extra {extra}", needed if missing else "installed")
    return table


def verify_checkpoint(run: Path, console: Console) -> None:
    """Compare every file of a run's checkpoint with its checksum, list damaged ones, and raise if there are any."""
    folder = RunFolder(run)
    folder.config()
    checkpoint = folder.checkpoint
    if not checkpoint.exists():
        tell(console, f"the run in '{run}' has no checkpoint to verify")
        return
    clients = checkpoint.client_count()
    with steps(console, "verifying", clients) as advance:
        rounds, damages = checkpoint.examine(advance)
    for damage in damages:
        tell(console, damage)
    checked = f"the checkpoint of '{run}' after round {rounds} (the server's file and those of {clients:,} clients)"
    if damages:
        raise RunError(
            f"all files must be intact in {checked}, got {len(damages)} damaged: restore the listed files from a "
            "backup, or resume without them"
        )
    tell(console, f"all files are intact in {checked}")
