"""The page: complete, self-contained, escaped, and there even when files are not."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hexa.reporting.report import report
from tests.reporting.conftest import MakeRun, append

VOID = {"meta", "img", "br", "wbr", "hr", "input", "link", "base", "source", "path"}
LOADS = {
    "src",
    "href",
    "srcset",
    "data",
    "poster",
    "action",
    "xlink:href",
    "formaction",
    "background",
}
PICTURES = ("data:image/png;base64,", "data:image/svg+xml;base64,")
EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp; {{ 7*7 }}"


class Page(HTMLParser):
    """A page as a browser parses it: elements with attributes, texts by element, and whether all
    tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attributes}) == len(attributes), (
            f"an attribute twice in <{tag}>"
        )
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(data for tag, data in self.texts if tag not in ("style", "script"))


def page_of(folders: list[Path], tmp_path: Path) -> Page:
    return Page(report(folders, tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


def charts(page: Page) -> dict[str, str]:
    """The pictures of charts by their keys."""
    found: dict[str, str] = {}
    key = ""
    for tag, attributes in page.elements:
        if tag == "figure":
            key = attributes["data-key"]
        if attributes.get("class") == "plot":
            found[key] = attributes["src"]
    return found


def test_report_content(make_run: MakeRun, tmp_path: Path) -> None:
    """The report names the run's settings and results."""
    page = page_of([make_run("mine")], tmp_path)
    for text in (
        "digits-hexa-moco",
        "moco",
        "adversarial, cutmix",
        "finished",
        "Some CPU",
        "128",
        "0.06",
    ):
        assert text in page.text
    assert "knn/k200-t0.07" in page.text
    assert any(
        "temperature: 0.2" in text for tag, text in page.texts if tag == "code"
    )  # the full configuration
    assert "versions.torch" in page.text
    assert "Beside published" not in page.text
    assert (tmp_path / "out" / "report.html").stat().st_size < 300_000


def test_self_contained_page(make_run: MakeRun, tmp_path: Path) -> None:
    """Nothing is loaded from anywhere."""
    text = report([make_run("a"), make_run("b", seed=1)], tmp_path / "x.html").read_text()
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in LOADS & set(attributes):
            assert attributes[name].startswith(("#", *PICTURES))
        assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in attributes.get("style", "")
    style = " ".join(data for tag, data in page.texts if tag in ("style", "script"))
    assert "url(" not in style
    assert "@import" not in style
    assert re.findall(r"https?://", text.replace("http://www.w3.org/2000/svg", "")) == []


def test_escaped_texts(make_run: MakeRun, tmp_path: Path) -> None:
    """Texts of files are escaped."""
    folder = make_run(
        "a", recipe=EVIL, data=EVIL, hard_examples={EVIL: {"kind": EVIL, "weight": 2}}
    )
    (folder / "environment.json").write_text(json.dumps({"device": EVIL, EVIL: [EVIL]}))
    append(folder, {"event": "warning", "step": EVIL, "message": EVIL})
    append(folder, {"event": "train", "step": 400, f"loss/{EVIL}": 1.0, EVIL: 2.0})
    result = {"protocol": EVIL, "preset": EVIL, "data": EVIL, "metrics": {EVIL: 12.0, "top1": EVIL}}
    (folder / "results.json").write_text(json.dumps([result]))
    for folders in ([folder], [folder, make_run("b")]):
        page = page_of(folders, tmp_path)
        assert page.all("script") == []
        assert all("onerror" not in attributes for attributes in page.all("img"))
        assert all(attributes["src"].startswith("data:") for attributes in page.all("img"))
        assert EVIL in page.text
        assert "49" not in page.text.replace(EVIL, "").split()


@pytest.mark.parametrize(
    "missing", [("metrics.jsonl", "gallery.png"), ("config.yaml", "results.json")]
)
def test_missing_report_files(make_run: MakeRun, tmp_path: Path, missing: tuple[str, ...]) -> None:
    """A missing file costs its part only."""
    folder = make_run(recipe="not-a-recipe")
    for name in missing:
        (folder / name).unlink()
    page = page_of([folder], tmp_path)
    for name in ("metrics.jsonl", "config.yaml", "environment.json"):
        assert (f"{name} is missing" in page.text) == (name in missing)
    assert bool(charts(page)) == ("metrics.jsonl" not in missing)
    assert (f"hexa report {folder} --data SOURCE --out" in page.text) == ("gallery.png" in missing)
    sections = [attributes["id"] for attributes in page.all("section")]
    assert ("examples" in sections) == ("gallery.png" not in missing)
    assert ("evaluation" in sections) == ("results.json" not in missing)


def test_broken_report_files(make_run: MakeRun, tmp_path: Path) -> None:
    """Broken files are reported."""
    folder = make_run(finished=False)
    for name in ("config.yaml", "environment.json", "results.json"):
        (folder / name).write_text("{: broken")
    (folder / "gallery.png").write_bytes(b"not a picture")
    append(folder, {"event": "warning", "step": 40, "message": "the loss is stuck at ln(1 + K)"})
    page = page_of([folder], tmp_path)
    for name in ("config.yaml", "environment.json", "results.json"):
        assert f"{name} cannot be read" in page.text
    assert "gallery.png is not a PNG" in page.text
    assert "the loss is stuck at ln(1 + K) (step 40)" in page.text
    assert "interrupted after 15 passes over the images" in page.text
    assert "loss" in charts(page)


def test_pass_and_repeat_counts(make_run: MakeRun, tmp_path: Path) -> None:
    """A run of 30 passes, of which four had views of their own; the journal knows better than the plan."""
    folder = make_run(start={"view_sets": 7})
    said = "passes over the images and {} repeats of their views"
    assert f"finished after 7 {said.format(23)}" in page_of([folder], tmp_path).text
    append(folder, {"event": "end", "step": 300, "view_sets": 4})
    assert f"finished after 4 {said.format(26)}" in page_of([folder], tmp_path).text
    append(folder, {"event": "end", "step": 300, "view_sets": 1})
    assert "finished after 1 pass over the images" in page_of([folder], tmp_path).text
