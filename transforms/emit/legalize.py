"""Does through memory what Triton cannot do in registers: parts of tiles are stored and loaded again.

    %c = concat(%a, %b) {dim = 1}        scratch[:, 0 : 8] = a
                                  ->     scratch[:, 8 : 24] = b
                                         c = scratch[:, :]

Likewise `slice`, `repeat`, and a `reshape` that would move padding.
"""

from __future__ import annotations

import dataclasses

from superopt.axes import reshape_groups
from superopt.operators import Move, move_of
from superopt.program import (
    Buffer,
    Compute,
    Load,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Window,
    power_of_two,
    rebuild_statements,
)


def legalize(program: TileProgram) -> tuple[TileProgram, dict[Buffer, Buffer]]:
    """`program` in operators that Triton has, and which scratch buffers are views of another's memory."""
    rewriter = _Rewriter()
    body = rebuild_statements(program.body, rewriter.statement)
    legal = dataclasses.replace(program, locals=[*program.locals, *rewriter.locals], body=body)
    return legal, rewriter.views


class _Rewriter:
    def __init__(self) -> None:
        self.locals: list[Buffer] = []
        self.views: dict[Buffer, Buffer] = {}

    def statement(self, statement: Statement) -> list[Statement]:
        if not isinstance(statement, Compute):
            return [statement]
        move = move_of(statement)
        if move in (Move.SLICE, Move.CONCAT, Move.REPEAT, Move.UPDATE):
            return self.moved(statement)
        if move is Move.RESHAPE and not _in_registers(statement):
            return self.reshaped(statement)
        return [statement]

    def scratch(self, type_: TensorType) -> Buffer:
        self.locals.append(Buffer(type_, f"scratch_{len(self.locals)}"))
        return self.locals[-1]

    def reshaped(self, statement: Compute) -> list[Statement]:
        (source,) = statement.operands
        written, read = self.scratch(source.type), self.scratch(statement.result.type)
        self.views[read] = written
        return [
            Store(written, tuple(map(Window, source.shape)), source),
            Load(statement.result, read, tuple(map(Window, statement.result.shape))),
        ]

    def moved(self, statement: Compute) -> list[Statement]:
        result, out = statement.result, list[Statement]()
        if move_of(statement) is Move.SLICE:
            (source,) = statement.operands
            buffer = self.scratch(source.type)
            cuts = [statement.attrs[k] for k in ("offsets", "sizes", "strides")]
            rows = [c for c in cuts if isinstance(c, tuple)]
            windows = tuple(Window(n, o, (), s) for o, n, s in zip(*rows, strict=True))
            return [Store(buffer, tuple(map(Window, source.shape)), source), Load(result, buffer, windows)]
        buffer = self.scratch(result.type)
        if move_of(statement) is Move.UPDATE:
            base, update = statement.operands
            dim, offset = statement.attrs["dim"], statement.attrs["offset"]
            assert isinstance(offset, int)
            windows = tuple(Window(n, offset if d == dim else 0) for d, n in enumerate(update.shape))
            return [
                Store(buffer, tuple(map(Window, base.shape)), base),
                Store(buffer, windows, update),
                Load(result, buffer, tuple(map(Window, result.shape))),
            ]
        dim, times = statement.attrs["dim"], statement.attrs.get("times", 1)
        assert isinstance(dim, int)
        assert isinstance(times, int)
        start = 0
        for value in statement.operands * times:
            windows = tuple(Window(n, start if d == dim else 0) for d, n in enumerate(value.shape))
            out.append(Store(buffer, windows, value))
            start += value.shape[dim]
        return [*out, Load(result, buffer, tuple(map(Window, result.shape)))]


def _in_registers(statement: Compute) -> bool:
    """Whether a reshape moves no padding.

    A dimension may stay as it is; where some turn into others, only the first of each may be padded: the actual
    elements then come first in both, in the same order.
    """
    before, after = statement.operands[0].shape, statement.result.shape
    return all(
        len(a) == len(b) == 1
        or all(e == power_of_two(e) for e in [*(before[d] for d in a[1:]), *(after[d] for d in b[1:])])
        for a, b in reshape_groups(before, after)
    )
