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

from superopt.operators import is_contraction, move_of
from superopt.program import Compute, Load, Statement, Store, TileProgram, Value, rebuild_statements


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

    def change(statement: Statement) -> list[Statement]:
        if isinstance(statement, Load):
            uses = [_for_products(u, users) for u in users[statement.result]]
            if statement.buffer not in inputs or all(uses) or not any(uses):
                return [statement]
            again[statement.result] = Value(statement.result.type, statement.result.name)
            second = replace(statement, result=again[statement.result])
            added.add(second)
            return [statement, second]
        if isinstance(statement, Compute) and not _for_products(statement, users):
            return [replace(statement, operands=tuple(again.get(v, v) for v in statement.operands))]
        if isinstance(statement, Store):
            return [replace(statement, value=again.get(statement.value, statement.value))]
        return [statement]

    body = rebuild_statements(program.body, change)
    return (replace(program, body=body), frozenset(added)) if added else (program, frozenset())


def _for_products(user: Compute | Store, users: Mapping[Value, Sequence[Compute | Store]]) -> bool:
    """Whether a statement is a product, or masks or moves what products alone use."""
    if not isinstance(user, Compute) or is_contraction(user):
        return isinstance(user, Compute)
    passes = bool(user.bounds) or move_of(user) is not None
    after = users[user.result]
    return passes and bool(after) and all(_for_products(u, users) for u in after)
