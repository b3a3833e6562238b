"""Which block computes which tile: program ids, and the order in which blocks traverse a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.operators import is_contraction
from superopt.program import Compute, Load, Loop, TileProgram, executions, parallel_loops
from superopt.transforms.emit.writer import Writer

_GRID_LIMIT = 65535  # of the second and third grid dimension
_GROUP = 8  # rows of tiles that blocks traverse together


def lay_out(program: TileProgram, writer: Writer, *, number: bool) -> tuple[int, int, int]:
    """Program ids, the innermost loop along x; one flat id where the grid does not fit.

    Rows and columns of a large grid of products share one id, which traverses them in groups of rows.
    With `number`, `writer.block` is the block's number in the grid.
    """
    loops = parallel_loops(program.body)
    trips = [loop.trips for loop in loops]
    total = math.prod(trips)
    outputs = ", ".join(dict.fromkeys(b.name for b in program.params[program.n_inputs :]))
    if loops:
        writer.header.append(f"    # {total} blocks, each computes its tile of {outputs}.")
    if _grouped(program, loops):
        texts, grid = _groups(writer, trips)
    elif len(loops) > 3 or any(n > _GRID_LIMIT for n in trips[:-1]):
        texts, grid = _unravelled("tl.program_id(0)", trips), (total, 1, 1)
    else:
        texts = [f"tl.program_id({len(loops) - 1 - i})" for i in range(len(loops))]
        x, y, z = (*reversed(trips), 1, 1, 1)[:3]
        grid = (x, y, z)
    for loop, text in zip(loops, texts, strict=True):
        index = writer.index(loop.var, "block")
        if loop.step != 1:
            text = f"{_factor(text)} * {loop.step}"
        text = f"{loop.start} + {text}" if loop.start else text
        writer.header.append(f"    {index} = {text}")
    if number:
        writer.block = writer.unique("block")
        ids = [(f"tl.program_id({i})", math.prod(grid[:i])) for i in range(3) if grid[i] > 1]
        terms = [text if before == 1 else f"{text} * {before}" for text, before in reversed(ids)]
        writer.header.append(f"    {writer.block} = {' + '.join(terms) or 'tl.program_id(0)'}")
    return grid


def _grouped(program: TileProgram, loops: Sequence[Loop]) -> bool:
    """Whether blocks that run at once should be a square of tiles rather than a row of them.

    This holds where a product streams rows picked by one of the innermost two grid dimensions, and columns picked
    by the other: a square of blocks then shares more of its reads in the L2 cache.
    """
    if not 2 <= len(loops) <= 4 or loops[-2].trips <= _GROUP or loops[-1].trips <= _GROUP:
        return False
    if executions(loops[:-2]) > _GRID_LIMIT:
        return False
    rows, columns = loops[-2].var, loops[-1].var
    products = any(isinstance(s, Compute) and is_contraction(s) for s in program.statements())
    picked = [
        {var for w in s.windows for var, _ in w.terms} & {rows, columns}
        for s in program.statements()
        if isinstance(s, Load) and s.buffer.placement == "device"
    ]
    return products and {rows} in picked and {columns} in picked


def _groups(writer: Writer, trips: Sequence[int]) -> tuple[list[str], tuple[int, int, int]]:
    """Texts of the grid's indices, in groups of rows, and the grid."""
    *outer, rows, columns = trips
    pid = writer.unique("pid")
    writer.header.append(f"    # In groups of {_GROUP} rows: blocks that run at once share what they read.")
    writer.header.append(f"    {pid} = tl.program_id(0)")
    size = _GROUP * columns
    group, inside = f"{pid} // {size}", f"{pid} % {size}"
    name = writer.unique("rows")  # of this group: the last one may have fewer
    writer.header.append(f"    {name} = min({rows} - {group} * {_GROUP}, {_GROUP})")
    texts = [f"{group} * {_GROUP} + {inside} % {name}", f"{inside} // {name}"]
    return _unravelled("tl.program_id(1)", outer) + texts, (rows * columns, math.prod(outer), 1)


def _unravelled(text: str, trips: Sequence[int]) -> list[str]:
    """The indices that make up a flat one; the last varies fastest."""
    out: list[str] = []
    for i, n in enumerate(trips):
        inner = math.prod(trips[i + 1 :])
        index = text + (f" // {inner}" if inner > 1 else "")
        out.append(index + (f" % {n}" if i else ""))
    return out


def _factor(text: str) -> str:
    """`text` as the factor of a product."""
    return f"({text})" if " " in text else text
