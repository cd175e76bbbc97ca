"""Recognisers, galleries and thresholds in Python."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from fedra.errors import ConfigError, DataError, RunError
from fedra.faces import (
    Decision,
    Detector,
    FaceRecognizer,
    Gallery,
    ModelSource,
    calibrate,
    calibrate_people,
    enrol,
    open_recognizer,
    people_in,
    person_at,
    save_decision,
    stored_decision,
)
from fedra.faces.metrics import Scores, pool_templates
from fedra.faces.recognition.enrollment import clean_name
from fedra.faces.recognition.gallery import GalleryMetadata
from fedra.faces.recognition.recognizer import read_size
from fedra.faces.synthetic import SyntheticFaces
from fedra.models import build

DRAW = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def recogniser(source: ModelSource, detector: Detector) -> FaceRecognizer:
    return FaceRecognizer(source.embedder(), source.fingerprint(), detector)


def features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


def gallery(people: int, source: ModelSource | None = None) -> Gallery:
    about = GalleryMetadata(model=source or ModelSource(path="run"), fingerprint="f")
    return Gallery.empty(about).with_people({f"p{number}": features(2, 8) for number in range(people)})


def test_an_index_finds_what_an_exact_search_finds() -> None:
    pytest.importorskip("faiss")
    many, asked = gallery(400), features(30, 8)
    exact, quick = (many.search(asked, 3, engine) for engine in ("exact", "faiss"))  # type: ignore[arg-type]
    same = sum(
        one.name == two.name for lines in zip(exact, quick, strict=True) for one, two in zip(*lines, strict=True)
    )
    assert same >= 0.95 * 90
    assert quick[0][0].score == pytest.approx(exact[0][0].score, abs=1e-5)
    assert len(gallery(2).search(asked[:1], 9, "faiss")[0]) == 2
    with pytest.raises(ConfigError, match="queries are of length 5 and the templates of length 8"):
        many.search(features(1, 5), 1, "faiss")


def test_an_index_without_faiss_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"needs faiss: pip install 'fedra\[index\]', or search with 'exact'"):
        gallery(3).search(features(1, 8), 1, "faiss")


def test_a_gallery_comes_back_as_it_was(tmp_path: Path) -> None:
    made = gallery(5).with_people({"Zoë, Ω": features(1, 8)})
    made.write(tmp_path / "new" / "g")
    found = Gallery.read(tmp_path / "new" / "g")
    assert found.about == made.about
    assert found.names == made.names
    assert torch.equal(found.templates, made.templates)
    assert found.photographs.tolist() == [2, 2, 2, 2, 2, 1]


def test_templates_are_pooled_as_the_evaluation_does_and_can_grow() -> None:
    some, more = features(3, 8), features(2, 8)
    grown = gallery(2).with_people({"a": some}).with_people({"a": more, "b": more}, "add")
    pooled = pool_templates(torch.cat([some, more]), torch.zeros(5, dtype=torch.int64)).embeddings
    torch.testing.assert_close(torch.nn.functional.normalize(grown.templates[2:3]), pooled)
    assert grown.names == ("p0", "p1", "a", "b")
    assert grown.photographs.tolist() == [2, 2, 5, 2]
    replaced = grown.with_people({"a": more}, "replace")
    torch.testing.assert_close(replaced.templates[2], more.sum(dim=0))
    assert replaced.photographs.tolist() == [2, 2, 2, 2]
    with pytest.raises(ConfigError, match="'a' is enrolled already: --add adds"):
        grown.with_people({"a": more})
    with pytest.raises(DataError, match="the embeddings of 'c': row 1 holds NaN"):
        grown.with_people({"c": torch.tensor([[1.0] * 8, [float("nan")] * 8])})


def test_a_person_is_found_and_forgotten() -> None:
    people = gallery(30)
    match = people.search(people.templates[[7, 3]], 4)
    assert [line[0].name for line in match] == ["p7", "p3"]
    assert match[0][0].score == pytest.approx(1)
    assert [m.score for m in match[0]] == sorted((m.score for m in match[0]), reverse=True)
    rest = people.without("p7")
    assert len(rest) == 29
    assert "p7" not in [m.name for m in rest.search(people.templates[7:8], 29)[0]]
    assert len(rest.search(people.templates[7:8], 99)[0]) == 29
    with pytest.raises(ConfigError, match="'p77' is not enrolled: did you mean"):
        rest.without("p77")
    with pytest.raises(DataError, match="the gallery is empty"):
        gallery(1).without("p0").search(features(1, 8))


def test_damaged_and_foreign_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "g"
    with pytest.raises(DataError, match="there is no gallery"):
        Gallery.read(path)
    gallery(3).write(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="is no gallery or is damaged"):
        Gallery.read(path)
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(DataError, match="is no gallery or is damaged"):
        Gallery.read(path)
    with pytest.raises(ConfigError, match="is a folder"):
        gallery(1).write(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", torch.tensor(list(b"5"), dtype=torch.uint8)),
        ("names", torch.tensor(list(b"null"), dtype=torch.uint8)),
        ("names", torch.tensor(list(b'{"a": 1, "b": 2, "c": 3}'), dtype=torch.uint8)),
        ("names", torch.tensor(list(b"[1, 2, 3]"), dtype=torch.uint8)),
        ("names", torch.tensor(list(b"[" * 99_999), dtype=torch.uint8)),
        ("names", torch.zeros(4, dtype=torch.bfloat16)),
        ("templates", torch.ones(3, 8, dtype=torch.int64)),
        ("photographs", torch.ones(3)),
        ("photographs", torch.tensor(3)),
    ],
)
def test_tensors_of_other_kinds_are_told(tmp_path: Path, name: str, value: torch.Tensor) -> None:
    people = gallery(3)
    tensors = {
        "names": torch.tensor(list(b'["a", "b", "c"]'), dtype=torch.uint8),
        "templates": people.templates,
        "photographs": people.photographs,
    }
    about = {"fedra-gallery": people.about.model_dump_json()}
    safetensors.torch.save_file(tensors, tmp_path / "g", about)
    assert Gallery.read(tmp_path / "g").names == ("a", "b", "c")
    safetensors.torch.save_file(tensors | {name: value}, tmp_path / "g", about)
    with pytest.raises(DataError, match="damaged"):
        Gallery.read(tmp_path / "g")


def test_a_kill_leaves_the_old_or_the_new_gallery(tmp_path: Path) -> None:
    """Children write galleries of 1, 2, 3 ... people and are killed at any moment: every state is a whole one."""
    path = tmp_path / "g"
    versions = [gallery(number) for number in range(1, 6)]
    versions[0].write(path)
    chance = np.random.default_rng(0)
    for _ in range(12):
        child = os.fork()
        if child == 0:
            while True:
                for version in versions:
                    version.write(path)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = Gallery.read(path)
        assert torch.equal(found.templates, versions[len(found) - 1].templates)


def test_photographs_are_aligned_before_they_are_embedded(photographs: Path, recogniser: FaceRecognizer) -> None:
    paths = sorted((photographs / "person_00001").glob("*.jpg"))
    found = recogniser.embed(paths)
    assert found.paths == tuple(paths)
    expected = recogniser.embedder(np.stack([recogniser.crop(path) for path in paths]))
    torch.testing.assert_close(found.features, expected)
    assert recogniser.crop(paths[0]).shape == (32, 32, 3)
    assert recogniser.manner == "aligned to 32x32 by acquainted"
    torch.testing.assert_close(recogniser.embed_one(paths[1]), found.features[1:2], rtol=1e-4, atol=1e-5)


def test_without_a_detector_crops_are_taken_as_they_are(source: ModelSource, tmp_path: Path, photographs: Path) -> None:
    plain = open_recognizer(source)
    crop = SyntheticFaces(size=32).images([(0, 0)])[0]
    Image.fromarray(crop.permute(1, 2, 0).numpy()).save(tmp_path / "crop.png")
    torch.testing.assert_close(plain.embed_one(tmp_path / "crop.png"), plain.embedder(crop[None]))
    photograph = photographs / "person_00000/0000.jpg"
    with pytest.raises(DataError, match=r"has 80x100 pixels and the model reads 32x32: give a .*align --size 32"):
        plain.embed_one(photograph)
    assert photograph in plain.embed([photograph]).problems
    assert "no detector" in plain.manner


def test_grey_and_narrow_models_are_served(tmp_path: Path, photographs: Path, detector: Detector) -> None:
    narrow = build("mobilefacenet-tiny", (3, 32, 24), 3, seed=5, embedding=8)
    safetensors.torch.save_file(narrow.state_dict(), tmp_path / "net.safetensors")
    file = str(tmp_path / "net.safetensors")
    source = ModelSource(path=file, network="mobilefacenet-tiny:embedding=8", size=(32, 24))
    made = FaceRecognizer(source.embedder(), source.fingerprint(), detector)
    assert made.embed_one(photographs / "person_00000/0000.jpg").shape == (1, 8)
    assert source.fingerprint() != source.model_copy(update={"size": (32, 32)}).fingerprint()
    with pytest.raises(ConfigError, match=r"is a file: name its network \(--network\)"):
        open_recognizer(ModelSource(path=file))
    assert read_size("112X96") == (112, 96)
    for wrong in ("112", "0x5", "ax5", "1x2x3"):
        with pytest.raises(ConfigError, match="is no size"):
            read_size(wrong)


def test_a_missing_model_is_told() -> None:
    with pytest.raises(RunError, match="cannot be read"):
        ModelSource(path="nowhere").fingerprint()


def put(path: Path, recogniser: FaceRecognizer, source: ModelSource, folder: Path, **settings: str) -> dict[str, int]:
    return enrol(path, recogniser, source, people_in(folder), **settings).people  # type: ignore[arg-type]


def test_people_are_enrolled_by_templates_alone(
    photographs: Path, recogniser: FaceRecognizer, source: ModelSource, tmp_path: Path
) -> None:
    path = tmp_path / "g"
    assert put(path, recogniser, source, photographs) == {f"person_0000{number}": 3 for number in range(4)}
    found = Gallery.read(path)
    for number, name in enumerate(found.names):
        embedded = recogniser.embed(sorted((photographs / name).glob("*.jpg")))
        expected = embedded.features.sum(dim=0)
        torch.testing.assert_close(found.templates[number], expected, rtol=1e-4, atol=1e-4)
        assert found.search(expected[None], 1)[0][0].name == name
    assert not any(part in path.read_bytes() for part in (b"JFIF", b"PNG"))


def test_bad_people_are_told_and_the_good_are_kept(
    photographs: Path, recogniser: FaceRecognizer, source: ModelSource, tmp_path: Path
) -> None:
    folder = tmp_path / "people"
    shutil.copytree(photographs / "person_00000", folder / "Ada")
    shutil.copytree(photographs / "person_00001", folder / "Bob")
    (folder / "Bob/0000.jpg").write_bytes(b"broken")
    (folder / "Empty").mkdir()
    (folder / "Gone").mkdir()
    (folder / "Gone/a.jpg").write_bytes(b"broken")
    (folder / "loose.jpg").write_bytes(b"")
    single = folder / "Single"
    single.mkdir()
    shutil.copy(photographs / "person_00002/0000.jpg", single)
    path = tmp_path / "g"
    found = enrol(path, recogniser, source, people_in(folder))
    assert found.people == {"Ada": 3, "Bob": 2, "Single": 1}
    told = "\n".join(found.problems)
    for part in (
        "Empty' holds no photographs",
        "loose.jpg' lies in no person's folder",
        "Bob/0000.jpg' cannot be read",
    ):
        assert part in told
    assert "'Gone' is left out: none of the 1 photographs can be used" in told
    before = path.read_bytes()
    again = enrol(path, recogniser, source, people_in(folder))
    assert again.people == {}
    assert sum("is enrolled already" in problem for problem in again.problems) == 3
    assert path.read_bytes() == before
    assert enrol(path, recogniser, source, people_in(folder), again="add").people["Ada"] == 3
    assert Gallery.read(path).photographs.tolist() == [6, 4, 2]


def test_names_and_folders_are_checked(tmp_path: Path) -> None:
    assert clean_name(" Zoe\u0308 ") == "Zoë"
    for wrong in ("", "  ", "a\nb"):
        with pytest.raises(ConfigError, match="cannot be a person's name"):
            clean_name(wrong)
    with pytest.raises(DataError, match="there is no folder"):
        people_in(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no folders with photographs"):
        people_in(tmp_path)
    with pytest.raises(DataError, match="holds no photographs"):
        person_at(tmp_path, "Ada")


def test_another_model_s_gallery_is_refused(
    photographs: Path, recogniser: FaceRecognizer, source: ModelSource, tmp_path: Path
) -> None:
    path = tmp_path / "g"
    put(path, recogniser, source, photographs)
    before = path.read_bytes()
    other = FaceRecognizer(recogniser.embedder, "another", recogniser.detector)
    with pytest.raises(ConfigError, match="made by another model"):
        put(path, other, source, photographs)
    assert path.read_bytes() == before


def test_the_threshold_is_that_of_all_pairs() -> None:
    people = torch.arange(40).repeat_interleave(3)
    rows = features(40, 16).repeat_interleave(3, dim=0) + 0.6 * features(120, 16)
    found = calibrate_people(rows, people, 1e-2, fingerprint="f", data="made up")
    first, second = torch.triu_indices(120, 120, 1)
    cosines = torch.nn.functional.cosine_similarity(rows[first], rows[second])
    naive = Scores.of_pairs(cosines, people[first] == people[second]).tar_at(1e-2)
    assert found.value == pytest.approx(naive.threshold.value, abs=1e-6)
    assert (found.attained, found.tar) == (naive.threshold.attained, naive.rate)
    assert (found.impostors, found.genuine) == (7140 - 120, 120)
    assert found.accepts(found.value)
    assert not found.accepts(found.value - 1e-6)
    assert "cannot be measured" in str(calibrate_people(rows, people, 1e-6, fingerprint="f", data="").warning)
    assert calibrate_people(rows[::3], people[::3], 0.1, fingerprint="f", data="").tar is None
    with pytest.raises(DataError, match="shows one person only"):
        calibrate_people(rows[:3], people[:3], 0.1, fingerprint="f", data="x")
    with pytest.raises(ConfigError, match="far = 2"):
        calibrate_people(rows, people, 2, fingerprint="f", data="x")


def test_a_threshold_is_kept_beside_its_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "run")
    source = ModelSource(path=str(tmp_path / "run"))
    assert stored_decision(source, "f") is None
    made = calibrate_people(features(6, 8), torch.arange(6) // 2, 0.1, fingerprint="f", data="x")
    assert save_decision(source, made) == tmp_path / "run/threshold.json"
    assert stored_decision(source, "f") == made
    assert stored_decision(source, "another") is None
    (tmp_path / "run/threshold.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        stored_decision(source, "f")
    weights = ModelSource(path=str(tmp_path / "net.pt"), network="mobilefacenet")
    assert save_decision(weights, made) == tmp_path / "net.pt.threshold.json"


def test_folders_and_data_sets_calibrate(photographs: Path, recogniser: FaceRecognizer) -> None:
    found, problems = calibrate(recogniser, str(photographs), 0.1)
    assert isinstance(found, Decision)
    assert (found.impostors, found.genuine, problems) == (54, 12, ())
    assert found.fingerprint == recogniser.fingerprint
    with pytest.raises(ConfigError, match="is not of the form field=value"):
        calibrate(recogniser, "synthetic-faces:people", 0.1)
    with pytest.raises(ConfigError, match="the model reads 3 channels"):
        calibrate(recogniser, "digits", 0.1)
    found, _ = calibrate(recogniser, "synthetic-faces:identities=2,images=4,size=32,test_identities=3", 0.1)
    assert found.genuine > 0
