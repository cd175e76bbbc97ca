"""Create a federation: its plan, its keys and its invitation, all or nothing."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedra.config.mode import is_centralized
from fedra.config.names import build_algorithm
from fedra.config.overrides import apply_changes, parse_override
from fedra.config.reading import read
from fedra.config.resolve import record_weights_digest, resolve_defaults
from fedra.config.schema import Config, DataSection
from fedra.data import Dataset
from fedra.errors import ConfigError
from fedra.experiment.build import build_dataset, check_settings
from fedra.federation import keys
from fedra.federation.federation_plan import FILE, SITES, FederationPlan, FederationSection, read_plan
from fedra.federation.invitation import Invitation, write_invitation
from fedra.federation.local_data.data_schema import DataSchema, schema_of
from fedra.federation.tables import checked_table, read_table
from fedra.trust import allow_imports
from fedra.writing import write_atomically


def read_settings(path: Path, overrides: Sequence[str] = (), **federation: object) -> tuple[Config, FederationSection]:
    """Read a configuration that may have `[federation]`, and overrides of both.

    Args:
        path: The configuration file.
        overrides: Settings such as `rounds=5` or `federation.deadline=600`.
        federation: Keys of `[federation]` that the command line sets.

    Returns:
        The configuration, and how rounds are run.
    """
    table = read_table(path, "the configuration", "check the path")
    apply_changes(table, [parse_override(word) for word in overrides])
    rules = {**table.pop("federation", {}), **federation}
    return read(table), checked_table(FederationSection, rules, f"[federation] of '{path}'")


@allow_imports()
def make_plan(config: Config, federation: FederationSection) -> FederationPlan:
    """Make the plan of a federation from a configuration.

    Args:
        config: Any configuration. Its `[data]` are `name = "sites"` with the keys of the schema, or a data set that
            the coordinator has: the sites' data must then be of the same shape and classes.
        federation: How rounds are run.

    Returns:
        The plan, with every default written out.
    """
    if is_centralized(config):
        raise ConfigError("mode must be 'federated', got 'centralized': a federation has no pooled examples")
    algorithm = build_algorithm(config.algorithm)
    check_settings(config, algorithm)
    own = algorithm.owns_classes
    if config.data.name == SITES:
        schema = checked_table(DataSchema, config.data.settings, "[data]")
        if (schema.identities == "own") != own:
            needed = "'own'" if own else "'agreed', with names of classes,"
            raise ConfigError(
                f"data.identities must be {needed} for the algorithm '{config.algorithm.name}', got "
                f"'{schema.identities}'"
            )
    else:
        dataset = build_dataset(config)
        augment = dataset.augment if config.data.augment == "paper" else config.data.augment
        chosen = () if augment == "none" else tuple(augment)
        schema = schema_of(dataset, own_identities=own, augment=chosen)
    resolved = record_weights_digest(resolve_defaults(config.model_copy(update={"data": DataSection()})))
    resolved = resolved.model_copy(update={"data": DataSection(name=SITES), "sweep": None})
    return FederationPlan(resolved, schema, federation)


@allow_imports()
def read_test(path: Path, plan: FederationPlan) -> Dataset:
    """Read the coordinator's own test set: the data of a configuration, which must fit the plan."""
    config, _ = read_settings(path, (), name="test", address="test:1")
    dataset = build_dataset(config)
    if dataset.shape != plan.schema.shape or (plan.schema.classes and dataset.classes != plan.schema.classes):
        raise ConfigError(
            f"the test set must have the plan's shape {plan.schema.shape} and its classes, got shape {dataset.shape} "
            f"and {len(dataset.classes)} classes in '{path}': use another"
        )
    return dataset


def create_federation(folder: Path, plan: FederationPlan, also: Sequence[str] = ()) -> Invitation:
    """Create a coordinator's folder: plan, authority, server certificate, invitation.

    Args:
        folder: The folder, which must not exist or be empty.
        plan: The plan.
        also: More host names and IP addresses by which sites reach the coordinator.

    Returns:
        The invitation, which is in the folder too.
    """
    host = plan.federation.address.rpartition(":")[0].strip("[]")
    with new_folder(folder, "a federation") as temporary:
        authority = keys.create_authority(temporary, plan.federation.name)
        keys.create_server(temporary, [host, *also])
        write_atomically(temporary / FILE, plan.to_toml().encode())
        (temporary / "sites").mkdir()
        invitation = Invitation(keys.read_certificate(authority.certificate), plan)
        write_invitation(temporary / f"{plan.federation.name}.invite", invitation)
    return invitation


def open_invitation(folder: Path) -> Invitation:
    """Return the invitation to a coordinator's federation, as its plan is now."""
    return Invitation(keys.read_certificate(keys.authority_files(folder).certificate), read_plan(folder))


def renew_federation(folder: Path, also: Sequence[str] = (), *, new_key: bool = False) -> Path:
    """Issue a new server certificate and write the invitation anew; the fingerprint stays.

    Args:
        folder: The coordinator's folder.
        also: Host names and IP addresses to add to those of the present certificate.
        new_key: Whether to replace the server's key too.

    Returns:
        The file of the invitation.
    """
    invitation = open_invitation(folder)
    before = keys.server_names(keys.read_certificate(keys.server_files(folder).certificate))
    host = invitation.plan.federation.address.rpartition(":")[0].strip("[]")
    keys.renew_server(folder, list(dict.fromkeys([host, *before, *also])), new_key=new_key)
    path = folder / f"{invitation.plan.federation.name}.invite"
    write_invitation(path, invitation)
    return path


@contextmanager
def new_folder(folder: Path, what: str) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` when the block ends without an error."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder of {what} must be new or empty, got '{folder}': choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        if folder.exists():
            folder.rmdir()
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
