"""The stock Flower app: Flower's public names alone, and the simulator's bits."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_site_data import fill

import fedra
from fedra.errors import ConfigError
from fedra.federation.flower_app import PACKAGE, write_app
from fedra.federation.link import Link

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Flower's typer asks click for names that click will drop
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    from fedra.federation.flower import stock_app

CONFIG = """
rounds = 2
[data]
name = "digits"
fraction = 0.1
[partition]
clients = 4
[model]
name = "mlp"
hidden = [16]
[algorithm]
name = "{method}"
[local]
batch = 20
lr = 0.1
[runner]
name = "sequential"
"""


@pytest.fixture(autouse=True)
def within_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower's programs set before they call an app."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def write_config(folder: Path, method: str = "fedavg") -> Path:
    path = folder / "digits.toml"
    path.write_text(CONFIG.format(method=method))
    return path


class LocalGrid(Grid):
    """Flower's grid with its nodes in this process; every message goes through Flower's own classes."""

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]], run_config: dict[str, Any]) -> None:
        self._app, self._nodes, self._run_config = app, nodes, run_config
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("this way to make messages is deprecated")

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = str(self._count)
            node = message.metadata.dst_node_id
            context = Context(
                run_id=1, node_id=node, node_config=self._nodes[node], state=RecordDict(), run_config=self._run_config
            )
            self._replies[str(self._count)] = self._app(message, context)
            identities.append(str(self._count))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def simulate(config: Path, folder: Path) -> dict[str, torch.Tensor]:
    fedra.run(config, out=folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.trains
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgc"])
def test_the_app_has_the_simulators_bits(tmp_path: Path, method: str) -> None:
    config = write_config(tmp_path, method)
    expected = simulate(config, tmp_path / "simulated")
    write_app(config, [], tmp_path / "my-app", nodes=2)
    inside = tmp_path / "my-app" / PACKAGE / "config.toml"
    client, server = stock_app.build_client_app(inside), stock_app.build_server_app(inside)
    run_config = {"nodes": 2, "out": str(tmp_path / "run"), "memory": str(tmp_path / "memory")}
    nodes = {100 - number: {"partition-id": number, "num-partitions": 2} for number in range(2)}
    grid = LocalGrid(client, nodes, run_config)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config))
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_only_public_names_of_flower_are_imported() -> None:
    tree = ast.parse(Path(stock_app.__file__).read_text())
    imported = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None
    } | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    flower = {name for name in imported if name.partition(".")[0] == "flwr"}
    assert flower == {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert [name for name in private if name.startswith("__")] == []


def test_the_written_app_imports_and_has_both_apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_app(write_config(tmp_path), ["rounds=3"], tmp_path / "my-app", nodes=2)
    monkeypatch.syspath_prepend(tmp_path / "my-app")
    try:
        assert importlib.util.find_spec(f"{PACKAGE}.server_app") is not None
        from fedra_app.client_app import app as client  # type: ignore[import-not-found]

        assert isinstance(client, ClientApp)
    finally:
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
    assert stock_app.read_app_plan(tmp_path / "my-app" / PACKAGE / "config.toml", 2).config.rounds == 3
    with pytest.raises(ConfigError, match="new or empty"):
        write_app(write_config(tmp_path), [], tmp_path / "my-app", nodes=2)


def test_a_node_needs_a_name_and_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition-id"):
        stock_app.node_name({})
    assert stock_app.node_name({"partition-id": 3}) == "partition-000003"
    assert stock_app.node_name({"name": "st-mary", "partition-id": 3}) == "st-mary"


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    inside = write_config(tmp_path)
    client = stock_app.build_client_app(inside)
    link: Link = stock_app.GridLink(LocalGrid(client, {1: {"name": "a"}, 2: {"name": "a"}}, {}), 2)
    with pytest.raises(ConfigError, match="its own name"):
        link.present()


def test_nodes_are_not_numbered_before_all_are_there(tmp_path: Path) -> None:
    client = stock_app.build_client_app(write_config(tmp_path))
    grid = LocalGrid(client, {7: {"name": "b"}, 9: {"name": "a"}}, {})
    assert stock_app.GridLink(grid, 3).present() == []
    assert stock_app.GridLink(grid, 2).present() == ["a", "b"]


@pytest.mark.trains
def test_nodes_train_on_their_own_folders_and_keep_their_state(tmp_path: Path) -> None:
    config = tmp_path / "xray.toml"
    config.write_text(
        "rounds = 2\nalgorithm = 'scaffold'\nmodel = { name = 'mlp', hidden = [8] }\n"
        "data = { name = 'sites', shape = [1, 8, 8], classes = ['normal', 'pneumonia'] }\n"
    )
    for name, counts in (("st-mary", (12, 8)), ("st-john", (9, 15))):
        fill(tmp_path / name, normal=counts[0], pneumonia=counts[1])
    client, server = stock_app.build_client_app(config), stock_app.build_server_app(config)
    run_config = {"nodes": 2, "out": str(tmp_path / "run"), "memory": ""}
    nodes = {
        number: {"name": name, "data": str(tmp_path / name), "memory": str(tmp_path / "memory")}
        for number, name in enumerate(("st-mary", "st-john"), 1)
    }
    grid = LocalGrid(client, nodes, run_config)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config))
    clients = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    assert {(line["site"], line["examples"]) for line in clients} == {("st-mary", 16), ("st-john", 19)}
    assert list((tmp_path / "memory" / "st-mary" / "state" / "memory").rglob("*.safetensors"))
    assert (tmp_path / "memory" / "st-john" / "log.jsonl").exists()
