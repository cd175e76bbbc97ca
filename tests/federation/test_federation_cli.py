"""The commands of coordinator and site, as people and scripts type them."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from test_site_data import fill

from fedra.federation.audit_log import AuditLog
from fedra.federation.serving import lock_file
from fedra.locking import is_held
from tiny import call

CONFIG = """
rounds = 2
[data]
name = "sites"
shape = [1, 8, 8]
classes = ["normal", "pneumonia"]
[model]
name = "mlp"
"""
DIGITS = r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}"

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("xray.toml").write_text(CONFIG)
    fill(tmp_path / "data", normal=100, Pneumonie=60)
    return tmp_path


def init_federation(capsys: Capsys) -> str:
    code, shown, _ = call(capsys, "federate", "init", "chest", "xray.toml", "--address", "127.0.0.1:9")
    assert code == 0
    found = re.search(f"fingerprint of this federation: ({DIGITS})", shown)
    assert found
    assert "chest/chest.invite" in shown
    assert re.search(f"plan digest: {DIGITS}", shown)
    return found[1]


def test_from_init_to_admitted(here: Path, capsys: Capsys) -> None:
    heard = init_federation(capsys)
    made = ("site", "init", "mary", "chest/chest.invite", "--name", "st-mary", "--data", "data")
    code, _, problem = call(capsys, *made, "--fingerprint", "0" * 32)
    assert code == 2
    assert "must be 0000" in problem
    assert not Path("mary").exists()
    code, shown, _ = call(capsys, *made, "--fingerprint", heard)
    assert code == 0
    own = re.search(f"your fingerprint: ({DIGITS})", shown)
    assert own

    code, shown, _ = call(capsys, "site", "check", "mary", "--no-network")
    assert code == 1
    assert "did you mean 'pneumonia'" in shown
    site = Path("mary/site.toml")
    site.write_text(site.read_text().replace("leaves out\n", 'leaves out\n"Pneumonie" = "pneumonia"\n'))
    code, shown, _ = call(capsys, "site", "check", "mary", "--no-network")
    assert code == 1  # not approved yet
    assert "160 images of 2 classes: normal 100, Pneumonie 60; 32 held out" in shown
    assert "labels: 'Pneumonie' -> 'pneumonia'" in shown
    code, shown, _ = call(capsys, "site", "approve", "mary", "--yes")
    assert code == 0
    assert call(capsys, "site", "check", "mary", "--no-network")[0] == 0

    code, shown, _ = call(capsys, "federate", "admit", "chest", "mary/st-mary.site", "--fingerprint", own[1])
    assert (code, shown.strip()) == (0, "admitted st-mary: 1 site")
    code, shown, _ = call(capsys, "federate", "remove", "chest", "st-mary", "--reason", "left")
    assert (code, shown.strip()) == (0, "removed st-mary: 0 sites left")


def test_a_plan_outside_the_policy_cannot_be_approved(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    call(capsys, "site", "init", "mary", "chest/chest.invite", "--data", "data", "--yes")
    site = Path("mary/site.toml")
    text = site.read_text().replace("leaves out\n", 'leaves out\n"Pneumonie" = ""\n')
    site.write_text(text.replace('secure_aggregation = "when-offered"', 'secure_aggregation = "required"'))
    code, _, problem = call(capsys, "site", "approve", "mary", "--yes")
    assert code == 2
    assert "policy.secure_aggregation = 'required'" in problem


def test_renewal_service_refresh_and_log(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    call(capsys, "site", "init", "mary", "chest/chest.invite", "--data", "data", "--yes")
    assert "for this machine alone; chest/chest.invite is up to date" in call(capsys, "federate", "renew", "chest")[1]
    code, shown, _ = call(capsys, "federate", "renew", "chest", "--also", "fed.example.org")
    assert code == 0
    assert "for fed.example.org; chest/chest.invite is up to date" in shown
    assert "fingerprint stays the same" in call(capsys, "site", "renew", "mary")[1]
    unit = call(capsys, "site", "service", "mary")[1]
    assert f"-m fedra.cli site join {here}/mary" in unit
    assert "RestartPreventExitStatus=2 3" in unit  # 3: two machines with one key would take turns
    site = Path("mary/site.toml")
    site.write_text(site.read_text().replace("leaves out\n", 'leaves out\n"Pneumonie" = "pneumonia"\n'))
    code, shown, _ = call(capsys, "site", "refresh", "mary", "--invite", "chest/chest.invite")
    assert (code, shown.strip()) == (0, "160 images, 32 of them held out")
    code, _, problem = call(capsys, "site", "log", "mary")
    assert code == 1
    assert "log.jsonl" in problem
    AuditLog(here / "mary" / "log.jsonl").record("sent", kind="describe")
    code, shown, _ = call(capsys, "site", "log", "mary")
    assert code == 0
    assert "1 lines, unchanged" in shown


def test_the_sites_secret_is_made_once_and_taken_by_the_others(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    for name in ("mary", "john"):
        call(capsys, "site", "init", name, "chest/chest.invite", "--data", "data", "--yes")
    code, shown, _ = call(capsys, "site", "secret", "mary")
    assert code == 0
    assert "never to the coordinator" in shown
    made = re.search(f"fingerprint of the sites' secret: ({DIGITS})", shown)
    assert made
    assert made[1] in call(capsys, "site", "secret", "mary")[1]  # shown, not made anew
    assert made[1] in call(capsys, "site", "secret", "john", "--from", "mary/match.secret")[1]
    code, _, problem = call(capsys, "site", "secret", "john", "--from", "mary/match.secret")
    assert code == 2
    assert "must not exist" in problem


def test_a_coordinator_in_the_background_is_watched_and_stopped(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    code, _, problem = call(capsys, "federate", "stop", "chest")
    assert code == 1
    assert "must be served by a process" in problem
    code, shown, _ = call(capsys, "federate", "serve", "chest", "--detach", "--listen", "127.0.0.1:0")
    assert code == 0, Path("chest/output.txt").read_text()
    found = re.search(r"process (\d+) serves", shown)
    assert found
    assert os.getsid(int(found[1])) == int(found[1])
    code, _, problem = call(capsys, "federate", "serve", "chest", "--detach")
    assert code == 1
    assert "is in use" in problem
    code, shown, _ = call(capsys, "federate", "status", "chest")
    assert code == 0
    assert "0 of 2 sites are there: round 0 of 2" in shown
    assert "no process" not in shown
    code, shown, _ = call(capsys, "federate", "stop", "chest", "--wait")
    assert (code, shown.splitlines()[-1]) == (0, "stopped")
    assert "interrupted" in call(capsys, "federate", "status", "chest")[1]
    assert "go on with the same command" in Path("chest/output.txt").read_text()
    assert Path("chest/output.txt").stat().st_mode & 0o077 == 0


def test_a_coordinator_in_the_background_that_cannot_listen_says_why(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, problem = call(capsys, "federate", "serve", "chest", "--detach", "--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert "the port is taken" in problem
    assert not is_held(lock_file(Path("chest")))


def test_without_an_answer_nothing_is_created(here: Path, capsys: Capsys) -> None:
    init_federation(capsys)
    code, _, _ = call(capsys, "site", "init", "mary", "chest/chest.invite", "--data", "data")
    assert code != 0
    assert not Path("mary").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("federate", "admit", "nowhere", "a.site"), "federate init"),
        (("site", "check", "nowhere"), "must exist"),
        (("federate", "init", "Chest", "xray.toml", "--address", "a:1"), "the name of a federation"),
        (("federate", "init", "chest", "xray.toml"), "address must be set"),
        (("federate", "init", "chest", "xray.toml", "federation.leest=3", "--address", "a:1"), "did you mean 'least'"),
    ],
)
def test_mistakes_are_one_sentence(here: Path, capsys: Capsys, words: tuple[str, ...], sentence: str) -> None:
    code, _, problem = call(capsys, *words)
    assert code == 2
    assert sentence in problem
    assert len(problem.strip().splitlines()) == 1


def test_the_coordinators_own_test_set_must_be_given_and_fit(here: Path, capsys: Capsys) -> None:
    words = ("federate", "init", "chest", "xray.toml", "federation.evaluation=both", "--address", "127.0.0.1:9")
    assert call(capsys, *words)[0] == 0
    code, _, problem = call(capsys, "federate", "serve", "chest")
    assert code == 2
    assert "--test" in problem
    Path("digits.toml").write_text("data = 'digits'\n")
    code, _, problem = call(capsys, "federate", "serve", "chest", "--test", "digits.toml")
    assert code == 2
    assert "10 classes in 'digits.toml'" in problem
