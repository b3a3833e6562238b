"""Operators of the table on tiles, in Triton: elementwise text, reductions, moves, `tl.dot`."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from superopt.axes import reshape_groups, same_dimensions
from superopt.errors import UnsupportedProgram
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Combiner,
    Move,
    Scalar,
    arg,
    exp,
    is_conversion,
    is_elementwise,
    nest_of,
    primitive_of,
)
from superopt.program import Compute, Statement, Store, TileProgram, Value, Window, power_of_two
from superopt.scalars import evaluate
from superopt.transforms.emit.memory import Memory, in_memory
from superopt.transforms.emit.padding import Padding, expansion
from superopt.transforms.emit.spelling import LOG2_E, number, spell
from superopt.transforms.emit.tiles import TRITON_DTYPES, Tile, Tiles, atom
from superopt.transforms.emit.writer import Writer

_REDUCTIONS: dict[Combiner, str] = {"add": "tl.sum", "max": "tl.max", "min": "tl.min"}
_EXP_OF_DIFFERENCE = exp(arg(0) + -arg(1))


class Operators:
    """Writes the operators of a program; operators that another one absorbs are written with it."""

    def __init__(
        self, program: TileProgram, axes: Padding, tiles: Tiles, writer: Writer, memory: Memory
    ) -> None:
        self.axes, self.tiles, self.writer, self.memory = axes, tiles, writer, memory
        self._users: dict[Value, list[Compute | Store]] = defaultdict(list)
        for s in program.statements():
            if isinstance(s, Compute | Store):
                for v in s.operands if isinstance(s, Compute) else (s.value,):
                    self._users[v].append(s)
        self._delayed: dict[Value, Compute] = {}  # products whose accumulator is not known yet
        self._differences: dict[Value, Compute] = {}  # differences of which only the exponential is used

    def tile(self, value: Value) -> Tile:
        """The tile of a value."""
        if value in self._delayed:
            self._matmul(self._delayed.pop(value), None)
        return self.tiles.known[value]

    def in_f32(self, value: Value) -> bool:
        """Whether all that uses a value computes in f32."""
        users = self._users[value]
        return bool(users) and all(
            isinstance(u, Compute) and (self.in_f32(u.result) if u.bounds else _in_f32(u)) for u in users
        )

    def compute(self, statement: Compute, following: Statement | None) -> None:
        """Write an operator; `following` is the next statement of the same body."""
        result = statement.result
        if (
            isinstance(following, Store)
            and following.value is result
            and not in_memory(following.buffer)
            and following.buffer in self.tiles.variables
            and len(self._users[result]) == 1
        ):
            self.tiles.named[result] = self.tiles.variables[following.buffer]
        entry = OPERATORS[statement.op]
        if entry.constant:
            self._constant(statement)
        elif statement.bounds:
            self._mask(statement)
        elif entry.contraction:
            if len(self._users[result]) == 1 and self._accumulates(self._users[result][0], result):
                self._delayed[result] = statement
            else:
                self._matmul(statement, None)
        elif entry.move is Move.RESHAPE:
            self._reshape(statement)
        elif (
            primitive_of(statement) == "sub"
            and isinstance(following, Compute)
            and primitive_of(following) == "exp"
            and following.operands == (result,)
            and len(self._users[result]) == 1
        ):
            self._differences[result] = statement
        elif primitive_of(statement) == "exp" and statement.operands[0] in self._differences:
            self._exponential(statement, self._differences.pop(statement.operands[0]))
        elif entry.elementwise:
            self._pointwise(statement)
        elif entry.combiner is not None:
            self._reduce(statement)
        else:
            self._move(statement)

    def _constant(self, statement: Compute) -> None:
        value = statement.attrs["value"]
        if isinstance(value, np.ndarray) or not isinstance(value, int | float):
            raise UnsupportedProgram("expected dense constants as arguments of a kernel, got one inside")
        self.tiles.known[statement.result] = Tile(number(value), "f32", (), constant=float(value))

    def _mask(self, statement: Compute) -> None:
        """`tl.where`, unless the load of the operand put the same number beyond the same bounds."""
        (value,), result, fill = statement.operands, statement.result, statement.attrs["fill"]
        assert isinstance(fill, float)
        tile = self.tile(value)
        loaded = fill == 0.0 and {*statement.bounds} <= {*tile.zero_beyond}
        mask, bounded = ("", ()) if loaded else self.memory.within(statement.bounds, value)
        if not mask:
            self.tiles.known[result] = tile
            return
        if fill != 0.0:
            tile = self.tiles.as_f32(tile)
        dims = tuple(sorted({*tile.dims, *bounded}))
        where = f"({mask}){expansion(bounded, dims)}" if expansion(bounded, dims) else mask
        text = f"tl.where({where}, {tile.text}{expansion(tile.dims, dims)}, {number(fill)})"
        padding = {d: p for d, p in tile.padding.items() if p == fill}
        dtype = "f32" if tile.constant is not None else tile.dtype
        self.tiles.known[result] = Tile(self.tiles.assign(result, text, "masked"), dtype, dims, padding)

    def _accumulates(self, user: Compute | Store, product: Value) -> bool:
        """Whether `user` adds the product to something of its shape, as `tl.dot` can itself."""
        if not isinstance(user, Compute) or primitive_of(user) != "add":
            return False
        (other,) = [v for v in user.operands if v is not product] or [product]
        return other is not product and other.shape == product.shape

    def _pointwise(self, statement: Compute) -> None:
        result = statement.result
        if primitive_of(statement) == "add" and self._masks(statement):
            return
        if self._unchanged(statement):
            return
        for value in statement.operands:
            product = self._delayed.pop(value, None)
            if product is not None:
                (other,) = (v for v in statement.operands if v is not value)
                tile = self.tile(other)
                if tile.dims == self.axes.live(other) and tile.constant is None:
                    self._matmul(product, self.tiles.as_f32(tile).text, result)
                    return
                self._matmul(product, None)
        body = OPERATORS[statement.op].body
        assert body is not None
        self._apply(statement, body(statement.attrs), self._aligned(statement))

    def _unchanged(self, statement: Compute) -> bool:
        """Whether a sum with 0 or a product with 1 is the other operand, as where a mask hides nothing."""
        neutral = {"add": 0.0, "mul": 1.0}.get(primitive_of(statement) or "")
        operands = statement.operands
        for value, other in (operands, operands[::-1]) if neutral is not None and len(operands) == 2 else ():
            tile = self.tiles.known.get(value)
            if tile is None or tile.constant != neutral or other.shape != statement.result.shape:
                continue
            tile = self.tiles.as_f32(self.tile(other))
            self.tiles.known[statement.result] = tile
            return True
        return False

    def _masks(self, statement: Compute) -> bool:
        """Write a sum with zeros and minus infinities as a choice, which needs no accumulator to start from."""
        body = OPERATORS[statement.op].body
        if body is None or not any(
            self.tiles.known[v].seen for v in statement.operands if v in self.tiles.known
        ):
            return False
        a, b = self._aligned(statement)
        mask, other = (a, b) if a.seen else (b, a)
        if not mask.seen or other.seen:
            return False
        tiles = [dataclasses.replace(t, text=t.seen) if t is mask else t for t in (a, b)]
        places = "{0}, {1}" if mask is a else "{1}, {0}"
        self._apply(statement, body(statement.attrs), tiles, f"tl.where({places}, {number(-math.inf)})")
        return True

    def _exponential(self, statement: Compute, difference: Compute) -> None:
        """`exp(x - m)`: where m is the same along a dimension, `exp2(x * log2(e) - m * log2(e))`.

        The hardware computes only powers of two: one fused multiply-add for each x then replaces a difference
        and a product. Numbers below -2.36e38, with which f32 and bf16 masks hide a whole row, overflow in that
        product, and the difference of two infinities is NaN; f16 lacks such numbers.
        """
        x, m = self._aligned(difference)
        wide = difference.result.dtype != "f16"
        if wide or not set(m.dims) < set(x.dims) or m.constant is not None:
            self._pointwise(difference)
            self._pointwise(statement)
            return
        scaled = dataclasses.replace(m, text=f"({m.text} * {LOG2_E})")
        self._apply(statement, _EXP_OF_DIFFERENCE, [x, scaled], f"tl.exp2({{0}} * {LOG2_E} - {{1}})")

    def _aligned(self, statement: Compute) -> list[Tile]:
        """The operands of an elementwise operator in f32, by the result's dimensions."""
        nest = nest_of(statement)
        assert nest is not None
        tiles: list[Tile] = []
        for value, maps in zip(statement.operands, nest.operands, strict=True):
            keep = [d for d, index in enumerate(maps) if index.dim is not None]
            tile = self.tiles.collapsed(value, self.tiles.as_f32(self.tile(value)), keep)
            shift = len(statement.result.shape) - len(value.shape)
            dims = tuple(d + shift for d in tile.dims)
            padding = {d + shift: p for d, p in tile.padding.items()}
            tiles.append(Tile(tile.text, tile.dtype, dims, padding, tile.constant, seen=tile.seen))
        return tiles

    def _apply(self, statement: Compute, scalar: Scalar, tiles: Sequence[Tile], text: str = "") -> None:
        """`scalar` on tiles that are aligned with the result's dimensions; `text` overrides its spelling."""
        result = statement.result
        dims = tuple(sorted({d for t in tiles for d in t.dims}))
        numbers = [t.constant for t in tiles]
        known = [n for n in numbers if n is not None]
        foldable = len(known) == len(tiles) or scalar.head == "const"
        if foldable and (folded := evaluate(scalar, known)) is not None:
            self.tiles.known[result] = Tile(number(folded), "f32", (), constant=folded)
            return
        padding: dict[int, float] = {}
        for d in dims:
            if self.axes.pad(result, d) > result.shape[d]:
                at = [t.constant if t.constant is not None else t.padding.get(d) for t in tiles]
                there = [p for p in at if p is not None]
                if len(there) == len(at) and (p := evaluate(scalar, there)) is not None:
                    padding[d] = p
        texts = [t.text + expansion(t.dims, dims) for t in tiles]
        texts = [t.text if t.dims == dims else x for t, x in zip(tiles, texts, strict=True)]
        if scalar == arg(0):  # a cast: numbers on chip keep their f32 bits
            self.tiles.known[result] = Tile(tiles[0].text, tiles[0].dtype, dims, padding)
            return
        name = self.tiles.assign(result, text.format(*texts) if text else spell(scalar, texts), statement.op)
        self.tiles.known[result] = Tile(name, "f32", dims, padding)

    def _reduce(self, statement: Compute) -> None:
        entry = OPERATORS[statement.op]
        (value,), result = statement.operands, statement.result
        nest = nest_of(statement)
        assert nest is not None
        assert entry.combiner is not None
        call, neutral = _REDUCTIONS[entry.combiner], NEUTRAL[entry.combiner]
        tile = self.tiles.as_f32(self.tile(value))
        present = [d for d in nest.reductions if d in tile.dims]
        absent = math.prod(value.shape[d] for d in nest.reductions if d not in tile.dims)
        tile = self.tiles.masked(value, tile, present, neutral)
        text, dims = tile.text, list(tile.dims)
        for d in reversed(present):
            text = f"{call}({text}, axis={dims.index(d)})"
            dims.remove(d)
        if entry.combiner == "add" and absent > 1:
            text = f"{text} * {absent}"
        place = {dim: d for d, dim in enumerate(nest.result) if dim is not None}
        padding = {place[d]: p for d, p in tile.padding.items() if d in dims and p == 0.0 == neutral}
        kept = tuple(place[d] for d in dims)
        if entry.finish is not None:
            text = spell(entry.finish(nest.reduced), [f"({text})" if absent > 1 else text])
        if tile.constant is not None:
            text = f"tl.full([], {text}, tl.float32)"
        self.tiles.known[result] = Tile(self.tiles.assign(result, text, statement.op), "f32", kept, padding)

    def _move(self, statement: Compute) -> None:
        """`transpose` and `broadcast`: dimensions move; those broadcast along are omitted."""
        (value,), result = statement.operands, statement.result
        nest = nest_of(statement)
        assert nest is not None
        (maps,) = nest.operands
        place = {d: index.dim for d, index in enumerate(maps) if index.dim is not None}
        tile = self.tiles.collapsed(value, self.tile(value), list(place))
        moved = [place[d] for d in tile.dims]
        order = sorted(range(len(moved)), key=lambda i: moved[i])
        text = tile.text
        if order != list(range(len(moved))):
            text = f"tl.trans({text})" if len(order) == 2 else f"tl.permute({text}, {tuple(order)})"
            text = self.tiles.assign(result, text, statement.op)
        padding = {place[d]: p for d, p in tile.padding.items()}
        self.tiles.known[result] = Tile(text, tile.dtype, tuple(sorted(moved)), padding, tile.constant)

    def _reshape(self, statement: Compute) -> None:
        (value,), result = statement.operands, statement.result
        tile = self.tile(value)
        if tile.constant is not None:
            self.tiles.known[result] = tile
            return
        plain = [d for d, e in enumerate(value.shape) if e > 1]
        tile = self.tiles.collapsed(value, tile, plain)
        if (pairs := same_dimensions(value.shape, result.shape)) is not None:
            moved = dict(pairs)
            padding = {moved[d]: p for d, p in tile.padding.items()}
            kept = tuple(moved[d] for d in tile.dims)
            self.tiles.known[result] = Tile(tile.text, tile.dtype, kept, padding)
            return
        target = [d for d, e in enumerate(result.shape) if e > 1]
        if any(self._wide(value, d) for d in plain):
            tile = self.tiles.as_f32(tile)
        text = self._narrowed(value, self.tiles.full(value, tile, plain), plain)
        text = f"tl.reshape({text}, {[power_of_two(result.shape[d]) for d in target]})"
        text = self._widened(result, text, target)
        padding = {
            made[0]: tile.padding[kept[0]]
            for kept, made in reshape_groups(value.shape, result.shape)
            if kept[0] in tile.padding and not self._wide(value, kept[0]) and not self._wide(result, made[0])
        }
        name = self.tiles.assign(result, text, statement.op)
        self.tiles.known[result] = Tile(name, tile.dtype, tuple(target), padding)

    def _wide(self, value: Value, dim: int) -> bool:
        """Whether a dimension is padded to more than the next power of two, as a product's are."""
        return self.axes.pad(value, dim) > power_of_two(value.shape[dim])

    def _narrowed(self, value: Value, text: str, dims: Sequence[int]) -> str:
        """A tensor with `dims` of a value, without padding beyond powers of two."""
        shape = [self.axes.pad(value, d) for d in dims]
        for i, d in enumerate(dims):
            extent = power_of_two(value.shape[d])
            if shape[i] == extent:
                continue
            parts = shape[i] // extent
            lane = self.writer.span(Window(parts), parts)
            first = "[" + ", ".join([*["None"] * i, ":", *["None"] * (len(dims) - i)]) + "]"
            apart = f"tl.reshape({text}, {[*shape[:i], parts, extent, *shape[i + 1 :]]})"
            text = f"tl.sum(tl.where(({lane} == 0){first}, {apart}, 0.0), axis={i})"
            shape[i] = extent
        return text

    def _widened(self, value: Value, text: str, dims: Sequence[int]) -> str:
        """A tensor with `dims` of a value, padded to powers of two, repeated up to their padded extents."""
        shape = [power_of_two(value.shape[d]) for d in dims]
        for i, d in enumerate(dims):
            pad = self.axes.pad(value, d)
            if shape[i] == pad:
                continue
            text = _repeated(text, shape, i, pad)
            shape[i] = pad
        return text

    def _matmul(self, statement: Compute, accumulator: str | None, result: Value | None = None) -> None:
        """`tl.dot`, with the leading dimensions as one batch dimension."""
        target = result or statement.result
        nest = nest_of(statement)
        assert nest is not None
        batch = [d for d in range(len(nest.extents) - 3) if nest.extents[d] > 1]
        dot = statement.result
        pads = [self.axes.pad(dot, d) for d in range(len(dot.shape))]
        batches = [pads[d] for d in batch]
        texts: list[str] = []
        dtype = statement.operands[0].dtype
        for side, (value, maps, key) in enumerate(
            zip(statement.operands, nest.operands, ("transpose_a", "transpose_b"), strict=True)
        ):
            rank = len(value.shape)
            inner = [rank - 2, rank - 1]
            contracted = next(d for d in inner if maps[d].dim == len(nest.extents) - 1)
            kept = [d for d in range(rank) if d in inner or maps[d].dim in batch]
            tile = self.tiles.collapsed(value, self.tile(value), kept)
            dims = tuple(d for d in kept if d in inner or d in tile.dims)
            text = self.tiles.full(value, tile, dims)
            tile = Tile(text, tile.dtype if tile.constant is None else "f32", dims, tile.padding)
            tile = self.tiles.masked(value, tile, [contracted], 0.0)
            text = tile.text
            if tile.dtype != dtype:
                text = f"{atom(text)}.to({TRITON_DTYPES[dtype]})"
            for i, d in enumerate(dims):
                own = [self.axes.pad(value, e) for e in dims]
                if d in inner and d != contracted and own[i] < (pad := pads[len(pads) - 2 + side]):
                    text = _repeated(text, own, i, pad)
            here = [maps[d].dim for d in dims[:-2]]
            if batch and here != batch:
                shape = batches + [self.axes.pad(value, d) for d in inner]
                index = "[" + ", ".join([*(":" if d in here else "None" for d in batch), ":", ":"]) + "]"
                text = f"tl.broadcast_to({atom(text)}{index}, {shape})"
            if len(batch) > 1:
                shape = [math.prod(batches), *(self.axes.pad(value, d) for d in inner)]
                text = f"tl.reshape({text}, {shape})"
            if statement.attrs.get(key):
                text = f"tl.permute({text}, (0, 2, 1))" if batch else f"tl.trans({text})"
            texts.append(text)
        extra = ', input_precision="ieee"' if dtype == "f32" else ""
        live = self.axes.live(dot)
        dims = tuple(d for d in live if d in batch or d >= len(pads) - 2)
        if accumulator is not None and len(batch) <= 1 and dims == live:
            text = f"tl.dot({', '.join(texts)}, {accumulator}{extra})"
        else:
            text = f"tl.dot({', '.join(texts)}{extra})"
            if len(batch) > 1:
                text = f"tl.reshape({text}, {[*batches, *pads[-2:]]})"
            if accumulator is not None:
                text, dims = f"{accumulator} + {text}{expansion(dims, live)}", live
        self.tiles.known[target] = Tile(self.tiles.assign(target, text, "product"), "f32", dims)


def _repeated(text: str, shape: Sequence[int], dim: int, pad: int) -> str:
    """A tensor of a shape, repeated along a dimension up to `pad` elements."""
    repeated = [*shape[:dim], pad // shape[dim], *shape[dim:]]
    text = f"tl.broadcast_to(tl.expand_dims({text}, {dim}), {repeated})"
    return f"tl.reshape({text}, {[*shape[:dim], pad, *shape[dim + 1 :]]})"


def _in_f32(statement: Compute) -> bool:
    return is_elementwise(statement) and not is_conversion(statement)
