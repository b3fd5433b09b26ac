"""Pages from the templates of this package."""

from __future__ import annotations

import base64
from typing import Any

import jinja2
from markupsafe import Markup


def rendered(template: str, **shown: Any) -> str:
    """A page of this package: the template with what it shows, and the style."""
    loader = jinja2.PackageLoader("hexa.reporting", "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    css = Markup(loader.get_source(environment, "report.css")[0])
    return environment.get_template(template).render(shown, css=css)


def data_uri(kind: str, content: bytes) -> str:
    """A picture of a media type such as image/png as the source of an <img>."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
