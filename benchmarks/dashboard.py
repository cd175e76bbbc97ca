"""How long the dashboard needs to list many runs: `python benchmarks/dashboard.py [RUNS]`."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fedra

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "raw_path": b"/",
    "root_path": "",
    "scheme": "http",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}
SETTINGS = {"rounds": 3, "model": {"name": "mlp"}, "runner": {"name": "sequential"}}


async def ask(app: Any) -> bytes:
    """The body of the list of runs, without a network."""
    body = b""

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    await app(dict(SCOPE), receive, send)
    return body


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fedra.run(SETTINGS, out=root / "run-0000")
        shutil.rmtree(root / "run-0000" / "checkpoint")
        (root / "run-0000" / "model.safetensors").unlink()
        for number in range(1, count):
            shutil.copytree(root / "run-0000", root / f"run-{number:04}")
        app = fedra.dashboard.build_app(root)
        for attempt in ("first time", "again", "after one round of one run"):
            if attempt.startswith("after"):
                with open(root / "run-0001" / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write('{"round": 4, "accuracy": 0.5, "seconds": 1.0}\n')
            started, busy = time.perf_counter(), time.process_time()
            body = asyncio.run(ask(app))
            seconds, busy = time.perf_counter() - started, time.process_time() - busy
            assert body.count(b"<tr data-words") == count
            print(f"{count} runs listed, {attempt}: {seconds:.2f} s ({busy:.2f} s of CPU), {len(body) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
