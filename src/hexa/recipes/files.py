"""The recipes of recipes.yaml: the embedded digits, initial weights trained further or made robust, robust CIFAR-10."""

from __future__ import annotations

from functools import partial

from hexa.recipes import register
from hexa.recipes.experiment import validate
from hexa.runtime import parsing

_DOC = """{title}

Command: {command}

Expected: {expected}

Cost: {cost}
"""

for _name, _given in parsing.read_resource("hexa.recipes", "recipes.yaml")["recipes"].items():
    _doc = _DOC.format(
        **{_key: _given.pop(_key) for _key in ("title", "command", "expected", "cost")}
    )
    _small = _given.pop("small", {})
    _fields = {"recipe": _name, **_given}
    _made = validate({**_fields, **_small})
    register(
        _name, partial(validate, _fields), _doc, **{_key: getattr(_made, _key) for _key in _small}
    )
