"""A report says what is in the records, in one file that is safe to open."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from pathlib import Path

import pytest

import fedra
import tiny
from fake_runs import write_lines, write_run
from fedra.reports import model_card
from tiny import call, mistake


def text_of(path: Path) -> str:
    """What a reader sees: without style, script and tags."""
    page = re.sub(r"<(style|script)>.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def section(path: Path, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"there is no section {name}"
    return found[1]


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed, final in enumerate((0.5, 0.6, 0.8)):
        write_run(folder / f"fedavg-{seed}", [0.1, final], seed=seed)
        write_run(folder / f"fedprox-{seed}", [0.2, 0.9], seed=seed, algorithm={"name": "fedprox", "mu": 0.25})
    return fedra.report(folder, out=folder / "report.html")


def test_the_table_has_mean_and_sample_deviation_over_seeds(three_seeds: Path) -> None:
    shown = text_of(three_seeds)
    assert "63.33 ± 15.28" in shown
    assert "90.00 ± 0.00" in shown
    assert "mean ± sample standard deviation over n seeds" in shown
    assert "fedavg and fedprox trained mlp on synthetic, partitioned over 4 clients by quantity" in shown


def test_differences_of_the_configurations_are_marked(three_seeds: Path) -> None:
    marked = re.findall(r'<td class="differs">(.*?)</td>', section(three_seeds, "configuration"))
    assert marked == ["fedavg", "fedprox", "0.25"] * 2  # among the differences, and among all settings


def test_the_commands_repeat_the_runs(three_seeds: Path) -> None:
    shown = text_of(three_seeds)
    folder = three_seeds.parent
    assert f"fedra run {folder}/fedavg-0/config.toml --out repeated/fedavg-0" in shown
    assert "torch 2.13.0" in shown


def test_the_file_loads_nothing_and_allows_only_its_own_script(three_seeds: Path) -> None:
    page = three_seeds.read_text(encoding="utf-8")
    assert not re.search(r'(src|href|action)="(?!#|data:)', page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert " style=" not in page
    assert not re.search(r'<[^>]* on[a-z]+="', page)
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} &#39;sha256-{digest}&#39;" in page or f"{directive} 'sha256-{digest}'" in page


def test_identifiers_are_unique(three_seeds: Path) -> None:
    names = re.findall(r' id="([^"]+)"', three_seeds.read_text(encoding="utf-8"))
    assert len(names) == len(set(names))
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', three_seeds.read_text(encoding="utf-8")))
    assert {first or second for first, second in used} <= set(names)


EVIL = "<img src=x onerror=alert(1)>"


def test_names_are_escaped_wherever_they_appear(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / EVIL.replace("/", ""), algorithm={"name": "fedavg"})
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('"fedavg"', f'"{EVIL}"').replace('"mlp"', f"'{EVIL}</script>'"))
    record = {"data": EVIL, "protocols": {EVIL: {"table": {EVIL: EVIL}, "pictures": []}}}
    (folder / "eval-x.json").write_text(json.dumps(record))
    write_lines(folder / "sites.jsonl", [{"round": 1, "site": EVIL, "accuracy": 0.5}])
    other = write_run(tmp_path / "runs" / "b")
    path = fedra.report([folder, other], out=tmp_path / "r.html", title=EVIL)
    page = path.read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") > 10
    assert page.count("<script>") == 1


def test_no_code_that_a_run_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"data": {"name": "trap:data"}, "model": {"name": "trap:model"}, "algorithm": {"name": "trap:algorithm"}}
    path = fedra.report(write_run(tmp_path / "a", **names), out=tmp_path / "r.html")
    assert "trap:algorithm trained trap:model on trap:data" in text_of(path)
    assert "trap" not in sys.modules


def test_runs_that_did_not_finish_are_shown_as_such(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "good")
    write_run(tmp_path / "runs" / "bad", [0.1], status="failed", seed=1, summary={"failure": "it diverged in round 2"})
    write_run(tmp_path / "runs" / "stopped", [0.1], status=None, seed=2)
    (write_run(tmp_path / "runs" / "damaged", seed=3) / "summary.json").write_text("{")
    (write_run(tmp_path / "runs" / "unreadable", seed=4) / "config.toml").write_text("=")
    shown = text_of(fedra.report(tmp_path / "runs", out=tmp_path / "r.html"))
    assert "bad: it diverged in round 2" in shown
    assert "stopped: Not finished: stopped after 1 of 1 rounds; continue it with fedra run --resume" in shown
    assert "damaged: The records are damaged: summary.json is damaged" in shown
    assert "unreadable: The records are damaged: config.toml is damaged" in shown
    assert "1 finished" in shown
    assert "Runs that failed or are not finished are not in the mean." in shown


def test_a_run_without_any_round_has_a_report(tmp_path: Path) -> None:
    shown = text_of(fedra.report(write_run(tmp_path / "a", [], status=None), out=tmp_path / "r.html"))
    assert "stopped after 0 of 1 rounds" in shown


def test_diagnostics_classes_and_clients_have_sections(tmp_path: Path) -> None:
    more = {"class_accuracy": [0.5, None, 0.1], "forgetting": 0.1, "preservation": -0.2, "global_local_distance": 1.5}
    summary = {"confusion": [[3, 1], [0, 4]], "classes": ["cat", "dog"], "personalized_accuracy": 0.7}
    folder = write_run(tmp_path / "a", extra=more, summary=summary)
    write_lines(folder / "personalized.jsonl", [{"client": c, "accuracy": 0.5 + c / 10} for c in range(4)])
    path = fedra.report(folder, out=tmp_path / "r.html")
    titles = re.findall(r"<figcaption><b>(.*?)</b>", path.read_text(encoding="utf-8"))
    assert {"knowledge preservation", "forgetting", "accuracy by class", "confusion: fedavg"} <= set(titles)
    assert {"personal models", "examples per client", "time per round"} <= set(titles)
    assert "70.00" in section(path, "clients")


def face_run(folder: Path) -> Path:
    write_run(folder)
    (folder / "eval-lfw-errors.png").write_bytes(b"\x89PNG photographs")
    (folder / "eval-lfw-roc.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>bad()</script></svg>")
    pictures = ["roc.svg", "errors.png", "../escape.png", "code.js"]
    part = {"table": {"EER": "2.86%"}, "metrics": {}, "pictures": pictures}
    (folder / "eval-lfw.json").write_text(json.dumps({"data": "LFW", "protocols": {"verification": part}}))
    return folder


def test_evaluations_of_faces_show_tables_and_pictures(tmp_path: Path) -> None:
    path = fedra.report(face_run(tmp_path / "a"), out=tmp_path / "r.html")
    shown = section(path, "evaluations")
    assert "verification on LFW" in shown
    assert "2.86%" in shown
    assert base64.b64encode(b"\x89PNG photographs").decode() in shown
    assert shown.count("<img ") == 2  # as images, in which no script runs
    assert "<script" not in shown


def test_photos_can_be_left_out(tmp_path: Path) -> None:
    path = fedra.report(face_run(tmp_path / "a"), out=tmp_path / "r.html", photos=False)
    assert section(path, "evaluations").count("<img ") == 1
    assert base64.b64encode(b"\x89PNG photographs").decode() not in path.read_text(encoding="utf-8")


def test_a_picture_that_links_out_of_the_folder_is_not_embedded(tmp_path: Path) -> None:
    folder = face_run(tmp_path / "a")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG secret")
    (folder / "eval-lfw-errors.png").unlink()
    (folder / "eval-lfw-errors.png").symlink_to(tmp_path / "secret.png")
    page = fedra.report(folder, out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert base64.b64encode(b"\x89PNG secret").decode() not in page
    assert "eval-lfw-errors.png leads out of the folder and was not read." in page


def test_noise_that_can_be_recomputed_is_called_no_guarantee(tmp_path: Path) -> None:
    privacy = {"epsilon_if_secret": 3.5, "delta": 1e-5, "unit": "all data of one client"}
    path = fedra.report(write_run(tmp_path / "run", summary={"privacy": privacy}), out=tmp_path / "r.html")
    assert "run: no guarantee for all data of one client" in section(path, "privacy")
    assert "run: epsilon" not in section(path, "privacy")


def test_privacy_and_federation_appear_only_with_their_records(tmp_path: Path) -> None:
    plain = fedra.report(write_run(tmp_path / "plain"), out=tmp_path / "plain.html").read_text(encoding="utf-8")
    assert 'id="privacy"' not in plain
    assert 'id="federation"' not in plain
    privacy = {"epsilon": 3.5, "delta": 1e-5, "unit": "all data of one client", "not_covered": ["buffers"]}
    folder = write_run(tmp_path / "chest" / "run", extra={"epsilon": 3.4}, summary={"privacy": privacy})
    (tmp_path / "chest" / "federation.toml").touch()
    site = {"state": "training", "seconds": 12.5, "last_seen": 3.0, "bytes_up": 44_700_000}
    status = {"phase": "training", "round": 2, "rounds": 9, "seconds_left": 40.0, "sites": {"st-mary": site}}
    (tmp_path / "chest" / "status.json").write_text(json.dumps(status))
    sites = [{"round": r, "site": s, "accuracy": 0.5, "examples": 1204} for r in (1, 2) for s in ("st-mary", "north")]
    write_lines(folder / "sites.jsonl", sites)
    path = fedra.report(folder, out=tmp_path / "r.html")
    assert "run: epsilon 3.5, delta 1e-05 for all data of one client." in section(path, "privacy")
    federation = section(path, "federation")
    assert "training: round 2 of 9, about 40 s left" in federation
    for word in ("st-mary", "north", "3 s ago", "44.7 MB", "50.00 %", "1,204", "accuracy by site"):
        assert word in federation


def test_absolute_paths_of_the_configuration_are_shortened(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", data={"name": "imagefolder", "path": "/home/anna/private/faces"})
    assert "/home/anna" not in fedra.report(folder, out=tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_command_writes_the_report_of_a_trained_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = fedra.run(tiny.TINY, out=tmp_path / "run")
    code, shown, _ = call(capsys, "report", tmp_path / "run", "--out", tmp_path / "r.html", "--title", "A title")
    assert (code, shown) == (0, f"report saved to {tmp_path / 'r.html'}\n")
    text = text_of(tmp_path / "r.html")
    assert "A title" in text
    assert f"{100 * result.summary['final_accuracy']:.2f} %" in text


def test_a_wrong_name_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    told = mistake(capsys, "report", tmp_path / "a", "--out", tmp_path / "r.pdf")
    assert told == f"the name of a report must end in .html, got '{tmp_path / 'r.pdf'}'"


def test_an_audit_appears_without_pictures_of_people(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    figure = {"name": "AUC", "value": 0.71, "low": 0.6, "high": 0.8, "chance": 0.5, "count": 40}
    finding = {"attack": "rows", "title": "<b>a face</b>", "figures": [figure], "leaks": True, "verdict": "leaks"}
    finding |= {"controls": [{**figure, "value": 0.53}], "pictures": ["curve.svg", "faces.png", "../out.svg"]}
    (folder / "audit").mkdir()
    (folder / "audit" / "curve.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    (folder / "audit" / "faces.png").write_bytes(b"a face")
    (folder / "out.svg").write_text("outside", encoding="utf-8")
    record = {"findings": [finding, 7], "violations": ["canaries measure more"]}
    (folder / "audit" / "audit.json").write_text(json.dumps(record), encoding="utf-8")
    shown = section(fedra.report(folder, out=tmp_path / "r.html"), "audit")
    for text in ("0.71", "0.6 to 0.8", "0.53", "leaks", "the guarantee does not hold: canaries measure more"):
        assert text in shown
    assert "<b>a face</b>" not in shown
    assert base64.b64encode(b"a face").decode() not in shown
    assert base64.b64encode(b"outside").decode() not in shown
    assert shown.count("data:image/svg") == 1


def test_a_damaged_audit_is_a_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text("{", encoding="utf-8")
    page = fedra.report(folder, out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'id="audit"' not in page
    assert "audit.json is damaged" in page


def test_a_simulated_attack_is_told(tmp_path: Path) -> None:
    table = {
        "rounds": 1,
        "data": {"name": "digits", "fraction": 0.3},
        "partition": {"name": "iid", "clients": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": "fedavg", "plus": [{"name": "multi-krum", "malicious": 0.25}]},
        "runner": {"name": "sequential"},
    }
    attack = {"name": "backdoor", "share": 0.25, "scale": 50.0, "target": 3}
    fedra.run({**table, "attack": attack}, out=tmp_path / "runs" / "attacked")
    broken = {**table, "algorithm": "fedavg", "attack": {"name": "not-finite", "share": 0.25}}
    fedra.run(broken, out=tmp_path / "runs" / "broken")
    fedra.run(table, out=tmp_path / "runs" / "plain")
    path = fedra.report(tmp_path / "runs", out=tmp_path / "r.html")
    assert "under the simulated attack backdoor and not-finite" in text_of(path)
    found = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section(path, "attacks")))
    for word in ("Without an attack: plain", "2 of 8", "scale 50, target 3, patch 2, poisoned 0.5", "0.0%"):
        assert word in found
    assert "rejected as invalid 0 2 left out by the rule 2 –" in found
    alone = fedra.report(tmp_path / "runs" / "plain", out=tmp_path / "p.html").read_text(encoding="utf-8")
    assert 'id="attacks"' not in alone


def test_a_card_says_that_the_model_was_attacked() -> None:
    attack = {"name": "backdoor", "clients": [1, 5], "target": 3, "trigger_rate": 0.913, "control_rate": 0.02}
    title, told = model_card._attack({"attack": attack, "clients": 20})
    assert title == "## Simulated attack"
    assert "2 of 20 clients were malicious" in told
    assert "class 3 in 91.3%" in told
    assert "without it in 2.0%" in told
    assert list(model_card._attack({"clients": 20})) == []
