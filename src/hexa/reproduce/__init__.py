"""The paper's experiments, each as one command that can be stopped anywhere: arms × seeds × epochs, tables, figures."""

from __future__ import annotations

from hexa.reproduce.session import Session, reproduce

__all__ = ["Session", "reproduce"]
