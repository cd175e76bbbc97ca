"""`fedra audit` on runs: what leaks is found, what cannot leak is not, and only your own runs are attacked."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedra
from fedra.errors import ConfigError, RunError
from fedra.experiment.auditing import audit_run, mechanism_attack
from fedra.parts.private import PrivateMean
from fedra.parts.private_gradient import PrivateGradient
from fedra.privacy.accounting import Mechanism
from fedra.privacy.audit import judge_canaries
from fedra.privacy.client_level import ClipAndNoise
from tiny import call, mistake, table

NOISE = {"name": "synthetic", "examples": 120, "test_examples": 200, "classes": 3, "shape": [1, 6, 6], "noise": 3.0}
"""Classes that overlap so much that a model can only memorize its examples."""
FACES = {
    "data": {
        "name": "synthetic-faces",
        "identities": 8,
        "images": 6,
        "size": 32,
        "test_fraction": 0.34,
        "test_identities": 6,
    },
    "partition": {"name": "identity", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedpe"},
    "rounds": 2,
}
PRIVATE = {"level": "client", "delta": 0.01, "noise": 4.0, "clip": 1.0}


def trained(folder: Path, **sections: Any) -> Path:
    fedra.run(table(**sections), out=folder)
    return folder


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "overfitted"
    return trained(folder, data=NOISE, model={"name": "mlp", "hidden": [64]}, local={"epochs": 10, "lr": 0.3}, rounds=6)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "faces", **FACES)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "private"
    return trained(folder, data=NOISE, privacy=PRIVATE, cohort={"sampling": "poisson"})


def figure(audit: fedra.privacy.audit.Audit, title: str, name: str = "AUC") -> Any:
    found = next(one for one in audit.findings if one.title.startswith(title))
    return next(one for one in found.figures if one.name.startswith(name))


def test_an_overfitted_model_gives_its_photographs_away(overfitted: Path) -> None:
    audit = fedra.audit(overfitted, attacks=["photographs"])
    assert figure(audit, "threshold").value > 0.6
    assert audit.findings[0].leaks
    assert abs(audit.findings[0].controls[0].value - 0.5) < 0.15
    assert audit.violations == ()


def test_shadow_runs_find_more_and_are_kept(overfitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = fedra.audit(overfitted, attacks=["photographs"], shadows=4)
    assert figure(audit, "LiRA").low > 0.55
    files = sorted((overfitted / "audit" / "shadows").iterdir())
    before = [path.stat().st_mtime_ns for path in files]
    again = fedra.audit(overfitted, attacks=["photographs"], shadows=4)
    assert len(files) == 4
    assert [path.stat().st_mtime_ns for path in files] == before
    assert figure(again, "LiRA") == figure(audit, "LiRA")
    files[1].write_text("{", encoding="utf-8")  # a damaged one is trained again, to the same digits
    assert figure(fedra.audit(overfitted, attacks=["photographs"], shadows=4), "LiRA") == figure(audit, "LiRA")


def test_a_model_that_was_never_trained_gives_nothing_away(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data=NOISE, local={"lr": 1e-9}, rounds=1)
    audit = fedra.audit(run, attacks=["photographs"], shadows=2)
    assert not any(found.leaks for found in audit.findings)


def test_the_time_limit_is_checked_before_a_shadow_run_starts(overfitted: Path) -> None:
    lines = (overfitted / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    slow = overfitted.parent / "slow"
    shutil.copytree(overfitted, slow)
    slowed = [json.dumps({**json.loads(line), "seconds": 100.0}) for line in lines]
    (slow / "metrics.jsonl").write_text("\n".join(slowed) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="two shadow runs must fit"):
        fedra.audit(slow, attacks=["photographs"], shadows=4, minutes=1)
    assert not (slow / "audit" / "shadows" / "000.json").exists() or (overfitted / "audit").exists()


def test_an_upload_gives_its_image_away(overfitted: Path) -> None:
    audit = fedra.audit(overfitted, attacks=["uploads"], images=2, steps=30)
    assert figure(audit, "upload of one image", "PSNR (dB)").value > 40  # the first layer is dense: read off exactly
    with Image.open(overfitted / "audit" / "audit-uploads.png") as picture:
        assert picture.size[0] > 100


def test_noise_hides_the_image_from_others_and_not_from_the_server(private: Path) -> None:
    audit = fedra.audit(private, attacks=["uploads"], images=2, steps=30)
    names = [found.title for found in audit.findings]
    assert "upload of one image, as all others see it" in names
    assert figure(audit, "upload of one image, as the server", "PSNR (dB)").value > 40
    assert figure(audit, "upload of one image, as all others", "PSNR above").value < 1


def test_attacks_on_people_fit_face_runs_alone(faces: Path, overfitted: Path) -> None:
    audit = fedra.audit(faces, attacks=["people", "rows"], people=3, steps=5)
    assert [found.attack for found in audit.findings] == ["people", "people", "rows"]
    rows = audit.findings[-1]
    assert {one.chance for one in rows.figures} == {0.5, 1 / 8, None}
    assert len(rows.controls) == len(rows.figures)
    with pytest.raises(ConfigError, match="'rows' must fit the run"):
        fedra.audit(overfitted, attacks=["rows"])
    assert set(fedra.audit(overfitted, images=1, steps=1).skipped) == {"people", "rows", "mechanism"}


def test_kept_class_vectors_are_named_as_the_initial_ones(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **{**FACES, "algorithm": {"name": "fedpe", "kept": True}})
    audit = fedra.audit(run, attacks=["rows"], people=2, steps=2)
    assert any("keep their class vectors" in note for note in audit.findings[0].notes)


def test_canaries_stand_next_to_the_accountant(private: Path) -> None:
    audit = fedra.audit(private, attacks=["mechanism"])
    accounted, measured, bound = audit.findings[0].figures
    summary = json.loads((private / "summary.json").read_text(encoding="utf-8"))
    assert accounted.value == pytest.approx(summary["privacy"]["epsilon"])
    assert measured.low < accounted.value * 1.15
    assert bound.value <= accounted.value
    assert audit.violations == ()


def test_a_broken_mechanism_ends_the_command_with_an_error(
    private: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unclipped(**numbers: float) -> ClipAndNoise:
        return ClipAndNoise(**{**numbers, "clip": 3 * numbers["clip"], "noise": numbers["noise"] / 3})

    monkeypatch.setattr(mechanism_attack, "ClipAndNoise", unclipped)
    code, shown, _ = call(capsys, "audit", private, "--attack", "mechanism")
    assert code == 1
    assert "the guarantee does not hold: canaries measure" in shown


def test_the_adaptive_clip_is_measured_with_the_noise_of_its_sum() -> None:
    part = PrivateMean(noise=1.0, clip=0.1, quantile=0.5, expected=100.0)
    scores = mechanism_attack.run_client_canaries(part, 20, 1.0)
    assert scores.separation == pytest.approx(20**0.5 / part.sum_noise, rel=0.15)


def test_files_are_readable_by_their_owner_alone(faces: Path) -> None:
    fedra.audit(faces, attacks=["rows"], people=2, steps=2)
    folder = faces / "audit"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert {"audit.json", "audit.md", "audit-rows.png"} <= {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files if path.is_file()} == {0o600}


def test_the_record_has_chance_levels_intervals_and_how_to_read_them(faces: Path) -> None:
    fedra.audit(faces, attacks=["rows", "people"], people=2, steps=2)
    record = json.loads((faces / "audit" / "audit.json").read_text(encoding="utf-8"))
    page = (faces / "audit" / "audit.md").read_text(encoding="utf-8")
    for found in record["findings"]:
        assert found["reading"] in page
        for one in found["figures"]:
            assert one["low"] <= one["value"] <= one["high"]
    assert "your own runs" in page


def test_only_your_own_runs_are_attacked(overfitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs the folder of a run, got the file" in mistake(capsys, "audit", overfitted / "model.safetensors")
    foreign = tmp_path / "foreign"
    shutil.copytree(overfitted, foreign)
    (foreign / "data.json").unlink()
    with pytest.raises(RunError, match="without data"):
        fedra.audit(foreign)
    (foreign / "data.json").write_text(json.dumps({"digests": {"training": "0"}}), encoding="utf-8")
    with pytest.raises(RunError, match="must be those that the run"):
        fedra.audit(foreign)
    (foreign / "sites.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="federation"):
        fedra.audit(foreign)


def test_a_run_of_python_objects_is_refused(tmp_path: Path) -> None:
    import torch

    data = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(2)]
    fedra.simulate(fedra.algorithms.fedavg(), torch.nn.Linear(4, 2), data, data[0], rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="Python objects"):
        fedra.audit(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attacks": ["photos"]}, "did you mean 'photographs'"),
        ({"shadows": 3}, "even number"),
        ({"people": 0}, "people must be at least 1"),
    ],
)
def test_mistakes_are_sentences(overfitted: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedra.audit(overfitted, **settings)


def test_matched_pairs_have_equal_classes_and_replaced_members_equal_sizes(overfitted: Path) -> None:
    from fedra.experiment.auditing.audit_target import AuditSettings, open_target
    from fedra.experiment.auditing.photo_attack import match_pairs, replace_members

    target = open_target(overfitted, None, AuditSettings(examples=50), None, False, None)
    pairs = match_pairs(target)
    assert (pairs.members.targets == pairs.others.targets).all()
    kept = np.arange(len(pairs)) % 2 == 0
    job = replace_members(target.job, pairs, kept)
    sizes = [job.clients.size(client) for client in range(len(job.clients))]
    assert sizes == [target.job.clients.size(client) for client in range(len(target.job.clients))]
    changed = sum(
        int((job.clients[client].inputs != target.job.clients[client].inputs).flatten(1).any(dim=1).sum())
        for client in range(len(job.clients))
    )
    assert changed == int((~kept).sum())


def test_the_attacks_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = call(capsys, "audit", "--help")
    for name in audit_run.ATTACKS:
        assert name in shown


def test_canary_examples_find_a_clip_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, releases, rate, delta = PrivateGradient(clip=0.5, noise=4.0, batch=10), 30, 0.5, 1e-4
    accounted = Mechanism(rule.noise, rate).epsilon(releases, delta)
    right = judge_canaries(mechanism_attack.run_example_canaries(rule, releases, rate), accounted, delta, "an example")
    assert right.violation is None
    assert right.figures[1].low < accounted * 1.15

    def unclipped(self: PrivateGradient, total: Any, gradients: Any, real: Any, functional: bool) -> Any:
        return {name: total[name] + value.sum(dim=0) for name, value in gradients.items()}

    monkeypatch.setattr(PrivateGradient, "_add", unclipped)
    broken = judge_canaries(mechanism_attack.run_example_canaries(rule, releases, rate), accounted, delta, "an example")
    assert broken.violation is not None


def test_a_run_with_private_examples_hides_images_from_the_server_too(tmp_path: Path) -> None:
    private = {"level": "example", "delta": 0.001, "noise": 4.0, "clip": 1.0}
    run = trained(tmp_path / "run", data=NOISE, privacy=private, local={"sampling": "poisson"}, rounds=1)
    audit = fedra.audit(run, attacks=["uploads", "mechanism", "photographs"], images=2, steps=20)
    assert figure(audit, "upload of one image", "PSNR above").value < 1
    assert audit.violations == ()
    accounted = audit.findings[-1].figures[0].value
    assert accounted >= audit.guarantee["epsilon"] * 0.999
