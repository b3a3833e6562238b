"""Takes out of a loop what only its last trip needs to do.

    for k:                             for k:
      sum = sum + ...                    sum = sum + ...
      out = log(sum)             ->    out = log(sum)

Loops take in what follows them, so that both are one kernel; each trip then overwrites what the last one stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.program import Buffer, Compute, Load, Loop, Statement, Store, Value, statements


def after_loops(body: Sequence[Statement]) -> list[Statement]:
    """The statements, with those after each sequential loop that need not be in it."""
    out: list[Statement] = []
    for statement in body:
        if not isinstance(statement, Loop):
            out.append(statement)
            continue
        inner = after_loops(statement.body)
        last = [] if statement.parallel or not statement.trips else _last(statement, inner)
        moved = {id(s) for s in last}
        kept = [s for s in inner if id(s) not in moved]
        out += [replace(statement, body=kept), *last]
    return out


def _last(loop: Loop, body: list[Statement]) -> list[Statement]:
    """Statements of the loop's `body` whose only effect is what they store in the last trip."""
    moved = {i for i, s in enumerate(body) if not isinstance(s, Loop) and not _needs(s, loop)}
    while stuck := {i for i in moved if not _movable(i, body, moved)}:
        moved -= stuck
    return [body[i] for i in sorted(moved)]


def _needs(statement: Load | Store | Compute, loop: Loop) -> bool:
    return any(var is loop.var for w in statement.windows for var, _ in w.terms)


def _movable(i: int, body: list[Statement], moved: set[int]) -> bool:
    """Whether a statement may run after the loop if those of `moved` do."""
    statement = body[i]
    rest = [s for j, s in enumerate(body) if j not in moved]
    if isinstance(statement, Store):
        before = [body[j] for j in moved if j < i]
        return (
            statement.buffer.view is None
            and _made(statement.value, body) <= moved
            and not _loads(statement.buffer, [*rest, *before])  # the next trip would read it
            and not _stores(statement.buffer, rest)
        )
    assert isinstance(statement, (Load, Compute))
    uses = {j for j, s in enumerate(body) if any(statement.result is v for v in _read((s,)))}
    if not uses or not uses <= moved:
        return False
    if isinstance(statement, Load):
        later = [s for j, s in enumerate(body) if j > i and j not in moved]
        return statement.buffer.view is None and not _stores(statement.buffer, later)
    return all(_made(v, body) <= moved for v in statement.operands)


def _made(value: Value, body: list[Statement]) -> set[int]:
    """Where in the body a value is made; empty where it is made before the loop."""
    return {j for j, s in enumerate(body) if isinstance(s, (Load, Compute)) and s.result is value}


def _read(body: Sequence[Statement]) -> list[Value]:
    found: list[Value] = []
    for s in statements(body):
        found += s.operands if isinstance(s, Compute) else (s.value,) if isinstance(s, Store) else ()
    return found


def _loads(buffer: Buffer, body: Sequence[Statement]) -> bool:
    return any(isinstance(s, Load) and s.buffer is buffer for s in statements(body))


def _stores(buffer: Buffer, body: Sequence[Statement]) -> bool:
    return any(isinstance(s, Store) and s.buffer is buffer for s in statements(body))
