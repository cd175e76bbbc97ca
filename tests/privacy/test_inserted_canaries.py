"""Canaries that take part in a real run: they measure its epsilon, find a broken clip, and survive a resume."""

import pytest
import torch

import fedra
from fedra.errors import ConfigError
from fedra.experiment import private_run
from fedra.privacy.audit.inserted_canaries import CanarySum, InsertedCanaries
from fedra.privacy.client_level import ClipAndNoise
from fedra.privacy.secret import Secret

CONFIG = {
    "rounds": 6,
    "data": {"name": "synthetic", "examples": 80, "test_examples": 20, "classes": 4, "shape": [1, 28, 28]},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "mlp", "hidden": [200]},
    "local": {"lr": 0.01},
    "runner": {"name": "sequential"},
    "privacy": {"level": "client", "delta": 1e-3, "noise": 2.0, "clip": 0.5, "seed": "run", "canaries": 39},
}


def test_canaries_measure_what_the_accountant_says_and_not_more():
    stated = fedra.run(CONFIG).summary["privacy"]
    found = stated["canaries"]
    assert found["count"] == 39 == len(found["inside"]) + len(found["outside"])
    assert 0.4 * stated["epsilon_if_secret"] < found["epsilon"] < 1.6 * stated["epsilon_if_secret"]
    assert "violation" not in found


@pytest.mark.parametrize("clip", [3.0, 1.0], ids=["clip", "noise"])
def test_a_broken_clip_or_noise_is_found(clip, monkeypatch):
    right = private_run._numbers

    def broken(part, server):  # too long a clip norm with the noise of the right one, or too little noise
        numbers = right(part, server)
        return ClipAndNoise(**{**vars(numbers), "clip": clip * numbers.clip, "noise": numbers.noise / 3})

    monkeypatch.setattr(private_run, "_numbers", broken)
    assert "clip, noise or sampling is broken" in fedra.run(CONFIG).summary["privacy"]["canaries"]["violation"]


def test_a_resumed_run_has_the_same_scores_and_an_audit_judges_them(tmp_path):
    whole = fedra.run(CONFIG, out=tmp_path / "whole")

    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            if report.metrics["round"] == 3:
                raise KeyboardInterrupt

    with pytest.raises(fedra.FedraError):
        fedra.run(CONFIG, out=tmp_path / "broken", callbacks=[Stop()])
    resumed = fedra.resume(tmp_path / "broken")
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    findings = fedra.audit(tmp_path / "whole", attacks=["mechanism"]).findings
    assert [one.figures[1].count for one in findings] == [2000, 39]
    assert findings[1].figures[1].value == pytest.approx(whole.summary["privacy"]["canaries"]["epsilon"])


def test_canaries_do_not_move_an_adaptive_clip():
    vectors = torch.ones(10, 160_000) / 400
    numbers = ClipAndNoise(clip=0.1, noise=0.0, divisor=10.0, expected=10.0, count_noise=0.0)
    canaries = InsertedCanaries(count=20, length=160_000, seed=0, rate=1.0, apart=1)
    release = CanarySum(canaries, torch.zeros(20), numbers, Secret(bytes(32)), 0, 0)
    release.add(vectors, [1.0] * 10)
    assert release.finish().total.norm() > 0
    assert release.next_clip() == pytest.approx(0.1 * 2.718281828**0.1)  # all clients were clipped


REFUSED = {
    "too many": ({"canaries": 40}, {}, "between 20 and 39"),
    "too few": ({"canaries": 19}, {}, "between 20 and 39"),
    "secure": ({}, {"secure": {"aggregation": "masks"}}, "got secure.aggregation = 'masks'"),
    "examples": ({"level": "example"}, {}, r"got privacy\.level = 'example'"),
    "band": ({"band": 2}, {"cohort": {"fraction": 0.5, "sampling": "rotation"}}, r"got privacy\.band = 2"),
}


@pytest.mark.parametrize(("privacy", "changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(privacy, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run({**CONFIG, **changes, "privacy": {**CONFIG["privacy"], **privacy}})
