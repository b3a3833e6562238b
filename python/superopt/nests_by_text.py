"""The nest without a name: what a node `nest` says of itself, in its attributes.

    superopt.nest(%x, %w) {extents = [2, 64, 14, 32, 3], rank = 3, maps = "(d0, d3, 2 * d2 + d4); (d1, d3, d4)",
                           guards = "d2 + d4 - 1 >= 0; true", where = "12 - d2 >= 0"}

`extents` are those of its dimensions d0, d1, ...; the first `rank` are the result's, it sums over the others.
Of each operand, `maps` say which element is read, and `guards` where: elsewhere, and outside of the operand, it
is 0. `terms` are how many operands each product has, one of all where none is given. Where `where` fails, the
result is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.nests import Attrs, Index, Nest, Shape, fail, int_attr, ints_attr
from superopt.program import Attr
from superopt.quasi_affine import ALWAYS, Linear, Read, parse
from superopt.scalars import Scalar, arg

TERMS = "terms"


def nest_by_text(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """The nest of these attributes; raises IllegalProgram where they do not suit each other or the operands."""
    extents, rank = ints_attr(attrs, "extents"), int_attr(attrs, "rank")
    if not 0 <= rank <= len(extents) or min(extents, default=1) < 1:
        raise fail(f"expected positive extents, of which the first {rank} are the result's, got {extents}")
    maps, guards = (str(attrs[name]).split(";") for name in ("maps", "guards"))
    if len(guards) == 1 and not guards[0].strip():
        guards = ["true"] * len(maps)
    if not len(maps) == len(guards) == len(shapes):
        raise fail(f"expected maps and guards of {len(shapes)} operands, got {len(maps)} and {len(guards)}")
    reads = [parse(len(extents), m, g) for m, g in zip(maps, guards, strict=True)]
    for read, shape in zip(reads, shapes, strict=True):
        if len(read.index) != len(shape):
            raise fail(f"expected {len(shape)} indices of an operand of shape {shape}, got {read.place_text}")
    terms = ints_attr(attrs, TERMS)
    if terms and (min(terms) < 1 or sum(terms) != len(shapes)):
        raise fail(f"expected products of {len(shapes)} operands together, got {terms}")
    where = parse(len(extents), "()", str(attrs["where"]))
    if any(d >= rank for d in where.dims):
        raise fail(f"expected 'where' to depend on d0 to d{rank - 1}, got {where.guard_text}")
    return Nest(
        extents,
        tuple(tuple(map(Index, read.dims)) for read in reads),
        tuple(range(rank)),
        tuple(range(rank, len(extents))),
        0.0,
        tuple(reads),
        where,
    )


def whole_dims(nest: Nest, shapes: Sequence[Shape]) -> dict[int, list[tuple[int, int]]]:
    """The dimensions that reads have as they are or not at all: operand and axis of each such index, as long
    as the dimension. All else (guards, floors, sums) leaves them out: the same text holds at other extents.
    """
    found: dict[int, list[tuple[int, int]]] = {d: [] for d in range(len(nest.extents))}
    others = set[int](() if nest.where is None else nest.where.dims)
    for number, (read, shape) in enumerate(zip(nest.reads, shapes, strict=False)):
        for axis, (index, extent) in enumerate(zip(read.index, shape, strict=True)):
            d = index.terms[0][0] if index.terms else -1
            if index == Linear(0, ((d, 1),)) and d < read.rank and nest.extents[d] == extent:
                found[d].append((number, axis))
            else:
                others.update(replace(read, index=(index,), guard=ALWAYS).dims)
        others.update(replace(read, index=()).dims)
    return {d: places for d, places in found.items() if d not in others}


def nest_attrs(
    extents: Sequence[int],
    rank: int,
    reads: Sequence[Read],
    terms: Sequence[int] = (),
    where: Read | None = None,
) -> dict[str, Attr]:
    """The attributes of a nest with these reads."""
    found: dict[str, Attr] = {
        "extents": tuple(extents),
        "rank": rank,
        "maps": "; ".join(read.place_text for read in reads),
    }
    if any(read.guard != ALWAYS for read in reads):
        found["guards"] = "; ".join(read.guard_text for read in reads)
    if where is not None and where.guard != ALWAYS:
        found["where"] = where.guard_text
    if len(terms) > 1:
        found[TERMS] = tuple(terms)
    return found


def sum_of_products(attrs: Attrs) -> Scalar:
    """The body: of each term the product of its operands, and their sum."""
    found = attrs.get(TERMS)
    counts = found if isinstance(found, tuple) and found else (str(attrs["maps"]).count(";") + 1,)
    made: Scalar | None = None
    first = 0
    for count in counts:
        product = arg(first)
        for n in range(first + 1, first + count):
            product = product * arg(n)
        made, first = product if made is None else made + product, first + count
    assert made is not None
    return made
