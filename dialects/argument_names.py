"""The names of a function's arguments, which MLIR's parser drops, kept as an attribute of each.

    func.func @f(%x: tensor<16x64xf16>)     as   func.func @f(%arg0: tensor<16x64xf16> {superopt.name = "x"})

They carry no meaning, but plans and emitted kernels read better with them.
"""

from __future__ import annotations

import re
from typing import Any

from superopt.dialects.mlir import ir
from superopt.naming import is_value_name

ATTRIBUTE = "superopt.name"
_TOKEN = re.compile(r"%([A-Za-z_][\w.-]*)", re.ASCII)
_ANONYMOUS = re.compile(r"arg\d+")
_PLACE = re.compile(r'^loc\("[^"]*":(\d+):(\d+)\)$')


def parse(text: str, context: Any) -> Any:
    """The module that `text` is, with the names kept; raises what `ir.Module.parse` does."""
    module = ir.Module.parse(text, context)
    keep(module, text)
    return module


def keep(module: Any, text: str) -> None:
    """Give each argument of a function of `module`, parsed from `text`, the name that it has there."""
    from superopt.dialects.reader import functions

    lines: list[str] | None = None
    for function in functions(module):
        if not function.regions[0].blocks:
            continue
        known = list(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []
        if any(ATTRIBUTE in attributes for attributes in known):
            continue
        lines = text.split("\n") if lines is None else lines
        names = [_written(a, lines) for a in function.regions[0].blocks[0].arguments]
        if any(names):
            with function.context:
                attributes = [{ATTRIBUTE: ir.StringAttr.get(n)} if n else {} for n in names]
                for mine, given in zip(attributes, known, strict=False):
                    mine.update({a.name: a.attr for a in given})
                function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])


def name_of(function: Any, position: int) -> str:
    """The kept name of an argument; by default `arg` and its position."""
    if "arg_attrs" in function.attributes:
        attributes = function.attributes["arg_attrs"][position]
        if ATTRIBUTE in attributes and isinstance(found := attributes[ATTRIBUTE], ir.StringAttr):
            name = str(found.value)
            if name and is_value_name(name):
                return name
    return f"arg{position}"


def _written(argument: Any, lines: list[str]) -> str:
    """The name at the argument's place in the text; empty if it is missing or carries no meaning."""
    place = _PLACE.match(str(argument.location))
    if place is None:
        return ""
    row, column = int(place[1]) - 1, int(place[2]) - 1
    found = _TOKEN.match(lines[row], column) if 0 <= row < len(lines) and column >= 0 else None
    if found is None or _ANONYMOUS.fullmatch(found[1]) or not is_value_name(found[1]):
        return ""
    return found[1]
