"""The page of an audit: complete, whole, without private pixels where they do not belong, and nobody's markup."""

from __future__ import annotations

import base64
import json
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.reports.audit.page import page_of
from reconrisk.studies.audit.result import Picture, Standing, Verdict
from tests.reports.audit.audit_example import GOALS, example_result, share

VOID = {"meta", "img", "br", "link", "hr", "input"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><b>x</b>",
    "</title></svg><b>x</b>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- -->]]>&amp;&#60;b&#62;",
    "a\x00b\u202e\udcff",
)


class Outline(HTMLParser):
    """Elements of a page with their attributes, and whether every one is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def skeleton(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]


def test_the_page_says_everything_that_the_result_says():
    result = example_result(training=True)
    words = re.sub(r"\s+", " ", " ".join(Outline(page_of(result, redact=False)).words))
    expected = [
        result.sentence, "one update", "how the update was defended", "records are drawn", "90%", "75% to 98%",
        "≤ 30%", "mean squared error ≥ 0.01", "any adversary with this prior", "unbiased estimators", "tightness 0.333",
        "attacks may be biased", "above the limit", "record 17", "sharp", "guess", "rr.audit(LeNet, digits)",
        "Linux, 1 thread", "7; targets, noise", "## Reconstruction risk", "diverged", "4000", "12.5", "0.0005",
        "somebody2020", "158", "of 160 planned", result.training.corridor.sentence,
    ]  # fmt: skip
    for each in expected:
        assert re.sub(r"\s+", " ", each) in words, each


@pytest.mark.parametrize("training", [False, True])
def test_the_page_is_well_formed_and_can_be_read_aloud(training: bool):
    page = Outline(page_of(example_result(training=training), redact=False))
    assert page.open == []
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") for attributes in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attributes.get("alt") for attributes in page.all("img"))
    drawings = page.all("svg")
    assert all(each.get("role") == "img" or each.get("aria-hidden") == "true" for each in drawings)
    for each in drawings:
        assert all(name in identifiers for name in (each.get("aria-labelledby") or "").split())
    for anchor in page.all("a"):
        assert anchor["href"].removeprefix("#") in identifiers
    for section in page.all("section"):
        assert section["aria-labelledby"] in identifiers
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in page.elements}


def test_the_page_asks_for_nothing_from_elsewhere():
    page = page_of(example_result(training=True), redact=False)
    outline = Outline(page)
    assert "://" not in page
    assert outline.all("link") == []
    assert all("src" not in each for each in outline.all("script"))
    assert all(each["src"].startswith("data:image/png;base64,") for each in outline.all("img"))
    assert not any(name.startswith("on") or name == "style" for _, each in outline.elements for name in each)
    policy = next(each["content"] for each in outline.all("meta") if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_changes_no_element_of_the_page(name: str, tmp_path: Path):
    plain = Outline(page_of(example_result(name="x" * len(name)), redact=False))
    result = example_result(name=name)
    page = Outline(result.save(tmp_path / "audit.html").read_text("utf-8"))
    assert page.skeleton == plain.skeleton
    assert json.loads(result.save(tmp_path / "audit.json").read_text())["subject"]["model"] == f"LeNet{name}"


def test_pictures_are_those_of_the_result_most_exposed_first():
    result = example_result(pictures=4, side=8)
    shown = Outline(page_of(result, redact=False)).all("img")
    assert [each["alt"] for each in shown[::2]] == ["Target, record 17", "Target, record 18"] * 2
    raw = base64.b64decode(shown[0]["src"].partition(",")[2])
    with Image.open(BytesIO(raw)) as image:
        values = np.asarray(image.convert("L"), np.float32) / 255
    assert np.abs(values - result.pictures[0].target[0]).max() <= 0.5 / 255 + 1e-6


def test_a_lower_error_comes_first_where_lower_is_better():
    result = example_result(pictures=4)
    worse, better = (
        replace(each.exposure, score=score) for each, score in zip(result.pictures, (0.9, 0.1), strict=False)
    )
    pictures = [Picture(each, *(np.zeros((1, 8, 8), np.float32),) * 2) for each in (worse, better)]
    turned = replace(result, goals=(GOALS[1], GOALS[0]), pictures=tuple(pictures))
    assert [each["alt"] for each in Outline(page_of(turned, redact=False)).all("img")[::2]] == [
        "Target, record 18", "Target, record 17",
    ]  # fmt: skip


def _traces_of_pictures(result: rr.results.AuditResult, text: str) -> list[str]:
    """Every value and every encoding of pixels that the text holds."""
    found = [form for form in ("data:", "base64,", "<img", "iVBOR") if form in text]
    for picture in result.pictures:
        for array in (picture.target, picture.estimate):
            found += [
                form for value in array.ravel().tolist() for form in (f"{value:.7g}", repr(value)) if form in text
            ]
            found += [
                form
                for form in (base64.b64encode(array.tobytes()).decode()[:24], array.tobytes().hex()[:24])
                if form in text
            ]
    return found


@pytest.mark.parametrize("bundled", [False, True])
def test_redacted_files_hold_no_pixel(bundled: bool, tmp_path: Path):
    result = example_result(bundled=bundled, training=True)
    path = result.save(tmp_path / "audit.html", redact=True)
    page = path.read_text("utf-8")
    assert _traces_of_pictures(result, page.replace("img-src data:", "")) == []
    assert _traces_of_pictures(result, result.save(tmp_path / "audit.json").read_text()) == []
    assert "Pictures of records and estimates were left out" in page


def test_private_records_are_redacted_unless_asked_for(tmp_path: Path):
    private, public = example_result(bundled=False), example_result(bundled=True)
    hidden = private.save(tmp_path / "a.html")
    assert "<img" not in hidden.read_text("utf-8")
    assert "do not publish them" in hidden.read_text("utf-8")
    assert "<img" in private.save(tmp_path / "b.html", redact=False).read_text("utf-8")
    shown = public.save(tmp_path / "c.html")
    assert "<img" in shown.read_text("utf-8")
    assert "do not publish them" not in shown.read_text("utf-8")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (hidden, shown)] == [0o600, 0o644]
    assert stat.S_IMODE(private.save(tmp_path / "a.json").stat().st_mode) == 0o600


def test_the_json_never_holds_pictures_and_reads_back(tmp_path: Path):
    result = example_result(training=True)
    path = result.save(tmp_path / "audit.json")
    assert _traces_of_pictures(result, path.read_text()) == []
    assert json.loads(path.read_text())["version"] == 1
    assert rr.load(path) == result


@pytest.mark.parametrize("channels", [1, 3])
def test_64_pictures_of_noise_stay_below_5_megabytes(channels: int, tmp_path: Path):
    result = example_result(pictures=64, side=224, channels=channels)
    path = result.save(tmp_path / "audit.html")
    assert path.read_text("utf-8").count("<img") == 128
    assert path.stat().st_size < 5e6


def test_estimates_that_are_no_numbers_are_drawn():
    result = example_result(pictures=2)
    broken = np.array([[[np.nan, np.inf], [-np.inf, 0.5]]], np.float32)
    pictures = tuple(Picture(each.exposure, broken, broken) for each in result.pictures)
    assert page_of(replace(result, pictures=pictures), redact=False).count("<img") == 4


def test_an_audit_without_any_trial_has_a_page():
    result = example_result(pictures=0, standing=None)
    none = share(0.0, 0.0, 1.0, samples=0)
    lines = tuple(
        replace(
            line, verdict=Verdict.NOTHING_RUN, success=none, best_attack="", baseline=none, best_baseline="",
            outcomes=(), comparisons=(), worst_record=-1, worst_score=float("-inf"),
        )
        for line in result.lines
    )  # fmt: skip
    page = page_of(replace(result, lines=lines, exposures=(), pictures=()), redact=False)
    assert Outline(page).open == []
    assert "Nothing was run" in page
    assert "record -1" not in page


def test_a_contradiction_comes_before_everything_else():
    page = page_of(example_result(contradicted=True), redact=False)
    assert "<title>Bound contradicted" in page
    assert "the mechanism or the code is wrong" in page


@pytest.mark.parametrize(
    ("standing", "badge"),
    [
        (Standing.ABOVE, "Above the limit"),
        (Standing.NOT_SHOWN, "Not shown"),
        (Standing.MEASURED, "Within the limit"),
        (Standing.PROVED, "Within the limit"),
        (None, "Records leak"),
    ],
)
def test_the_badge_follows_the_limit(standing: Standing | None, badge: str):
    assert f"<title>{badge}: audit" in page_of(example_result(standing=standing), redact=True)


def test_another_suffix_is_refused_and_writes_nothing(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"to end in one of \.json, \.csv, \.md, \.html, \.xml"):
        example_result().save(tmp_path / "audit.png")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_page(tmp_path: Path):
    path = tmp_path / "audit.html"
    path.write_text("old")
    with pytest.raises(AttributeError):
        replace(example_result(), goals=(None,)).save(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["audit.html"]


def _luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_level_aa(scheme: int):
    style = files("reconrisk.reports.audit").joinpath("page.css").read_text("utf-8")
    blocks = re.findall(r":root \{([^}]*--page[^}]*)\}", style)
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[scheme]))
    assert len(blocks) == 2
    surfaces = ("card", "page")
    pairs = [(ink, back) for ink in ("ink", "quiet", "link") for back in surfaces]
    pairs += [(tone, f"{tone}-back") for tone in ("good", "bad", "doubtful")]
    pairs += [("ink", "track"), ("link", "track"), ("ink", "doubtful-back"), ("card", "attack")]
    assert {pair: ratio for pair in pairs if (ratio := _contrast(colour[pair[0]], colour[pair[1]])) < 4.5} == {}
    marks = [(mark, back) for mark in ("attack", "bound", "guess") for back in ("card", "track")]
    marks += [("attack", "rebuilt"), ("bound", "between")]
    assert {pair: ratio for pair in marks if (ratio := _contrast(colour[pair[0]], colour[pair[1]])) < 3} == {}
