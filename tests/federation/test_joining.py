"""From an invitation to an admitted site: what is exchanged, what is refused, what is secret."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedra.config.reading import read
from fedra.errors import ConfigError
from fedra.federation import keys
from fedra.federation.admissions import admit_site, admitted_sites, read_admissions, remove_site
from fedra.federation.coordinator_folder import create_federation, make_plan, open_invitation, renew_federation
from fedra.federation.federation_plan import FederationPlan, FederationSection, read_plan
from fedra.federation.invitation import Invitation, read_invitation, read_request
from fedra.federation.site_config import SiteConfig
from fedra.federation.site_folder import (
    approve_plan,
    create_site_folder,
    is_approved,
    open_site_invitation,
    renew_site_certificate,
    replace_invitation,
)


def plan_of(name: str = "chest", **config: object) -> FederationPlan:
    table = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "rounds": 3, **config}
    return make_plan(read(table), FederationSection(name=name, address="fed.example.org:8443"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "chest"
    create_federation(folder, plan_of(), ["10.0.0.7"])
    return folder


@pytest.fixture
def chest(base: Path, tmp_path: Path) -> Path:
    """A federation of its own for each test, with the keys of one."""
    return Path(shutil.copytree(base, tmp_path / "chest"))


def new_site(folder: Path, chest: Path, name: str = "st-mary") -> Path:
    site = SiteConfig.model_validate({"name": name, "data": {"path": "/data"}})
    create_site_folder(folder, read_invitation(chest / "chest.invite"), site)
    return folder


def test_the_invitation_has_address_authority_and_plan_and_no_secret(chest: Path) -> None:
    invitation = read_invitation(chest / "chest.invite")
    assert invitation.plan.federation.address == "fed.example.org:8443"
    assert invitation.plan.digest == read_plan(chest).digest
    assert invitation.fingerprint == open_invitation(chest).fingerprint
    assert "PRIVATE" not in (chest / "chest.invite").read_text()
    for secret in (keys.authority_files(chest).key, keys.server_files(chest).key):
        body = secret.read_text().splitlines()[1]
        assert body not in (chest / "chest.invite").read_text()


def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("fedra.federation.coordinator_folder.write_invitation", fail)
    with pytest.raises(OSError, match="disk full"):
        create_federation(tmp_path / "chest", plan)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_not_overwritten(chest: Path) -> None:
    with pytest.raises(ConfigError, match="new or empty"):
        create_federation(chest, read_plan(chest))


def test_an_admitted_site_is_listed_until_it_is_removed(chest: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path / "mary", chest)
    record = admit_site(chest, read_request(site / "st-mary.site"))
    assert set(admitted_sites(chest)) == {"st-mary"}
    assert record.fingerprint == keys.fingerprint(keys.read_certificate(keys.site_files(site).certificate))
    remove_site(chest, "st-mary", "left the study")
    assert admitted_sites(chest) == {}
    assert read_admissions(chest)["st-mary"].reason == "left the study"
    admit_site(chest, read_request(site / "st-mary.site"))
    assert set(admitted_sites(chest)) == {"st-mary"}


def test_a_taken_name_and_a_taken_key_are_refused(chest: Path, tmp_path: Path) -> None:
    first, second = new_site(tmp_path / "1", chest), new_site(tmp_path / "2", chest)
    admit_site(chest, read_request(first / "st-mary.site"))
    with pytest.raises(ConfigError, match="another key"):
        admit_site(chest, read_request(second / "st-mary.site"))
    remove_site(chest, "st-mary")
    with pytest.raises(ConfigError, match="another key"):
        admit_site(chest, read_request(second / "st-mary.site"))


def test_a_renamed_request_is_refused(chest: Path, tmp_path: Path) -> None:
    path = new_site(tmp_path / "1", chest) / "st-mary.site"
    path.write_text(path.read_text().replace('name = "st-mary"', 'name = "st-john"'))
    with pytest.raises(ConfigError, match="certificate"):
        read_request(path)


def test_removing_an_unknown_site_names_the_nearest(chest: Path, tmp_path: Path) -> None:
    admit_site(chest, read_request(new_site(tmp_path / "1", chest) / "st-mary.site"))
    with pytest.raises(ConfigError, match="did you mean 'st-mary'"):
        remove_site(chest, "st-mari")


def test_a_renewed_certificate_is_admitted_under_the_same_fingerprint(chest: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path / "1", chest)
    before = admit_site(chest, read_request(site / "st-mary.site"))
    after = admit_site(chest, read_request(renew_site_certificate(site)))
    assert after.fingerprint == before.fingerprint
    assert after.certificate != before.certificate


def test_renewing_the_server_keeps_the_invitation_valid(chest: Path) -> None:
    before = read_invitation(chest / "chest.invite")
    path = renew_federation(chest, ["new.example.org"])
    assert read_invitation(path).fingerprint == before.fingerprint
    names = keys.server_names(keys.read_certificate(keys.server_files(chest).certificate))
    assert set(names) == {"fed.example.org", "10.0.0.7", "new.example.org"}


def test_another_plan_must_be_approved_again(chest: Path, tmp_path: Path) -> None:
    site, plan = new_site(tmp_path / "1", chest), read_plan(chest)
    assert not is_approved(site, plan)
    approve_plan(site, plan)
    assert is_approved(site, plan)
    other = plan_of(rounds=4)
    assert not is_approved(site, other)
    authority = open_invitation(chest).authority
    replace_invitation(site, Invitation(authority, other))
    assert open_site_invitation(site).plan.digest == other.digest


def test_an_invitation_of_another_federation_is_refused(chest: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path / "1", chest)
    other = create_federation(tmp_path / "other", plan_of("chest"))
    with pytest.raises(ConfigError, match="same federation"):
        replace_invitation(site, other)


def test_a_damaged_invitation_is_named(chest: Path) -> None:
    path = chest / "chest.invite"
    path.write_text(path.read_text().replace("BEGIN CERT", "BEGIN CART"))
    with pytest.raises(ConfigError, match=r"chest\.invite"):
        read_invitation(path)


def test_a_method_that_owns_classes_has_sites_number_their_own_people() -> None:
    plan = plan_of(algorithm={"name": "fedgc"}, model={"name": "mlp"})
    assert plan.schema.identities == "own"
    assert plan.schema.classes == ()


def test_the_schema_can_be_written_instead_of_a_data_set() -> None:
    data = {"name": "sites", "shape": [1, 32, 32], "classes": ["normal", "pneumonia"]}
    assert plan_of(data=data).schema.classes == ("normal", "pneumonia")
    with pytest.raises(ConfigError, match=r"data\.identities must be 'own'"):
        plan_of(data=data, algorithm={"name": "fedgc"})
