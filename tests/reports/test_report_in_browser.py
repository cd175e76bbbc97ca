"""Reports in Chromium: they sort, switch, print, and ask no other machine for anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedra
import tiny
from browser import Watched, chromium
from fake_runs import write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def sweep_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    fedra.sweep(tiny.table(diagnostics={"classes": True}), {"algorithm.name": ["fedavg", "scaffold"]}, 3, folder / "s")
    return fedra.report(folder / "s", out=folder / "report.html")


@pytest.fixture
def opened(browser: Any, sweep_report: Path) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    watched = Watched(page)
    page.goto(sweep_report.as_uri())
    yield watched
    page.close()
    assert watched.complaints == []
    assert watched.foreign(sweep_report.as_uri()) == []


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"table[data-name={table}] tbody tr > :nth-child({number})").all_inner_texts()


def test_a_click_on_a_heading_sorts_and_a_second_one_reverses(opened: Watched) -> None:
    page = opened.page
    heading = page.locator("table[data-name=results] thead button").first
    heading.click()
    assert column(page, "results", 1) == ["fedavg", "scaffold"]
    heading.click()
    assert column(page, "results", 1) == ["scaffold", "fedavg"]
    assert page.locator("table[data-name=results] th").first.get_attribute("aria-sort") == "descending"
    page.locator("details[data-name=all-runs] summary").click()
    page.locator("table[data-name=runs] thead button", has_text="accuracy").click()
    values = [float(text) for text in column(page, "runs", 3)]
    assert len(values) == 6
    assert values == sorted(values, reverse=True)


def test_curves_can_be_switched_and_hidden(opened: Watched) -> None:
    page = opened.page
    assert page.get_by_role("tab", name="by round").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="by traffic").click()
    assert page.get_by_text("traffic, up and down (MB)").first.is_visible()
    page.get_by_role("tab", name="by traffic").press("ArrowRight")
    assert page.get_by_role("tab", name="by time").get_attribute("aria-selected") == "true"
    assert not page.get_by_text("traffic, up and down (MB)").first.is_visible()
    line = page.locator("#curves .panel:not([hidden]) .series-0").first
    assert line.is_visible()
    button = page.locator("#curves [data-legend] button").first
    button.click()
    assert not line.is_visible()
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert line.is_visible()


def ground(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_it_is_light_or_dark_as_the_system_says_or_as_chosen(opened: Watched) -> None:
    page = opened.page
    page.emulate_media(color_scheme="light")
    light = ground(page)
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    assert light != dark
    switch = page.locator("[data-theme-switch]")
    switch.click()
    assert ground(page) == light
    switch.click()
    assert ground(page) == dark


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen(opened: Watched, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 844})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints_to_pdf(opened: Watched, tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    opened.page.pdf(path=path, format="A4")
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(content) > 20_000


def test_it_is_complete_without_scripts(browser: Any, sweep_report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(sweep_report.as_uri())
    for text in ("by round", "by traffic", "by time"):
        assert page.get_by_role("heading", name=text).is_visible()
    assert page.locator("#curves svg.figure").count() >= 5
    assert page.locator("button:visible").count() == 0
    context.close()


def test_a_script_in_a_name_does_not_run(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<img src=x onerror=document.title='owned'>")
    path = fedra.report(folder, out=tmp_path / "r.html", title="<script>document.title='owned'</script>")
    page = browser.new_page()
    watched = Watched(page)
    page.goto(path.as_uri())
    assert "owned" not in page.title().replace("'owned'", "")
    assert page.locator("img").count() == 0
    assert watched.complaints == []
    page.close()
