"""Thresholds: for pairs, for templates as they are enrolled, and how sure they are."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch

from fedra.errors import ConfigError, DataError
from fedra.faces import Decision, Detector, ErrorRate, FaceRecognizer, ModelSource, calibrate, calibrate_people
from fedra.faces.metrics import Scores
from fedra.faces.recognition.choose_threshold import count_comparisons, pool_templates
from fedra.faces.recognition.thresholds import read_decision, save_decision


def crowd(people: int, photos: int, noise: float = 0.6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings whose people differ in few directions and whose photographs in many: pooling brings people closer."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(people).repeat_interleave(photos)
    person = torch.cat([torch.randn(people, 6, generator=draw), torch.zeros(people, 18)], dim=1)
    varied = torch.randn(people * photos, 24, generator=draw)
    return person.repeat_interleave(photos, dim=0) + noise * varied, names


def test_the_threshold_is_that_of_all_pairs() -> None:
    rows, people = crowd(40, 3)
    found = calibrate_people(rows, people + 7, 1e-2, fingerprint="f", data="synthetic")
    first, second = torch.triu_indices(120, 120, 1)
    cosines = torch.nn.functional.cosine_similarity(rows[first], rows[second])
    naive = Scores.of_pairs(cosines, people[first] == people[second]).tar_at(1e-2)
    assert found.value == pytest.approx(naive.threshold.value, abs=1e-6)
    assert (found.attained, found.tar) == (naive.threshold.attained, naive.rate)
    assert (found.impostors, found.genuine, found.people) == (7140 - 120, 120, 40)
    assert found.accepts(found.value)
    assert not found.accepts(found.value - 1e-6)
    assert "cannot be measured" in str(calibrate_people(rows, people, 1e-6, fingerprint="f", data="").warning)
    assert calibrate_people(rows[::3], people[::3], 0.1, fingerprint="f", data="").tar is None
    with pytest.raises(DataError, match="must show at least 2 people to choose a threshold, got 1"):
        calibrate_people(rows[:3], people[:3], 0.1, fingerprint="f", data="x")
    with pytest.raises(ConfigError, match="below 1, got 2"):
        calibrate_people(rows, people, 2, fingerprint="f", data="x")


def test_templates_have_thresholds_of_their_own() -> None:
    """Checked against every comparison by hand."""
    rows, people = crowd(30, 4)
    found = calibrate_people(rows, people, 1e-2, fingerprint="f", data="x")
    assert [one.photos for one in found.templates] == [2, 3]  # 5 and 10 photographs nobody has
    templates = torch.stack([rows[start : start + 3].sum(dim=0) for start in range(0, 120, 4)])
    cosines = torch.nn.functional.cosine_similarity(rows[:, None], templates[None], dim=2)
    others = cosines[people[:, None] != torch.arange(30)].sort(descending=True).values
    three = found.templates[1]
    assert (three.impostors, three.people) == (len(others), 30) == (120 * 29, 30)
    allowed = int(0.01 * len(others))
    assert three.value == pytest.approx(float(others[allowed]), abs=1e-6)
    assert others[allowed - 1] > others[allowed] + 1e-5
    assert three.attained == pytest.approx(allowed / len(others))
    assert three.interval is not None
    assert three.interval[0] < three.attained < three.interval[1]


def test_templates_of_several_photographs_are_pooled_in_whole_groups() -> None:
    rows = torch.arange(14.0).view(7, 2)
    people = torch.tensor([0, 1, 0, 1, 1, 0, 0])
    templates, owners = pool_templates(rows, people, 2)
    assert owners.tolist() == [0, 0, 1]
    assert templates.tolist() == [
        (rows[0] + rows[2]).tolist(),
        (rows[5] + rows[6]).tolist(),
        (rows[1] + rows[3]).tolist(),
    ]


def test_the_threshold_of_templates_holds_for_people_it_was_not_chosen_on() -> None:
    """Chosen on pairs alone, more unknown people pass than asked for; chosen on templates, about as many."""
    single, several = [], []
    for seed in range(10):
        rows, people = crowd(120, 4, seed=seed)
        chosen = people < 80
        found = calibrate_people(rows[chosen], people[chosen], 1e-2, fingerprint="f", data="x")
        templates, _ = pool_templates(rows[people >= 100], people[people >= 100] - 100, 3)
        unknown = rows[(people >= 80) & (people < 100)]
        scores = torch.nn.functional.cosine_similarity(unknown[:, None], templates[None], dim=2)
        single.append(float((scores >= found.value).double().mean()))
        several.append(float((scores >= found.at(3).value).double().mean()))
    assert sum(single) / 10 > 0.014
    assert 0.006 < sum(several) / 10 < 0.014


def test_the_interval_is_that_of_people_drawn_anew() -> None:
    """Rates at one threshold over many draws of people: the interval of one draw is about as wide as they vary."""
    rows, people = crowd(60, 3, noise=0.4)
    found = calibrate_people(rows, people, 2e-2, fingerprint="f", data="x")
    assert found.interval is not None
    rates = []
    for seed in range(1, 101):
        other, names = crowd(60, 3, noise=0.4, seed=seed)
        cosines = torch.nn.functional.normalize(other) @ torch.nn.functional.normalize(other).T
        rates.append(float((cosines[names[:, None] != names] >= found.value).double().mean()))
    low, high = torch.tensor(rates).quantile(torch.tensor([0.025, 0.975])).tolist()
    assert 0.4 < (found.interval[1] - found.interval[0]) / (high - low) < 2.5
    few = calibrate_people(rows, people, 1e-4, fingerprint="f", data="x")
    assert few.interval is None  # a pair or two say nothing about how much they vary


def test_the_progress_is_that_of_all_comparisons() -> None:
    rows, people = crowd(12, 5)
    done: list[int] = []
    calibrate_people(rows, people, 0.1, fingerprint="f", data="x", done=done.append)
    assert sum(done) == count_comparisons(people)


def test_the_threshold_for_a_number_of_photographs() -> None:
    found = calibrate_people(*crowd(20, 5), 0.05, fingerprint="f", data="x")
    by_photos = {one.photos: one.value for one in found.templates}
    assert by_photos.keys() == {2, 3, 5}
    assert found.at(1).value == found.value
    assert [found.at(photos).photos for photos in (2, 3, 4, 5, 9)] == [2, 3, 5, 5, 5]
    assert found.accepts(by_photos[3], 3)


def test_a_rate_is_estimated_only_where_it_was_measured() -> None:
    found = calibrate_people(*crowd(20, 1), 0.05, fingerprint="f", data="x")
    rate = found.gallery_rate([1, 1, 1])
    assert isinstance(rate, ErrorRate)
    assert rate.value == pytest.approx(1 - (1 - found.attained) ** 3)
    assert found.gallery_rate([]) is None
    none = found.model_copy(update={"attained": 0.0})
    assert none.gallery_rate([1]) is None
    assert str(ErrorRate(0.25)) == "about 25 % (too few errors for an interval)"


def test_a_threshold_is_kept_beside_its_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "run")
    source = ModelSource(path=str(tmp_path / "run"))
    assert read_decision(source, "f") is None
    made = calibrate_people(*crowd(3, 2), 0.1, fingerprint="f", data="x")
    assert save_decision(source, made) == tmp_path / "run/threshold.json"
    assert sys.platform == "win32" or stat.S_IMODE((tmp_path / "run/threshold.json").stat().st_mode) == 0o600
    assert read_decision(source, "f") == made
    assert read_decision(source, "another") is None
    (tmp_path / "run/threshold.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        read_decision(source, "f")
    weights = ModelSource(path=str(tmp_path / "net.pt"), network="mobilefacenet")
    assert save_decision(weights, made) == tmp_path / "net.pt.threshold.json"


def test_folders_and_data_sets_calibrate(photographs: Path, model: Path, detector: Detector, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "run")
    recognizer = FaceRecognizer(tmp_path / "run", detector)
    found = calibrate(recognizer, photographs, 0.1)
    assert isinstance(found.decision, Decision)
    assert (found.decision.impostors, found.decision.genuine, found.problems) == (54, 12, ())
    assert found.path == tmp_path / "run/threshold.json"
    assert recognizer.decision == FaceRecognizer(tmp_path / "run").decision == found.decision
    with pytest.raises(ConfigError, match="fields must have the form field=value"):
        calibrate(recognizer, "synthetic-faces:people", 0.1)
    with pytest.raises(ConfigError, match="must have 3 channels"):
        calibrate(recognizer, "digits", 0.1)
    (tmp_path / "run/threshold.json").unlink()
    drawn = calibrate(recognizer, "synthetic-faces:identities=2,images=4,size=32,test_identities=3", 0.1, save=False)
    assert drawn.decision.genuine > 0
    assert drawn.path is None
    assert not (tmp_path / "run/threshold.json").exists()


def test_a_changed_threshold_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    source = ModelSource(path=str(tmp_path / "run"))
    rows, people = crowd(40, 3)
    path = save_decision(source, calibrate_people(rows, people, 1e-2, fingerprint="f", data="others"))
    text = path.read_text()
    assert read_decision(source, "f") is not None
    for old, new in (('"far": 0.01', '"far": 0.02'), ('"people": 40', '"people": 41'), ('"photos": 2', '"photos": 3')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match="is damaged \\(its digest differs\\): calibrate the model again"):
            read_decision(source, "f")
