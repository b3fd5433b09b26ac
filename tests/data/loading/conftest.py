"""Images for loaders, by both of their ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexa.data import Source
from tests.data.batches import array, photographs


@pytest.fixture(params=["resident", "workers"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """Fifty of one size that a loader keeps, or of several that it decodes."""
    return array() if request.param == "resident" else photographs(tmp_path)
