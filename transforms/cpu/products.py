"""Products of tiles: blocks of the result stay in vector registers while the contracted dimension runs.

Where rows of the second operand lie in memory along the result's columns, vectors are along the columns; where
both operands lie along the contracted dimension, as queries and keys do, vectors are along that. Operands that
lie otherwise are copied first, as are those whose rows are no whole number of vectors (Goto and van de Geijn,
Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34, 2008, sections 4 and 5: packing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.nests import Index
from superopt.operators import nest_of
from superopt.program import Compute, Value
from superopt.transforms.cpu.operators import Source, rounded
from superopt.transforms.cpu.writer import LANES, VECTOR, Tile, Writer

# Rows and vectors of columns of a block: two loads and eight broadcasts for sixteen multiply-adds.
_ROWS, _VECTORS = 8, 2
# Rows and columns of a block of dot products.
_DOTS = 4


def multiplied(writer: Writer, statement: Compute, a: Source, b: Source) -> Tile:
    """The product of two sources, rounded to their dtype first and summed in f32."""
    nest = nest_of(statement)
    assert nest is not None
    left, right = statement.operands
    k = len(nest.extents) - 1
    rows, columns, depth = nest.extents[-3:]
    a_maps, b_maps = nest.operands
    dots = a_maps[-1].dim == b_maps[-1].dim == k
    turned = b_maps[-1].dim == k and not dots
    a, b = (rounded(writer, s, v.dtype) for s, v in ((a, left), (b, right)))
    first = _operand(writer, left, a, whole_rows=dots)
    second = _operand(writer, right, b, whole_rows=True, turned=turned)
    if turned:
        b_maps = (*b_maps[:-2], b_maps[-1], b_maps[-2])
    result = writer.tile(statement.result.shape, row=None if dots else _whole(columns))
    unit = 1 if dots else LANES

    def block(point: list[str], height: int, width: int) -> None:
        """The sums of `height` rows and `width` vectors, or columns, from a point on."""
        *batch, row, column = point

        def place(tile: Tile, maps: Sequence[Index], i: int, j: int, at: str) -> str:
            indices = [*batch, _shifted(row, i), _shifted(column, unit * j), at]
            return tile.at(["0" if index.dim is None else indices[index.dim] for index in maps])

        sums = [writer.name() for _ in range(height * width)]
        made, step = writer.name(), writer.name()
        zero = writer.let(f"arith.constant dense<0.0> : {VECTOR}")
        types = ", ".join([VECTOR] * len(sums))
        starts = ", ".join(f"{c} = {zero}" for c in sums)
        loop = f"affine.for {step} = 0 to {depth} step {LANES if dots else 1}"
        with writer.block(f"{made}:{len(sums)} = {loop} iter_args({starts}) -> ({types})"):
            rights = [
                writer.load(second, place(second, b_maps, 0, j, step), vector=True) for j in range(width)
            ]
            after: list[str] = []
            for i in range(height):
                wide = writer.load(first, place(first, a_maps, i, 0, step), vector=dots)
                if not dots:
                    wide = writer.let(f"vector.broadcast {wide} : f32 to {VECTOR}")
                before = sums[i * width : (i + 1) * width]
                after += [
                    writer.let(f"vector.fma {wide}, {r}, {s} : {VECTOR}")
                    for r, s in zip(rights, before, strict=True)
                ]
            writer.line(f"affine.yield {', '.join(after)} : {types}")
        for n in range(len(sums)):
            i, j = divmod(n, width)
            at = result.at([*batch, _shifted(row, i), _shifted(column, unit * j)])
            total = f"{made}#{n}"
            if dots:
                total = writer.let(f"vector.reduction <add>, {total} fastmath<reassoc> : {VECTOR} into f32")
            writer.store(total, result, at, vector=not dots)

    def blocks(batch: list[str]) -> None:
        highest, widest = (_DOTS, _DOTS) if dots else (_ROWS, _VECTORS)
        for down in _parts(rows, highest, 1):
            for across in _parts(-(-columns // unit), widest, unit):
                _nested(writer, [down, across], batch, lambda p, h=down.size, w=across.size: block(p, h, w))

    writer.nest(nest.extents[:-3], blocks)
    return result


@dataclass(frozen=True)
class _Part:
    """Blocks of `size` units along a dimension, between two of its elements, `step` apart."""

    start: int
    end: int
    step: int
    size: int


def _parts(extent: int, most: int, unit: int) -> list[_Part]:
    """`extent` units as whole blocks, and the rest."""
    whole = extent // most * most
    parts = [
        _Part(0, whole * unit, most * unit, most),
        _Part(whole * unit, extent * unit, (extent - whole) * unit, extent - whole),
    ]
    return [part for part in parts if part.end > part.start]


def _nested(
    writer: Writer, along: Sequence[_Part], point: list[str], body: Callable[[list[str]], None]
) -> None:
    """Loops over the blocks along some dimensions; `body` writes what is inside."""
    if not along:
        body(point)
        return
    part = along[0]
    if part.start + part.step == part.end:
        _nested(writer, along[1:], [*point, str(part.start)], body)
        return
    index = writer.name()
    with writer.block(f"affine.for {index} = {part.start} to {part.end} step {part.step}"):
        _nested(writer, along[1:], [*point, index], body)


def _shifted(text: str, by: int) -> str:
    return f"{text} + {by}" if by else text


def _whole(extent: int) -> int:
    """`extent` up to whole vectors."""
    return -(-extent // LANES) * LANES


def _operand(writer: Writer, value: Value, source: Source, *, whole_rows: bool, turned: bool = False) -> Tile:
    """The tile of an operand, its last two dimensions exchanged where it is `turned`.

    With `whole_rows`, rows end in zeros up to whole vectors.
    """
    shape = value.shape
    last = shape[-2] if turned else shape[-1]
    if source.tile is not None and not turned and (not whole_rows or last % LANES == 0):
        return source.tile
    row = _whole(last) if whole_rows else last
    tile = writer.tile((*shape[:-2], shape[-1], shape[-2]) if turned else shape, row=row)

    def copied(point: list[str]) -> None:
        at = [*point[:-2], point[-1], point[-2]] if turned else point
        writer.store(source.read(point), tile, tile.at(at))

    def ended(point: list[str]) -> None:
        writer.store(writer.number(0.0), tile, tile.at([*point[:-1], f"{point[-1]} + {last}"]))

    writer.nest(shape, copied)
    if row > last:
        writer.nest([*tile.shape[:-1], row - last], ended)
    return tile
