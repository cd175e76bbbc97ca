"""What a benchmark cannot give is known before hours of embedding, and never takes finished work with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.benchmarks import ijb, megaface
from fedra.faces.benchmarks.ijb import evaluate_ijb
from fedra.faces.benchmarks.many_images import EmbeddedFiles, embed_files
from fedra.faces.benchmarks.megaface import evaluate_megaface
from fedra.faces.recognition.calibrate import calibrate
from fedra.faces.recognition.recognizer import FaceRecognizer
from fedra.models import Embedder

NOBODY = cast(Embedder, None)
"""Features come from `embedded`."""
PEOPLE = 4


def ijb_folder(base: Path, galleries: int = 2) -> Path:
    """Person p has the template p in a gallery and the template 10 + p as a probe, of an image each."""
    meta = base / "meta"
    meta.mkdir(parents=True)
    templates = [*range(PEOPLE), *range(10, 10 + PEOPLE)]
    lines = {
        "face_tid_mid.txt": [f"{it}.jpg {it} {it}" for it in templates],
        "name_5pts_score.txt": [f"{it}.jpg 30 30 60 30 45 50 35 70 55 70 0.9" for it in templates],
        "template_pair_label.txt": [f"{a} {10 + b} {int(a == b)}" for a in range(PEOPLE) for b in range(PEOPLE)],
        "1N_probe_mixed.csv": ["TEMPLATE_ID,SUBJECT_ID", *(f"{10 + p},{p}" for p in range(PEOPLE))],
    }
    for number in range(galleries):
        own = [f"{p},{p}" for p in range(PEOPLE) if p % galleries == number]
        lines[f"1N_gallery_G{number + 1}.csv"] = ["TEMPLATE_ID,SUBJECT_ID", *own]
    for name, text in lines.items():
        (meta / f"ijbc_{name}").write_text("\n".join(text) + "\n")
    return base


def embedded(monkeypatch: pytest.MonkeyPatch, *unreadable: str) -> list[int]:
    """Embed without images, all but the unreadable ones; how many were asked for each time."""
    asked: list[int] = []

    def found(
        embedder: Embedder, paths: Sequence[Path], title: str, console: Console | None, points: Tensor | None = None
    ) -> EmbeddedFiles:
        asked.append(len(paths))
        rows = torch.tensor([row for row, path in enumerate(paths) if path.name not in unreadable])
        features = torch.randn(len(paths), 8, generator=torch.Generator().manual_seed(len(asked)))
        return EmbeddedFiles(features[rows], rows, len(paths) - len(rows), None)

    monkeypatch.setattr(ijb, "embed_files", found)
    monkeypatch.setattr(megaface, "embed_files", found)
    return asked


def test_one_gallery_has_no_strangers_but_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, folder = embedded(monkeypatch), ijb_folder(tmp_path / "IJBC", galleries=1)
    with pytest.raises(DataError, match=r"open-set is not possible, because every probe shows a subject of gallery 1"):
        evaluate_ijb(NOBODY, folder, ("verification", "open-set"))
    assert not asked
    found = evaluate_ijb(NOBODY, folder, console=Console(width=300))
    assert set(found.outcomes) == {"verification", "identification"}
    assert "IJBC: open-set is skipped, because every probe shows a subject" in capsys.readouterr().out


def test_a_template_without_a_usable_image_takes_its_pairs_and_probes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ijb_folder(tmp_path / "IJBC")
    embedded(monkeypatch, "10.jpg")
    found: Any = evaluate_ijb(NOBODY, folder, console=Console(width=300)).outcomes
    told = capsys.readouterr().out
    assert "templates without a usable image are skipped: 1 templates, 4 pairs, 1 probes" in told
    figures = found["verification"].metrics
    assert figures["left_out"] == {"templates": 1, "pairs": 4, "gallery subjects": 0, "probes": 1}
    assert found["verification"].table["genuine pairs"] == "3"
    assert found["identification"].metrics["probes"] == 3
    embedded(monkeypatch, "0.jpg")  # of a gallery: its probe must not pass for a stranger
    found = evaluate_ijb(NOBODY, folder).outcomes
    assert found["identification"].metrics["probes"] == 3
    assert [one["mated"] + one["non_mated"] for one in found["open-set"].metrics["galleries"]] == [3, 3]


def test_a_gallery_that_is_lost_leaves_the_other_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded(monkeypatch, "0.jpg", "2.jpg")
    found = evaluate_ijb(NOBODY, ijb_folder(tmp_path / "IJBC"))
    assert set(found.outcomes) == {"verification", "identification"}


def test_people_without_a_clean_probe_are_told_before_and_the_raw_result_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for half in ("facescrub", "megaface"):
        (tmp_path / f"{half}_images").mkdir()
    (tmp_path / "facescrub_lst").write_text("".join(f"P{p}/{p}{n}.png\n" for p in range(2) for n in range(2)))
    (tmp_path / "megaface_lst").write_text("".join(f"a/b/{n}.png\n" for n in range(5)))
    (tmp_path / "megaface_noises.txt").write_text("a/b/0.png\n")
    (tmp_path / "facescrub_noises.txt").write_text("00.png\n01.png\n")
    asked, console = embedded(monkeypatch), Console(width=300)
    found = evaluate_megaface(NOBODY, tmp_path, console=console).outcomes["megaface"].metrics
    assert ("raw" in found, "cleaned" in found) == (True, False)
    assert "the cleaned protocol is skipped, because 'P0' has no usable probe image" in capsys.readouterr().out
    (tmp_path / "facescrub_noises.txt").write_text("00.png\n")
    assert "cleaned" in evaluate_megaface(NOBODY, tmp_path).outcomes["megaface"].metrics
    asked = embedded(monkeypatch, "01.png")  # the clean one cannot be read
    found = evaluate_megaface(NOBODY, tmp_path, console=console).outcomes["megaface"].metrics
    assert ("raw" in found, "cleaned" in found) == (True, False)
    asked.clear()
    (tmp_path / "facescrub_lst").write_text("A/1.png\nB/2.png\n")
    with pytest.raises(DataError, match="at least one person must have two images in facescrub_lst"):
        evaluate_megaface(NOBODY, tmp_path)
    assert not asked


class Means:
    """Features are mean colors."""

    shape = (3, 8, 8)

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mean(dim=(2, 3))


def test_an_image_of_another_size_is_left_out_by_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((8, 9 if number == 0 else 8, 3), 50, dtype=np.uint8)).save(path)
    found = embed_files(cast(Embedder, Means()), paths, "some", Console(width=300))
    assert found.rows.tolist() == [1, 2, 3]
    assert found.unreadable == 1
    told = capsys.readouterr().out.replace("\n", " ")
    assert (
        f"1 of 4 images are unusable and skipped: the image '{paths[0]}' must be 8 x 8 like the others, got 8 x 9"
        in told
    )


def test_a_rate_that_cannot_be_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match=r"far must be at least 0 and below 1, got 2.0"):
        calibrate(cast(FaceRecognizer, None), "nowhere", 2.0)
