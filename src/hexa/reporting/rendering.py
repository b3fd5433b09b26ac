"""Pages from the templates of this package."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup


def rendered(template: str, **shown: Any) -> str:
    """A page of this package: the template with what it shows, the style and the script."""
    loader = jinja2.PackageLoader("hexa.reporting", "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in ("css", "js"):
        shown[name] = Markup(loader.get_source(environment, f"report.{name}")[0])
    return environment.get_template(template).render(shown)
