"""The objective: a method and its hard examples as loss terms, back-propagated one after
another."""

from hexa.objective.objective import Objective
from hexa.objective.shares import STD, ObjectiveConfig
from hexa.objective.term import Part, Term

__all__ = ["STD", "Objective", "ObjectiveConfig", "Part", "Term"]
