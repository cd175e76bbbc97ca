"""The plan of a federation: what is trained, on which kind of data, by which rules; all have the same.

The plan is plain data, written to `federation.toml`. What sites receive is its public part, whose digest a person at
each site approves; a plan with another digest is asked about again.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import AfterValidator, Field

from fedra.config.reading import read, write
from fedra.config.schema import Config, Section
from fedra.core.algorithm import Algorithm
from fedra.data.dataset import Dataset, Split
from fedra.errors import ConfigError
from fedra.federation.keys import group_digits
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.site_config import check_name
from fedra.federation.tables import checked_table, commented, read_table

SITES = "sites"
"""The name of data that the sites have."""
FILE = "federation.toml"
COORDINATORS = ("partition", "runner", "checkpoint", "memory", "diagnostics", "log", "faults")
"""Sections that concern the coordinator alone; sites do not receive them."""
HEADER = "# The plan of a federation. `fedra federate init` wrote it; a change needs a new invitation to every site.\n"


def check_address(address: str) -> str:
    """Return an address of the form host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host or " " in host:
        raise ValueError("must have the form host:port, such as fed.example.org:8443 or 10.0.0.7:8443")
    return address


class FederationSection(Section):
    """How the coordinator runs the rounds."""

    name: Annotated[str, AfterValidator(check_name)] = Field(description="name of the federation")
    address: Annotated[str, AfterValidator(check_address)] = Field(description="where sites reach the coordinator")
    sites: int = Field(2, ge=1, description="number of sites that must be there before round one")
    deadline: float = Field(3600.0, gt=0, description="seconds for a round; later answers are dropped")
    patience: float = Field(60.0, gt=0, description="seconds without a sign of life until a site is not waited for")
    least: int = Field(2, ge=1, description="never combine fewer sites: of one alone the new model shows its update")
    weighting: Literal["examples", "equal"] = Field(
        "examples", description="weight of a client in the mean; 'equal' where numbers of examples are private"
    )
    bound: float = Field(
        10.0, ge=0, description="refuse an update longer than so many times the median of the round; 0 for none"
    )
    evaluation: Literal["sites", "server", "both", "none"] = Field(
        "sites", description="who tests the global model: sites on what they hold out, the coordinator on its own set"
    )
    test: str = Field(
        "", description="name of the coordinator's own data set, whose test images evaluation 'server' and 'both' use"
    )
    share_model: bool = Field(True, description="whether sites keep the final model")


@dataclass(frozen=True)
class FederationPlan:
    """The plan: a configuration without data, what the data must be, and how rounds are run."""

    config: Config
    schema: DataSchema
    federation: FederationSection

    @property
    def public(self) -> dict[str, Any]:
        """What sites receive: plain data, without the coordinator's paths and settings."""
        table = tomllib.loads(write(self.config))
        for name in (*COORDINATORS, "device", "sweep"):
            table.pop(name, None)
        table["model"].pop("weights", None)
        table["data"] = {"name": SITES, **_plain(self.schema.model_dump(exclude_none=True))}
        return {**table, "federation": _plain(self.federation.model_dump(exclude={"test"}))}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of what sites receive, without the coordinator's address, which may change."""
        table = self.public
        table["federation"] = {key: value for key, value in table["federation"].items() if key != "address"}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def short_digest(self) -> str:
        """The digest as people compare it: 128 bits in groups of four digits."""
        return group_digits(self.digest[:32])

    def to_toml(self) -> str:
        """Return the content of `federation.toml`."""
        table = tomllib.loads(write(self.config))
        table["data"] = {"name": SITES, **_plain(self.schema.model_dump(exclude_none=True))}
        return f"{HEADER}{tomli_w.dumps(table)}\n{commented(self.federation, 'federation')}"

    def blank_dataset(self, classes: int | None = None) -> Dataset:
        """Return a data set of the plan's shape without examples, from which networks take their sizes.

        Args:
            classes: Number of classes, where sites have their own people.
        """
        names = self.schema.classes or tuple(str(number) for number in range(classes or 1))
        blank = Split(torch.zeros((0, *self.schema.shape), dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
        return Dataset(SITES, blank, blank, names, mean=self.schema.mean, std=self.schema.std)

    def at(self, address: str) -> FederationPlan:
        """Return the same plan at another address."""
        changed = {**self.federation.model_dump(), "address": address}
        return replace(self, federation=checked_table(FederationSection, changed, "the command"))


def parse_plan(table: dict[str, Any], where: str) -> FederationPlan:
    """Parse a plan from a table: a configuration whose data are the sites', and `[federation]`."""
    table = dict(table)
    federation, data = table.pop("federation", None), table.pop("data", None)
    if not isinstance(federation, dict) or not isinstance(data, dict) or data.get("name") != SITES:
        raise ConfigError(f'{where} must have [federation] and [data] with name = "{SITES}", got another file')
    schema = checked_table(
        DataSchema, {key: value for key, value in data.items() if key != "name"}, f"[data] of {where}"
    )
    return FederationPlan(
        read({**table, "data": {"name": SITES}}),
        schema,
        checked_table(FederationSection, federation, f"[federation] of {where}"),
    )


def read_plan(folder: Path) -> FederationPlan:
    """Read the plan in a coordinator's folder."""
    path = folder / FILE
    return parse_plan(read_table(path, "the plan", "create it with `fedra federate init`"), f"'{path}'")


def sends_class_embeddings(algorithm: Algorithm) -> bool:
    """Return whether clients send class vectors of their own people."""
    sharing = algorithm.sharing
    return bool(set(sharing.owned) - set(sharing.private) - set(sharing.frozen))


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table as TOML and JSON have it: lists in place of tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(table))
    return plain
