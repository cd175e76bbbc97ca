"""The page of all claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedra.errors import DataError
from fedra.reproduce.claim_page import UNTESTED, claims_text, read_records, write_claims
from fedra.reproduce.entries import PAPERS, find_entry, list_entries

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def record(folder: Path, size: str, outcome: str) -> None:
    claim = find_entry("fedsol", "figure10").claims[0].text
    content = {
        "paper": "fedsol",
        "entry": "figure10",
        "size": size,
        "seeds": 3,
        "claims": [{"claim": claim, "outcome": outcome, "reason": f"a | b at {size}"}],
    }
    (folder / f"fedsol-figure10-{size}.json").write_text(json.dumps(content))


def test_every_claim_is_listed_and_untested_ones_say_so(tmp_path: Path) -> None:
    text = claims_text(read_records(tmp_path))
    claims = [claim for paper in PAPERS for entry in list_entries(paper) for claim in entry.claims]
    assert text.count(f"| {UNTESTED} | |") == len(claims)
    assert f"{len(claims)} claims and controls" in text


def test_verdicts_are_shown_by_size_and_the_largest_counts(tmp_path: Path) -> None:
    record(tmp_path, "small", "does not hold")
    record(tmp_path, "quick", "holds")
    (tmp_path / "other.json").write_text("[1]")
    text = write_claims(tmp_path).read_text()
    assert text.index("**holds** (quick, 3 seeds)") < text.index("**does not hold** (small, 3 seeds)")
    others = len([claim for entry in list_entries("fedsol") for claim in entry.claims]) - 1
    assert f"| [fedsol](#fedsol) | 0 | 0 | 1 | 0 | {others} |" in text
    assert r"a \| b at small" in text


def test_pages_in_folders_below_are_found_and_linked(tmp_path: Path) -> None:
    (tmp_path / "fedsol").mkdir()
    record(tmp_path / "fedsol", "quick", "holds")
    (tmp_path / "fedsol" / "fedsol-figure10-quick.md").write_text("# figure 10")
    assert "**holds** ([quick, 3 seeds](fedsol/fedsol-figure10-quick.md))" in write_claims(tmp_path).read_text()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match=r"bad\.json"):
        read_records(tmp_path)


def test_the_sites_page_is_what_the_command_writes() -> None:
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == claims_text(read_records(RESULTS))


def test_every_recorded_verdict_is_about_a_claim_that_still_exists() -> None:
    for (paper, name), records in read_records(RESULTS).items():
        known = {claim.text for claim in find_entry(paper, name).claims}
        for one in records:
            assert {verdict["claim"] for verdict in one["claims"]} <= known, (paper, name)
            assert one["page"], f"{paper} {name} has numbers without a page"
