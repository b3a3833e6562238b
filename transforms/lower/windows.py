"""Nests that read windows (convolutions, pooling, padding) as tile programs.

    %y = conv(%x, %w)            parallel over n, tiles of f, tiles of y0, tiles of y1:
                            ->     acc = 0
                                   for c in 0..C by 32: for r in 0..3: for s in 0..3:
                                     a = mask(X[n, c : +32, y0 + r - 1 : +8, y1 + s - 1 : +8])    as (32, 64)
                                     acc = acc + W[f : +64, c : +32, r, s] @ a
                                   Y[n, f : +64, y0 : +8, y1 : +8] = acc

An implicit matrix product: rows are output channels, columns tiles of output positions, depth is channels and
kernel positions, so that every load is a window (base, loop variables, stride) and its guard the extents of what
it reads. Flattened positions would need a division for each element, and scalar loads. What a matrix unit cannot
multiply (few channels in a group, pooling, band products) is added or joined position by position. A few kernel
positions, the innermost first, are written one after the other, so that their loads do not wait for each other.
What is summed along the last dimension of all operands is summed within tiles, so that loads are runs of it.

Operands and results with channels last are transposed within the kernel: loads and stores follow their layout,
and the product takes its operands as they come.

                            ->       a = mask(X[n, y0 + r - 1 : +8, y1 + s - 1 : +8, c : +64])    as (64, 64)
                                     acc = acc + a @ W[r, s, c : +64, f : +64]

An index with a divisor s (transposed convolutions) is whole at every s-th kernel position only, which one depends
on the residue of the result's position: each residue is a dense part of its own, with stores s apart (the
sub-pixel form).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.axes import same_dimensions
from superopt.cost.gpus import Target
from superopt.errors import UnsupportedProgram
from superopt.nests import ints_attr
from superopt.nests_by_text import TERMS
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Index,
    Move,
    Nest,
    is_windowed,
    move_of,
    nest_of,
    normalize_attrs,
)
from superopt.program import (
    DTYPE_BYTES,
    Attr,
    Bound,
    Buffer,
    Loop,
    LoopVar,
    Node,
    Statement,
    TensorType,
    Value,
    View,
    Window,
    power_of_two,
)
from superopt.quasi_affine import ALWAYS, Linear, Read
from superopt.transforms.lower.builder import apply_scalar, compute, constant, load, mask, store, whole
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT
from superopt.transforms.window_groups import is_channels_last

# Rows and columns of the tiles of a product, the largest first, and the bytes of its depth.
_TILES = ((128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16))
_DEPTH_BYTES = 128
# Kernel positions that are written one after the other: their loads do not wait for each other.
_MOST_TAPS = 9
# Points of a tile that is joined position by position.
_POINTS = 1024
# Of these along what is summed, where that is the last dimension of all operands.
_DEPTH = 64
# What a tile may cover beyond an extent, for longer runs of elements side by side.
_SPARE = 1.15
# Residues that may be written one after the other.
_MOST_PARTS = 64

Operand = Callable[[list[Statement], Value, tuple[Window, ...]], Value]


@dataclass(frozen=True)
class Place:
    """An affine number: `base`, the (variable, scale) pairs of `terms`, and for `size` lanes `stride` each."""

    size: int = 1
    base: int = 0
    terms: tuple[tuple[LoopVar, int], ...] = ()
    stride: int = 1

    def scaled(self, by: int) -> Place:
        """This number times `by`."""
        return Place(self.size, self.base * by, tuple((v, s * by) for v, s in self.terms), self.stride * by)

    def plus(self, other: Place) -> Place:
        """The sum; lanes may be in one of the two only."""
        lanes, more = (
            (self, other) if (self.size, self.stride) >= (other.size, other.stride) else (other, self)
        )
        if more.size > 1:
            raise UnsupportedProgram("expected windows along one dimension of a tile, got two")
        terms = dict(lanes.terms)
        for var, scale in more.terms:
            terms[var] = terms.get(var, 0) + scale
        kept = tuple((v, s) for v, s in terms.items() if s)
        return Place(lanes.size, lanes.base + more.base, kept, lanes.stride)

    def over(self, divisor: int) -> Place:
        """This number by a divisor of all its parts."""
        terms = tuple((v, s // divisor) for v, s in self.terms)
        return Place(self.size, self.base // divisor, terms, max(self.stride // divisor, 1))

    @property
    def window(self) -> Window:
        """The elements at these places."""
        return Window(self.size, self.base, self.terms, self.stride)


@dataclass
class _At:
    """Where a statement is: the place of each iteration dimension, and of its floors by divisors."""

    places: dict[int, Place]
    floors: dict[tuple[int, int], Place]

    def index(self, index: Index) -> Place:
        found = Place(base=index.offset)
        if index.dim is not None:
            found = found.plus(self.places[index.dim].scaled(index.stride))
        for atom in index.atoms:
            key = (atom.dim, atom.divisor)
            place = self.places[atom.dim] if atom.divisor == 1 else self.floors[key]
            found = found.plus(place.scaled(atom.scale))
        return found.over(index.divisor)

    def windows(self, maps: Sequence[Index]) -> tuple[Window, ...]:
        return tuple(self.index(i).window for i in maps)

    def lanes(self, maps: Sequence[Index]) -> list[int]:
        """The extents of an operand's tile."""
        return [self.index(i).size for i in maps]


class WindowLowering:
    """One nest that is not plain, and what is computed in its kernel: see `window_groups`."""

    def __init__(
        self, group: Sequence[Node], gpu: Target, params: Sequence[Value], output: Buffer, operand: Operand
    ) -> None:
        (self.node,) = filter(is_windowed, group)
        before, self.behind = group[: group.index(self.node)], list(group[group.index(self.node) + 1 :])
        nest = nest_of(self.node)
        assert nest is not None
        self.locals: list[Buffer] = []
        self.views: dict[Value, Buffer] = {}
        self.operands, self.spread_product = list(self.node.operands), False
        self.where: Buffer | None = None
        if nest.reads:
            nest = self._spread(nest, params)
        # The iteration dimensions of the result's tiles, in the order in which they are stored.
        self.order = [d for d in nest.result if d is not None]
        self.last = any(map(is_channels_last, self.behind))
        if self.last:
            self.order = [self.order[0], *self.order[2:], self.order[1]]
        self.turned = {n.result: n for n in before if move_of(n) is Move.TRANSPOSE}
        self.sides = {n.result: n for n in before if n.result not in self.turned}
        self.nest, self.entry = nest, OPERATORS[self.node.op]
        self.attrs = normalize_attrs(self.entry, self.node.attrs)
        self.gpu, self.output, self.operand = gpu, output, operand
        self.grouped = self._group()
        product = self._product_tiles()
        self.is_product = product is not None
        self.tiles = product or self._point_tiles()
        # Reduced dimensions of a tile of points, behind those of the result.
        self.within = [] if product else [d for d in nest.reductions if self.tiles[d] > 1]

    def body(self) -> list[Statement]:
        """The statements of the kernel."""
        parts = list(itertools.product(*(range(min(s, n)) for _, s, n in self._divided())))
        loops, at = self._grid()
        body: list[Statement] = []
        if len(parts) > _MOST_PARTS:
            raise UnsupportedProgram(
                f"expected a transposed convolution of at most {_MOST_PARTS} residues, got {len(parts)}"
            )
        for residues in parts:
            body += self._part(at, dict(zip((d for d, _, _ in self._divided()), residues, strict=True)))
        for var, start, stop, step in reversed(loops):
            body = [Loop(var, start, stop, step, True, body)]
        return body

    # --- views ---

    def _spread(self, nest: Nest, params: Sequence[Value]) -> Nest:
        """The nest on views of its operands: each over the dimensions that its read depends on. Operands of which
        every dimension is read whole stay as they are.
        """
        depth = nest.reductions[0] if nest.reductions else -1
        first = [read.dims for read in nest.reads[::2]]
        second = [read.dims for read in nest.reads[1::2]]
        positions = {0, *range(2, len(nest.result))}
        self.spread_product = (
            {len(t) for t in self._products(nest)} == {2}
            and all(depth in x and 1 not in x for x in first)
            and all(depth in w and 1 in w and positions.isdisjoint(w) for w in second)
        )
        maps: list[tuple[Index, ...]] = []
        for n, (value, read) in enumerate(zip(self.operands, nest.reads, strict=True)):
            dims = [d for x in read.index for d, _ in x.terms]
            whole = tuple(Linear(0, ((d, 1),)) for d in dims)
            sizes = tuple(nest.extents[d] for d in dims if d < read.rank)
            if (
                read.guard == ALWAYS
                and read.index == whole
                and sizes == value.shape
                and len({*dims}) == len(dims)
            ):
                maps.append(tuple(map(Index, dims)))
                continue
            # Depth comes first: tiles of products are its rows, whatever positions are.
            order = sorted(read.dims, key=lambda d: (self.spread_product and d != depth, d))
            made = self._view(read, order, nest, value, params)
            self.operands[n] = Value(made.type, made.name)
            self.views[self.operands[n]] = made
            maps.append(tuple(map(Index, order)))
        if nest.where is not None and nest.where.guard != ALWAYS:
            self.where = self._view(nest.where, nest.where.dims, nest, None, params)
        return replace(nest, operands=tuple(maps))

    def _view(
        self, read: Read, dims: Sequence[int], nest: Nest, value: Value | None, params: Sequence[Value]
    ) -> Buffer:
        if value is not None and value not in params:
            raise UnsupportedProgram("expected operands of a nest in memory, got a constant")
        number = -1 if value is None else list(params).index(value)
        dtype = self.node.result.dtype if value is None else value.dtype
        kind = TensorType(tuple(nest.extents[d] for d in dims), dtype)
        name = f"{value.name or 'operand'}_view" if value is not None else "where"
        made = Buffer(kind, name, "view", view=View(number, read.over(dims)))
        self.locals.append(made)
        return made

    def _products(self, nest: Nest) -> list[range]:
        """The operands that are multiplied with each other, by number."""
        counts = ints_attr(self.node.attrs, TERMS) if TERMS in self.node.attrs else ()
        ends = list(itertools.accumulate(counts or (len(nest.operands),), initial=0))
        return list(itertools.starmap(range, itertools.pairwise(ends)))

    # --- shapes ---

    def _divided(self) -> list[tuple[int, int, int]]:
        """Dimensions of the result that an index divides: dimension, divisor, extent."""
        maps = [i for m in self.nest.operands for i in m if i.divisor > 1 and i.dim is not None]
        return [(i.dim, i.divisor, self.nest.extents[i.dim]) for i in maps if i.dim is not None]

    def _group(self) -> tuple[int, int] | None:
        """The dimension of which an index takes the floor, and the divisor: the columns of a group."""
        atoms = {(a.dim, a.divisor) for m in self.nest.operands for i in m for a in i.atoms if a.divisor > 1}
        if len(atoms) > 1:
            raise UnsupportedProgram("expected one dimension in groups, got several")
        return atoms.pop() if atoms else None

    def _extent(self, d: int) -> int:
        """The extent that tiles along `d` cover: of a group, or of the positions of one residue."""
        extent = self.nest.extents[d]
        if self.grouped is not None and d == self.grouped[0]:
            return self.grouped[1]
        return next((math.ceil(n / s) for dim, s, n in self._divided() if dim == d), extent)

    def _product_tiles(self) -> dict[int, int] | None:
        """Tiles of an implicit matrix product; None where it is not one, or too narrow for matrix units."""
        if self.entry.combiner != "add" or (len(self.nest.operands) != 2 and not self.nest.reads):
            return None
        if not self.nest.reductions or len(self.nest.result) < 3:
            return None
        f, c, positions = 1, self.nest.reductions[0], range(2, len(self.nest.result))
        groups = self.grouped is not None
        if self.nest.reads:
            if not self.spread_product:
                return None
        else:
            weight = [i.dim for i in self.nest.operands[1]]
            channel = self.nest.operands[0][1]
            apart = any(a.divisor == 1 for a in channel.atoms)
            if f not in weight or c not in weight or channel.dim != c or apart:
                return None
        widths = [self._extent(f), self.nest.extents[c]]
        if groups and min(n & -n for n in widths) < SMALLEST_DOT:
            return None
        tiles: dict[int, int] = {}
        depth = _DEPTH_BYTES // DTYPE_BYTES[self.node.result.dtype]
        for rows, columns in _TILES:
            tiles = dict.fromkeys(range(len(self.nest.extents)), 1)
            most = max(widths[0] & -widths[0], 1) if groups else max(power_of_two(widths[0]), SMALLEST_DOT)
            tiles[f] = min(rows, most)
            deepest = widths[1] & -widths[1] if groups else max(power_of_two(widths[1]), SMALLEST_DOT)
            tiles[c] = min(depth, deepest)
            left = columns
            for d in reversed(positions):
                tiles[d] = _run(self._extent(d), left)
                left //= tiles[d]
            # Too few positions: the innermost tile reaches past them.
            tiles[positions[-1]] *= max(1, SMALLEST_DOT * left // columns)
            if self._blocks(tiles) >= self.gpu.multiprocessors:
                break
        return self._settled(tiles)

    def _point_tiles(self) -> dict[int, int]:
        """Tiles whose points are joined one by one, contiguous dimensions first."""
        tiles, left = dict.fromkeys(range(len(self.nest.extents)), 1), _POINTS
        for d in self.nest.reductions:
            if self.entry.combiner == "add" and all(maps[-1:] == (Index(d),) for maps in self.nest.operands):
                tiles[d] = min(power_of_two(self.nest.extents[d]), _DEPTH)
                left //= tiles[d]
        for d in reversed(self.order):
            if any((self.nest.extents[o], o) > (self.nest.extents[d], d) for o in self._beside(d)):
                continue  # a window runs along one dimension of a tile
            tiles[d] = min(power_of_two(self._extent(d)), left)
            if self.grouped is not None and d == self.grouped[0]:
                tiles[d] = min(self._extent(d) & -self._extent(d), left)
            left //= tiles[d]
        return self._settled(tiles)

    def _beside(self, d: int) -> set[int]:
        """Other dimensions of the result that are in one index with `d`, none of them as a floor."""
        maps = [i for m in self.nest.operands for i in m if all(a.divisor == 1 for a in i.atoms)]
        return {o for i in maps if d in i.dims for o in i.dims if o != d and o in self.order}

    def _settled(self, tiles: dict[int, int]) -> dict[int, int]:
        """The tiles, longer where the last one would hold no position of the last residue."""
        for d, divisor, extent in self._divided():
            while _last(self._extent(d), tiles[d]) * divisor + min(divisor, extent) > extent:
                tiles[d] *= 2
        return tiles

    def _blocks(self, tiles: Mapping[int, int]) -> int:
        count = math.prod(math.ceil(self._extent(d) / tiles[d]) for d in self.nest.result if d is not None)
        return count * (self.nest.extents[1] // self.grouped[1] if self.grouped else 1)

    # --- loops ---

    def _grid(self) -> tuple[list[tuple[LoopVar, int, int, int]], _At]:
        """Parallel loops over the tiles of the result."""
        loops: list[tuple[LoopVar, int, int, int]] = []
        at = _At({}, {})

        def over(extent: int, step: int) -> tuple[LoopVar, ...]:
            if extent <= step:
                return ()
            loops.append((LoopVar(f"i{len(loops)}"), 0, extent, step))
            return (loops[-1][0],)

        for d in (d for d in self.nest.result if d is not None):
            terms: list[tuple[LoopVar, int]] = []
            if self.grouped is not None and d == self.grouped[0]:
                outer = over(self.nest.extents[d] // self.grouped[1], 1)
                terms += [(v, self.grouped[1]) for v in outer]
                at.floors[self.grouped] = Place(1, 0, tuple((v, 1) for v in outer))
            terms += [(v, 1) for v in over(self._extent(d), self.tiles[d])]
            at.places[d] = Place(self.tiles[d], 0, tuple(terms))
        return loops, at

    def _part(self, grid: _At, residues: Mapping[int, int]) -> list[Statement]:
        """What computes and stores the positions of one residue."""
        at = _At(dict(grid.places), grid.floors)
        for d, divisor, _ in self._divided():
            at.places[d] = at.places[d].scaled(divisor).plus(Place(base=residues[d]))
        loops = [self._taps(d, at, residues) for d in self.nest.reductions]
        body: list[Statement] = []
        value = self._joined(body, at, loops)
        value = _shaped(body, value, [at.places[d].size for d in self.order])
        if self.where is not None:
            assert self.nest.where is not None
            dims = list(self.nest.where.dims)
            shown = load(body, self.where, tuple(at.places[d].window for d in dims), self.where.name)
            value = compute(body, "select", [self._along(body, shown, dims), value], {"other": 0.0})
        values, along = {self.node.result: value}, sorted(self.order)
        for node in self.behind:
            if is_channels_last(node):
                values[node.result], along = value, self.order
                continue
            nest = nest_of(node)
            assert nest is not None
            operands: list[Value] = []
            for v, maps in zip(node.operands, nest.operands, strict=True):
                if v in values:
                    operands.append(values[v])
                    continue
                dims = [None if i.dim is None else along[i.dim] for i in maps]
                windows = tuple(Window(1) if d is None else at.places[d].window for d in dims)
                if v in self.turned:
                    tile, order = self._turned(body, v, windows)
                    dims = [dims[d] for d in order]
                else:
                    tile = self._side(body, v, windows)
                as_it_is = not self.last and v not in self.turned
                operands.append(tile if as_it_is else self._along(body, tile, dims))
            values[node.result] = value = compute(body, node.op, operands, dict(node.attrs))
        store(body, self.output, tuple(at.places[d].window for d in self.order), value)
        return body

    def _turned(
        self, out: list[Statement], value: Value, windows: tuple[Window, ...]
    ) -> tuple[Value, list[int]]:
        """The tile of an operand in the order in which it lies in memory, and its dimensions in that order."""
        if (view := self.views.get(value)) is not None:
            return load(out, view, windows, view.name), list(range(len(windows)))
        if value not in self.turned:
            return self.operand(out, value, windows), list(range(len(windows)))
        node = self.turned[value]
        perm = ints_attr(node.attrs, "perm")
        order = [perm.index(d) for d in range(len(perm))]
        return self.operand(out, node.operands[0], tuple(windows[d] for d in order)), order

    def _along(
        self, out: list[Statement], tile: Value, dims: Sequence[int | None], order: Sequence[int | None] = ()
    ) -> Value:
        """`tile`, whose dimensions are these of the iteration (or none), in an order: the result's."""
        order = order or self.order
        sizes: dict[int | None, int] = {
            d: n for d, n in zip(dims, tile.shape, strict=True) if d is not None and n > 1
        }
        wanted = [d for d in order if d in sizes]
        # A group's dimension may be in two: with one number in each group, in one of one element.
        held = [(d, i) for i, (d, n) in enumerate(zip(dims, tile.shape, strict=True)) if n > 1]
        if wanted != [d for d, _ in held]:
            rest = [i for i, n in enumerate(tile.shape) if n == 1]
            perm = (*rest, *(dict(held)[d] for d in wanted))
            tile = compute(out, "transpose", [tile], {"perm": perm})
        return _shaped(out, tile, [sizes.get(d, 1) for d in order]) if tile.shape else tile

    def _side(self, out: list[Statement], value: Value, windows: tuple[Window, ...]) -> Value:
        """The tile of what is not behind the nest: loaded, or computed from what is."""
        if (node := self.sides.get(value)) is None:
            return self.operand(out, value, windows)
        if move_of(node) is Move.RESHAPE:
            (source,) = node.operands
            pairs = same_dimensions(source.shape, value.shape)
            assert pairs is not None
            kept = {a: windows[b] for a, b in pairs}
            inner = tuple(kept.get(d, Window(1)) for d in range(len(source.shape)))
            return _shaped(out, self._side(out, source, inner), [w.size for w in windows])
        nest = nest_of(node)
        assert nest is not None
        operands = [
            self._side(out, v, tuple(Window(1) if i.dim is None else windows[i.dim] for i in maps))
            for v, maps in zip(node.operands, nest.operands, strict=True)
        ]
        return compute(out, node.op, operands, dict(node.attrs))

    def _taps(self, d: int, at: _At, residues: Mapping[int, int]) -> tuple[int, int, int, int]:
        """First, number, step and tile of the points along a reduced dimension whose indices are whole."""
        extent = self.nest.extents[d]
        for index in (i for m in self.nest.operands for i in m if i.divisor > 1):
            scale = sum(a.scale for a in index.atoms if a.dim == d)
            if scale and index.dim is not None:
                first = index.offset + residues[index.dim]
                whole = [k for k in range(extent) if (first + scale * k) % index.divisor == 0]
                step = index.divisor // math.gcd(index.divisor, abs(scale))
                return (whole[0] if whole else 0, len(whole), step, 1)
        return (0, extent, 1, self.tiles[d])

    def _joined(self, out: list[Statement], at: _At, loops: Sequence[tuple[int, int, int, int]]) -> Value:
        """The nest's result at these places, in any shape of as many elements."""
        if not self.nest.reductions and not self.nest.reads:
            return self._points(out, at)
        product = self.is_product
        sizes, columns = [at.places[d].size for d in self.order], at.places[1].size if product else 1
        shape = (columns, math.prod(sizes) // columns)
        shape = tuple(sizes) if not product else shape[::-1] if self.last else shape
        join = self.entry.combiner
        assert join is not None
        start = constant(out, NEUTRAL[join], shape, self.node.result.dtype)
        if any(count == 0 for _, count, _, _ in loops):
            return start
        if not loops:  # operands may lack dimensions that the result has
            return compute(out, join, [start, self._points(out, at)])
        # The loop over channels is outside of what is written out, and inside of other loops.
        order = [*range(1, len(loops)), 0] if len(self.nest.operands) > 1 else list(range(len(loops)))
        taps: list[int] = []
        for i in (i for i in reversed(order) if loops[i][3] == 1):
            if math.prod(loops[other][1] for other in [i, *taps]) <= _MOST_TAPS:
                taps.insert(0, i)
        opened: list[tuple[LoopVar, int, int]] = []
        for i in (i for i in order if i not in taps):
            d, (first, count, step, tile) = self.nest.reductions[i], loops[i]
            var = LoopVar(f"k{d}")
            at.places[d] = Place(tile, first, ((var, step),) if count > tile else ())
            if count > tile:
                opened.append((var, count, tile))
        if not opened:
            return self._taps_joined(out, at, loops, taps, start)
        total = Buffer(TensorType(shape, self.node.result.dtype), "acc", "chip")
        self.locals.append(total)
        store(out, total, whole(total), start)
        inner: list[Statement] = []
        so_far = load(inner, total, whole(total), total.name)
        store(inner, total, whole(total), self._taps_joined(inner, at, loops, taps, so_far))
        for var, count, tile in reversed(opened):
            inner = [Loop(var, 0, count, tile, False, inner)]
        out += inner
        return load(out, total, whole(total), total.name)

    def _taps_joined(
        self,
        out: list[Statement],
        at: _At,
        loops: Sequence[tuple[int, int, int, int]],
        taps: Sequence[int],
        value: Value,
    ) -> Value:
        """`value`, joined with the nest's body at each of the positions `taps`, written one after the other."""
        join = self.entry.combiner
        assert join is not None
        for numbers in itertools.product(*(range(loops[i][1]) for i in taps)):
            for i, number in zip(taps, numbers, strict=True):
                first, _, step, _ = loops[i]
                at.places[self.nest.reductions[i]] = Place(1, first + step * number)
            if not self.is_product:
                value = compute(out, join, [value, self._points(out, at)])
                continue
            for firsts, second in self._factored():
                value = compute(out, join, [value, self._product(out, at, firsts, second)])
        return value

    def _factored(self) -> list[tuple[list[int], int]]:
        """The products, those of one second operand as one, of the sum of their first operands: a second pass,
        which holds where the first does not, takes loads and no product of its own.
        """
        found: dict[tuple[Value, tuple[Index, ...]], tuple[list[int], int]] = {}
        for first, second in self._products(self.nest):
            key = self.operands[second], self.nest.operands[second]
            found.setdefault(key, ([], second))[0].append(first)
        return list(found.values())

    # --- tiles ---

    def _read(self, out: list[Statement], number: int, at: _At) -> tuple[Value, list[int | None]]:
        """The tile of an operand, with what the nest says is outside of it, and the iteration dimension that each
        of its dimensions runs along.
        """
        value, maps = self.operands[number], self.nest.operands[number]
        windows = at.windows(maps)
        tile, order = self._turned(out, value, windows)
        bounds = tuple(Bound(i, windows[d], value.shape[d]) for i, d in enumerate(order))
        assert self.nest.outside is not None
        lanes = [next((d for d in maps[i].dims if at.places[d].size > 1), maps[i].dim) for i in order]
        return (mask(out, tile, bounds, self.nest.outside) if bounds else tile), lanes

    def _product(self, out: list[Statement], at: _At, firsts: Sequence[int], second: int) -> Value:
        """(rows, depth) @ (depth, positions); with channels last (positions, depth) @ (depth, columns)."""
        f, c = 1, self.nest.reductions[0]
        (x, along), *others = (self._read(out, first, at) for first in firsts)
        for other, dims in others:
            x = compute(out, "add", [x, other if dims == along else self._along(out, other, dims, along)])
        w, order = self._read(out, second, at)
        wide = [d for d, n in zip(along, x.shape, strict=True) if n > 1]
        depth, turned = at.places[c].size, wide[-1:] == [c]
        positions = x.type.elements // depth
        x = _shaped(out, x, (positions, depth) if turned else (depth, positions))
        order = [d for d in order if d in (f, c)]
        w = _shaped(out, w, [at.places[d].size for d in order])
        if self.last:
            return compute(out, "matmul", [x, w], {"transpose_a": not turned, "transpose_b": order == [f, c]})
        attrs: dict[str, Attr] = {"transpose_b": True} if turned else {}
        return compute(out, "matmul", [w, x], {"transpose_a": order == [c, f], **attrs})

    def _points(self, out: list[Statement], at: _At) -> Value:
        """The body at each point of the result's tile, summed over what is reduced within."""
        order, numbers = [*self.order, *self.within], range(len(self.nest.operands))
        tiles = [self._along(out, *self._read(out, number, at), order) for number in numbers]
        body = self.entry.body
        assert body is not None
        made = apply_scalar(out, body(self.attrs), tiles)
        dims = tuple(range(len(self.order), len(order)))
        return compute(out, "reduce_sum", [made], {"dims": dims}) if dims else made


def _run(extent: int, most: int) -> int:
    """Positions of a tile along one dimension: the longest power of two that covers little beyond the extent."""
    size = min(power_of_two(extent), most)
    while size > 8 and math.ceil(extent / size) * size > _SPARE * extent:
        size //= 2
    return size


def _last(extent: int, tile: int) -> int:
    """Where the last tile starts."""
    return (math.ceil(extent / tile) - 1) * tile


def _shaped(out: list[Statement], value: Value, shape: Sequence[int]) -> Value:
    if value.shape == tuple(shape):
        return value
    return compute(out, "reshape", [value], {"shape": tuple(shape)})
