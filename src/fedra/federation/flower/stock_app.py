"""A federation as a stock Flower app, by Flower's public names alone: a link over its `Grid`, and a `ClientApp`.

Flower's own programs carry the messages: SuperLink and SuperNodes, or its simulation. The messages, the rounds and the
sites are the same as in fedra's own coordinator, so the result is the same. `docs/federation.md` says what this way
does not protect.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.experiment.build import Built, build
from fedra.federation.coordinator_folder import make_plan, read_settings
from fedra.federation.federation_plan import SITES, FederationPlan
from fedra.federation.link import Answer
from fedra.federation.node_side import NodeSide
from fedra.federation.partition_side import PartitionSide
from fedra.federation.rehearsal import deal_clients, rehearsed_roster, simulated
from fedra.federation.roster import write_roster
from fedra.federation.serve import Coordinator
from fedra.federation.site_config import require_name
from fedra.federation.site_node import SiteNode
from fedra.federation.wire import Packet
from fedra.storage.run_folder import RunFolder

HELLO = "hello"
"""The question for a node's name, which Flower does not know."""
PARTITION = "partition-"
"""The beginning of the name of a node that is known by the number of its partition."""
STYPE = "fedra.safetensors"
PAUSE = 0.5
"""Seconds between two looks for answers."""
HELLO_SECONDS = 300.0


def to_record(message: Packet) -> RecordDict:
    """Return a message as the content of a Flower message: words, and tensors as safetensors bytes."""
    arrays = {
        name: Array(dtype="uint8", shape=(len(blob),), stype=STYPE, data=blob) for name, blob in message.blobs.items()
    }
    about = ConfigRecord({"kind": message.kind, "words": message.words})
    return RecordDict({"about": about, "tensors": ArrayRecord(arrays)})


def from_record(content: RecordDict) -> Packet:
    """Return the message in the content of a Flower message."""
    about, arrays = content.config_records["about"], content.array_records["tensors"]
    return Packet(str(about["kind"]), str(about["words"]), {name: array.data for name, array in arrays.items()})


class GridLink:
    """A link to Flower's nodes; a node's name comes from its own configuration."""

    def __init__(self, grid: Grid, least: int) -> None:
        self._grid, self._least = grid, least
        self._tickets = itertools.count()
        self._waiting: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._looked = 0.0
        self._online: set[int] = set()

    def present(self) -> list[str]:
        """Return the nodes by name; none before all are there, so that they are always numbered in the same order."""
        if time.monotonic() - self._looked > PAUSE:
            self._online = set(self._grid.get_node_ids())
            self._looked = time.monotonic()
        new = sorted(self._online - self._names.keys())
        if len(self._online) >= self._least and new:
            self._names |= self._meet(new)
        found = sorted(self._names[node] for node in self._online if node in self._names)
        return found if len(self._names) >= self._least else []

    def _meet(self, nodes: list[int]) -> dict[int, str]:
        """Ask nodes for their names."""
        asked = [Message(to_record(Packet(HELLO, "{}")), node, "query", ttl=HELLO_SECONDS) for node in nodes]
        found: dict[int, str] = {}
        for reply in self._grid.send_and_receive(asked, timeout=HELLO_SECONDS):
            if not reply.has_error():
                found[reply.metadata.src_node_id] = require_name(from_record(reply.content).words, "a node")
        names = [*self._names.values(), *found.values()]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"every node must have its own name, got {', '.join(sorted(names))}: set `name` or `partition-id` in "
                "--node-config"
            )
        return found

    def last_seen(self, site: str) -> float | None:
        return 0.0 if site in self.present() else None

    def send(self, site: str, question: Packet, seconds: float) -> int:
        node = next(node for node, name in self._names.items() if name == site)
        kind = question.kind if question.kind in ("train", "evaluate") else "query"
        (identity,) = self._grid.push_messages([Message(to_record(question), node, kind, ttl=seconds)])
        ticket = next(self._tickets)
        self._waiting[identity] = ticket
        return ticket

    def collect(self, seconds: float) -> dict[int, Answer]:
        until = time.monotonic() + seconds
        found: dict[int, Answer] = {}
        while self._waiting and not found:
            for reply in self._grid.pull_messages(list(self._waiting)):
                ticket = self._waiting.pop(reply.metadata.reply_to_message_id, None)
                if ticket is not None:
                    reason = f"Flower: {reply.error.reason or reply.error.code}" if reply.has_error() else None
                    found[ticket] = from_record(reply.content) if reason is None else reason
            if time.monotonic() >= until:
                break
            time.sleep(0 if found else PAUSE)
        return found

    def drop(self, ticket: int) -> None:
        self._waiting = {identity: one for identity, one in self._waiting.items() if one != ticket}

    def limit(self, nbytes: int) -> None:
        """Limit nothing: Flower's SuperLink has its own limits."""

    def close(self) -> None:
        self._waiting.clear()


def read_app_settings(config: Path) -> Config:
    """Return the configuration of an app, as the simulator runs it for a comparison."""
    settings, _ = read_settings(config, (), name="flower", address="flower:1")
    return settings if settings.data.name == SITES else simulated(settings)


def read_app_plan(config: Path, nodes: int) -> FederationPlan:
    """Return the plan of an app's configuration file."""
    rules = {"name": "flower", "address": "flower:1", "sites": nodes, "least": min(2, nodes)}
    _, federation = read_settings(config, (), **rules)
    settings = read_app_settings(config)
    own_test = settings.data.name != SITES
    if own_test and "evaluation" not in federation.model_fields_set:
        federation = federation.model_copy(update={"evaluation": "server"})
    return make_plan(settings, federation)


def build_server_app(config: Path) -> ServerApp:
    """Build the app's server: fedra's coordinator over Flower's grid.

    Args:
        config: The app's configuration file.

    Returns:
        The ServerApp. Its run configuration has `nodes` (how many must be there) and `out` (the run's folder, which a
        second `flwr run` goes on with).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        nodes = int(context.run_config["nodes"])
        out = Path(str(context.run_config["out"])).expanduser()
        plan = read_app_plan(config, nodes)
        settings = read_app_settings(config)
        built = None if settings.data.name == SITES else build(settings)
        link = GridLink(grid, nodes)
        kept = out.with_name(f"{out.name}-federation")
        if built is not None:
            _number_clients(link, built, nodes, kept)
        test = None if built is None else built.dataset
        Coordinator(plan, link, kept, RunFolder(out), test=test, console=Console(width=120)).run()

    return app


def _number_clients(link: GridLink, built: Built, nodes: int, kept: Path) -> None:
    """Give the clients of a partition the numbers and classes that they have in the simulator."""
    path = kept / "roster.json"
    while len(names := link.present()) < nodes:
        time.sleep(PAUSE)
    if names == [f"{PARTITION}{number:06}" for number in range(nodes)] and not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        dealt = deal_clients(len(built.job.clients), nodes).values()
        write_roster(path, rehearsed_roster(built, dict(zip(names, dealt, strict=True))))


def build_client_app(config: Path) -> ClientApp:
    """Build the app's client: a fedra site whose folder is in the node's own configuration.

    Args:
        config: The app's configuration file.

    Returns:
        The ClientApp. `--node-config` has `data` (folder of images) or `partition-id` and `num-partitions`, `memory`
        (where client state is kept between rounds and runs), and `name`.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        node = dict(context.node_config)
        name = node_name(node)
        question = from_record(message.content)
        if question.kind == HELLO:
            return Message(to_record(Packet(HELLO, name)), reply_to=message)
        folder = memory_folder(node, context.run_config) / name
        replied = _site(config, folder, name, node).answer(question)
        return Message(to_record(replied), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def node_name(node: Mapping[str, Any]) -> str:
    """Return a node's name: that of its configuration, or the number of its partition."""
    if "name" in node:
        return require_name(str(node["name"]), "a node")
    if "partition-id" in node:
        return f"{PARTITION}{int(node['partition-id']):06}"
    raise ConfigError("--node-config must have `name`, or `partition-id` and `num-partitions`, got neither")


def memory_folder(node: Mapping[str, Any], run: Mapping[str, Any]) -> Path:
    """Return where client state is kept: `memory` of the node or of the run, or a temporary folder of the user."""
    given = node.get("memory") or run.get("memory")
    return Path(str(given)).expanduser() if given else Path(tempfile.gettempdir()) / f"fedra-flower-{os.getuid()}"


def _site(config: Path, folder: Path, name: str, node: Mapping[str, Any]) -> SiteNode:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = read_app_settings(config)
    side: NodeSide | PartitionSide
    if "data" in node or (folder / "site.toml").exists():
        side = NodeSide(folder, name, str(node.get("data", "")))
    elif settings.data.name != SITES and "partition-id" in node:
        built = build(settings)
        dealt = list(deal_clients(len(built.job.clients), int(node["num-partitions"])).values())
        side = PartitionSide(built, dealt[int(node["partition-id"])])
    else:
        raise ConfigError(f"--node-config of '{name}' must have `data`, the folder of its images, got none")
    return SiteNode(folder, side, runner="sequential", tell=print)
