"""Pages of the site, as `make docs` built it, load nothing from elsewhere; `make docs` itself refuses a broken link."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from docs.generated import ROOT

SITE = ROOT / "build/site"
pytestmark = pytest.mark.skipif(not SITE.exists(), reason="there is no site (make docs builds it)")


class Loads(HTMLParser):
    """Collects the addresses that a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        loads = given.get("src") or (given.get("href") if tag == "link" else None)
        if loads:
            self.found.append(loads)


def test_self_contained_site() -> None:
    """The site loads nothing from elsewhere, and has the contract."""
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.found
        assert not [address for address in loads.found if "//" in address], page
    contract = (SITE / "api/core.html").read_text(encoding="utf-8")
    assert 'id="hexa.core.method.Method.pseudo_labels"' in contract
