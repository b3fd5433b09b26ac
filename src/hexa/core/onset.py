"""When hard examples set in, and how they grow from there."""

from __future__ import annotations

from collections.abc import Mapping

from hexa.config import ConfigError
from hexa.core.hard_example import HardExample
from hexa.core.shares import STD


class Onset:
    """Hard examples over a training of `steps` steps; None: with all of them from the first step, whatever they say.

    One sets in at the first step k of K with k / K ≥ `start`. From there its weight or its strength grows to the share
    min(1, (k / K − start) / ramp); without `ramp` it is whole at once. One that is made from another waits for that,
    and its ramp begins there.
    """

    def __init__(self, hard_examples: Mapping[str, HardExample], steps: int | None) -> None:
        self._all = {name: hard_examples[name] for name in _by_source(hard_examples)}
        self._begins = {STD: 0.0}
        for name, hard in self._all.items():
            self._begins[name] = max(hard.start, self._begins[hard.source])
        late = any(self._begins[name] or hard.ramp for name, hard in self._all.items())
        self._steps = steps if late else None

    def at(self, step: int | None = None) -> dict[str, HardExample]:
        """Those that have set in at a step, as they are then, each after its source. None: all of them, whole."""
        if self._steps is None or step is None:
            return self._all
        made: dict[str, HardExample] = {}
        for name, hard in self._all.items():
            passed = step / self._steps - self._begins[name]
            share = min(1.0, passed / hard.ramp) if hard.ramp else float(passed >= 0)
            if share > 0 and hard.source in {STD, *made}:
                made[name] = hard if share == 1 else hard.grown(share)
        return made

    def new(self, step: int) -> set[str]:
        """Those that set in at a step which is not the first."""
        return set() if self._steps is None or step == 0 else self.at(step).keys() - self.at(step - 1).keys()


def trained(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """The hard examples that have a term."""
    return [name for name, hard in hard_examples.items() if hard.weight > 0]


def needed(hard_examples: Mapping[str, HardExample]) -> set[str]:
    """The hard examples that have a term, and those they are made from."""
    wanted: set[str] = set()
    for name in trained(hard_examples):
        while name != STD and name not in wanted:
            wanted.add(name)
            name = hard_examples[name].source
    return wanted


def branches(hard_examples: Mapping[str, HardExample]) -> set[str]:
    """The batch-norm sets that they need beyond the main one."""
    return {branch for name in needed(hard_examples) for branch in hard_examples[name].branches()} - {"main"}


def _by_source(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """Names in an order in which every source comes before what is made from it; otherwise as given."""
    ordered: list[str] = []
    pending = list(hard_examples)
    while pending:
        ready = [name for name in pending if hard_examples[name].source in {STD, *ordered}]
        if not ready:
            raise ConfigError([(f"hard_examples.{pending[0]}.source", "names no example that can be made first")])
        ordered.append(ready[0])
        pending.remove(ready[0])
    return ordered
