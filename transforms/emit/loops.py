"""How loops are written: counting elements instead of trips, and with pipeline stages of their own.

Counting elements, as in `for k in range(0, 4096, 64)`, changes nothing else, but ptxas chooses its unrolling by
this: a loop of 32 trips that counts elements is unrolled like a hand-written one (`benchmarks/hot_loops`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from superopt.operators import is_contraction
from superopt.program import (
    Compute,
    Load,
    Loop,
    LoopVar,
    Statement,
    Store,
    TileProgram,
    Value,
    Window,
    rebuild_statements,
)
from superopt.transforms.emit.memory import in_memory


def counted_in_elements(program: TileProgram) -> TileProgram:
    """`program`, with sequential loops of step 1 stepping by what all their windows move."""
    scales: dict[LoopVar, int] = {}
    for statement in program.statements():
        if not isinstance(statement, Loop):
            for window in statement.windows:
                for var, scale in window.terms:
                    scales[var] = math.gcd(scales.get(var, 0), scale)
    units = {
        s.var: scales[s.var]
        for s in program.statements()
        if isinstance(s, Loop) and not s.parallel and (s.start, s.step) == (0, 1) and scales.get(s.var, 0) > 1
    }
    if not units:
        return program
    return replace(program, body=rebuild_statements(program.body, lambda s: [_statement(s, units)]))


def streams_past_products(loop: Loop) -> bool:
    """Whether a trip of `loop` loads, from memory, what none of its products is computed from."""
    used: set[Value] = set()
    for statement in reversed(loop.body):
        if isinstance(statement, Compute) and (is_contraction(statement) or statement.result in used):
            used.update(statement.operands)
    return any(isinstance(s, Load) and in_memory(s.buffer) and s.result not in used for s in loop.body)


def _statement(statement: Statement, units: Mapping[LoopVar, int]) -> Statement:
    if isinstance(statement, Loop):
        unit = units.get(statement.var, 1)
        return replace(statement, stop=statement.stop * unit, step=statement.step * unit)
    if isinstance(statement, Load | Store):
        return replace(statement, windows=tuple(_window(w, units) for w in statement.windows))
    if statement.bounds:
        bounds = (replace(b, window=_window(b.window, units)) for b in statement.bounds)
        return replace(statement, bounds=tuple(bounds))
    return statement


def _window(window: Window, units: Mapping[LoopVar, int]) -> Window:
    return replace(window, terms=tuple((var, scale // units.get(var, 1)) for var, scale in window.terms))
