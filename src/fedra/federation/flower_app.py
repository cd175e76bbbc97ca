"""Write a stock Flower app that runs a configuration: three short files around fedra's own client and server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tomli_w

import fedra
from fedra.config.reading import write
from fedra.errors import ConfigError
from fedra.experiment.secure_run import is_secure
from fedra.federation.coordinator_folder import new_folder, read_settings
from fedra.federation.site_config import require_name
from fedra.writing import write_atomically

PACKAGE = "fedra_app"
CONFIG = "config.toml"
PLACEHOLDER = "flower:1"
"""The address of a federation whose connections Flower makes."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A federation of fedra {version} as a Flower app"
license = "Apache-2.0"
dependencies = []  # fedra {version} must be installed at every node; Flower would fetch what is listed here

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
nodes = {nodes}       # how many nodes must be there before round one
out = "{out}"  # the run's folder on the server's machine; a second `flwr run` goes on with it
memory = ""     # where nodes keep client state unless --node-config says so
"""
SERVER = '''\
"""The server of the federation."""

from pathlib import Path

from fedra.federation.flower.stock_app import build_server_app

app = build_server_app(Path(__file__).with_name("config.toml"))
'''
CLIENT = '''\
"""A node of the federation."""

from pathlib import Path

from fedra.federation.flower.stock_app import build_client_app

app = build_client_app(Path(__file__).with_name("config.toml"))
'''
README = """\
# {name}

A federation of fedra {version} as a stock Flower app. fedra must be installed at the server and at every node.

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flwr run . local --stream --federation-config "num-supernodes={nodes}"     # Flower's simulation, needs ray

On a deployment, start each node with its own data and a folder that it keeps:

    flower-supernode --superlink HOST:PORT ... --node-config 'name="st-mary" data="/data/xray" memory="/var/lib/fedra"'
    flwr run . my-superlink --stream

Flower runs the code of this app at every node: everyone who may start a run there may run anything. `fedra federate
init` sets up a federation in which no code travels and each site has a policy.
"""


def write_app(config: Path, overrides: Sequence[str], folder: Path, *, nodes: int, name: str | None = None) -> None:
    """Write a Flower app.

    Args:
        config: The configuration file.
        overrides: Settings that override the file.
        folder: The app's folder, which must be new or empty.
        nodes: How many nodes must be there before round one.
        name: The app's name; by default the folder's.
    """
    if nodes < 1:
        raise ConfigError(f"nodes must be at least 1, got {nodes}")
    title = require_name(name or folder.absolute().name, "an app")
    settings, rules = read_settings(config, overrides, name=title, address=PLACEHOLDER)
    if is_secure(settings):
        raise ConfigError(
            "[secure] needs sites with keys of their own, which nodes of a stock Flower app do not have: use "
            "`fedra federate init`, or remove the section"
        )
    given = rules.model_dump(include=rules.model_fields_set - {"name", "address", "sites", "least"})
    text = write(settings) + (tomli_w.dumps({"federation": given}) if given else "")
    values = {
        "name": title,
        "package": PACKAGE,
        "publisher": "fedra",
        "version": fedra.__version__,
        "nodes": nodes,
        "out": f"{title}-run",
    }
    with new_folder(folder, "an app") as temporary:
        (temporary / PACKAGE).mkdir()
        for path, content in (
            ("pyproject.toml", PROJECT.format(**values)),
            ("README.md", README.format(**values)),
            (f"{PACKAGE}/__init__.py", ""),
            (f"{PACKAGE}/server_app.py", SERVER),
            (f"{PACKAGE}/client_app.py", CLIENT),
            (f"{PACKAGE}/{CONFIG}", text),
        ):
            write_atomically(temporary / path, content.encode())
