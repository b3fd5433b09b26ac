"""What cannot be carried out is refused before any work."""

from __future__ import annotations

from hexa.config import UserError


def refuse(when: object, message: str) -> None:
    """Raise UserError with a message if `when` is true."""
    if when:
        raise UserError(message)
