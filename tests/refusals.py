"""Checks of errors that users can cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hexa.config import UserError


@contextmanager
def one_line(
    said: str, kind: type[Exception] = UserError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Check that the code inside the context raises an error of this kind whose single line
    matches."""
    with pytest.raises(kind, match=said) as caught:
        yield caught
    assert "\n" not in str(caught.value)
