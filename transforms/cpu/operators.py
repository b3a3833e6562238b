"""What statements of a tile program compute, element by element.

A value is a `Source`: how one element of it is read, at indices that are loop variables. Elementwise operators,
masks and moves are not computed where they stand, but where their one user reads them, as a compiler keeps them
in registers; what has several users, and what is summed, is kept as a tile in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from superopt.nests import Attrs, Index
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Combiner,
    Scalar,
    nest_of,
    normalize_attrs,
    splat_of,
)
from superopt.program import UNBOUNDED, Band, Bound, Buffer, Compute, LoopVar, Ramp, Value, Window
from superopt.transforms.cpu.writer import Tile, Writer

Read = Callable[[Sequence[str]], str]

# Primitive -> operation on f32. MLIR's lowering makes instructions, or calls of the C library, of them.
_OPERATIONS = {
    "add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "div": "arith.divf", "neg": "arith.negf",
    "exp": "math.exp", "log": "math.log", "log1p": "math.log1p", "sqrt": "math.sqrt", "erf": "math.erf",
    "sin": "math.sin", "cos": "math.cos", "max": "arith.maximumf", "min": "arith.minimumf", "pow": "math.powf",
}  # fmt: skip
_JOINING: dict[Combiner, str] = {
    # Sums of tiles are added in any order, as on a GPU.
    "add": "arith.addf {0}, {1} fastmath<reassoc> : f32",
    "max": "arith.maximumf {0}, {1} : f32",
    "min": "arith.minimumf {0}, {1} : f32",
}


@dataclass(frozen=True)
class Source:
    """How elements of a value are read.

    `buffers` are those that reading it reads, `skewed` those of them that are read elsewhere than at the
    element's own place. `tile` is given where the value lies in memory as f32. `direct`: reading an element costs
    no arithmetic. `exact`: its numbers are numbers of its dtype.
    """

    read: Read
    buffers: frozenset[Buffer] = frozenset()
    skewed: frozenset[Buffer] = frozenset()
    tile: Tile | None = None
    direct: bool = False
    exact: bool = False


def index_text(index: Index, point: Sequence[str]) -> str:
    """An index of a plain nest at a point."""
    if index.dim is None:
        return str(index.offset)
    text = point[index.dim] if index.stride == 1 else f"({point[index.dim]}) * {index.stride}"
    return f"{text} + {index.offset}" if index.offset else text


def window_text(window: Window, index: str, names: dict[LoopVar, str]) -> str:
    """Where element `index` of a window lies in its buffer."""
    terms = [f"{names[var]} * {scale}" for var, scale in window.terms]
    if index != "0":
        terms.append(f"({index}) * {window.stride}")
    if window.base:
        terms.append(str(window.base))
    return " + ".join(terms) or "0"


def scalar(writer: Writer, body: Scalar, arguments: Sequence[str]) -> str:
    """`body` on f32 numbers; the arguments are names."""
    done: dict[Scalar, str] = {}

    def made(part: Scalar) -> str:
        if part.head == "arg":
            return arguments[int(part.payload)]
        if part not in done:
            if part.head == "const":
                done[part] = writer.number(part.payload)
            elif part.head == "where":
                chooses, x, y = map(made, part.args)
                zero = writer.number(0.0)
                positive = writer.let(f"arith.cmpf ogt, {chooses}, {zero} : f32")
                done[part] = writer.let(f"arith.select {positive}, {x}, {y} : f32")
            else:
                operands = ", ".join(map(made, part.args))
                done[part] = writer.let(f"{_OPERATIONS[part.head]} {operands} : f32")
        return done[part]

    return made(body)


def pointwise(writer: Writer, statement: Compute, sources: Sequence[Source]) -> Source:
    """An elementwise operator."""
    entry, nest = OPERATORS[statement.op], nest_of(statement)
    assert entry.body is not None
    assert nest is not None
    body = entry.body(normalize_attrs(entry, statement.attrs))
    shape = statement.result.shape

    def read(point: Sequence[str]) -> str:
        arguments = [
            source.read([index_text(i, point) for i in maps])
            for source, maps in zip(sources, nest.operands, strict=True)
        ]
        return scalar(writer, body, arguments)

    operands = zip(sources, statement.operands, strict=True)
    skewed = [s.skewed if v.shape == shape else s.buffers for s, v in operands]
    return Source(read, _union(s.buffers for s in sources), _union(skewed))


def view(statement: Compute, source: Source) -> Source:
    """An operator that moves elements by a nest."""
    nest = nest_of(statement)
    assert nest is not None
    (maps,) = nest.operands

    def read(point: Sequence[str]) -> str:
        return source.read([index_text(i, point) for i in maps])

    return Source(read, source.buffers, source.buffers, direct=source.direct, exact=source.exact)


def masked(
    writer: Writer, statement: Compute, source: Source, names: dict[LoopVar, str], needed: Sequence[Bound]
) -> Source:
    """The elements that exist by the bounds `needed`, the fill elsewhere."""
    fill = statement.attrs["fill"]
    assert isinstance(fill, int | float)

    def read(point: Sequence[str]) -> str:
        number = source.read(point)
        for bound in needed:
            place = window_text(bound.window, point[bound.dim], names)
            at = index_of(writer, place)
            extent = writer.let(f"arith.constant {bound.extent} : index")
            exists = writer.let(f"arith.cmpi ult, {at}, {extent} : index")
            number = writer.let(f"arith.select {exists}, {number}, {writer.number(fill)} : f32")
        return number

    return Source(read, source.buffers, source.skewed, exact=source.exact)


def banded(writer: Writer, band: Band, windows: Sequence[Window], names: dict[LoopVar, str]) -> Source:
    """The elements that windows cut from a band: `inside` between its sides, by column - row, else `outside`."""
    row, column = windows[-2:]

    def read(point: Sequence[str]) -> str:
        below = f"{window_text(column, point[-1], names)} - ({window_text(row, point[-2], names)})"
        distance, number = index_of(writer, below), writer.number(band.inside)
        outside = writer.number(band.outside)
        for side, compare, none in ((band.lower, "sge", -UNBOUNDED), (band.upper, "sle", UNBOUNDED)):
            if side != none:
                end = writer.let(f"arith.constant {side} : index")
                kept = writer.let(f"arith.cmpi {compare}, {distance}, {end} : index")
                number = writer.let(f"arith.select {kept}, {number}, {outside} : f32")
        return number

    return Source(read)


def counted(writer: Writer, ramp: Ramp, windows: Sequence[Window], names: dict[LoopVar, str]) -> Source:
    """The elements that windows cut from a ramp."""
    window = windows[ramp.along]

    def read(point: Sequence[str]) -> str:
        at = index_of(
            writer, f"({window_text(window, point[ramp.along], names)}) * {ramp.step} + {ramp.start}"
        )
        whole = writer.let(f"arith.index_cast {at} : index to i32")
        return writer.let(f"arith.sitofp {whole} : i32 to f32")

    return Source(read)


def index_of(writer: Writer, text: str) -> str:
    """An affine expression of loop variables as a number."""
    names = sorted({word for word in text.replace("(", " ").replace(")", " ").split() if word[0] == "%"})
    dims = {name: f"d{i}" for i, name in enumerate(names)}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, dims[name])
    return writer.let(
        f"affine.apply affine_map<({', '.join(dims.values())}) -> ({text})>({', '.join(names)})"
    )


def splat(writer: Writer, value: float) -> Source:
    """A constant whose elements are one number."""
    return Source(lambda _: writer.number(value), direct=True, exact=True)


def of_tile(writer: Writer, tile: Tile, buffers: frozenset[Buffer] = frozenset(), *, exact: bool) -> Source:
    """What lies in a tile, which is that of the `buffers`."""
    return Source(lambda p: writer.load(tile, tile.at(p)), buffers, tile=tile, direct=True, exact=exact)


def kept(writer: Writer, shape: Sequence[int], source: Source, *, row: int | None = None) -> Tile:
    """A tile with the elements of `source`."""
    tile = writer.tile(shape, row=row)
    writer.nest(shape, lambda p: writer.store(source.read(p), tile, tile.at(p)))
    return tile


def reduced(writer: Writer, statement: Compute, source: Source) -> Tile:
    """A reduction."""
    entry, nest = OPERATORS[statement.op], nest_of(statement)
    assert nest is not None
    assert entry.combiner is not None
    joining, combiner = _JOINING[entry.combiner], entry.combiner
    finish = None if entry.finish is None else entry.finish(nest.reduced)
    tile = writer.tile(statement.result.shape)
    kept_dims = [d for d in nest.result if d is not None]
    extents = [nest.extents[d] for d in kept_dims]

    def joined(number: str, other: str) -> str:
        return writer.let(joining.format(number, other))

    def place(at: Mapping[int, str]) -> str:
        return tile.at(["0" if d is None else at[d] for d in nest.result])

    def finished(number: str) -> str:
        return number if finish is None else scalar(writer, finish, [number])

    def in_register(point: list[str]) -> None:
        whole = dict(zip(kept_dims, point, strict=True))

        def step(inner: list[str], number: str) -> str:
            at = {**whole, **dict(zip(nest.reductions, inner, strict=True))}
            return joined(number, source.read([at[d] for d in range(len(nest.extents))]))

        reduced_extents = [nest.extents[d] for d in nest.reductions]
        number = writer.fold(reduced_extents, writer.number(NEUTRAL[combiner]), step)
        writer.store(finished(number), tile, place(whole))

    def started(point: list[str]) -> None:
        at = place(dict(zip(kept_dims, point, strict=True)))
        writer.store(writer.number(NEUTRAL[combiner]), tile, at)

    def in_memory(point: list[str]) -> None:
        at = place(dict(enumerate(point)))
        writer.store(joined(writer.load(tile, at), source.read(point)), tile, at)

    def ended(point: list[str]) -> None:
        at = place(dict(zip(kept_dims, point, strict=True)))
        writer.store(finished(writer.load(tile, at)), tile, at)

    last_kept = max((d for d in kept_dims if nest.extents[d] > 1), default=-1)
    if all(d > last_kept for d in nest.reductions):
        writer.nest(extents, in_register)
        return tile
    # Elements are read in their order; vectors are along what is kept.
    writer.nest(extents, started)
    writer.nest(nest.extents, in_memory)
    if finish is not None:
        writer.nest(extents, ended)
    return tile


def joined_parts(
    writer: Writer, statement: Compute, parts: Sequence[tuple[Value, Source]], attrs: Attrs
) -> Tile:
    """`concat`, `repeat` and `update_slice`: operands one after the other along `dim`, the last one stays."""
    tile = writer.tile(statement.result.shape)
    dim, times = attrs["dim"], attrs.get("times", 1)
    assert isinstance(dim, int)
    assert isinstance(times, int)
    start = 0
    update = "offset" in attrs
    for number, (value, source) in enumerate(list(parts) * times):
        if update and number:
            start = attrs["offset"]
            assert isinstance(start, int)

        def write(point: list[str], source: Source = source, start: int = start) -> None:
            at = [f"{i} + {start}" if d == dim and start else i for d, i in enumerate(point)]
            writer.store(source.read(point), tile, tile.at(at))

        writer.nest(value.shape, write)
        start += value.shape[dim]
    return tile


def rounded(writer: Writer, source: Source, dtype: str) -> Source:
    """The numbers of `source`, rounded to a dtype."""
    if dtype == "f32" or source.exact:
        return source

    def read(point: Sequence[str]) -> str:
        narrow = writer.let(f"arith.truncf {source.read(point)} : f32 to {dtype}")
        return writer.let(f"arith.extf {narrow} : {dtype} to f32")

    return Source(read, source.buffers, source.skewed, exact=True)


def constant_of(statement: Compute) -> float | None:
    """The number of a splat."""
    value = splat_of(statement)
    return None if value is None else float(value)


def _union(sets: Iterable[frozenset[Buffer]]) -> frozenset[Buffer]:
    return frozenset[Buffer]().union(*sets)
