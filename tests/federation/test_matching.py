"""People who are at several sites, matched by tokens with a secret that the coordinator does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_people import FolderFederation

from fedra.core.batches import Examples
from fedra.core.job import Job, ServerJob
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.data.clients import LocalLabels, SeparateClients
from fedra.errors import ConfigError, RunError
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds as rounds_of
from fedra.federation import wire
from fedra.federation.local_data.matching import (
    SECRET,
    copy_secret,
    create_secret,
    person_tokens,
    read_secret,
    secret_fingerprint,
    secret_mark,
)
from fedra.federation.policy import Demands, Policy, refuse
from fedra.federation.roster import FederationRoster, read_roster
from fedra.federation.server_build import build_server
from fedra.federation.site_check import check_site_folder
from fedra.federation.site_job import plan_transform
from fedra.runners import RUNNERS
from fedra.storage.checkpoint import load_model
from fedra.storage.state import State

pytestmark = pytest.mark.usefixtures("without_curves")
SORTED = {"north": ["anna", "bela", "cleo"], "south": ["bela", "dora"], "west": ["anna", "cleo", "emil"]}
MIXED = {"north": ["anna", "bela", "cleo"], "south": ["aaron", "bela"], "west": ["abel", "anna", "emil"]}


def holdings_of(people: dict[str, list[str]]) -> list[list[int]]:
    """The naive way, which knows all names: a number for each person, in the order in which sites name them."""
    numbers: dict[str, int] = {}
    return [[numbers.setdefault(name, len(numbers)) for name in names] for names in people.values()]


def words_of(*clients: str, secret: str | None = "a" * 64) -> wire.SiteWords:
    described = [
        wire.ClientWords(examples=5, classes=len(names), people=[f"{ord(name):064x}" for name in names])
        for names in clients
    ]
    return wire.SiteWords(fedra="1", torch="1", clients=described, shape=(5,), secret=secret)


def test_a_token_needs_the_secret_and_belongs_to_one_federation(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    secret = create_secret(tmp_path / "a")
    assert copy_secret(tmp_path / "b", tmp_path / "a" / SECRET) == secret == read_secret(tmp_path / "b")
    assert (tmp_path / "b" / SECRET).stat().st_mode & 0o077 == 0
    one, composed, decomposed = person_tokens(secret, "chest", ["Ada", "Zo\u00eb", "Zoe\u0308"])
    assert composed == decomposed != one
    assert person_tokens(secret, "other", ["Ada"]) != [one]
    assert person_tokens(bytes(32), "chest", ["Ada"]) != [one]
    assert secret.hex() not in one + secret_mark(secret, "chest") + secret_fingerprint(secret)


def test_a_secret_is_never_replaced_and_never_chosen_by_people(tmp_path: Path) -> None:
    create_secret(tmp_path)
    with pytest.raises(ConfigError, match="must not exist"):
        create_secret(tmp_path)
    (tmp_path / SECRET).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(tmp_path)
    (tmp_path / "chosen").write_text("correct horse battery staple")
    (tmp_path / "site").mkdir()
    with pytest.raises(ConfigError, match="can be guessed"):
        copy_secret(tmp_path / "site", tmp_path / "chosen")
    with pytest.raises(ConfigError, match="fedra site secret"):
        read_secret(tmp_path / "site")


def test_a_policy_must_allow_tokens() -> None:
    asked = Demands(algorithms=("fedgc",), model="mlp", match_identities=True)
    (reason,) = refuse(asked, Policy())
    assert reason.startswith("policy.match_identities = false")
    assert refuse(asked, Policy(match_identities=True)) == []


def test_equal_tokens_are_one_class_of_several_owners() -> None:
    roster = FederationRoster()
    for site, clients in {"a": ("xyz", "x"), "b": ("yw",)}.items():
        roster = roster.with_site(site, words_of(*clients), owned=True, equal=False, matched=True)
    assert [client.holds for client in roster.clients] == [(0, 1, 2), (0,), (1, 3)]
    assert roster.classes == 4
    grown = roster.with_site("b", words_of("ywzv"), owned=True, equal=False, matched=True, round=3)
    assert grown.clients[2].holds == (1, 3, 2, 4)
    assert (grown.clients[2].since, grown.clients[0].since, grown.classes) == (3, 0, 5)
    for words in (words_of("wy"), words_of("y"), words_of("yy")):
        with pytest.raises(RunError):
            roster.with_site("b", words, owned=True, equal=False, matched=True)
    with pytest.raises(RunError, match="same secret"):
        roster.with_site("c", words_of("x", secret="b" * 64), owned=True, equal=False, matched=True)


@pytest.mark.parametrize(("people", "bits"), [(SORTED, True), (MIXED, False)])
def test_shared_people_train_as_in_the_simulator(people: dict[str, list[str]], bits: bool, tmp_path: Path) -> None:
    """To the bit if local numbers have the order of the classes; otherwise sums have another order."""
    federation = FolderFederation(tmp_path, people)
    federation.run()
    roster = read_roster(tmp_path / "coordinator" / "roster.json")
    assert [list(client.holds or ()) for client in roster.clients] == holdings_of(people)
    found = load_model(tmp_path / "run" / "model.safetensors")[0]
    expected = simulate(federation, holdings_of(people)).params
    apart = max(float((found[name] - value).abs().max()) for name, value in expected.items())
    assert apart == 0 if bits else apart < 1e-5
    alone = simulate(federation, disjoint(people)).params
    body = next(iter(expected))
    assert not torch.equal(alone[body], expected[body])  # sharing makes a difference


def disjoint(people: dict[str, list[str]]) -> list[list[int]]:
    return holdings_of({site: [f"{site}/{name}" for name in names] for site, names in people.items()})


def simulate(federation: FolderFederation, holdings: list[list[int]]) -> Weights:
    """The same rounds in the simulator, which knows who everybody is."""
    plan, count = federation.plan, 1 + max(max(own) for own in holdings)
    sides = [side.data(plan) for side in federation.sides.values()]
    owners = Owners([torch.tensor(sorted(own)) for own in holdings], count)
    transform = plan_transform(plan.schema)
    examples = []
    for data, own in zip(sides, holdings, strict=True):
        inputs, targets = data.train(0)
        examples.append(Examples(inputs, torch.tensor(own)[targets], transform))
    roster = read_roster(federation.folder / "coordinator" / "roster.json").model_copy(update={"classes": count})
    server = build_server(plan, roster)
    names = {field: getattr(server.job, field) for field in ServerJob.__dataclass_fields__}
    job = Job(**names | {"clients": LocalLabels(SeparateClients(examples), owners), "owners": owners})
    state = State.fresh(job)
    for _ in rounds_of(job, RUNNERS["sequential"](job), Plan(federation.rounds, evaluate_every=99), state):
        pass
    return state.server.weights


def test_no_name_and_no_secret_crosses(tmp_path: Path) -> None:
    federation = FolderFederation(tmp_path, SORTED)
    federation.run()
    secret = read_secret(tmp_path / "north")
    passed = b"".join(
        one.words.encode() + b"".join(one.blobs.values())
        for _, question, answer in federation.link.passed
        for one in (question, answer)
        if isinstance(one, wire.Packet)
    )
    for word in (*{name.encode() for names in SORTED.values() for name in names}, secret, secret.hex().encode()):
        assert word not in passed
    kept = b"".join(path.read_bytes() for path in (tmp_path / "coordinator").rglob("*") if path.is_file())
    assert secret.hex().encode() not in kept
    assert (tmp_path / "coordinator" / "roster.json").stat().st_mode & 0o077 == 0


def test_a_site_with_another_secret_is_refused_by_name(tmp_path: Path) -> None:
    federation = FolderFederation(tmp_path, SORTED)
    (tmp_path / "west" / SECRET).unlink()
    create_secret(tmp_path / "west")
    coordinator = federation.coordinator()
    for site in SORTED:
        coordinator._describe(site)
    assert any(line.startswith("west does not take part: west must have the same secret") for line in federation.told)
    assert coordinator.roster.sites() == ["north", "south"]


def test_check_says_what_tokens_mean(tmp_path: Path) -> None:
    FolderFederation(tmp_path, SORTED, policies={"south": {"match_identities": False}})
    text = "\n".join(check_site_folder(tmp_path / "north", network=False).lines())
    assert "a token of each person" in text
    assert "can test guesses of names" in text
    assert secret_fingerprint(read_secret(tmp_path / "north")) in text
    refused = check_site_folder(tmp_path / "south", network=False)
    assert not refused.ready
    assert "policy.match_identities = false" in "\n".join(refused.lines())
    (tmp_path / "west" / SECRET).unlink()
    missing = check_site_folder(tmp_path / "west", network=False)
    assert not missing.ready
    assert "fedra site secret" in "\n".join(missing.lines())
