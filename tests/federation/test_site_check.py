"""The summary that a site's administrator reads: it is the declaration that uploads are checked with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedra.config.reading import read
from fedra.core.job import run_client
from fedra.core.round import broadcast, init_server
from fedra.core.tree import flatten
from fedra.experiment.build import build
from fedra.federation.coordinator_folder import create_federation, make_plan
from fedra.federation.declared_uploads import declare_uploads, upload_bytes
from fedra.federation.federation_plan import FederationPlan, FederationSection
from fedra.federation.folder_side import FolderSide
from fedra.federation.site_check import check_site_folder
from fedra.federation.site_config import SiteConfig
from fedra.federation.site_folder import approve_plan, create_site_folder

DIGITS = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "rounds": 3}


def plan_of(config: dict[str, Any], **rules: Any) -> FederationPlan:
    return make_plan(read(config), FederationSection(name="chest", address="127.0.0.1:9", **rules))


def new_site(tmp_path: Path, plan: FederationPlan, **site: Any) -> Path:
    invitation = create_federation(tmp_path / "chest", plan)
    table = {"name": "st-mary", "data": {"name": "digits"}, **site}
    create_site_folder(tmp_path / "mary", invitation, SiteConfig.model_validate(table))
    return tmp_path / "mary"


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgc", "fedper", "fedarc", "moon"])
def test_what_is_declared_is_what_a_client_sends(method: str) -> None:
    config = read({**DIGITS, "algorithm": {"name": method}, "partition": {"clients": 3}})
    job = build(config).job
    server = init_server(job.algorithm, job.initial())
    received, common = broadcast(job.algorithm, server), job.common(server.weights)
    _, upload = run_client(job, 0, 1, common, received, job.client_state(1, server.weights, {}))
    own = job.classes_of(1) if job.owners is not None else None
    declared = declare_uploads(plan_of({**DIGITS, "algorithm": {"name": method}}), own)
    for sent, forms in ((upload.delta, declared.delta), (upload.buffers, declared.buffers)):
        assert {n: (v.shape, v.dtype) for n, v in sent.items()} == {n: tuple(form) for n, form in forms.items()}
    extras = flatten(upload.extras)
    assert {n: (v.shape, v.dtype) for n, v in extras.items()} == {n: tuple(f) for n, f in declared.extras.items()}
    tensors = [*upload.delta.values(), *upload.buffers.values(), *extras.values()]
    assert upload_bytes(declared) == sum(value.numel() * value.element_size() for value in tensors)


def test_the_report_says_what_leaves_and_what_does_not(tmp_path: Path) -> None:
    plan = plan_of({**DIGITS, "algorithm": {"name": "scaffold"}})
    site = new_site(tmp_path, plan)
    report = check_site_folder(site, network=False)
    text = "\n".join(report.lines())
    assert plan.short_digest in text
    assert "scaffold, mlp, 3 rounds of 1 epoch" in text
    assert "1 tensor of 'control-variates'" in text
    assert "rounded to two digits" in text
    assert "never      images, file names" in text
    assert "not yet: `fedra site approve" in text
    assert not report.ready
    approve_plan(site, plan)
    assert check_site_folder(site, network=False).ready
    long = "\n".join(check_site_folder(site, network=False, long=True).lines())
    for name in declare_uploads(plan).delta:
        assert name in long


def test_a_method_with_vectors_of_people_is_refused_unless_allowed(tmp_path: Path) -> None:
    plan = plan_of({**DIGITS, "algorithm": {"name": "fedgc"}})
    site = new_site(tmp_path, plan)
    report = check_site_folder(site, network=False)
    text = "\n".join(report.lines())
    assert "refuses: policy.class_embeddings = false: fedgc sends a vector per person" in text
    assert "class vectors of your 10 people" in text
    assert "numbers of images per class" not in text
    assert FolderSide(site).check(plan)


def test_a_plan_with_code_is_refused_and_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    good = plan_of(DIGITS)
    config = good.config.model_copy(update={"model": read({"model": {"name": "evil:build"}}).model})
    plan = FederationPlan(config, good.schema, good.federation)
    site = new_site(tmp_path, plan)
    text = "\n".join(check_site_folder(site, network=False).lines())
    assert "refuses: policy.code = []: the plan has 'evil:build' imported" in text
    assert FolderSide(site).check(plan) == [
        "policy.code = []: the plan has 'evil:build' imported, which runs code here"
    ]


def test_too_few_examples_are_refused(tmp_path: Path) -> None:
    site = new_site(tmp_path, plan_of(DIGITS), policy={"examples": 5000})
    assert "policy.examples = 5000 at least" in "\n".join(check_site_folder(site, network=False).lines())


def test_an_unapproved_plan_is_refused(tmp_path: Path) -> None:
    plan = plan_of(DIGITS)
    site = new_site(tmp_path, plan)
    (reason,) = FolderSide(site).check(plan)
    assert "no person at this site approved" in reason
    approve_plan(site, plan)
    assert FolderSide(site).check(plan) == []
    assert len(FolderSide(site).check(plan_of({**DIGITS, "rounds": 4}))) == 1


def test_a_site_describes_itself_in_numbers_that_its_policy_allows(tmp_path: Path) -> None:
    plan = plan_of(DIGITS)
    site = new_site(tmp_path, plan)
    side = FolderSide(site)
    exact = side.data(plan).sizes()[0]
    described = side.describe(plan)
    assert described.clients[0].examples == round(exact, -2)
    assert exact != round(exact, -2)
    assert described.mean is None
    (site / "site.toml").write_text(
        (site / "site.toml").read_text().replace("pixel_statistics = false", "pixel_statistics = true")
    )
    mean = FolderSide(site).describe(plan).mean
    assert mean is not None
    assert abs(mean - float(side.data(plan).inputs.float().mean()) / 255) < 1e-6


def test_an_unreachable_coordinator_is_a_sentence(tmp_path: Path) -> None:
    report = check_site_folder(new_site(tmp_path, plan_of(DIGITS)))
    assert "127.0.0.1:9 cannot be reached" in report.lines()[-1]
    assert not report.ready


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    site = new_site(tmp_path, plan_of(DIGITS), data={"path": "nowhere"})
    report = check_site_folder(site, network=False)
    assert "cannot be used" in report.lines()[0]
    assert "nowhere" in report.lines()[0]


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    plan = plan_of(DIGITS)
    site = new_site(tmp_path, plan, resources={"memory_gb": 0.0001})
    approve_plan(site, plan)
    (reason,) = FolderSide(site).check(plan)
    assert reason.startswith("resources.memory_gb = 0.0001 at most")
    report = check_site_folder(site, network=False)
    assert not report.ready
    assert reason in "\n".join(report.lines())


def test_code_that_the_policy_lists_may_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedra.algorithms import fedgc\n\n\ndef method():\n    return fedgc()\n"
        "\n\ndef net(shape, classes):\n    from torch import nn\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = plan_of({**DIGITS, "algorithm": {"name": "mine:method"}, "model": {"name": "mine:net"}})
    site = new_site(tmp_path, plan, policy={"code": ["mine:net", "mine:method"], "class_embeddings": True})
    assert FolderSide(site).check_policy(plan) == []
    approve_plan(site, plan)
    assert check_site_folder(site, network=False).ready
    hidden = new_site(tmp_path / "other", plan, policy={"code": ["mine:net", "mine:method"]})
    assert "class_embeddings" in FolderSide(hidden).check_policy(plan)[0]


def test_smaller_uploads_are_named(tmp_path: Path) -> None:
    plan = plan_of({**DIGITS, "algorithm": {"name": "fedavg", "plus": ["byte-upload"]}})
    text = "\n".join(check_site_folder(new_site(tmp_path, plan), network=False).lines())
    assert "made smaller by 'byte-upload'" in text
