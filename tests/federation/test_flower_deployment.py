"""The stock app on Flower's own programs: a SuperLink and two SuperNodes on this machine, equal to the simulator."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedra
from fedra.federation.flower_app import write_app
from fedra.federation.rehearsal import find_free_port

CONFIG = """
rounds = 2
algorithm = "scaffold"
data = "digits"
runner = "sequential"
[partition]
name = "dirichlet"
alpha = 0.3
clients = 4
[model]
name = "mlp"
[local]
batch = 20
lr = 0.1
"""
OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
PROGRAMS = Path(sys.executable).parent


@contextmanager
def program(environment: dict[str, str], folder: Path, *words: str) -> Iterator[None]:
    """One of Flower's programs in the background."""
    with open(folder / f"{words[0]}-{words[-1][:14].replace(' ', '-')}.txt", "wb") as output:
        process = subprocess.Popen(
            [PROGRAMS / words[0], *words[1:]], stdout=output, stderr=output, env=environment, cwd=folder
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_for(port: int, seconds: float = 180.0) -> None:
    """Wait until a program listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"no program listens on port {port} after {seconds:.0f} s")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (PROGRAMS / "flower-superlink").exists(), reason="Flower's programs are not installed")
def test_two_rounds_on_a_superlink_with_two_supernodes_have_the_simulators_bits(tmp_path: Path) -> None:
    config = tmp_path / "digits.toml"
    config.write_text(CONFIG)
    fedra.run(config, out=tmp_path / "simulated")
    write_app(config, [], tmp_path / "my-app", nodes=2)
    port = find_free_port()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **OFF, "FLWR_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "PATH": path}
    link = ("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    node = ("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port")
    settings = [f'partition-id={number} num-partitions=2 memory="{tmp_path}/memory"' for number in range(2)]
    run = ["run", "my-app", "here", "--stream", "--run-config", f'out="{tmp_path}/run"']
    with program(environment, tmp_path, *link):
        wait_for(port)
        first = program(environment, tmp_path, *node, str(find_free_port()), "--node-config", settings[0])
        second = program(environment, tmp_path, *node, str(find_free_port()), "--node-config", settings[1])
        with first, second:
            found = subprocess.run(
                [PROGRAMS / "flwr", *run],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=1000,
                check=False,
            )
    assert "finished: round 2 of 2" in found.stdout + found.stderr, found.stdout + found.stderr
    expected, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("simulated", "run"))
    assert expected.keys() == trained.keys()
    assert all(torch.equal(trained[name], value) for name, value in expected.items())
