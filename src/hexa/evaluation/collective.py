"""Several processes in one evaluation: all extract a share of the features, the main one does the rest.

Every process runs the same code; with a single process these functions only call what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hexa.config import UserError
from hexa.runtime import processes

Value = TypeVar("Value")


def in_step(work: Callable[[], Value]) -> Value:
    """Run `work` and return its result. Raises UserError in all processes if `work` raises it in one."""
    problem: UserError | None = None
    value: list[Value] = []
    try:
        value.append(work())
    except UserError as error:
        problem = error
    everyones = processes.exchange(None if problem is None else str(problem))
    if problems := [said for said in everyones if said is not None]:
        raise problem or UserError(problems[0])
    return value[0]


def from_main(work: Callable[[], Value]) -> Value:
    """Run `work` in the main process, and return its result in all processes; the others wait.

    Raises UserError in all processes if `work` does, and ProcessEnded in the others if the main process ends otherwise.
    """
    made: list[Value] = []
    error: BaseException | None = None
    if processes.is_main():
        try:
            made.append(work())
        except BaseException as caught:
            error = caught
    problem = str(error) if isinstance(error, UserError) else None
    made, problem, crashed = processes.exchange(
        (made, problem, error is not None and problem is None)
    )[0]
    if error is not None:
        raise error
    if problem is not None:
        raise UserError(problem)
    if crashed:
        raise processes.ProcessEnded("the main process failed", speaks=False)
    return made[0]


def main_first(work: Callable[[], Value]) -> Value:
    """Run `work` in each process and return its result. The main process goes first and downloads what is missing."""
    made: list[Value] = []
    from_main(lambda: made.append(work()))
    return in_step(lambda: made[0] if made else work())
