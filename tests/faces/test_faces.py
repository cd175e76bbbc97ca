from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedra.data import load
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets import folder_set, lfw_set, read_pair_list, read_people, verification_set

DRAW = np.random.default_rng(7)


def save(path: Path, size: tuple[int, int] = (32, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAW.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


def people(base: Path, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        for number in range(1, count + 1):
            save(base / name / f"{name}_{number:04d}.png")


def faces(root: Path, *folders: str, **settings: object):
    return load("faces", root=root, folders=list(folders), size=32, **settings)


def test_every_identity_is_a_class(tmp_path: Path) -> None:
    people(tmp_path / "mine", {"Ann": 4, "Bob": 3, "Cy": 1})
    for _ in range(2):  # decoded, then from the cache
        dataset = faces(tmp_path, "mine", test_fraction=0.4)
        assert dataset.classes == ("Ann", "Bob", "Cy")
        assert dataset.train.targets.bincount().tolist() == [2, 2, 1]
        assert dataset.test.targets.bincount().tolist() == [2, 1]
        assert dataset.pairs is None
    both = torch.cat([dataset.train.inputs, dataset.test.inputs])
    read = np.asarray(Image.open(tmp_path / "mine" / "Bob" / "Bob_0002.png")).transpose(2, 0, 1)
    assert sum(np.array_equal(one.numpy(), read) for one in both) == 1


def test_a_folder_is_found_here_and_under_the_data_root_and_refused_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people(tmp_path / "mine", {"Ann": 2, "Bob": 2})
    monkeypatch.chdir(tmp_path)
    settings = {"test_fraction": 0.5}
    sets: tuple[tuple[str, dict[str, Any]], ...] = (("faces", {"folders": ["mine"]}), ("imagefolder", {"path": "mine"}))
    for name, place in sets:
        for root in ("root", "."):
            assert len(load(name, root=root, **place, **settings).train) == 2
    assert len(load("imagefolder", root="root", path=tmp_path / "mine", **settings).train) == 2
    people(tmp_path / "root" / "mine", {"Ann": 2, "Bob": 2})
    for name, place in sets:
        with pytest.raises(
            DataError, match=r"must be unambiguous, got .*root/mine .* and .*/mine .*: use the absolute"
        ):
            load(name, root="root", **place, **settings)


def test_images_are_resized_and_never_stretched(tmp_path: Path) -> None:
    stripes = np.zeros((40, 80, 3), np.uint8)
    stripes[:, 20:60] = 200
    (tmp_path / "mine" / "Ann").mkdir(parents=True)
    Image.fromarray(stripes).save(tmp_path / "mine" / "Ann" / "1.png")
    save(tmp_path / "mine" / "Ann" / "2.png", (50, 50))
    dataset = faces(tmp_path, "mine", test_fraction=0.5)
    both = torch.cat([dataset.train.inputs, dataset.test.inputs])
    assert both.shape == (2, 3, 32, 32)
    assert any(bool((one == 200).all()) for one in both)
    with pytest.raises(ConfigError, match=r"'size' of .* must be at least 32, got 16"):
        load("faces", root=tmp_path, folders=["mine"], size=16)


def test_who_is_taken(tmp_path: Path) -> None:
    people(tmp_path / "mine", {"Ann": 2, "Bob": 5, "Cy": 3, "Di": 4})
    assert faces(tmp_path, "mine", least=3, test_fraction=0.3).classes == ("Bob", "Cy", "Di")
    assert faces(tmp_path, "mine", identities=2, test_fraction=0.5).classes == ("Ann", "Bob")
    (tmp_path / "some.txt").write_text("Cy\t3\n\nAnn\nBob\n")
    (tmp_path / "others.txt").write_text("Ann\n")
    chosen = faces(tmp_path, "mine", take="some.txt", leave_out="others.txt", test_fraction=0.5)
    assert chosen.classes == ("Bob", "Cy")
    (tmp_path / "some.txt").write_text("Anne\n")
    with pytest.raises(DataError, match=r"some.txt lists the identity 'Anne', which has no folder: did you mean 'Ann'"):
        faces(tmp_path, "mine", take="some.txt")
    with pytest.raises(DataError, match=r"nowhere.txt cannot be read"):
        faces(tmp_path, "mine", take="nowhere.txt")
    with pytest.raises(DataError, match=r"at least 9 images \(`least`\), but none in mine has: lower `least`"):
        faces(tmp_path, "mine", least=9)


def test_the_first_images_and_the_middle_columns(tmp_path: Path) -> None:
    people(tmp_path / "mine", {"Ann": 5, "Bob": 2})
    whole = load("faces", root=tmp_path, folders=["mine"], size=40, test_fraction=0.5, most=4)
    assert (whole.train.targets.bincount() + whole.test.targets.bincount()).tolist() == [4, 2]
    narrow = load("faces", root=tmp_path, folders=["mine"], size=40, width=32, test_fraction=0.5, most=4)
    assert narrow.shape == (3, 40, 32)
    assert torch.equal(narrow.train.inputs, whole.train.inputs[..., 4:36])
    for width in (39, 44):
        with pytest.raises(ConfigError, match=rf"at most 40 \(the image width\) .*, got {width}"):
            load("faces", root=tmp_path, folders=["mine"], size=40, width=width, test_fraction=0.5)


def test_strangers_are_never_trained_on(tmp_path: Path) -> None:
    people(tmp_path / "mine", {f"p{number}": 6 for number in range(8)} | {"single": 1})
    dataset = faces(tmp_path, "mine", test_identities=3, test_fraction=0.2, pairs=30)
    assert len(dataset.classes) == 6
    assert "single" in dataset.classes
    assert len(dataset.known_test) == 5
    strangers = dataset.test.targets >= 6
    assert int(strangers.sum()) == 18
    assert dataset.pairs is not None
    assert len(dataset.pairs) == 30
    for side in (dataset.pairs.first, dataset.pairs.second):
        assert bool(strangers[side].all())
    shown = dataset.test.targets
    assert torch.equal(shown[dataset.pairs.first] == shown[dataset.pairs.second], dataset.pairs.same)
    again, other = (faces(tmp_path, "mine", test_identities=3, seed=seed) for seed in (0, 5))
    assert again.classes == dataset.classes
    assert other.classes != dataset.classes
    with pytest.raises(ConfigError, match=r"test_identities must be below 8 .*, got 8"):
        faces(tmp_path, "mine", test_identities=8)


def test_several_folders_are_one_set(tmp_path: Path) -> None:
    people(tmp_path / "one", {"Ann": 2, "Bob": 2})
    people(tmp_path / "two", {"Cy": 4})
    dataset = faces(tmp_path, "one", "two", test_fraction=0.5)
    assert dataset.classes == ("Ann", "Bob", "Cy")
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [0, 0, 1, 1]
    with pytest.raises(ConfigError, match="folders must be different"):
        faces(tmp_path, "one", "one")
    people(tmp_path / "two", {"Ann": 2})
    with pytest.raises(DataError, match=r"the identity 'Ann' is in both .*one and .*two: set shared_names"):
        faces(tmp_path, "one", "two")
    joined = faces(tmp_path, "one", "two", test_fraction=0.5, shared_names="join")
    assert joined.train.targets.bincount().tolist() == [2, 1, 2]
    apart = faces(tmp_path, "one", "two", test_fraction=0.5, shared_names="apart")
    assert apart.classes == ("one/Ann", "one/Bob", "two/Ann", "two/Cy")


def test_a_level_of_natural_groups(tmp_path: Path) -> None:
    people(tmp_path / "sites" / "east", {"Ann": 2, "Bob": 2})
    people(tmp_path / "sites" / "west", {"Ann": 2})
    dataset = faces(tmp_path, "sites", groups="level", test_fraction=0.5)
    assert dataset.classes == ("Ann", "Bob")
    assert dataset.groups is not None
    owned = set(zip(dataset.groups.tolist(), dataset.train.targets.tolist(), strict=True))
    assert owned <= {(0, 0), (0, 1), (1, 0)}
    assert (0, 1) in owned


def test_faulty_images_are_refused_or_left_out(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    people(mine, {"Ann": 3, "Bob": 3, "Cy": 2, "Di": 1})
    (mine / "Ann" / "broken.png").write_bytes(b"no image")
    (mine / "Ann" / "copy.png").write_bytes((mine / "Ann" / "Ann_0001.png").read_bytes())
    (mine / "Bob" / "shared.png").write_bytes((mine / "Di" / "Di_0001.png").read_bytes())
    with pytest.raises(DataError) as caught:
        faces(tmp_path, "mine")
    message = str(caught.value)
    assert message.startswith("4 images are unusable: repair or remove them, or set faults = 'skip'")
    for told in ("broken.png (", "copy.png (a copy of", "shared.png (the same image as", "Di_0001.png (the same image"):
        assert told in message
    for _ in range(2):  # decoded, then from the cache
        dataset = faces(tmp_path, "mine", faults="skip", test_fraction=0.4)
        assert dataset.classes == ("Ann", "Bob", "Cy")
        assert len(dataset.train) + len(dataset.test) == 8
        assert len(dataset.notes["left out"].splitlines()) == 4
        assert dataset.notes["identities left out"] == "Di"
    assert faces(tmp_path, "mine", faults="skip", least=3, test_fraction=0.4).classes == ("Ann", "Bob")


def test_empty_folders_and_nothing_to_test_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the field 'folders' of .* must be set"):
        load("faces", root=tmp_path)
    with pytest.raises(DataError, match=r"the folder .*mine does not exist"):
        faces(tmp_path, "mine")
    people(tmp_path / "mine", {"Ann": 1, "Bob": 1})
    with pytest.raises(
        ConfigError, match=r"must have test images, got none: raise test_fraction .*, or set test_identities or verify"
    ):
        faces(tmp_path, "mine")
    (tmp_path / "mine" / "Cy").mkdir()
    with pytest.raises(DataError, match=r"Cy must contain images, got none"):
        faces(tmp_path, "mine")


def lfw_tree(base: Path, folds: int = 3, each: int = 4) -> None:
    """Ten pairs of a kind a fold are more than four people have; two are enough."""
    folds_of_people = [[f"F{fold}_{letter}" for letter in "abcd"] for fold in range(folds)]
    lines, pairs = [str(folds)], [f"{folds}\t2"]
    for names in folds_of_people:
        people(base, dict.fromkeys(names, each))
        lines += [str(len(names)), *(f"{name}\t{each}" for name in names)]
        pairs += [f"{names[0]}\t1\t2", f"{names[1]}\t3\t{each}"]
        pairs += [f"{names[0]}\t1\t{names[1]}\t2", f"{names[2]}\t1\t{names[3]}\t1"]
    (base / "people.txt").write_text("\n".join(lines) + "\n")
    (base / "pairs.txt").write_text("\n".join(pairs) + "\n")
    (base / "peopleDevTrain.txt").write_text("4\n" + "".join(f"{name}\t{each}\n" for name in folds_of_people[0]))
    (base / "peopleDevTest.txt").write_text("4\n" + "".join(f"{name}\t{each}\n" for name in folds_of_people[1]))
    (base / "pairsDevTest.txt").write_text("1\nF1_a\t1\t2\nF1_a\t1\tF1_b\t1\n")


def test_lfw_trains_on_other_folds_than_it_verifies(tmp_path: Path) -> None:
    lfw_tree(tmp_path / "lfw")
    dataset = load("lfw", root=tmp_path, fold=1, size=32, test_fraction=0.25)
    assert dataset.classes == tuple(f"F{fold}_{letter}" for fold in (0, 2) for letter in "abcd")
    assert len(dataset.train) == 24
    assert len(dataset.known_test) == 8
    pairs = dataset.pairs
    assert pairs is not None
    assert pairs.same.tolist() == [True, False, True, False]
    assert bool((dataset.test.targets[torch.stack([pairs.first, pairs.second])] >= 8).all())
    alone = np.asarray(Image.open(tmp_path / "lfw" / "F1_b" / "F1_b_0003.png")).transpose(2, 0, 1)
    assert np.array_equal(dataset.test.inputs[pairs.first[2]].numpy(), alone)
    with pytest.raises(ConfigError, match=r"fold must be between 0 and 2 .*, got 5"):
        load("lfw", root=tmp_path, fold=5, size=32)


def test_lfw_development_lists_and_other_folders(tmp_path: Path) -> None:
    lfw_tree(tmp_path / "lfw")
    people(tmp_path / "more", {"Zoe": 4, "Single": 1})
    dataset = load("lfw", root=tmp_path, fold="dev", size=32, also=["more"], least=2, test_fraction=0.25)
    assert dataset.classes == ("F0_a", "F0_b", "F0_c", "F0_d", "Zoe")
    assert dataset.groups is not None
    assert dataset.groups.bincount().tolist() == [12, 3]
    assert dataset.pairs is not None
    assert dataset.pairs.same.tolist() == [True, False]
    people(tmp_path / "more", {"F1_a": 2})
    with pytest.raises(DataError, match="the identity 'F1_a' is in"):
        load("lfw", root=tmp_path, size=32, fold=1, also=["more"])
    apart = load("lfw", root=tmp_path, size=32, fold=1, also=["more"], shared_names="apart", test_fraction=0.25)
    assert "more/F1_a" in apart.classes
    assert "lfw/F1_a" not in apart.classes


def test_verification_sets_of_a_folder(tmp_path: Path) -> None:
    lfw_tree(tmp_path / "lfw")
    found = verification_set("lfw", root=tmp_path, size=32)
    assert found.images.shape == (21, 3, 32, 32)  # those that pairs name
    assert found.pairs.folds.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for first, second, same in zip(found.pairs.first, found.pairs.second, found.pairs.same, strict=True):
        assert bool(found.people[first] == found.people[second]) == bool(same)
    assert len(lfw_set(tmp_path / "lfw", size=32, pairs="pairsDevTest.txt").pairs) == 2
    (tmp_path / "lfw" / "pairs.txt").unlink()
    drawn = verification_set("lfw", root=tmp_path, size=32, pairs=20)
    assert (len(drawn.images), len(drawn.pairs)) == (48, 20)
    assert torch.equal(folder_set(tmp_path / "lfw", size=32, pairs=20).pairs.first, drawn.pairs.first)
    settings = {"identities": 2, "test_identities": 4, "images": 3, "size": 32}
    named = verification_set("synthetic-faces", root=tmp_path / "empty", **settings)
    assert len(named.pairs) == 24
    with pytest.raises(DataError, match="'nothing' must be a data set, or a file or folder"):
        verification_set("nothing", root=tmp_path)
    with pytest.raises(DataError, match="'digits' has no pairs"):
        verification_set("digits", root=tmp_path)


def test_a_set_to_verify_on(tmp_path: Path) -> None:
    lfw_tree(tmp_path / "lfw")
    people(tmp_path / "mine", {"Ann": 4, "Bob": 4})
    dataset = faces(tmp_path, "mine", verify="lfw", test_fraction=0.25)
    assert len(dataset.known_test) == 2
    assert dataset.pairs is not None
    assert dataset.pairs.first.min() >= 2
    known = verification_set("lfw", root=tmp_path, size=32)
    assert torch.equal(dataset.test.inputs[dataset.pairs.second], known.images[known.pairs.second])
    people(tmp_path / "mine", {"F0_a": 2, "F2_b": 2})
    with pytest.raises(
        DataError, match=r"the training data and 'lfw' must not share people, but 'F0_a' and 1 more are in both"
    ):
        faces(tmp_path, "mine", verify="lfw")
    with pytest.raises(ConfigError, match="only one of test_identities and verify, got both"):
        faces(tmp_path, "mine", verify="lfw", test_identities=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("x\n", "must be a number, got 'x'"),
        ("2\n1\nAnn\t1\n", "ends before fold 1 of 2"),
        ("1\n2\nAnn\t1\n", "must have 2 people in fold 0, got 1"),
        ("1\n1\nAnn\tmany\n", "line 3: must be a name and a number of images, got 'Ann many'"),
        ("1\n1\nAnn\t1\nBob\t1\n", "line 4: the list must end before this line, got 'Bob 1'"),
        ("2\n1\nAnn\t1\n1\nAnn\t1\n", "'Ann' is in folds 0 and 1"),
    ],
)
def test_a_damaged_list_of_people(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "people.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        read_people(tmp_path / "people.txt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2\t1\nAnn\t1\t2\n", "must have 2 x 2 pairs, got 1"),
        ("1\nAnn\t1\t2\nAnn\t1\tBob\t1\nCy\t1\t2\n", "line 4: the list must end before this line, got 'Cy 1 2'"),
        ("1\nAnn\t1\tBob\t2\nAnn\t1\tBob\t1\n", "line 2: must be a name and two numbers"),
        ("1\nAnn\t1\t2\nAnn\t1\t2\n", "line 3: must be two names, each with a number"),
        ("1\nAnn\t1\tx\nAnn\t1\tBob\t1\n", "line 2: must be a number, got 'x'"),
        ("1\nAnn\t1\t1\nAnn\t1\tBob\t1\n", "a pair must be two images"),
        ("10 300 7\n", "line 1: the first line must be the numbers of folds and pairs, got '10 300 7'"),
        ("9" * 5000 + " 1\n", "line 1: must be a number, got '9{60}'"),
        ("1\nAnn\t" + "9" * 5000 + "\t2\nAnn\t1\tBob\t1\n", "line 2: must be a number, got '9{60}'"),
        ("1\nAnn\t1\t2\nAnn\t1\tAnn\t2\n", "an impostor pair two people"),
    ],
)
def test_a_damaged_list_of_pairs(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        read_pair_list(tmp_path / "pairs.txt")


def sllfw_lines(folds: int = 10) -> list[str]:
    """Two pairs a fold: one genuine, one of two people who look alike."""
    lines = []
    for fold in range(folds):
        lines += [f"F{fold}_a/F{fold}_a_0001.jpg", f"F{fold}_a/F{fold}_a_0002.jpg"]
        lines += [f"F{fold}_a/F{fold}_a_0003.jpg", f"F{fold}_b/F{fold}_b_0001.jpg"]
    return lines


def test_the_list_of_sllfw_has_one_photo_to_a_line(tmp_path: Path) -> None:
    path = tmp_path / "pair_SLLFW.txt"
    path.write_text("\n".join(sllfw_lines()) + "\n")
    pairs = read_pair_list(path)
    assert [pair.fold for pair in pairs] == [fold for fold in range(10) for _ in range(2)]
    assert [pair.same for pair in pairs] == [True, False] * 10
    assert (pairs[3].first, pairs[3].second) == (("F1_a", 3), ("F1_b", 1))


@pytest.mark.parametrize(
    ("line", "text", "told"),
    [
        (0, None, "must have 10 folds of as many genuine as impostor pairs, two lines to a pair, got 39 lines"),
        (1, "F0_b/F0_b_0001.jpg", "line 1: a pair must be two images of one person"),
        (3, "F0_a/F0_a_0002.jpg", "line 3: a pair must be images of two people"),
        (1, "F0_a/F0_a_0001.jpg", "line 1: a pair must be two images of one person"),
        (2, "F0_a/F0_b_0001.jpg", r"line 3: must be a photo such as Ann/Ann_0001.jpg, got 'F0_a/F0_b_0001.jpg'"),
        (2, "F0_a 1 2", "line 3: must be a photo"),
    ],
)
def test_a_damaged_list_of_sllfw(tmp_path: Path, line: int, text: str | None, told: str) -> None:
    lines = sllfw_lines()
    lines[line : line + 1] = [] if text is None else [text]
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=told):
        read_pair_list(tmp_path / "pairs.txt")


def test_a_pair_without_its_image(tmp_path: Path) -> None:
    lfw_tree(tmp_path / "lfw")
    (tmp_path / "lfw" / "F1_a" / "F1_a_0002.png").unlink()
    with pytest.raises(DataError, match=r"pairs.txt lists image 2 of 'F1_a'"):
        lfw_set(tmp_path / "lfw", size=32)
    with pytest.raises(DataError, match=r"pairs.txt lists image 2 of 'F1_a'"):
        load("lfw", root=tmp_path, fold=1, size=32)


def test_real_lfw_lists(real_data: Path) -> None:
    if not (real_data / "lfw").is_dir():
        pytest.skip("FEDRA_TEST_DATA has no lfw folder")
    folds = read_people(real_data / "lfw" / "people.txt")
    assert (len(folds), sum(map(len, folds))) == (10, 5749)
    pairs = read_pair_list(real_data / "lfw" / "pairs.txt")
    assert (len(pairs), sum(pair.same for pair in pairs)) == (6000, 3000)
    home = {name: fold for fold, names in enumerate(folds) for name in names}
    assert all(home[pair.first[0]] == home[pair.second[0]] == pair.fold for pair in pairs)
    dev = read_pair_list(real_data / "lfw" / "pairsDevTest.txt")
    assert len(dev) == 1000
