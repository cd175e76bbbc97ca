"""The connection to Ray: one that fedra starts on the loopback address of this machine, or a user's cluster."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedra.errors import ConfigError
from fedra.runners.packing import pack
from fedra.runners.processes import default_workers

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # do not change CUDA_VISIBLE_DEVICES, and do not warn about it
}
"""Defaults for Ray's environment variables: no usage statistics, no warnings."""

JOINED = {"RAY_BACKEND_LOG_LEVEL": "fatal"}
"""For this process in a user's cluster: a lost node is reported by the pool, not by lines of Ray's internals."""

OWN = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
"""For processes of a Ray that fedra starts: they end after so many seconds, not after 60, if fedra is killed."""


class RayCluster:
    """A connection to Ray; `started` says that this process made it and has to end it."""

    def __init__(self, address: str | None, cpus: int) -> None:
        self.log: Path | None = None
        self.ray = import_ray()
        self.started = connect(self.ray, address, cpus)
        self._head: str = self.ray.get_runtime_context().gcs_address
        if self.started:
            self._capture()

    def _capture(self) -> None:
        """Append what Ray tells this process to `log`; Ray would print the last lines of a lost node's log."""
        worker = self.ray._private.worker
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = self._write

    def _write(self, data: Mapping[str, Any], **_: Any) -> None:
        if self.log is not None:
            with open(self.log, "a", encoding="utf-8") as file:
                file.writelines(f"({data.get('pid')}) {line}\n" for line in data.get("lines", ()))

    def put(self, value: Any) -> Any:
        """Put a value into the object store, once for all workers of a node."""
        return self.ray.put(pack(value, self.ray.cloudpickle.CloudPickler))

    def nodes(self) -> list[Mapping[str, float]]:
        """The resources of the nodes that are alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def answers(self) -> bool:
        """Whether the head of the cluster still accepts connections; Ray itself would wait for it for a minute."""
        try:
            check_reachable(self._head)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the connection, and Ray itself if fedra started it."""
        if self.started and self.answers():
            self.ray.shutdown()
        self.started = False


def import_ray() -> Any:
    """Import Ray, an optional dependency."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray must be installed for the runner 'ray': pip install 'fedra[ray]'") from None
    return ray


def connect(ray: Any, address: str | None, cpus: int) -> bool:
    """Start Ray on this machine or join a cluster; False if this process is already connected, to be left connected."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    try:
        with _preserved(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves /dev/null open
            if address is None:
                _start(ray, max(cpus, default_workers()), quiet)
            else:
                check_reachable(address)
                with _environment(JOINED), _silenced():
                    ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error).strip().partition("\n")[0]
        where = "on this machine" if address is None else f"at runner.address = {address!r}"
        raise ConfigError(f"cannot connect to Ray {where} ({reason}): check the address, or leave it out") from None
    return True


def _start(ray: Any, cpus: int, quiet: Mapping[str, Any]) -> None:
    """Start Ray, which runs whatever it is sent, for processes of this machine alone."""
    with _loopback(ray), _environment(OWN):
        ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
    address = ray.nodes()[0]["NodeManagerAddress"]
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ConfigError(
            f"a Ray that fedra starts must listen on the loopback address alone, but this one listens on {address}: "
            "install the Ray of fedra's constraints.txt, or start your own ('ray start --head') and set runner.address"
        )


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Let Ray use the loopback address, as it does on systems where it forms no clusters.

    It replaces a loopback address that it is given, and the environment variable counts only before Ray's import.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside the block, unless the user has set them."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _silenced() -> Iterator[None]:
    """Drop what libraries write to standard error inside the block: Ray announces there that it will be quiet."""
    before = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)


@contextmanager
def _preserved() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def check_reachable(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def fitting_workers(nodes: Sequence[Mapping[str, float]], threads: int, gpus: float) -> int:
    """How many workers fit into the nodes; a worker does not span two of them."""
    return sum(
        min(int(node.get("CPU", 0) / threads), int(node.get("GPU", 0) / gpus) if gpus else 2**31) for node in nodes
    )


def count_workers(nodes: Sequence[Mapping[str, float]], requested: int | None, threads: int, gpus: float) -> int:
    """The requested number of workers, or as many as fit into the cluster."""
    possible = fitting_workers(nodes, threads, gpus)
    if possible < (requested or 1):
        cpus, all_gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        raise ConfigError(
            f"the Ray cluster must have {threads} CPUs and {gpus:g} GPUs for each of {requested or 1} workers, got "
            f"{cpus:g} CPUs and {all_gpus:g} GPUs on {len(nodes)} nodes: lower workers, threads or gpus"
        )
    return requested or possible
