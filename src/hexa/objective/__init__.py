"""The objective: terms of a step from a method and its hard examples, to be back-propagated one after another."""

from hexa.objective.objective import Objective
from hexa.objective.shares import STD, ObjectiveConfig
from hexa.objective.term import Part, Term

__all__ = ["STD", "Objective", "ObjectiveConfig", "Part", "Term"]
