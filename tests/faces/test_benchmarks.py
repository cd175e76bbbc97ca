"""IJB-B, IJB-C and MegaFace in their true formats, small and made up, through the library and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.errors import ConfigError, DataError
from fedra.faces.benchmarks.ijb import evaluate_ijb
from fedra.faces.benchmarks.ijb_folder import IjbFolder, is_ijb
from fedra.faces.benchmarks.megaface import evaluate_megaface
from fedra.faces.benchmarks.megaface_lists import is_megaface, read_megaface
from fedra.faces.benchmarks.protocols import HEADLINES
from fedra.faces.metrics import write_feature
from fedra.faces.photos.landmarks import TEMPLATE
from fedra.models import Embedder

SIDE, SUBJECTS = 56, 6
PEOPLE = np.random.default_rng(3).integers(40, 216, (SUBJECTS, 2, 2, 3))
"""A person is a pattern of four colors."""


class Patches(nn.Module):
    """Features are the mean colors of sixteen patches: nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(48, 2)


def embedder(flip: Any = "none") -> Embedder:
    return Embedder(Patches(), lambda images: images.float() / 127.5 - 1, (3, SIDE, SIDE), flip=flip)


def picture(person: int, number: int, size: tuple[int, int]) -> Image.Image:
    """A person's pattern, with noise of its own in every image."""
    draw = np.random.default_rng([person, number])
    rows, columns = (np.arange(n) * 2 // n for n in size)
    pixels = PEOPLE[person][np.ix_(rows, columns)] + draw.normal(0, 25, (*size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def ijb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six subjects of two templates each (gallery, probe); a template is a photograph and a video of two frames."""
    base = tmp_path_factory.mktemp("ijb") / "IJBC"
    (base / "loose_crop").mkdir(parents=True)
    (base / "meta").mkdir()
    media, points = [], []
    for template in range(2 * SUBJECTS):
        for frame in range(3):
            name = f"{len(media) + 1}.jpg"
            size = (120 + 8 * frame, 112 + 4 * template)
            picture(template % SUBJECTS, len(media), size).save(base / "loose_crop" / name)
            media.append(f"{name} {template + 1} {100 * template + (frame > 0)}")
            places = TEMPLATE * [size[1] / 112, size[0] / 112]
            points.append(" ".join([name, *(f"{value:.3f}" for value in places.ravel()), f"{0.5 + 0.1 * frame:.2f}"]))
    pairs = [f"{one + 1} {SUBJECTS + two + 1} {int(one == two)}" for one in range(SUBJECTS) for two in range(SUBJECTS)]
    write(base, "face_tid_mid.txt", media)
    write(base, "name_5pts_score.txt", points)
    write(base, "template_pair_label.txt", pairs)
    for gallery, some in (("G1", range(3)), ("G2", range(3, 6))):
        write(base, f"1N_gallery_{gallery}.csv", ["TEMPLATE_ID,SUBJECT_ID", *(f"{s + 1},{s + 50}" for s in some)])
    lines = [f"{SUBJECTS + s + 1},{s + 50},x.jpg" for s in range(SUBJECTS) for _ in range(2)]
    write(base, "1N_probe_mixed.csv", ["TEMPLATE_ID,SUBJECT_ID,FILENAME", *lines])
    return base


def write(base: Path, name: str, lines: list[str]) -> None:
    (base / "meta" / f"ijbc_{name}").write_text("\n".join(lines) + "\n")


def copied(folder: Path, target: Path) -> Path:
    import shutil

    return Path(shutil.copytree(folder, target))


@pytest.fixture(scope="module")
def megaface_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people with three probes each, forty distractors, one noisy image of each kind."""
    base = tmp_path_factory.mktemp("megaface") / "megaface_testpack"
    probes, distractors = [], []
    for person in range(3):
        for number in range(3):
            probes.append(f"Person_{person}/Person_{person}_{number}.png")
            shown = 5 if (person, number) == (0, 2) else person  # a mislabeled probe
            save(base / "facescrub_images" / probes[-1], picture(shown, number, (SIDE, SIDE)))
    for number in range(40):
        distractors.append(f"{number % 3}/{number % 5}/{number}.jpg.png")
        shown = 1 if number == 7 else 3 + number % 2  # a distractor that shows a probe's person
        save(base / "megaface_images" / distractors[-1], picture(shown, 100 + number, (SIDE, SIDE)))
    (base / "data").mkdir()
    (base / "data" / "facescrub_lst").write_text("\n".join(probes) + "\n")
    (base / "data" / "megaface_lst").write_text("\n".join(distractors) + "\n")
    (base / "data" / "facescrub_noises.txt").write_text("# mislabeled\nPerson_0_2.png\n")
    (base / "data" / "megaface_noises.txt").write_text("# known people\n1\t1/2/7.jpg.png\n")
    return base


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def by_hand(folder: Path) -> dict[int, Tensor]:
    """Templates as a loop: frames of a medium averaged, media summed, lengths and detector scores as weights."""
    from fedra.faces.photos.alignment import align_face

    sums: dict[int, dict[int, list[Tensor]]] = {}
    points = {
        line.split()[0]: line.split()[1:]
        for line in (folder / "meta/ijbc_name_5pts_score.txt").read_text().splitlines()
    }
    for line in (folder / "meta/ijbc_face_tid_mid.txt").read_text().splitlines():
        name, template, medium = line.split()
        *places, score = map(float, points[name])
        image = np.asarray(Image.open(folder / "loose_crop" / name).convert("RGB"))
        crop = align_face(image, np.array(places).reshape(5, 2), SIDE)
        feature = embedder()(torch.from_numpy(crop)[None])[0] * score
        sums.setdefault(int(template), {}).setdefault(int(medium), []).append(feature)
    return {
        template: nn.functional.normalize(sum(torch.stack(frames).mean(0) for frames in media.values()), dim=0)  # type: ignore[arg-type]
        for template, media in sums.items()
    }


def test_ijb_is_a_loop_over_templates(ijb: Path) -> None:
    found = evaluate_ijb(embedder(), ijb)
    templates = by_hand(ijb)
    cosines = {(a, b): float(templates[a] @ templates[b]) for a in templates for b in templates}
    genuine = [cosines[s, SUBJECTS + s] for s in range(1, SUBJECTS + 1)]
    impostor = [cosines[a, SUBJECTS + b] for a in range(1, 7) for b in range(1, 7) if a != b]
    wins = np.mean([[(g > i) + (g == i) / 2 for i in impostor] for g in genuine])
    verified = found.outcomes["verification"].metrics
    assert verified["auroc"] == pytest.approx(float(wins))
    assert verified["images"] == 36
    best = [max(range(1, 7), key=lambda a, s=s: cosines[a, SUBJECTS + s]) == s for s in range(1, 7)]  # type: ignore[misc]
    assert found.outcomes["identification"].metrics["rank_1"] == pytest.approx(np.mean(best))
    assert found.outcomes["identification"].metrics["probes"] == SUBJECTS
    assert set(found.outcomes["open-set"].metrics["mean_tpir"]) == {"0.001", "0.01", "0.1"}  # type: ignore[call-overload]
    assert float(wins) > 0.9


def test_ijb_without_gallery_lists_is_verified_alone(ijb: Path, tmp_path: Path) -> None:
    folder = copied(ijb, tmp_path / "IJBC")
    for path in (folder / "meta").glob("*.csv"):
        path.unlink()
    assert set(evaluate_ijb(embedder(), folder).outcomes) == {"verification"}
    with pytest.raises(DataError, match="must contain the 1:N lists"):
        evaluate_ijb(embedder(), folder, ("open-set",))
    with pytest.raises(ConfigError, match=r"protocol must be one of .* for IJBC, got 'clients'"):
        evaluate_ijb(embedder(), folder, ("clients",))


def test_lists_in_another_order_mean_the_same(ijb: Path, tmp_path: Path) -> None:
    folder = copied(ijb, tmp_path / "IJBC")
    path = folder / "meta" / "ijbc_name_5pts_score.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    first, second = (evaluate_ijb(embedder(), it, ("verification",)) for it in (ijb, folder))
    assert first.outcomes["verification"].metrics == second.outcomes["verification"].metrics
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(DataError, match=r"has no line for '36.jpg' .* use lists of one benchmark"):
        evaluate_ijb(embedder(), folder)


def test_a_damaged_image_is_left_out_and_told(ijb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    folder = copied(ijb, tmp_path / "IJBC")
    (folder / "loose_crop" / "2.jpg").write_bytes(b"no image")
    (folder / "loose_crop" / "5.jpg").unlink()
    found = evaluate_ijb(embedder(), folder, console=Console(width=500))
    assert found.outcomes["verification"].metrics["unreadable"] == 2
    assert "2 of 36 images are unusable and skipped: the photo" in capsys.readouterr().out
    for path in (folder / "loose_crop").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"IJBC has no usable image; the first problem: the photo .* check the file"):
        evaluate_ijb(embedder(), folder)


def test_a_list_that_names_unknown_templates_is_told_before_any_image_is_read(ijb: Path, tmp_path: Path) -> None:
    folder = copied(ijb, tmp_path / "IJBC")
    for path in (folder / "loose_crop").iterdir():
        path.unlink()
    (folder / "meta" / "ijbc_1N_gallery_G2.csv").write_text("TEMPLATE_ID,SUBJECT_ID\n999,4\n")
    with pytest.raises(DataError, match="lists template 999, which has no images"):
        evaluate_ijb(embedder(), folder)


def test_folders_are_told_apart(ijb: Path, megaface_folder: Path, tmp_path: Path) -> None:
    assert is_ijb(ijb)
    assert not is_megaface(ijb)
    assert is_megaface(megaface_folder)
    assert not is_ijb(megaface_folder)
    assert IjbFolder.of(ijb).has_identification
    (tmp_path / "meta").mkdir()
    for name in ("ijbb", "ijbc"):
        (tmp_path / "meta" / f"{name}_face_tid_mid.txt").write_text("1.jpg 1 1\n")
    with pytest.raises(DataError, match=r"must contain one list .*, got 2"):
        IjbFolder.of(tmp_path)


def test_megaface_lists(megaface_folder: Path) -> None:
    lists = read_megaface(megaface_folder)
    assert lists.people.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert lists.noisy_probes is not None
    assert lists.noisy_distractors is not None
    assert lists.noisy_probes.nonzero().flatten().tolist() == [2]
    assert lists.noisy_distractors.nonzero().flatten().tolist() == [7]


def test_megaface_raw_and_cleaned(megaface_folder: Path) -> None:
    figures: Any = evaluate_megaface(embedder(), megaface_folder).outcomes["megaface"].metrics
    assert (figures["probes"], figures["distractors"]) == (9, 40)
    assert figures["cleaned"]["rank_1"] == 1.0
    # The mislabeled probe spoils its pairs, and the distractor of person 1 some of that person's.
    assert figures["raw"]["rank_1"] < 1.0
    assert figures["raw"]["pairs"] == 18


def test_megaface_from_feature_files_is_the_same(megaface_folder: Path, tmp_path: Path) -> None:
    lists, net = read_megaface(megaface_folder), embedder()
    for half, images in (("facescrub", lists.probes), ("megaface", lists.distractors)):
        for name in images:
            pixels = np.asarray(Image.open(megaface_folder / f"{half}_images" / name).convert("RGB"))
            write_feature(tmp_path / half / f"{name}_mine.bin", net(torch.from_numpy(pixels.copy())[None])[0])
    found, wanted = (evaluate_megaface(it, megaface_folder).outcomes["megaface"].metrics for it in (tmp_path, net))
    assert found == wanted
    (tmp_path / "facescrub" / f"{lists.probes[0]}_other.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"must contain one feature file .* the features of one network"):
        evaluate_megaface(tmp_path, megaface_folder)
    (tmp_path / "facescrub" / f"{lists.probes[0]}_other.bin").unlink()
    (tmp_path / "megaface" / f"{lists.distractors[3]}_mine.bin").write_bytes(b"short")
    with pytest.raises(DataError, match="is not a complete MegaFace feature file"):
        evaluate_megaface(tmp_path, megaface_folder)


def test_mistakes_with_megaface(megaface_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be 'megaface' for a MegaFace folder, got 'open-set'"):
        evaluate_megaface(embedder(), megaface_folder, ("open-set",))
    (tmp_path / "facescrub_lst").write_text("alone.png\n")
    (tmp_path / "megaface_lst").write_text("a/b/c.png\n")
    with pytest.raises(DataError, match=r"'alone.png' .* must be in a folder"):
        evaluate_megaface(embedder(), tmp_path)
    (tmp_path / "facescrub_lst").write_text("A/one.png\nA/two.png\n")
    with pytest.raises(DataError, match="put the aligned images of facescrub_lst there"):
        evaluate_megaface(embedder(), tmp_path)
    (tmp_path / "facescrub_lst").write_text("\n")
    with pytest.raises(DataError, match="facescrub_lst is empty"):
        evaluate_megaface(embedder(), tmp_path)


def test_the_command_evaluates_both(
    ijb: Path,
    megaface_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)
    monkeypatch.setenv("FEDRA_DATA", str(ijb.parent))
    faces = {"name": "synthetic-faces", "identities": 4, "images": 6, "size": SIDE, "test_identities": 4}
    model = {"name": "mobilefacenet-tiny", "embedding": 8}
    partition = {"name": "identity", "clients": 2}
    fedra.run(tiny.table(data=faces, model=model, partition=partition, rounds=1), out=tmp_path / "run")
    code, told, error = tiny.call(capsys, "eval", tmp_path / "run", "--on", "IJBC", "--flip", "sum")
    assert code == 0, error
    assert "verification on IJBC" in told
    assert "mean TPIR at FPIR 0.1" in told
    record = json.loads((tmp_path / "run" / "eval-IJBC.json").read_text())
    assert set(record["protocols"]) == {"verification", "identification", "open-set"}
    drawn = {path.name for path in (tmp_path / "run").glob("eval-IJBC-*")}
    assert drawn == {f"eval-IJBC-{name}.{kind}" for name in ("roc", "scores", "cmc") for kind in ("svg", "csv")}
    code, told, error = tiny.call(capsys, "eval", tmp_path / "run", "--on", megaface_folder, "--json")
    assert code == 0, error
    assert json.loads(told)["protocols"]["megaface"]["metrics"]["distractors"] == 40
    code, _, error = tiny.call(capsys, "eval", tmp_path / "run", "--on", "IJBC", "--protocol", "megaface")
    assert code == 2
    assert "for IJBC, got 'megaface'" in error.replace("\n", " ")


def test_a_model_to_which_all_faces_are_alike_has_no_figures(ijb: Path, megaface_folder: Path) -> None:
    blind = Embedder(Patches(), lambda images: torch.ones_like(images, dtype=torch.float32), (3, SIDE, SIDE))
    for found in (evaluate_ijb(blind, ijb), evaluate_megaface(blind, megaface_folder)):
        assert found.outcomes
        for protocol, outcome in found.outcomes.items():
            assert str(outcome.metrics["collapsed"]).endswith("embeddings point in one direction")
            assert outcome.table == {"collapsed": outcome.metrics["collapsed"]}
            assert all(outcome.metrics[name] is None for name in HEADLINES[protocol])
            assert not outcome.pictures


def test_feature_files_that_are_all_alike_are_told(megaface_folder: Path, tmp_path: Path) -> None:
    lists = read_megaface(megaface_folder)
    for half, names, depth in (("facescrub", lists.probes, 2), ("megaface", lists.distractors, 3)):
        for name in names:
            write_feature(tmp_path / half / f"{'/'.join(name.split('/')[-depth:])}_mine.bin", torch.ones(4))
    (outcome,) = evaluate_megaface(tmp_path, megaface_folder).outcomes.values()
    assert outcome.metrics["collapsed"] == "all 9 embeddings point in one direction"
