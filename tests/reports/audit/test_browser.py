"""The page in a browser: it is looked at, clicked, printed, and asks nobody for anything."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.reports.audit.audit_example import example_result
from tests.reports.audit.test_page import HOSTILE

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser test needs playwright: pip install playwright"
)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to look at the report")

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
PAPER = {"width": 688, "height": 1017}  # A4 within margins of 14 mm at 96 pixels to the inch


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = example_result(training=True, pictures=8, side=28)
    return result.save(tmp_path_factory.mktemp("page") / "audit.html")


class Watched:
    """A page with all that it complained about and asked for."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)
        self.page.goto(path.as_uri())

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.troubles.append(f"request: {request.url}")

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def colours(picture: bytes) -> int:
    with Image.open(io.BytesIO(picture)) as image:
        return len(image.convert("RGB").getcolors(1 << 24) or [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_it_fits_the_screen_and_complains_about_nothing(
    browser: Any, report: Path, screen: dict[str, int], scheme: str, tmp_path: Path
):
    with Watched(browser, report, viewport=screen, color_scheme=scheme) as watched:
        page = watched.page
        assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
        for first in (".headline", ".numbers", ".badge >> nth=0"):
            box = page.locator(first).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= screen["height"], first
        figure = page.locator(".hero figure svg:visible").first.bounding_box()
        assert figure["y"] + (figure["height"] if screen is DESK else 0) <= screen["height"]
        picture = page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert colours(picture) > 50
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 3 * 128) == (scheme == "dark")
        assert watched.troubles == []


def test_details_open_by_mouse_and_by_keyboard(browser: Any, report: Path):
    with Watched(browser, report, viewport=DESK) as watched:
        details = watched.page.locator("#guarantees details")
        details.nth(1).locator("summary").click()
        assert details.nth(1).evaluate("each => each.open")
        assert details.nth(1).get_by_text("any adversary with this prior").is_visible()
        details.nth(0).locator("summary").focus()
        watched.page.keyboard.press("Enter")
        assert details.nth(0).evaluate("each => each.open")
        assert watched.troubles == []


def test_the_first_key_reaches_the_skip_link_and_focus_is_visible(browser: Any, report: Path):
    with Watched(browser, report, viewport=DESK) as watched:
        watched.page.keyboard.press("Tab")
        assert watched.page.evaluate("document.activeElement.className") == "skip"
        assert watched.page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        assert watched.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        watched.page.keyboard.press("Enter")
        assert watched.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("allowed", [True, False])
def test_buttons_copy_the_line_and_the_card(browser: Any, report: Path, allowed: bool):
    granted = ["clipboard-read", "clipboard-write"] if allowed else []
    with Watched(browser, report, viewport=DESK, permissions=granted) as watched:
        page = watched.page
        if not allowed:
            page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('denied')))")
        for name in ("signature", "model-card"):
            page.locator(f"button[data-copy={name}]").click()
            page.wait_for_function("document.getElementById('status').textContent.startsWith('Copied')")
            if allowed:
                assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"#{name}").text_content()
        assert watched.troubles == []


def test_a_column_sorts_by_its_numbers_both_ways(browser: Any, report: Path):
    with Watched(browser, report, viewport=DESK) as watched:
        page = watched.page
        button = page.locator("#results th button", has_text="Rebuilt")
        values = "rows => rows.map(row => Number(row.children[2].dataset.value))"
        found = []
        for _ in range(2):
            button.click()
            found.append((page.locator("#results th[aria-sort]").get_attribute("aria-sort"),
                          page.locator("#results tbody tr").evaluate_all(values)))  # fmt: skip
        assert found == [("descending", [0.9, 0.9, 0.1, 0.1]), ("ascending", [0.1, 0.1, 0.9, 0.9])]
        assert page.locator("#status").text_content() == "Sorted by Rebuilt, smallest first."
        assert watched.troubles == []


def test_it_prints_with_everything_open_in_dark_ink(browser: Any, report: Path):
    with Watched(browser, report, viewport=DESK, color_scheme="dark") as watched:
        written = watched.page.pdf(format="A4", print_background=True)
        assert written.startswith(b"%PDF-")
        watched.page.emulate_media(media="print", color_scheme="dark")
        ink = watched.page.evaluate("getComputedStyle(document.body).color")
        assert sum(map(int, ink[4:-1].split(","))) < 3 * 128
        watched.page.set_viewport_size(PAPER)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
        assert (
            watched.page.locator("#results tbody td").first.evaluate("each => getComputedStyle(each).display")
            == "table-cell"
        )
        watched.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert watched.page.locator("details:not([open])").count() == 0
        watched.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert watched.page.locator("details[open]").count() == 0
        assert watched.troubles == []


@pytest.mark.parametrize("name", ["".join(HOSTILE), "".join(reversed(HOSTILE))], ids=["forward", "backward"])
def test_the_browser_sees_the_same_elements_whatever_the_names(browser: Any, tmp_path: Path, name: str):
    names = "[...document.querySelectorAll('*')].map(each => each.tagName + [...each.attributes].map(a => a.name))"
    found = []
    for kind, written in (("plain", "x" * len(name)), ("hostile", name)):
        path = example_result(name=written).save(tmp_path / f"{kind}.html")
        with Watched(browser, path, viewport=DESK) as watched:
            found.append(watched.page.evaluate(names))
            assert watched.troubles == []
    assert found[0] == found[1]
