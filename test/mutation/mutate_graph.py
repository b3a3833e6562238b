"""Faults injected into programs at the kernel, block, thread and tile level, on their canonical text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, cast

from superopt.operators import OPERATORS
from superopt.program import COMPUTE_DTYPES

Site = tuple[str, Callable[[], None]]  # what the fault is, and what injects it into the (copied) document


def mutate(text: str, generator: random.Random, kinds: set[str] | None = None) -> tuple[str, str, str]:
    """One fault: its kind (operator, operand, map, guard, offset, dtype, start, dropped), what it is, and the text."""
    document = copy.deepcopy(json.loads(text))
    sites: list[tuple[str, Site]] = []
    _graph(document, generator, sites)
    groups: dict[str, list[Site]] = {}
    for kind, site in sites:
        if kinds is None or kind in kinds:
            groups.setdefault(kind, []).append(site)
    kind = generator.choice(sorted(groups))  # kinds first, so that rare ones are not drowned
    what, inject = generator.choice(groups[kind])
    inject()
    return kind, what, json.dumps(document, sort_keys=True, separators=(",", ":"))


def _set(holder: Any, key: Any, value: Any) -> Callable[[], None]:
    def inject() -> None:
        holder[key] = value

    return inject


def _same_arity(op: str) -> list[str]:
    entry = OPERATORS[op]
    required = {s.name for s in entry.attrs if s.default is None}
    return [
        name
        for name, other in OPERATORS.items()
        if name != op
        and other.arity == entry.arity
        and other.elementwise == entry.elementwise
        and {s.name for s in other.attrs if s.default is None} == required
        and (other.nest is None) == (entry.nest is None)
    ]


def _graph(region: Any, generator: random.Random, sites: list[tuple[str, Site]]) -> None:
    types = list(region["inputs"])
    for number, node in enumerate(region["nodes"]):
        op, operands, results, attrs, body = node
        where = f"{number} {op}"
        if op in OPERATORS:
            for other in _same_arity(op):
                sites.append(("operator", (f"{where} -> {other}", _set(node, 0, other))))
        for i, operand in enumerate(operands):
            for other in range(len(types)):
                if other != operand and types[other] == types[operand]:
                    sites.append(("operand", (f"{where} operand {i} -> {other}", _set(operands, i, other))))
        if len(operands) == 2:
            sites.append(("operand", (f"{where} operands swapped", _set(node, 1, operands[::-1]))))
        _attrs(where, attrs, sites)
        for r in results:
            for dtype in sorted(COMPUTE_DTYPES - {r[0]}):
                sites.append(("dtype", (f"{where} of {dtype}", _set(r, 0, dtype))))
        if body is not None:
            _body(where, body, generator, sites)
        types += results
    outputs = region["outputs"]
    for i, output in enumerate(outputs):
        for other in range(len(types)):
            if other != output and types[other] == types[output]:
                sites.append(("operand", (f"output {i} -> {other}", _set(outputs, i, other))))


def _body(where: str, body: Any, generator: random.Random, sites: list[tuple[str, Site]]) -> None:
    if "tile" in body:
        _tile(where, body["tile"], sites)
        return
    region = body["block" if "block" in body else "thread"]
    _graph(region, generator, sites)
    for key in ("grid", "loops"):
        for i, extent in enumerate(body.get(key, [])):
            for other in {1, extent * 2, extent // 2 or 2} - {extent}:
                sites.append(("map", (f"{where} {key} {i}: {extent} -> {other}", _set(body[key], i, other))))


def _attrs(where: str, attrs: Any, sites: list[tuple[str, Site]]) -> None:
    for key, value in attrs.items():
        new: list[Any] = []
        kind = "map"
        if isinstance(value, bool):
            new = [not value]
        elif key == "kind":
            kind, new = "start", [k for k in ("sum", "max", "concat", "rescaled") if k != value]
        elif isinstance(value, int):
            new = [value + 1, value - 1]
        elif isinstance(value, list):
            entries = cast("list[int]", value)
            new = [entries[::-1]] if entries[::-1] != entries else []
            for i, v in enumerate(entries):
                new += [[*entries[:i], w, *entries[i + 1 :]] for w in (v - 1, v + 1, -1) if w != v]
        elif isinstance(value, dict) and "float" in value:
            kind = "start" if key == "value" else "guard"
            number = float.fromhex(str(cast("dict[str, Any]", value)["float"]))
            new = [{"float": w.hex()} for w in (0.0, 1.0, -number, 2 * number, number + 1e-3) if w != number]
        sites += [(kind, (f"{where} {key}: {value} -> {w}", _set(attrs, key, w))) for w in new]


def _tile(where: str, program: Any, sites: list[tuple[str, Site]]) -> None:
    buffers = program["buffers"]
    types: list[Any] = []

    def statements(body: list[Any]) -> None:
        for n, s in enumerate(body):
            here = f"{where} {s[0]}"
            if s[0] in ("store", "loop"):

                def drop(body: list[Any] = body, n: int = n) -> None:
                    del body[n]

                sites.append(("dropped", (f"{here} dropped", drop)))
            if s[0] == "loop":
                for i, what in ((1, "start"), (2, "stop"), (3, "step")):
                    for w in {s[i] + 1, s[i] - 1, s[i] * 2, s[i] // 2} - {s[i]}:
                        sites.append(("guard", (f"{here} {what} {s[i]} -> {w}", _set(s, i, w))))
                sites.append(("map", (f"{here} parallel flipped", _set(s, 4, not s[4]))))
                statements(s[5])
            elif s[0] in ("load", "store"):
                for other, b in enumerate(buffers):
                    if other != s[1] and b[:-1] == buffers[s[1]][:-1]:
                        sites.append(("operand", (f"{here} of buffer {other}", _set(s, 1, other))))
                for w in s[2]:
                    for i, what in ((1, "offset"), (3, "stride")):
                        for v in (w[i] + 1, w[i] - 1):
                            sites.append(("offset", (f"{here} {what} {w[i]} -> {v}", _set(w, i, v))))
                    for term in w[2]:
                        for v in (term[1] + 1, term[1] * 2, 0):
                            sites.append(("offset", (f"{here} scale {term[1]} -> {v}", _set(term, 1, v))))
                        for v in {0, 1, 2} - {term[0]}:
                            sites.append(("map", (f"{here} variable {term[0]} -> {v}", _set(term, 0, v))))
                if s[0] == "load":
                    types.append(s[3])
                else:
                    for other, t in enumerate(types):
                        if other != s[3] and t == types[s[3]]:
                            sites.append(("operand", (f"{here} of value {other}", _set(s, 3, other))))
            else:
                here = f"{where} {s[1]}"
                for other in _same_arity(s[1]):
                    sites.append(("operator", (f"{here} -> {other}", _set(s, 1, other))))
                for i, operand in enumerate(s[2]):
                    for other, t in enumerate(types):
                        if other != operand and t == types[operand]:
                            sites.append(
                                ("operand", (f"{here} operand {i} -> {other}", _set(s[2], i, other)))
                            )
                _attrs(here, s[4], sites)
                for dtype in sorted(COMPUTE_DTYPES - {s[3][0]}):
                    sites.append(("dtype", (f"{here} of {dtype}", _set(s[3], 0, dtype))))
                types.append(s[3])

    statements(program["body"])
    for i, b in enumerate(buffers[program["params"] :]):
        for place in {"chip", "device", "open"} - {b[-1]}:
            sites.append(("map", (f"{where} local {i} {place}", _set(b, len(b) - 1, place))))
