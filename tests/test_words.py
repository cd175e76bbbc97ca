"""Plain words: American spelling everywhere, and none of the words that the glossary replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "docs", "tests", "examples", "configs", "benchmarks", "notebooks", ".github")
KINDS = {".py", ".md", ".toml", ".ipynb", ".yml", ".cff"}
TEXTS = sorted(
    path
    for path in (*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")))
    if path.suffix in KINDS and path != Path(__file__)
)
PROSE = [path for path in TEXTS if path.relative_to(ROOT).parts[0] != "tests" and "results" not in path.parts]

WORD = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])"
"""Words inside names too: `snake_case`, `CamelCase`, `kebab-case`."""

STEMS = ("central", "final", "general", "initial", "normal", "optim", "personal", "recogn", "regular", "renormal")
BRITISH = {f"{stem}is{end}": f"{stem}iz{end}" for stem in STEMS for end in ("e", "ed", "er", "ers", "es", "ing")}
BRITISH |= {"enrolment": "enrollment", "learnt": "learned", "mislabelled": "mislabeled", "towards": "toward"}
"""What codespell's list of British words lacks."""

BANNED = {
    r"yardsticks?": "baseline",
    r"likeness(es)?": "similarity",
    r"painted (people|faces)": "synthetic identities",
    r"(?<!\")strangers?": "unseen or unknown identities",
    r"slopes?": "gradient",
    r"nobody": "name the actor, or 'no client', 'no one'",
    r"whoever": "name the actor",
    r"(is|are|was|were|be) told": "is reported, is notified, receives",
    r"(?<!there )(?<!where )(is|are) no (?!longer|more)": "is not a",
    r"the own": "personal",
    r"whisper\w*|_?last_words|_hire": "the role, not a metaphor",
}


def misspelled(words: Path, paths: list[Path]) -> list[str]:
    command = [sys.executable, "-m", "codespell_lib", "--builtin", "en-GB_to_en-US", "-D", "-", "-D", str(words)]
    found = subprocess.run(
        [*command, "--regex", WORD, *map(str, paths)], capture_output=True, text=True, check=False, timeout=120
    )
    assert not found.stderr, found.stderr
    return found.stdout.splitlines()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "british.txt"
    path.write_text("".join(f"{ours}->{theirs}\n" for ours, theirs in BRITISH.items()), encoding="utf-8")
    return path


def test_spelling_is_american(words: Path) -> None:
    assert misspelled(words, TEXTS) == []


def test_a_british_word_within_a_name_is_found(words: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("normaliserColour = personalised_model\n", encoding="utf-8")
    assert len(misspelled(words, [path])) == 3


def banned_in(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in BANNED.items():
            found += [f"line {number}: '{hit[0]}': {instead}" for hit in re.finditer(rf"(?i)\b({pattern})\b", line)]
    return found


def test_no_banned_word() -> None:
    found = {str(path.relative_to(ROOT)): banned_in(path.read_text(encoding="utf-8")) for path in PROSE}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_a_banned_word_is_found() -> None:
    assert banned_in("fine: there is no file\nThe server is told of it.") == [
        "line 2: 'is told': is reported, is notified, receives"
    ]
