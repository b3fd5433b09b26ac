"""An evaluation by several processes: the main one does it, the others extract their share of the features for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexa.config import UserError
from hexa.evaluation.features import extract_share
from hexa.evaluation.protocol import Task
from hexa.runtime import processes


def lead(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Of the main process: what `measure` returns, which its helpers are told; or that it failed."""
    try:
        with processes.alone():
            result = measure()
    except BaseException as error:
        users = isinstance(error, UserError)
        processes.order({"failed": "user" if users else "otherwise"})
        if users:  # else others may have failed too
            processes.barrier()
        raise
    processes.order({"result": result})
    processes.barrier()  # orders may lie in this process, which must be there until all have read them
    return result


def serve(make_task: Callable[[], Task]) -> dict[str, Any]:
    """Of a helper: extract what the main process asks for until it has the result, and return that.

    The task is made when it is first needed: data sets are downloaded by then, and a user's mistake has been found.
    Raises ProcessEnded, which another process speaks of, if the evaluation failed.
    """
    task: Task | None = None
    while True:
        order = processes.await_order()
        if "result" in order:
            processes.barrier()
            found: dict[str, Any] = order["result"]
            return found
        if "failed" in order:
            if order["failed"] == "user":
                processes.barrier()
            raise processes.ProcessEnded("the main process failed", speaks=False)
        try:
            task = task or make_task()
        except UserError as error:
            processes.exchange((str(error), {}))
            continue
        extract_share(task, task.fit if order["extract"] == "fit" else task.test)
