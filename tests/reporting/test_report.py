"""The page: complete, self-contained, escaped, and there even when files are not."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hexa.config import UserError
from hexa.recipes.experiment import override
from hexa.reporting.report import Makers, report
from tests.reporting.conftest import MakeRun, append, made_up_gallery

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
EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp; {{ 7*7 }}"


class Page(HTMLParser):
    """What a browser would see: elements with attributes, texts by element, and whether all tags are closed."""

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


def page_of(folders: list[Path], tmp_path: Path, makers: Makers | None = None) -> Page:
    return Page(
        report(folders, tmp_path / "out" / "report.html", makers).read_text(encoding="utf-8")
    )


def charts(page: Page) -> dict[str, list[str]]:
    """Names of the curves by the key of their chart."""
    found: dict[str, list[str]] = {}
    key = ""
    for tag, attributes in page.elements:
        if tag == "figure":
            key = attributes["data-key"]
        if attributes.get("class") == "curve":
            found.setdefault(key, []).append(attributes["data-series"])
    return found


def test_what_ran_is_said(make_run: MakeRun, tmp_path: Path) -> None:
    page = page_of([make_run("mine")], tmp_path)
    for text in (
        "digits-hexa-moco",
        "moco",
        "adversarial, cutmix (weight 0.5)",
        "finished",
        "Some CPU",
        "128",
        "0.06",
    ):
        assert text in page.text
    assert any(
        tag == "code" and text.startswith("hexa pretrain digits-hexa-moco")
        for tag, text in page.texts
    )
    assert "knn/k200-t0.07" in page.text
    assert any(
        "temperature: 0.2" in text for tag, text in page.texts if tag == "code"
    )  # the full configuration
    assert "versions.torch" in page.text
    assert "Beside published" not in page.text
    assert (tmp_path / "out" / "report.html").stat().st_size < 300_000


def test_published_rows_stand_beside_their_recipe(make_run: MakeRun, tmp_path: Path) -> None:
    page = page_of([make_run("short", recipe="imagenet-hexa-moco-200", epochs=20)], tmp_path)
    cells = [text for tag, text in page.texts if tag in ("td", "th")]
    at = cells.index("HEXA-MoCo (repeated by the recipe)")
    assert cells[at + 1 : at + 6] == ["200", "68.9", "85.0", "90.4", "71.5"]
    assert (
        "(not evaluated so yet; 20 epochs, the published row 200: they are not comparable)"
        in page.text
    )
    assert "BYOL" not in page.text


def test_nothing_is_loaded_from_anywhere(make_run: MakeRun, tmp_path: Path) -> None:
    text = report([make_run("a"), make_run("b", seed=1)], tmp_path / "x.html").read_text()
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in LOADS & set(attributes):
            assert attributes[name].startswith(("#", "data:image/png;base64,"))
        assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in attributes.get("style", "")
    style = " ".join(data for tag, data in page.texts if tag in ("style", "script"))
    assert "url(" not in style
    assert "@import" not in style
    assert re.findall(r"https?://", text.replace("http://www.w3.org/2000/svg", "")) == []


def test_texts_of_files_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(
        "a", recipe=EVIL, data=EVIL, hard_examples={EVIL: {"kind": EVIL, "weight": 2}}
    )
    (folder / "environment.json").write_text(json.dumps({"device": EVIL, EVIL: [EVIL]}))
    append(folder, {"event": "warning", "step": EVIL, "message": EVIL})
    append(folder, {"event": "train", "step": 400, f"loss/{EVIL}": 1.0, EVIL: 2.0})
    result = {"protocol": EVIL, "preset": EVIL, "data": EVIL, "metrics": {EVIL: 12.0, "top1": EVIL}}
    (folder / "results.json").write_text(json.dumps([result]))
    texts: dict[str, Any] = {"heads": (EVIL,), "captions": [(EVIL,)] * 5, "labels": (EVIL,) * 5}
    replace(made_up_gallery(), tiles=made_up_gallery().tiles[:, :1], **texts).store(
        folder / "gallery.npz"
    )
    for folders in ([folder], [folder, make_run("b")]):
        page = page_of(folders, tmp_path)
        assert len(page.all("script")) == 1
        assert all("onerror" not in attributes for attributes in page.all("img"))
        assert all(attributes["src"].startswith("data:") for attributes in page.all("img"))
        assert EVIL in page.text
        assert "49" not in page.text.replace(EVIL, "").split()


def test_the_gallery_is_inside(make_run: MakeRun, tmp_path: Path) -> None:
    images = page_of([make_run()], tmp_path).all("img")
    grid = made_up_gallery()
    assert len(images) == 4 * len(grid.tiles)
    assert all(attributes["alt"] for attributes in images)
    first = base64.b64decode(images[1]["src"].removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(first))), grid.tiles[0, 1])


def test_the_page_has_a_language_and_unique_places_and_charts_have_words(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Also where no browser can look at it (test_browser.py)."""
    page = page_of([make_run()], tmp_path)
    assert page.all("html")[0]["lang"] == "en"
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    assert all(a["href"].removeprefix("#") in identifiers for a in page.all("a"))
    assert all("Last values" in svg["aria-label"] for svg in page.all("svg") if "data-axes" in svg)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize(
    "missing", [("metrics.jsonl", "gallery.npz"), ("config.yaml", "results.json")]
)
def test_a_missing_file_costs_its_part_only(
    make_run: MakeRun, tmp_path: Path, missing: tuple[str, ...]
) -> None:
    folder = make_run(recipe="not-a-recipe")
    for name in missing:
        (folder / name).unlink()
    page = page_of([folder], tmp_path)
    for name in ("metrics.jsonl", "config.yaml", "environment.json"):
        assert (f"{name} is missing" in page.text) == (name in missing)
    assert bool(charts(page)) == ("metrics.jsonl" not in missing)
    assert ("no pictures (gallery)" in page.text) == ("gallery.npz" in missing)
    assert ("Evaluate the run" in page.text) == ("results.json" in missing)
    sections = [attributes["id"] for attributes in page.all("section")]
    assert ("examples" in sections) == ("gallery.npz" not in missing)
    assert ("evaluation" in sections) == ("results.json" not in missing)
    assert "clusters" not in sections


def test_broken_files_are_told(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(finished=False)
    for name in ("config.yaml", "environment.json", "results.json"):
        (folder / name).write_text("{: broken")
    (folder / "gallery.npz").write_bytes(b"not a picture")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            '{"event": "warning", "step": 40, "message": "the loss is stuck at ln(1 + K)"}\n{"event": "tra'
        )
    page = page_of([folder], tmp_path)
    for name in ("config.yaml", "environment.json", "results.json"):
        assert f"{name} cannot be parsed" in page.text
    assert "metrics.jsonl: 1 broken line left out" in page.text
    assert "the loss is stuck at ln(1 + K) (step 40)" in page.text
    assert "interrupted at epoch 15" in page.text
    assert charts(page)["loss"] == ["std", "adversarial", "cutmix"]


def test_the_run_with_most_to_see_is_open_and_an_interrupted_one_says_how_to_go_on(
    make_run: MakeRun, tmp_path: Path
) -> None:
    plain, hard = make_run("plain", hard_examples={}), make_run("hard", finished=False)
    some = made_up_gallery()
    two = [row[:2] for row in some.captions]
    replace(some, tiles=some.tiles[:, :2], heads=some.heads[:2], captions=two).store(
        plain / "gallery.npz"
    )
    page = page_of([plain, hard], tmp_path)
    assert ["open" in attributes for attributes in page.all("details")].count(True) == 1
    html = (tmp_path / "out" / "report.html").read_text()
    assert "hard</summary>" in html[html.index('<details class="fold card" open>') :][:200]
    assert [text for tag, text in page.texts if text.startswith("hexa resume")] == [
        f"hexa resume {hard}"
    ]


def test_several_runs_are_compared(make_run: MakeRun, tmp_path: Path) -> None:
    page = page_of(
        [make_run("a"), make_run("b", seed=1), make_run("plain", hard_examples={})], tmp_path
    )
    drawn = charts(page)
    assert drawn["loss/std"] == ["a", "b", "plain"]
    assert drawn["loss/cutmix"] == ["a", "b"]
    fields = [text for tag, text in page.texts if tag == "th"]
    assert [part in fields for part in ("seed", "hard_examples.cutmix")] == [True, True]
    assert "epochs" not in fields
    assert "Mean ± standard deviation over seeds" in page.text
    assert any(tag == "strong" for tag, _ in page.texts)


def test_an_evaluation_alone_is_compared_with_runs_and_without_a_run_is_no_report(
    make_run: MakeRun, tmp_path: Path
) -> None:
    alone = tmp_path / "resnet50.json"
    alone.write_text(
        json.dumps({"protocol": "knn/k200-t0.07", "data": "digits", "metrics": {"top1": 12.25}})
    )
    page = page_of([make_run("a"), alone], tmp_path)
    assert "12.2" in [text for tag, text in page.texts if tag in ("td", "th")]
    assert "evaluated" in [text for tag, text in page.texts if tag == "span"]
    alone.write_text("{}")
    for given, said in (
        ([alone], r"resnet50\.json: no result"),
        ([], "no run to report on"),
        ([tmp_path / "a", tmp_path / "nowhere"], "no such run folder"),
    ):
        with pytest.raises(UserError, match=said):
            report(given, tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_report_makes_the_gallery_of_a_run_that_lacks_it_of_images_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hexa import data
    from hexa.run import visualize
    from tests.run.test_visualize import a_run, tiny

    run = a_run(tmp_path / "run", tiny())
    opened: list[str] = []
    for module in (visualize, data):
        monkeypatch.setattr(
            module,
            "open_source",
            lambda spec, *_, real=module.open_source: (opened.append(spec), real(spec))[1],
        )
    left_out: list[str] = []
    report([run], tmp_path / "page.html", left_out=left_out)
    assert left_out == ["no pictures of run; add --data SOURCE to make them"]
    said = f"no pictures (gallery): hexa report {run} --data digits --out report.html makes them"
    assert said in (tmp_path / "page.html").read_text()
    assert not (run / "gallery.npz").exists()
    assert opened == []
    page = page_of([run], tmp_path, visualize.makers("digits#test"))
    assert set(opened) == {"digits#test"}
    assert (run / "gallery.png").read_bytes()[:4] == b"\x89PNG"
    assert "has no backbone.safetensors yet" in page.text  # so it shows no clusters
    assert "perturbation × " in page.text
    assert len(page.all("img")) == 3 * 8


def test_a_run_that_remembers_its_images_is_shown_with_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hexa.run import visualize
    from tests.run.test_visualize import a_run, tiny

    run = a_run(
        tmp_path / "run", override(tiny(), {"method.name": "instdisc", "views.num_views": 1})
    )
    monkeypatch.setattr(visualize, "_own_source", pytest.fail)
    page = page_of([run], tmp_path, visualize.makers("digits#test"))
    assert "its method remembers every image it was trained on; give these with --data" in page.text


def test_a_page_of_very_long_journals_is_small(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexa.reporting.runs._LONG_JOURNAL", 300_000)
    folder = make_run(epochs=2)
    lines = [
        {"event": "train", "step": step, "epoch": step / 10, "loss": 1.5}
        for step in range(100, 10_000)
    ]
    lines += [{"event": "warning", "step": 1, "message": f"m{number}"} for number in range(500)]
    append(folder, *lines)
    page = page_of([folder], tmp_path)
    assert re.search(
        r"metrics\.jsonl is long: one in [34] of its training lines is shown", page.text
    )
    assert "500 warnings, of which the first 100 are shown" in page.text
    assert (tmp_path / "out" / "report.html").stat().st_size < 400_000
