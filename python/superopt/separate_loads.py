"""Tensors that a tile program loads once for its products, and once for all else.

    x = load X                                 x   = load X
    y = matmul(x, w)              ->           x_1 = load X
    s = reduce_sum(square(x))                  y   = matmul(x, w)
                                               s   = reduce_sum(square(x_1))

Triton swizzles a tile in shared memory only where products alone use it; another use leaves it in rows, which
`ldmatrix` reads with bank conflicts. Loading it again costs reads of L2, and no number changes. Where a program
asks for it (`TileProgram.separate_loads`), the emitter writes it and the cost model counts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.operators import Move, is_contraction, move_of
from superopt.program import Compute, Load, Loop, Statement, Store, TileProgram, Value, rebuild_statements


def separated(program: TileProgram) -> tuple[TileProgram, frozenset[Load]]:
    """`program` with the loads that it asks for, and those that were added; itself where it asks for none."""
    if not program.separate_loads:
        return program, frozenset()
    return _separated(program)


def separable(program: TileProgram) -> bool:
    """Whether separate loads change a program: some input is loaded for products and for something else."""
    return bool(_separated(program)[1])


def _separated(program: TileProgram) -> tuple[TileProgram, frozenset[Load]]:
    users: dict[Value, list[Compute | Store]] = defaultdict(list)
    for s in program.statements():
        if isinstance(s, Compute | Store):
            for value in dict.fromkeys(s.operands if isinstance(s, Compute) else (s.value,)):
                users[value].append(s)
    inputs = [b for b in program.params[: program.n_inputs] if b.in_memory]
    again: dict[Value, Value] = {}
    added: set[Load] = set()

    def twice(statement: Load | Compute, operands: tuple[Value, ...] = ()) -> Load | Compute:
        """The statement for what is no product."""
        result = statement.result
        again[result] = Value(result.type, result.name)
        if isinstance(statement, Load):
            return replace(statement, result=again[result])
        return replace(statement, operands=operands, result=again[result])

    def change(statement: Statement) -> list[Statement]:
        if isinstance(statement, Load):
            if statement.buffer not in inputs or len(_uses(statement.result, users)) < 2:
                return [statement]
            second = twice(statement)
            assert isinstance(second, Load)
            added.add(second)
            return [statement, second]
        if isinstance(statement, Store):
            return [replace(statement, value=again.get(statement.value, statement.value))]
        if isinstance(statement, Loop) or is_contraction(statement):
            return [statement]
        operands = tuple(again.get(v, v) for v in statement.operands)
        uses = _uses(statement.result, users) if _passes(statement) else {False}
        if operands == statement.operands or uses == {True}:
            return [statement]
        if len(uses) == 2:
            return [statement, twice(statement, operands)]
        return [replace(statement, operands=operands)]

    body = rebuild_statements(program.body, change)
    return (replace(program, body=body), frozenset(added)) if added else (program, frozenset())


def _passes(statement: Compute) -> bool:
    """Whether a statement only masks or moves a tile, so that what it gives is in the layout that it takes."""
    return bool(statement.bounds) or move_of(statement) in (Move.RESHAPE, Move.BROADCAST, Move.TRANSPOSE)


def _uses(value: Value, users: Mapping[Value, Sequence[Compute | Store]]) -> set[bool]:
    """Whether products use a value, True, or something else, False: as it is, masked or moved."""
    found = set[bool]()
    for user in users[value]:
        if isinstance(user, Compute) and _passes(user):
            found |= _uses(user.result, users)
        else:
            found.add(isinstance(user, Compute) and is_contraction(user))
    return found
