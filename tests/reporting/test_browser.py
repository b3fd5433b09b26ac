"""The report in a real browser, Debian's chromium, without a window: what it looks like to the DOM, not to a parser.

The page is put into frames of the wanted sizes, as a phone would show it, and a script beside them writes down what it
finds. One start of the browser serves many tests. Nothing is fetched: the page is one file.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hexa.reporting.report import report
from tests.reporting.conftest import append, run_with, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
]
QUIET += ["--disable-background-networking", "--disable-component-update"]
LIGHT, DARK = 1, 0


SCRIPTS: dict[str, tuple[str, int]] = {}
"""Name: function body with the page's `d` (document) and `w` (window), and the width of the frame it runs in."""


def look(
    page: Path, scheme: int, folder: Path, scripts: dict[str, tuple[str, int]]
) -> dict[str, Any]:
    """What every script returns, each in a frame of its own."""
    frame = html.escape(page.read_text(encoding="utf-8"))
    frames = "".join(
        f'<iframe id="{name}" style="border:0;width:{width}px;height:900px" srcdoc="{frame}"></iframe>'
        for name, (_, width) in scripts.items()
    )
    bodies = ",".join(
        f"{json.dumps(name)}: (d, w) => {{{script}}}" for name, (script, _) in scripts.items()
    )
    host = folder / "host.html"
    host.write_text(
        f'{frames}<pre id="found"></pre><script>const scripts = {{{bodies}}}, found = {{}};'
        "window.onload = () => { for (const [name, script] of Object.entries(scripts)) {"
        "const frame = document.getElementById(name);"
        "try { found[name] = script(frame.contentDocument, frame.contentWindow); }"
        "catch (error) { found[name] = String(error); } }"
        "document.getElementById('found').textContent = JSON.stringify(found); };</script>",
        encoding="utf-8",
    )
    command = [
        str(CHROMIUM),
        *QUIET,
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,1000",
    ]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", host.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="found">(.+?)</pre>', shown, re.DOTALL)
    assert found is not None, "the page was not loaded"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: with a long name, with results on VOC07, with a warning, without a part that the others have."""
    root = tmp_path_factory.mktemp("runs")
    long = "a-rather-long-name-of-a-run-without-any-place-to-break-it-0123456789"
    other = write_run(root / long, seed=1, optimizer={"learning_rate": 0.1})
    folders = [write_run(root / "a"), other, write_run(root / "c", hard_examples={})]
    append(folders[0], {"event": "warning", "step": 40, "message": "the loss is stuck"})
    voc = {"test": {"known_as": "VOC07", "images": 4952, "fingerprint": "x"}}
    shots = {
        "protocol": "low-shot/pcl",
        "metrics": {f"mAP@{n}": 40.0 + n for n in (2, 4, 8, 16, 32)},
    }
    run_with(folders[1], shots | {"data_facts": voc, "data": "voc:somewhere/VOCdevkit"})
    return report(folders, root / "report.html")


@pytest.fixture(scope="module")
def light(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return look(page, LIGHT, tmp_path_factory.mktemp("light"), SCRIPTS)


@pytest.fixture(scope="module")
def dark(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return look(page, DARK, tmp_path_factory.mktemp("dark"), {"contrast": SCRIPTS["contrast"]})


OVERFLOW = """
        d.querySelectorAll("details").forEach((one) => { one.open = true; });
        const outside = [...d.querySelectorAll("body *")].filter((e) => {
            const box = e.getBoundingClientRect();
            return box.width && box.right > w.innerWidth + 1 && !e.closest(".scroll, pre, svg, .unseen, .skip");
        });
        const deaf = [...d.querySelectorAll(".scroll, pre")].filter(
            (e) => e.scrollWidth > e.clientWidth + 1 && e.tabIndex !== 0);
        return [d.documentElement.scrollWidth, w.innerWidth, outside.map((e) => e.outerHTML.slice(0, 80)),
                deaf.map((e) => e.outerHTML.slice(0, 80))];
"""
SCRIPTS |= {f"at{width}": (OVERFLOW, width) for width in (320, 390, 1280)}


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_never_scrolls_sideways(light: dict[str, Any], width: int) -> None:
    """Also with everything unfolded; wide tables scroll in containers of their own, which the keyboard reaches."""
    scrolled, inner, outside, deaf = light[f"at{width}"]
    assert inner == width
    assert scrolled <= width
    assert outside == []
    assert deaf == []


SCRIPTS["toggle"] = (
    """
        const count = () => [...d.querySelectorAll("svg [data-series=c]")].filter(
            (e) => e.style.display !== "none").length;
        const button = d.querySelector(".runs-legend li[data-series=c] button");
        const said = [[button.getAttribute("aria-pressed"), count()]];
        for (let i = 0; i < 2; i++) { button.click(); said.push([button.getAttribute("aria-pressed"), count()]); }
        const all = (name) => d.querySelectorAll(`svg [data-series=${name}]`).length;
        return [said, all("c"), all("a")];
    """,
    1280,
)


def test_a_name_hides_its_curve_everywhere_and_brings_it_back(light: dict[str, Any]) -> None:
    said, of_c, of_a = light["toggle"]
    assert said == [["true", of_c], ["false", 0], ["true", of_c]]
    assert of_a > of_c > 0  # c has no hard examples


SCRIPTS["arrows"] = (
    """
        const chart = d.querySelector("figure[data-key='loss/std'] svg");
        const press = (key) => chart.dispatchEvent(new w.KeyboardEvent("keydown", { key, bubbles: true }));
        const read = () => [...d.querySelectorAll(".hint b")].slice(1).map((e) => +e.textContent);
        press("End");
        const end = read();
        press("Home");
        const home = read();
        press("Escape");
        const rows = [...d.querySelectorAll("figure[data-key='loss/std'] tbody tr")].map((row) =>
            [...row.children].slice(1).map((cell) => +cell.textContent));
        return [end, home, d.querySelectorAll(".hint").length, rows];
    """,
    1280,
)


def test_arrow_keys_read_a_chart(light: dict[str, Any]) -> None:
    end, home, hints, rows = light["arrows"]
    assert home == pytest.approx(rows[0], rel=2e-3)
    assert end == pytest.approx(rows[-1], rel=2e-3)
    assert hints == 0


SCRIPTS["focus"] = (
    """
        d.querySelectorAll("details").forEach((one) => { one.open = true; });
        const controls = [...d.querySelectorAll("a[href], button, input, summary, [tabindex='0']")];
        const bad = controls.filter((e) => {
            e.focus({ focusVisible: true });
            const style = w.getComputedStyle(e);
            const seen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || e.matches(".skip");
            const named = e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label");
            return d.activeElement !== e || !seen || !named;
        });
        const skip = d.querySelector(".skip");
        skip.focus();
        const box = skip.getBoundingClientRect();
        return [controls.length, bad.map((e) => e.outerHTML.slice(0, 120)), box.left >= 0 && box.top >= 0,
                d.querySelector(skip.getAttribute("href")) !== null, d.body.firstElementChild === skip];
    """,
    1280,
)


def test_every_control_shows_its_focus_and_has_a_name(light: dict[str, Any]) -> None:
    count, bad, *skip = light["focus"]
    assert count > 40
    assert bad == []
    assert skip == [True, True, True]


# WCAG 2.1: relative luminance, contrast of at least 4.5 for texts; charts' texts and swatches at least 3
CONTRAST = """
    d.querySelectorAll("details").forEach((one) => { one.open = true; });
    const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const behind = (e) => {
        const layers = [];
        for (let up = e; up; up = up.parentElement) layers.push(rgb(w.getComputedStyle(up).backgroundColor));
        return layers.reverse().reduce((under, over) => under.map((v, i) => v + (over[i] - v) * over[3] / 255),
            [255, 255, 255]);
    };
    const ratio = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
    };
    const found = {};
    for (const e of d.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || e.closest("script, style, .unseen, .skip") || !e.getClientRects().length) continue;
        const style = w.getComputedStyle(e);
        const colour = e.closest("svg") ? style.fill : style.color;
        const contrast = ratio(rgb(colour), behind(e));
        if (contrast < 4.5) found[e.outerHTML.slice(0, 90)] = contrast;
    }
    for (const e of d.querySelectorAll(".swatch")) {
        const contrast = ratio(rgb(w.getComputedStyle(e).backgroundColor), behind(e.parentElement));
        if (contrast < 3) found[e.outerHTML] = contrast;
    }
    return [w.getComputedStyle(d.body).backgroundColor, found];
"""


SCRIPTS["contrast"] = (CONTRAST, 1280)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_dark(scheme: str, request: pytest.FixtureRequest) -> None:
    paper, poor = request.getfixturevalue(scheme)["contrast"]
    assert (int(re.findall(r"\d+", paper)[0]) > 128) == (scheme == "light")
    assert poor == {}
