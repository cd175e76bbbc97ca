"""The content of a gallery: people, templates, searches, and files that are not galleries."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from fedra.errors import ConfigError, DataError
from fedra.faces import ModelSource
from fedra.faces.metrics import pool_templates
from fedra.faces.recognition.gallery_changes import lock_gallery, replace_file
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata, names_in

DRAW = torch.Generator().manual_seed(0)


def features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


def gallery(people: int) -> GalleryContent:
    about = GalleryMetadata(model=ModelSource(path="run"), fingerprint="f")
    return GalleryContent.empty(about).with_people({f"p{number}": features(2, 8) for number in range(people)})


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
    with pytest.raises(ConfigError, match=r"length of the templates \(8\), got 5"):
        many.search(features(1, 5), 1, "faiss")


def test_an_index_without_faiss_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"needs the package faiss: pip install 'fedra\[index\]', or use 'exact'"):
        gallery(3).search(features(1, 8), 1, "faiss")


def test_a_gallery_comes_back_as_it_was(tmp_path: Path) -> None:
    made = gallery(5).with_people({"Zoë, Ω": features(1, 8)})
    (tmp_path / "g").write_bytes(made.pack())
    found = GalleryContent.read(tmp_path / "g")
    assert names_in(tmp_path / "g") == made.names
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
    with pytest.raises(ConfigError, match="'a' is already enrolled: add the photos"):
        grown.with_people({"a": more})
    with pytest.raises(DataError, match="the embeddings of 'c': row 1 contains NaN"):
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


def test_the_path_may_be_a_string(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'missing\.gallery' does not exist"):
        GalleryContent.read("missing.gallery")
    with pytest.raises(ConfigError, match="must be a file, got the folder"):
        GalleryContent.read(str(tmp_path))


def test_damaged_and_foreign_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "g"
    with pytest.raises(DataError, match=r"the gallery '.*' does not exist"):
        GalleryContent.read(path)
    path.write_bytes(gallery(3).pack())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="is not a gallery or is damaged"):
        GalleryContent.read(path)
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(DataError, match="is not a gallery or is damaged"):
        GalleryContent.read(path)
    assert names_in(path) == names_in(tmp_path / "nowhere") == ()
    with pytest.raises(ConfigError, match="must be a file, got the folder"):
        GalleryContent.read(tmp_path)
    with pytest.raises(ConfigError, match="must be a file, got the folder"), lock_gallery(tmp_path):
        pass


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
    assert GalleryContent.read(tmp_path / "g").names == ("a", "b", "c")
    safetensors.torch.save_file(tensors | {name: value}, tmp_path / "g", about)
    with pytest.raises(DataError, match="damaged"):
        GalleryContent.read(tmp_path / "g")


def test_a_kill_leaves_the_old_or_the_new_gallery(tmp_path: Path) -> None:
    """Children write galleries of 1, 2, 3 ... people and are killed at any moment: every state is a whole one."""
    path = tmp_path / "g"
    versions = [gallery(number) for number in range(1, 6)]
    replace_file(path, versions[0])
    chance = np.random.default_rng(0)
    for _ in range(12):
        child = os.fork()
        if child == 0:
            while True:
                for version in versions:
                    replace_file(path, version)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = GalleryContent.read(path)
        assert torch.equal(found.templates, versions[len(found) - 1].templates)


def test_a_changed_byte_is_noticed_anywhere(tmp_path: Path) -> None:
    """Names, templates, numbers of photos and the model that they belong to."""
    data = gallery(3).pack()
    assert GalleryContent.parse(data, tmp_path).names == ("p0", "p1", "p2")
    start = 8 + int.from_bytes(data[:8], "little")
    fingerprint = data.index(b'fingerprint\\":\\"f') + len(b'fingerprint\\":\\"')
    for place in (fingerprint, *range(start, len(data))):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(DataError, match="is not a gallery or is damaged"):
            GalleryContent.parse(bytes(changed), tmp_path)


def test_a_gallery_of_an_older_version_has_no_digest(tmp_path: Path) -> None:
    tensors = safetensors.torch.load(gallery(2).pack())
    about = {"fedra-gallery": gallery(2).about.model_dump_json(exclude={"digest"})}
    assert len(GalleryContent.parse(safetensors.torch.save(tensors, about), tmp_path)) == 2
