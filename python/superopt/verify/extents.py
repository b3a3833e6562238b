"""Which extents of programs depend on which: every dimension as the grid, loop and tile factors that cut it.

`Axes` walks programs and ties the dimensions that their operators, iterators and windows relate
(`superopt.verify.axes`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from superopt.aliasing import pairs
from superopt.nests_by_text import whole_dims
from superopt.operators import OPERATORS, Index, Nest, normalize_attrs
from superopt.program import (
    UNBOUNDED,
    Attr,
    Band,
    BlockGraph,
    Bound,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Ramp,
    Statement,
    ThreadGraph,
    TileProgram,
    Value,
    View,
    Window,
    is_conversion,
)
from superopt.verify.axes import Dim, Factor, Irreducible, Joined, dim, fix, leaves, reduced, unify
from superopt.verify.cuts import same_pieces, settle

# Parts of a dimension that windows traverse one by one; beyond this many, the dimension keeps its extent.
_MOST_PIECES = 4


def trips_of(loop: Loop) -> int:
    """How often a loop's body runs."""
    return max(0, math.ceil((loop.stop - loop.start) / loop.step))


class Axes:
    """Dimensions of every value and buffer, and the factors of every grid and loop.

    With `bands_follow`, whoever changes an extent also moves the sides of bands; otherwise bands keep theirs,
    but for those whose sides suit every extent. With `ramps_follow`, ramps count to any extent: programs that
    compare with a number keep that number.
    """

    def __init__(self, *, bands_follow: bool = False, ramps_follow: bool = False) -> None:
        self.bands_follow, self.ramps_follow = bands_follow, ramps_follow
        self.means: list[tuple[int, Dim]] = []
        self.means_of: list[tuple[int, Dim]] = []  # each dimension of means over several
        self.dims: dict[Value | Buffer, list[Dim]] = {}
        self.extents: dict[BlockGraph, tuple[list[Dim], list[Dim]]] = {}
        self.trips: dict[LoopVar, Dim] = {}
        self.loops: dict[LoopVar, Loop] = {}
        self.numbered: dict[Factor, int] = {}
        self.offsets: dict[Value, Dim] = {}  # of the part that is overwritten: what lies before it
        self.tables: list[Dim] = []  # of constants of many numbers, which hold their extents
        self.joined: list[Joined] = []
        self.ragged: list[Joined] = []  # tiles, and what they cover and reach past
        self.bounds: dict[tuple[Value, Bound], Dim] = {}  # the extents that masks, by result, compare with
        self.loaded: dict[Value, Load] = {}
        self.partial: dict[tuple[Buffer, int], list[tuple[Window, Dim, Dim]]] = {}
        self.scattered: set[tuple[Buffer, int]] = set()
        self.pieces: dict[tuple[Buffer, int], tuple[list[int], list[Dim]]] = {}
        self.windows: list[tuple[Dim, int]] = []  # how many of them there are, and at least have to be
        self.guards: set[Window] = set()
        self.placed: set[Window] = set()

    def finish(self) -> None:
        """Call it once everything is tied: cuts joined dimensions, and chooses extents that add up."""
        self.cut_buffers()
        self.settle()

    def settle(self) -> None:
        """Choose extents that add up, with as many windows as have each place of theirs inside."""
        same_pieces(self.joined)
        cut = {leaf for j in self.joined for d in (j.whole, *j.pieces) for leaf in leaves(d)}
        for windows, least in self.windows:
            # Cuts two apart keep as many windows as leave borders and an inside, where these are not kept anyway.
            pairs_, extent = math.ceil(least / 2), _extent(windows)
            fewest = math.prod(leaf.size if leaf.fixed else min(leaf.size, 2) for leaf in leaves(windows))
            if cut.isdisjoint(leaves(windows)) or fewest >= min(least, extent):
                continue
            if extent < 2 * pairs_:
                fix(windows)
            elif pairs_ > 1:
                pieces = [dim(2) for _ in range(pairs_ - 1)]
                self.joined.append(Joined(windows, (*pieces, dim(extent - 2 * len(pieces)))))
        settle(self.joined)
        for windows, least in self.windows:
            for leaf in reversed(leaves(windows)):
                if (count := reduced(windows)) < least and leaf not in cut:
                    leaf.chosen = max(leaf.chosen, math.ceil(least * leaf.reduced / count))
            if reduced(windows) < min(least, _extent(windows)):
                raise Irreducible("windows at borders alone")

    def of(self, value: Value | Buffer) -> list[Dim]:
        """The dimensions of a value or buffer."""
        if value not in self.dims:
            self.dims[value] = [dim(e) for e in value.type.shape]
        return self.dims[value]

    def numbers(self, *, each: bool = False) -> dict[float, float]:
        """What the extents of means, and their inverses, become; omits those that become several numbers.

        With `each`, also the extents of each dimension of a mean over several.
        """
        found: dict[float, set[float]] = {}
        for extent, factors in [*self.means, *(self.means_of if each else ())]:
            small = reduced(factors)
            found.setdefault(float(extent), set()).add(float(small))
            if extent & (extent - 1) == 0:  # other extents lack an exact inverse
                found.setdefault(1 / extent, set()).add(1 / small)
        return {number: became.pop() for number, became in found.items() if len(became) == 1}

    def same(self, a: Sequence[Dim], b: Sequence[Dim]) -> None:
        """Tie dimensions, one by one."""
        for x, y in zip(a, b, strict=True):
            unify(x, y)

    def graph(self, graph: KernelGraph | ThreadGraph) -> None:
        """Tie the dimensions that the nodes of a graph relate; raises Irreducible."""
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        """Tie the dimensions that one node relates."""
        body = node.body
        if isinstance(body, BlockGraph):
            self.block(node, body)
        elif isinstance(body, ThreadGraph):
            self.graph(body)
            inner, outer = [*body.inputs, *body.outputs], [*node.operands, *node.results]
            for x, y in zip(inner, outer, strict=True):
                self.same(self.of(x), self.of(y))
        elif isinstance(body, TileProgram):
            for x, y in zip(body.params, [*node.operands, *node.results], strict=True):
                self.same(self.of(x), self.of(y))
            for out, at in pairs(body.aliases).items():
                self.same(self.of(body.params[body.n_inputs + out]), self.of(body.params[at]))
            for buffer in body.locals:
                if buffer.view is not None:
                    self.view(buffer, buffer.view, body.params)
            self.guards.update(w for s in body.statements() if isinstance(s, Compute) for w in s.windows)
            self.statements(body.body)
        elif node.op in OPERATORS:
            self.operator(node.op, node.operands, node.result, node.attrs)
        elif is_conversion(node):
            self.same(self.of(node.operands[0]), self.of(node.result))
        else:
            for v in (*node.operands, *node.results):
                fix([f for d in self.of(v) for f in d])

    def operator(self, op: str, operands: Sequence[Value], result: Value, attrs: Mapping[str, Attr]) -> None:
        """Tie the dimensions that the nest of a table operator relates."""
        entry = OPERATORS[op]
        values = normalize_attrs(entry, attrs)
        target = self.of(result)
        if entry.nest is None:
            if op == "update_slice":
                self.updated(operands, result, values)
            else:
                self.arranged(op, [self.of(v) for v in operands], target, values)
            return
        nest = entry.nest([v.shape for v in operands], values)
        space = [dim(e) for e in nest.extents]
        if nest.reads:
            self.read_by_text(nest, operands, target, space)
            return
        if entry.finish is not None:
            self.means.append((nest.reduced, [f for d in nest.reductions for f in space[d]]))
            joined = [d for d in nest.reductions if nest.extents[d] > 1]
            self.means_of += [(nest.extents[d], list(space[d])) for d in joined if len(joined) > 1]
        for value, maps in zip(operands, nest.operands, strict=True):
            for d, extent, index in zip(self.of(value), value.shape, maps, strict=True):
                if not nest.plain:
                    self.read(d, extent, index, nest, space)
                elif index.dim is None:
                    fix(d)
                else:
                    cut = _Cut(extent, nest.extents[index.dim], index.stride, index.offset)
                    cut.relate(d, space[index.dim])
        for d, source in zip(target, nest.result, strict=True):
            if source is not None:
                unify(d, space[source])

    def view(self, buffer: Buffer, view: View, params: Sequence[Buffer]) -> None:
        """Tie the dimensions that a view has of its input as they are; others stay."""
        seen = params[view.source : view.source + 1] if view.source >= 0 else ()
        extents = buffer.type.shape
        shown = Nest(extents, (), tuple(range(len(extents))), (), 0.0, (view.read,))
        whole = whole_dims(shown, [b.type.shape for b in seen])
        for d, factors in enumerate(self.of(buffer)):
            if not whole.get(d):
                fix(factors)
        places = {axis: d for d, found in whole.items() for _, axis in found}
        for b in seen:
            for axis, factors in enumerate(self.of(b)):
                if axis in places:
                    unify(factors, self.of(buffer)[places[axis]])
                else:
                    fix(factors)

    def read_by_text(
        self, nest: Nest, operands: Sequence[Value], target: list[Dim], space: list[Dim]
    ) -> None:
        """Tie the dimensions that a nest without a name reads as they are; others stay."""
        whole = whole_dims(nest, [v.shape for v in operands])
        fix([f for d, factors in enumerate(space) if d not in whole for f in factors])
        places = {place: d for d, found in whole.items() for place in found}
        for number, value in enumerate(operands):
            for axis, factors in enumerate(self.of(value)):
                if (number, axis) in places:
                    unify(factors, space[places[number, axis]])
                else:
                    fix(factors)
        for factors, d in zip(target, nest.result, strict=True):
            assert d is not None
            unify(factors, space[d])

    def read(self, d: Dim, extent: int, index: Index, nest: Nest, space: list[Dim]) -> None:
        """Tie a dimension that a nest reads outside of, or in windows.

        Windows whose number is the extent over their stride, or for a divisor times it, stay so at every size:
        both shrink together, to enough of them for borders and an inside. Offsets, sizes, strides and dilations
        stay: a number of windows that a dilation divides remains a multiple of it.
        """
        one = [i for i in index.atoms if i.divisor == 1]
        if index.dim is None or len(one) < len(index.atoms):
            fix([f for dim_ in index.dims for f in space[dim_]])
            fix(d)
            return
        windows, count = space[index.dim], nest.extents[index.dim]
        if not index.atoms and (index.stride, index.offset, index.divisor) == (1, 0, 1) and count == extent:
            unify(d, windows)
            return
        for atom in one:
            fix(space[atom.dim])
        span = 1 + max(sum(abs(a.scale) * (nest.extents[a.dim] - 1) for a in one), abs(index.offset))
        step = math.lcm(*(abs(a.scale) for a in one))
        if one and step > 1 and count % step == 0:
            unify(windows, [*dim(count // step), *_fixed(step)])
        if one and extent == index.stride * count and index.divisor == 1:
            unify(d, [*windows, *_fixed(index.stride)])
        elif one and count == index.divisor * extent and index.stride == 1:
            unify(windows, [*d, *_fixed(index.divisor)])
        else:
            fix([*d, *windows])
        self.windows.append((windows, 1 + math.ceil(span / index.stride)))

    def arranged(
        self, op: str, operands: list[list[Dim]], target: list[Dim], attrs: Mapping[str, Attr]
    ) -> None:
        """Tie the dimensions that an operator without a nest relates."""
        along = attrs.get("dim")
        if op == "reshape":
            unify([f for d in operands[0] for f in d], [f for d in target for f in d])
        elif op in ("repeat", "concat") and isinstance(along, int):
            for source in operands:
                for i, (x, y) in enumerate(zip(source, target, strict=True)):
                    if i != along:
                        unify(x, y)
            pieces = [s[along] for s in operands]
            sizes = {math.prod(f.size for f in p) for p in pieces}
            times = attrs.get("times")
            if isinstance(times, int):
                unify(target[along], [*dim(times), *pieces[0]])
            elif len(sizes) == 1:
                for piece in pieces[1:]:
                    unify(piece, pieces[0])
                unify(target[along], [Factor(len(pieces), fixed=True), *pieces[0]])
            else:
                self.joined.append(Joined(target[along], tuple(pieces)))
        elif (elements := OPERATORS[op].elements) is not None:
            held = elements(attrs)
            everywhere = isinstance(held, Band) and all(
                self.bands_follow or _at_the_corner(side, target) for side in (held.lower, held.upper)
            )
            everywhere |= isinstance(held, Ramp) and self.ramps_follow
            if not everywhere and not isinstance(held, int | float):
                self.tables += target
                fix([f for d in target for f in d])
        else:
            fix([f for dims in (*operands, target) for d in dims for f in d])

    def updated(self, operands: Sequence[Value], result: Value, attrs: Mapping[str, Attr]) -> None:
        """Tie a dimension that is overwritten in part to what lies before, in and behind that part."""
        along, offset = attrs["dim"], attrs["offset"]
        assert isinstance(offset, int)
        old, new, target = (self.of(v) for v in (*operands, result))
        self.same(old, target)
        for i, (x, y) in enumerate(zip(new, target, strict=True)):
            if i != along or operands[1].shape[i] == result.shape[i]:
                unify(x, y)
                continue
            behind = result.shape[i] - offset - operands[1].shape[i]
            before, after = Factor(offset), Factor(behind)
            pieces = [d for size, d in ((offset, [before]), (1, x), (behind, [after])) if size]
            self.joined.append(Joined(y, tuple(pieces)))
            if offset:
                self.offsets[result] = [before]

    # --- block level

    def block(self, node: Node, graph: BlockGraph) -> None:
        """Tie tiles to the grid and loops that cut them."""
        grid, loops = [dim(e) for e in graph.grid], [dim(e) for e in graph.loops]
        self.extents[graph] = grid, loops
        for x, y in zip(graph.inputs, node.operands, strict=True):
            self.same(self.of(x), self.of(y))
        results = iter(node.results)
        for inner in graph.nodes:
            if inner.op == "save":
                tile = self.of(inner.operands[0])
                self.cut(self.of(next(results)), tile, [(inner.attrs["omap"], grid)])
            elif inner.op == "iterator":
                maps = [(inner.attrs["imap"], grid), (inner.attrs["fmap"], loops)]
                self.cut(self.of(inner.operands[0]), self.of(inner.result), maps)
            elif inner.op in ("accumulate", "running_max"):
                target = list(self.of(inner.result))
                along, loop = inner.attrs.get("dim"), inner.attrs["loop"]
                for i, (x, y) in enumerate(zip(self.of(inner.operands[0]), target, strict=True)):
                    outer = (
                        loops[int(str(loop))] if inner.attrs.get("kind") == "concat" and i == along else []
                    )
                    unify([*outer, *x], y)
                for scale in inner.operands[1:]:
                    for x, y, extent in zip(self.of(scale), target, scale.shape, strict=True):
                        if extent != 1:
                            unify(x, y)
            else:
                self.node(inner)

    def cut(self, whole: list[Dim], tile: list[Dim], maps: Sequence[tuple[Attr, list[Dim]]]) -> None:
        """A dimension consists of the factors that cut it, then the tile's."""
        for i, (x, y) in enumerate(zip(whole, tile, strict=True)):
            outer = [
                f
                for entries, extents in maps
                if isinstance(entries, tuple)
                for d, extent in zip(entries, extents, strict=True)
                if d == i
                for f in extent
            ]
            self.covered(x, [*outer, *y])

    def covered(self, whole: Dim, tiles: Dim) -> None:
        """Tie a dimension to the tiles side by side that cover it: the last may reach past its end."""
        if (beyond := _extent(tiles) - _extent(whole)) > 0:
            self.joined.append(Joined(tiles, (whole, dim(beyond)), ragged=True))
            self.ragged.append(self.joined[-1])
        else:
            unify(whole, tiles)

    # --- tile level

    def statements(self, body: Sequence[Statement]) -> None:
        """Tie the dimensions that the statements of a tile program relate."""
        for s in body:
            if isinstance(s, Loop):
                self.loops[s.var] = s
                self.trips[s.var] = dim(trips_of(s))
                self.statements(s.body)
            elif isinstance(s, Compute):
                self.operator(s.op, s.operands, s.result, s.attrs)
                for b in s.bounds:
                    self.bound(b, s, self.of(s.result)[b.dim])
            else:
                if isinstance(s, Load):
                    self.loaded[s.result] = s
                tile = self.of(s.result if isinstance(s, Load) else s.value)
                for i, w in enumerate(s.windows):
                    self.window(w, s.buffer, i, tile[i])

    def window(self, w: Window, buffer: Buffer, along: int, tile: Dim) -> None:
        """A dimension consists of the loops that move its window, then the window; a partial window waits."""
        whole, extent = self.of(buffer)[along], buffer.type.shape[along]
        first, _ = self.travel(w)
        factors, inner = self.side_by_side(w)
        guarded = w in self.guards or w.stride != 1
        if guarded and (factors is None or first != 0) and self.positions(w, extent):
            self.place(w, whole, extent, tile)
        elif factors is None or not (0 <= first <= extent - inner or (first == 0 and inner > extent)):
            self.scattered.add((buffer, along))
            self.keep(w, buffer, along, tile)
        elif inner >= extent:
            self.covered(whole, [*factors, *tile])
        else:
            self.partial.setdefault((buffer, along), []).append((w, factors, tile))

    def side_by_side(self, w: Window) -> tuple[Dim | None, int]:
        """The factors of the nested loops that place tiles side by side, and the extent that these cover: each
        stride is what the inner ones cover. None where tiles are placed in another way."""
        _, moves = self.travel(w)
        inner = w.size
        factors: Dim = []
        for var, stride in moves:
            if stride != inner:
                break
            inner, factors = inner * trips_of(self.loops[var]), [*self.trips[var], *factors]
        return (None if w.stride != 1 or len(factors) != self.factors(moves) else factors), inner

    def positions(self, w: Window, extent: int) -> int:
        """How many positions a stride apart the blocks' tiles cover together, if those are an extent's and the
        loops inside a block visit what is read for each; 0 otherwise."""
        covered = w.size * w.stride
        for var, stride in self.travel(w)[1]:
            if self.loops[var].parallel:
                if stride != covered:
                    return 0
                covered *= trips_of(self.loops[var])
        count = extent // w.stride
        good = extent % w.stride == 0 and count <= covered // w.stride < count + w.size
        return count if good else 0

    def place(self, w: Window, whole: Dim, extent: int, tile: Dim) -> None:
        """Tie a dimension that is read in windows: its positions are those of the tiles; its stride and what is
        read for each position stay."""
        positions, factors = dim(self.positions(w, extent)), list[Factor]()
        first, moves = self.travel(w)
        last = first
        for var, scale in moves:
            if self.loops[var].parallel:
                factors = [*self.trips[var], *factors]
            else:
                fix(self.trips[var])
                last += scale * (trips_of(self.loops[var]) - 1)
        self.windows.append((positions, 1 + math.ceil((1 + max(abs(first), abs(last))) / w.stride)))
        unify(whole, [*positions, *_fixed(w.stride)])
        self.covered(positions, [*factors, *tile])
        self.placed.add(w)

    def bound(self, b: Bound, mask: Compute, tile: Dim) -> None:
        """The extent of a mask's bound is that of the dimension that its tiles cover, or are loaded from."""
        extent = self.bounds[mask.result, b] = dim(b.extent)
        load = self.loaded.get(mask.operands[0])
        if load is not None and load.windows[b.dim] == b.window and load.buffer.type.shape[b.dim] == b.extent:
            unify(extent, self.of(load.buffer)[b.dim])
        factors, inner = self.side_by_side(b.window)
        if b.window in self.placed and self.positions(b.window, b.extent):
            self.place(b.window, extent, b.extent, tile)
        elif factors is None or self.travel(b.window)[0] or inner < b.extent:
            fix([*extent, *tile, *(f for var, _ in b.window.terms for f in self.trips[var])])
        else:
            self.covered(extent, [*factors, *tile])

    def keep(self, w: Window, buffer: Buffer, along: int, tile: Dim) -> None:
        """Keep the number of positions of a window."""
        whole, extent = self.of(buffer)[along], buffer.type.shape[along]
        first, moves = self.travel(w)
        for var, _ in moves:
            fix(self.trips[var])
        if w.stride == 1 and all(n % w.size == 0 for n in (first, extent, *(s for _, s in moves))):
            unify(whole, [*_fixed(extent // w.size), *tile])
        else:
            fix([*whole, *tile])

    def cut_buffers(self) -> None:
        """Cut dimensions that windows traverse in parts into these parts, side by side."""
        for (buffer, along), windows in self.partial.items():
            ranges = [(first := self.travel(w)[0], first + _extent([*f, *t])) for w, f, t in windows]
            cuts = sorted({0, buffer.type.shape[along], *itertools.chain(*ranges)})
            if (buffer, along) in self.scattered or len(cuts) - 1 > _MOST_PIECES:
                for w, _, tile in windows:
                    self.keep(w, buffer, along, tile)
                continue
            pieces = [dim(last - first) for first, last in itertools.pairwise(cuts)]
            self.pieces[buffer, along] = cuts, pieces
            self.joined.append(Joined(self.of(buffer)[along], tuple(pieces)))
            for (first, last), (_, factors, tile) in zip(ranges, windows, strict=True):
                inside = pieces[cuts.index(first) : cuts.index(last)]
                if len(inside) == 1:
                    unify(inside[0], [*factors, *tile])
                else:
                    self.joined.append(Joined([*factors, *tile], tuple(inside)))

    def start(
        self, buffer: Buffer, along: int, first: int, extent: Callable[[Sequence[Factor]], int]
    ) -> int | None:
        """Where a window over a part of a dimension begins, at the extents that `extent` gives."""
        if (buffer, along) not in self.pieces:
            return None
        cuts, pieces = self.pieces[buffer, along]
        return sum(map(extent, pieces[: cuts.index(first)])) if first in cuts else None

    def factors(self, moves: Sequence[tuple[LoopVar, int]]) -> int:
        """How many factors the loops of `moves` have."""
        return sum(len(self.trips[var]) for var, _ in moves)

    def travel(self, w: Window) -> tuple[int, list[tuple[LoopVar, int]]]:
        """Offset of a window in the first trips, and how far each loop of several trips moves it, in order."""
        first = w.base + sum(scale * self.loops[var].start for var, scale in w.terms)
        moves = [
            (var, scale * self.loops[var].step) for var, scale in w.terms if trips_of(self.loops[var]) > 1
        ]
        return first, sorted(moves, key=lambda m: m[1])


class _Cut:
    """A strided window of a dimension: `size` of `extent` elements from `offset` on."""

    def __init__(self, extent: int, size: int, stride: int, offset: int) -> None:
        self.extent, self.size, self.stride, self.offset = extent, size, stride, offset

    def relate(self, whole: Dim, part: Dim) -> None:
        if self.on_blocks:
            unify(whole, [*_fixed(self.extent // self.size), *part])
        else:
            fix([*whole, *part])

    @property
    def on_blocks(self) -> bool:
        return self.stride == 1 and self.extent % self.size == 0 and self.offset % self.size == 0


def _at_the_corner(side: int, target: list[Dim]) -> bool:
    """Whether a side of a band suits every extent: it is beyond the matrix, or at most one off the diagonal that
    ends in its last row and column, where it stays."""
    rows, columns = map(_extent, target[-2:])
    return abs(side) == UNBOUNDED or abs(side - (columns - rows)) <= 1


def _extent(d: Dim) -> int:
    return math.prod(f.size for f in leaves(d))


def _fixed(size: int) -> Dim:
    return [] if size == 1 else [Factor(size, fixed=True)]
