"""`fedra init`: a configuration file that says what every key means, and that changes nothing by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedra.config.reading import read
from fedra.config.resolve import resolve_defaults
from fedra.config.schema import Config
from fedra.config.template import MAIN, write_template
from tiny import call, mistake

WORDS = [
    "data=cifar10",
    "algorithm={name='fedsol', plus=['clip']}",
    "local.lr=0.5",
    "runner.name=processes",
    "rounds=7",
]
FACES = [
    "data=synthetic-faces",
    "partition=identity",
    "model=mobilefacenet-tiny",
    "algorithm=fedgc",
    "local.lr_of={'head.'=1}",
]


@pytest.mark.parametrize("words", [[], WORDS, FACES], ids=["defaults", "words", "faces"])
def test_it_reads_back_with_and_without_its_signs(words: list[str], tmp_path: Path) -> None:
    given = read({}, words)
    text = write_template(given)
    (tmp_path / "as-it-is.toml").write_text(text)
    assert resolve_defaults(read(tmp_path / "as-it-is.toml")) == resolve_defaults(given)
    (tmp_path / "all.toml").write_text(re.sub(r"(?m)^#(?=\w+ = )", "", text))
    assert resolve_defaults(read(tmp_path / "all.toml")) == resolve_defaults(given)
    assert max(map(len, text.splitlines())) <= 120


def test_every_key_of_its_sections_is_explained() -> None:
    text = write_template(read({}))
    for section in MAIN:
        below = text.partition(f"\n[{section}]\n")[2].partition("\n[")[0]
        for key, field in type(getattr(Config(), section)).model_fields.items():
            if key != "weights_digest":  # fedra sets it
                assert re.search(rf"(?m)^#? ?{key} (=|is not set)", below), (section, key)
                assert (field.description or "")[:30] in below


def test_a_file_that_exists_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.toml"
    code, shown, _ = call(capsys, "init", path, "algorithm.name=fedprox", "algorithm.mu=0.25", "rounds=1")
    assert code == 0
    assert f"fedra run {path}" in shown
    assert read(path).algorithm.settings == {"mu": 0.25}
    before = path.read_bytes()
    assert "already exists: choose another name" in mistake(capsys, "init", path)
    assert path.read_bytes() == before
    assert "did you mean" in mistake(capsys, "init", tmp_path / "d.toml", "algorithm=fedprx")
    assert not (tmp_path / "d.toml").exists()
