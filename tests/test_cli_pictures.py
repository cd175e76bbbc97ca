"""`fedra embed` and `fedra plot`: files, pictures, numbers, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import tiny
from fedra.analysis.embeddings import Embeddings
from fedra.experiment.embed_run import read_embeddings, save_embeddings
from tiny import call, mistake


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    Path("c.toml").write_text("")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> str:
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "rounds=1", "--out", "runs/[a]")[0] == 0
    return "runs/[a]"


def test_margins(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = call(capsys, "plot", "margins", "arcface:margin=0.4,scale=32", "cosface", "--out", "new/m.svg")
    assert (code, shown) == (0, "plot saved to new/m.svg\n")
    text = Path("new/m.svg").read_text()
    ElementTree.fromstring(text)
    assert "arcface margin=0.4,scale=32" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["arkface"], "there is no loss 'arkface': did you mean 'arcface'?"),
        (["arcface:marg=1"], "the loss 'arcface' has no field 'marg': did you mean 'margin'?"),
        (["arcface:margin"], "such as arcface:margin=0.4, got 'margin' in 'arcface:margin'"),
        (["arcface:margin=wide"], "the field 'margin' of the loss 'arcface' must be a number, got 'wide'"),
        (["arcface:margin=-1"], "the field 'margin' of the loss 'arcface' must be at least 0, got -1"),
        (["arcface", "--out", "m.doc"], "must end in .svg, .png or .pdf"),
    ],
)
def test_mistakes_about_losses(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert told in mistake(capsys, "plot", "margins", *words)


def test_embed_writes_beside_the_run_or_where_told(capsys: pytest.CaptureFixture[str], run: str) -> None:
    code, shown, _ = call(capsys, "embed", run)
    assert (code, shown) == (0, f"40 embeddings with 8 dimensions saved to {run}/embeddings-test.safetensors\n")
    assert read_embeddings(f"{run}/embeddings-test.safetensors").clients is None
    assert call(capsys, "run", "c.toml", *tiny.WORDS, "rounds=1", "--out", run, "--force")[0] == 0
    assert not Path(run, "embeddings-test.safetensors").exists()  # they were another model's
    assert call(capsys, "embed", run, "--split", "train", "--normalize", "--out", "new/train.npz")[0] == 0
    found = read_embeddings("new/train.npz")
    assert found.clients is not None
    torch.testing.assert_close(found.features.norm(dim=1), torch.ones(90))


def test_angles_are_drawn_and_printed(capsys: pytest.CaptureFixture[str], run: str) -> None:
    save_embeddings(Embeddings(torch.eye(4), torch.tensor([0, 0, 1, 1])), "made.npz")
    code, shown, _ = call(capsys, "plot", "angles", run, "made.npz", "--out", "a.svg")
    assert code == 0
    assert "made.npz" in shown
    assert "class means largest cosine" in shown
    assert shown.endswith("plot saved to a.svg\n")
    ElementTree.parse("a.svg")
    code, shown, aside = call(capsys, "plot", "angles", "made.npz", run, "--split", "train", "--json", "--out", "b.png")
    assert code == 0
    assert "plot saved to b.png" in aside
    figures = json.loads(shown)
    assert figures["made.npz"]["within_class_pairs"] == 2
    assert figures["made.npz"]["within_class_cosine"] == 0.0
    assert figures["fedavg"]["clients"] == 4
    assert -1 <= figures["fedavg"]["between_class_cross_client_cosine"] <= 1
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")


def test_tsne_of_runs_and_files_side_by_side(capsys: pytest.CaptureFixture[str], run: str) -> None:
    pytest.importorskip("openTSNE", reason="openTSNE is not installed")
    draw = torch.Generator().manual_seed(0)
    many = Embeddings(torch.randn(80, 3, generator=draw), torch.arange(80) % 40)
    save_embeddings(many, "many.safetensors")
    words = ("plot", "tsne", run, "many.safetensors", "--perplexity", "5", "--points", "30", "--out")
    assert call(capsys, *words, "t.svg")[1] == "plot saved to t.svg\n"
    text = Path("t.svg").read_text()
    ElementTree.fromstring(text)
    assert "<image" in text
    assert text.index("<!-- fedavg -->") < text.index("<!-- many.safetensors -->")
    assert call(capsys, *words, "again.svg")[0] == 0
    assert Path("again.svg").read_text() == text


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["embed", "nowhere"], "must contain a run, got 'nowhere'", 2),
        (["embed", "{run}", "--split", "validation"], "split must be 'test' or 'train', got 'validation'", 2),
        (["embed", "{run}", "--out", "x.pickle"], "must end in .safetensors or .npz", 2),
        (["embed", "{run}", "--device", "gpu"], "the device must be one that torch can use here", 2),
        (["plot", "angles", "nowhere"], "'nowhere' does not exist: give folders of runs", 2),
        (["plot", "angles", "c.toml"], "must end in .safetensors or .npz", 2),
        (["plot", "angles", "."], "must contain a run, got '.'", 2),
        (["plot", "angles", "{run}", "--out", "x.doc"], "must end in .svg, .png or .pdf", 2),
        (["plot", "tsne", "{run}"], "t-SNE with perplexity 30 must have at least 91 examples, got 40", 2),
        (["compare", "{run}", "--reach", "85"], "above 0 and at most 1, got 85: write 0.85 for 85 %", 2),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], run: str, words: list[str], told: str, code: int) -> None:
    assert told in mistake(capsys, *(word.format(run=run) for word in words), code=code)


def test_compare_tells_the_rounds_to_an_accuracy(capsys: pytest.CaptureFixture[str], run: str) -> None:
    code, shown, _ = call(capsys, "compare", run, "--reach", "0.01,1")
    assert code == 0
    assert "to 1 %" in shown
    assert "to 100 %" in shown
