"""What the kernels of a program move and compute: bytes by level of memory, operations by unit, blocks and trips.

Counting is exact for what the IR says: tiles loaded, trips, blocks, flops of the operator table.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from superopt.cost.gpus import Target
from superopt.hidden_trips import masked_shares, trips_of_limited
from superopt.levels.ragged import saved_shape
from superopt.moves import SECTOR_BYTES
from superopt.nests import Nest, int_attr
from superopt.operators import (
    OPERATORS,
    Move,
    move_of,
    nest_of,
    normalize_attrs,
    primitive_of,
    splat_of,
)
from superopt.program import (
    CARRIED,
    DTYPE_BYTES,
    UNBOUNDED,
    Band,
    BlockGraph,
    Buffer,
    Compute,
    Computed,
    Load,
    Loop,
    LoopVar,
    Node,
    NodeKind,
    Ramp,
    Statement,
    Store,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
    executions,
    parallel_loops,
    power_of_two,
    within_loops,
)
from superopt.separate_loads import separated
from superopt.spec import block_bytes, reaches, stages
from superopt.transforms.core import _cost
from superopt.transforms.schedule.tiles import copy_tiles, default_tiles

# Rows and columns of the tile of a library matrix product.
LIBRARY_TILE = 128
# Bytes in a row from which the length of rows does not matter.
LONG_RUN = 128
# Opaque operations that read one element of their first operand for each number of their second one.
PICKING = "aten.nll_loss"


@dataclass(frozen=True)
class Traffic:
    """What one kernel moves (bytes) and computes (flops), over all its blocks; `shared_bytes` is per block."""

    dram_bytes: float = 0
    l2_bytes: float = 0
    tensor_flops: float = 0
    vector_flops: float = 0
    special_operations: float = 0
    blocks: int = 1
    shared_bytes: int = 0
    loop_trips: int = 0

    @classmethod
    def of(cls, counted: _cost.KernelTraffic) -> Traffic:
        """What was counted natively."""
        return cls(*(getattr(counted, name) for name in _TRAFFIC))


_TRAFFIC = [field.name for field in fields(Traffic)]


def kernel_seconds(traffic: Traffic, target: Target) -> float:
    """Seconds of one kernel by the native formula."""
    kernel = _cost.KernelTraffic()
    for name in _TRAFFIC:
        setattr(kernel, name, getattr(traffic, name))
    return _cost.kernel_seconds(target.numbers(), kernel)


def moved(size: int, target: Target) -> Traffic:
    """What a copy moves, of so many bytes read and written."""
    return Traffic(size, size, blocks=target.multiprocessors)


def node_traffic(node: Node, target: Target, computed: Mapping[Value, Computed] | None = None) -> Traffic:
    """What one kernel-level node moves and computes."""
    if isinstance(node.body, BlockGraph):
        inside = dict(zip(node.body.inputs, node.operands, strict=True))
        known = {v: computed[outer] for v, outer in inside.items() if computed and outer in computed}
        return _block_traffic(node.body, target, known)
    if isinstance(node.body, TileProgram):
        return tile_traffic(node.body, target)
    return _library_traffic(node, target)


class _Count:
    """Counts what one kernel moves and computes on a target."""

    def __init__(self, target: Target) -> None:
        self._target, self._counted = target.numbers(), _cost.KernelTraffic()

    def compute(self, node: Node | Compute, times: float = 1, numbers: Container[Value] = ()) -> None:
        """An operator of the table, applied so many times to tiles: what pads them is computed, too."""
        op, operands, attrs = node.op, [v.type for v in node.operands], node.attrs
        entry = OPERATORS[op]
        shapes, values = [t.shape for t in operands], normalize_attrs(entry, attrs)
        if entry.nest is None:
            return
        nest = entry.nest(shapes, values)
        if entry.combiner == "add" and entry.arity == 2:
            batch, rows, columns, depth = nest.product
            self.product(rows, columns, depth, times * power_of_two(batch), operands[0].dtype)
            return
        if points := math.prod(nest.extents):
            times *= math.prod(map(power_of_two, nest.extents)) / points
            known = [i for i, v in enumerate(node.operands) if v in numbers]
            special = entry.special(shapes, values, known)
            self.elements(entry.flops(shapes, values) * times, special * times)

    def product(self, rows: int, columns: int, depth: int, times: float, dtype: str) -> None:
        """Products of tiles, so many of them."""
        self._counted.product(self._target, rows, columns, depth, times, DTYPE_BYTES[dtype])

    def elements(self, flops: float, special: float = 0) -> None:
        """Operations outside the matrix units, and those of them for the special function units."""
        self._counted.vector_flops += flops
        self._counted.special_operations += special

    def launch(self, blocks: int, shared_bytes: int = 0, loop_trips: int = 0) -> None:
        """The blocks, and of each its shared memory and the trips of its loops: before anything is moved."""
        self._counted.blocks, self._counted.shared_bytes = blocks, shared_bytes
        self._counted.loop_trips = loop_trips

    def move(self, tensor_bytes: int, moved: float, run: float = LONG_RUN) -> None:
        """What all blocks together load and store of one tensor, in bytes, `run` of them one after the other."""
        self._counted.move(self._target, tensor_bytes, moved, run)

    def traffic(self) -> Traffic:
        """What was counted."""
        return Traffic.of(self._counted)


def run_bytes(tensor: TensorType, tile: Sequence[int], strides: Sequence[int] = ()) -> float:
    """Bytes of a tile that lie one after the other in a row-major tensor.

    What is strides apart counts as what is used of each sector: half of what is fetched, where every second
    element or row is (CUDA C++ Best Practices Guide, Strided Accesses).
    """
    elements, size = 1, DTYPE_BYTES[tensor.dtype]
    for extent, whole, stride in zip(
        reversed(tile), reversed(tensor.shape), reversed(strides or [1] * len(tile)), strict=True
    ):
        if stride != 1 and extent > 1:
            run = max(elements, 1) * size
            return max(min(run * extent, SECTOR_BYTES / stride), run)
        elements *= min(extent, whole)
        if extent < whole:
            break
    return max(elements, 1) * size


def _library_traffic(node: Node, target: Target) -> Traffic:
    """A library operator as the kernel of its own that `kernel-to-tile` makes of it, by the same tiles.

    What it reduces is not split over blocks: a sum to few elements has few blocks. An opaque operation reads
    every operand (of what it picks from, a sector for each that it picks), writes every result, and does what is
    known of its work.
    """
    nest = nest_of(node)
    if nest is not None and nest.plain and node.result.type.elements:
        return _nest_traffic(node, nest, target)
    count = _Count(target)
    size = sum(v.type.bytes for v in (*node.operands, *node.results)) - _not_picked(node)
    count.launch(target.multiprocessors)
    if nest is not None and node.result.type.elements:
        return _window_traffic(node, nest, target)
    if move_of(node) in (Move.CONCAT, Move.REPEAT):
        shape, dim = node.result.shape, int_attr(node.attrs, "dim") % len(node.result.shape)
        largest = max(v.shape[dim] for v in node.operands)
        tiles = copy_tiles([largest if d == dim else n for d, n in enumerate(shape)], dim, target)
        times = node.result.shape[dim] // largest if len(node.operands) == 1 else 1
        trips = times * sum(ceil_div(v.shape[dim], tiles[dim]) for v in node.operands)
        blocks = math.prod(
            ceil_div(n, t) for d, (n, t) in enumerate(zip(shape, tiles, strict=True)) if d != dim
        )
        count.launch(blocks, loop_trips=trips)
        for operand in node.operands:
            moved = operand.type.bytes * times
            tile = [min(n, t) for n, t in zip(operand.shape, tiles, strict=True)]
            count.move(operand.type.bytes, moved, run_bytes(operand.type, tile))
            count.move(moved, moved, run_bytes(node.result.type, tile))
        return count.traffic()
    if (work := opaque_products(node)) is not None:
        side = LIBRARY_TILE
        count.product(side, side, side, ceil_div(work, side**3), node.operands[0].dtype)
    return replace(count.traffic(), dram_bytes=size, l2_bytes=size)


def _window_traffic(node: Node, nest: Nest, target: Target) -> Traffic:
    """Convolutions and pooling as a library does them: every operand once, a product of spread operands."""
    entry, count = OPERATORS[node.op], _Count(target)
    if entry.arity == 2:
        batch, rows, columns, depth = nest.product
        tile_rows, tile_columns = min(rows, LIBRARY_TILE), min(columns, LIBRARY_TILE)
        blocks = batch * ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns)
        count.launch(blocks, loop_trips=ceil_div(depth, LIBRARY_TILE))
        count.product(tile_rows, tile_columns, depth, blocks, node.operands[0].dtype)
        if rows == 1 < batch:  # bands: a library has no such product, and spreads what its rows read
            spread = nest.points * DTYPE_BYTES[node.operands[1].dtype]
            count.move(spread, 2 * spread)
    else:
        count.launch(ceil_div(node.result.type.elements, LIBRARY_TILE))
        count.elements(entry.flops([v.shape for v in node.operands], normalize_attrs(entry, node.attrs)))
    for value in (*node.operands, node.result):
        count.move(value.type.bytes, value.type.bytes)
    return count.traffic()


def _nest_traffic(node: Node, nest: Nest, target: Target) -> Traffic:
    entry, dtype = OPERATORS[node.op], node.result.dtype
    tiles = default_tiles(nest, dtype, target, contraction=entry.contraction)
    trips = [ceil_div(e, t) for e, t in zip(nest.extents, tiles, strict=True)]
    reduced = math.prod(trips[d] for d in nest.reductions)
    count, all_trips = _Count(target), math.prod(trips)
    count.launch(all_trips // reduced, loop_trips=reduced if reduced > 1 else 0)
    if entry.contraction:
        *_, rows, columns, depth = tiles
        count.product(rows, columns, depth, all_trips, node.operands[0].dtype)
    else:
        shapes, values = [v.shape for v in node.operands], normalize_attrs(entry, node.attrs)
        count.elements(entry.flops(shapes, values), entry.special(shapes, values))
    for value, index in zip(node.operands, nest.operands, strict=True):
        again = math.prod(t for d, t in enumerate(trips) if d not in {i.dim for i in index})
        tile = [1 if i.dim is None else tiles[i.dim] for i in index]
        read = math.prod(1 if i.dim is None else nest.extents[i.dim] for i in index)
        size = read * DTYPE_BYTES[value.dtype]
        count.move(size, size * again, run_bytes(value.type, tile, [i.stride for i in index]))
    tile = [1 if d is None else tiles[d] for d in nest.result]
    count.move(node.result.type.bytes, node.result.type.bytes, run_bytes(node.result.type, tile))
    return count.traffic()


def computed_flops(held: Computed) -> int:
    """Operations for each element: of a band a comparison for each side, what joins two, and a choice.

    The addition of a band of zeros and minus infinities is that choice (`emit.operators`), and counts as one. Of
    a ramp a conversion, and what its start and step take.
    """
    if isinstance(held, Ramp):
        return 1 + (held.start != 0) + (held.step != 1)
    sides = (held.lower != -UNBOUNDED) + (held.upper != UNBOUNDED)
    return max(2 * sides - 1, 0) + ((held.inside, held.outside) != (0.0, -math.inf))


def ceil_div(a: int, b: int) -> int:
    """`a` in parts of at most `b`: how many."""
    return -(-a // b)


def opaque_products(node: Node) -> int | None:
    """Multiply-adds of an opaque convolution; None for other opaque operations, whose work is not known.

    Each output sums over the weight's elements of one output channel; where it is transposed, each input is
    multiplied by those of one input channel. Either way a weight's first dimension is that channel.
    """
    symbol = str(node.attrs.get("target", ""))
    if "conv" not in symbol or len(node.operands) < 2 or not node.operands[1].shape:
        return None
    (image, weight, *_), out = node.operands, node.results[0]
    spread = image if out.type.elements > image.type.elements and _is_transposed(node) else out
    return spread.type.elements * weight.type.elements // weight.shape[0]


def _not_picked(node: Node) -> int:
    """Bytes of its first operand that an opaque operation leaves out: a loss picks one class of each row."""
    if not str(node.attrs.get("target", "")).startswith(PICKING):
        return 0
    rows, picks = node.operands[:2]
    return max(rows.type.bytes - SECTOR_BYTES * picks.type.elements, 0)


def _is_transposed(node: Node) -> bool:
    symbol = str(node.attrs.get("target", ""))
    image, weight, *_ = node.operands
    channels = (image.shape[1], weight.shape[0]) if len(image.shape) > 1 else (0, 0)
    return "transpose" in symbol or channels[0] == channels[1] != weight.shape[1]


def _block_traffic(graph: BlockGraph, target: Target, computed: Mapping[Value, Computed]) -> Traffic:
    """With loops of their own for trips that a mask leaves whole, where that takes less time."""
    trips, whole = _trips_of_block(graph, computed)
    made = [_block_counts(graph, target, computed, trips, w) for w in dict.fromkeys((0.0, whole))]
    return min(made, key=lambda traffic: kernel_seconds(traffic, target))


def _block_counts(
    graph: BlockGraph, target: Target, computed: Mapping[Value, Computed], trips: list[float], unmasked: float
) -> Traffic:
    count, blocks = _Count(target), math.prod(graph.grid)
    stage, reach = stages(graph), reaches(graph)
    # Another loop fills its pipeline again.
    count.launch(blocks, block_bytes(graph), max(round(math.prod(trips) + (unmasked > 0)), 1))
    read = [n for n in graph.nodes if n.op == NodeKind.ITERATOR]
    bands = {n.result for n in read if isinstance(computed.get(n.operands[0]), Band)}
    loaded: dict[tuple[Value, float], float] = {}

    def times(value: Value) -> float:
        # over the blocks, and the loops that it varies in or that stand around them
        return blocks * math.prod(trips[: max(stage[value].varies, default=-1) + 1])

    for inner in graph.nodes:
        if inner.op == NodeKind.ITERATOR:
            (source,) = inner.operands
            if source in computed:
                seen = 1 - unmasked if inner.result in bands else 1.0
                flops = computed_flops(computed[source]) * seen * times(inner.result)
                count.elements(flops * inner.result.type.padded.elements)
                continue
            at = source, run_bytes(source.type, inner.result.shape)
            loaded[at] = loaded.get(at, 0) + inner.result.type.bytes * times(inner.result)
        elif inner.op == NodeKind.SAVE:
            (value,) = inner.operands
            whole = TensorType(saved_shape(inner, graph, reach[value]), value.dtype)
            count.move(whole.bytes, whole.bytes, run_bytes(whole, value.shape))  # each element once
        elif inner.op in CARRIED:
            # What is added up is counted where it is made; what is rescaled on the way is multiplied each trip.
            if inner.op == NodeKind.ACCUMULATE and inner.attrs.get("kind") != "rescaled":
                continue
            count.elements(inner.operands[0].type.padded.elements * math.prod(trips) * blocks)
        else:
            body = inner.body if isinstance(inner.body, ThreadGraph) else None
            bands |= (
                {x for x, y in zip(body.inputs, inner.operands, strict=True) if y in bands} if body else set()
            )
            for node in body.nodes if body else [inner]:
                seen = 1.0 if bands.isdisjoint(node.operands) else 1 - unmasked
                count.compute(node, times(inner.results[0]) * seen)
    for (value, run), moved in loaded.items():
        count.move(value.type.bytes, moved, run)
    return count.traffic()


def _trips_of_block(graph: BlockGraph, computed: Mapping[Value, Computed]) -> tuple[list[float], float]:
    """Trips of each loop in a block, on average over the blocks: without those that a band may hide; and which
    share of them a band leaves whole.

    Whether a kernel can leave them out is decided by its tile program, which has the price that counts.
    """
    trips, whole = [float(n) for n in graph.loops], 0.0
    for node in graph.nodes:
        if node.op != NodeKind.ITERATOR or not isinstance(band := computed.get(node.operands[0]), Band):
            continue
        imap, fmap = (node.attrs[key] for key in ("imap", "fmap"))
        assert isinstance(imap, tuple)
        assert isinstance(fmap, tuple)
        rows, columns = (len(node.result.shape) - n for n in (2, 1))
        loops = [i for i, d in enumerate(fmap) if d == columns]
        if len(loops) != 1 or rows in fmap or columns in imap:
            continue
        (loop,), (height, width) = loops, node.result.shape[-2:]
        down = math.prod(n for n, d in zip(graph.grid, imap, strict=True) if d == rows)
        first = [max((band.lower + i * height) // width, 0) for i in range(down)]
        stop = [min(ceil_div(band.upper + (i + 1) * height, width), graph.loops[loop]) for i in range(down)]
        seen = sum(max(b - a, 1) for a, b in zip(first, stop, strict=True))
        trips[loop] = min(trips[loop], seen / down)
        inside = 0
        for i, (start, end) in enumerate(zip(first, stop, strict=True)):
            begin = max(ceil_div(band.lower + (i + 1) * height - 1, width), start)
            inside += max(min((band.upper + i * height + 1) // width, end) - begin, 0)
        whole = inside / seen
    return trips, whole


def tile_traffic(program: TileProgram, target: Target) -> Traffic:
    """What one lowered kernel moves and computes."""
    tiles = _TileCounts(program)
    count = _Count(target)
    count.launch(tiles.blocks, tiles.shared, max(round(tiles.trips), 1) if tiles.trips else 0)
    for statement, times in tiles.computed:
        if not tiles.added(statement):
            count.compute(statement, times, tiles.numbers)
    for flops in tiles.banded:
        count.elements(flops)
    for (buffer, run), moved in tiles.moved.items():
        count.move(tiles.region_bytes(buffer), moved, run)
    return count.traffic()


def tile_reads(program: TileProgram) -> dict[Buffer, float]:
    """Bytes that all blocks together load of each input."""
    reads = dict.fromkeys(program.params[: program.n_inputs], 0.0)
    for (buffer, _), moved in _TileCounts(program).moved.items():
        if buffer in reads:
            reads[buffer] += moved
    return reads


class _TileCounts:
    """What tile loops do: bytes moved by parameter and run, operators and how often, blocks, trips of a block."""

    def __init__(self, program: TileProgram) -> None:
        program, _ = separated(program)
        self.moved: dict[tuple[Buffer, float], float] = {}
        self._boxes: dict[Buffer, list[tuple[int, int]]] = {}
        self.computed: list[tuple[Compute, float]] = []
        self.banded: list[float] = []
        self.products, self.numbers = set[Value](), set[Value]()
        # The share of a loop's trips that run, on average over the blocks.
        shown = {v: sum(n) / len(n) for v, n in trips_of_limited(program).items()}
        masked, absent = masked_shares(program) if program.separate_masks else ({}, frozenset[Statement]())
        # A loop that is written as several fills its pipeline again for each.
        self.blocks, self.trips = 1, _trips(program.body, shown) + sum(more for _, more in masked.values())
        self.shared = _held(program)
        parameters = set(program.params)
        for statement, around in within_loops(program.body):
            times = executions(around) * math.prod(shown.get(s.var, s.trips) / s.trips for s in around)
            if statement in absent:
                times *= masked[around[-1].var][0]
            if isinstance(statement, Loop):
                if statement.parallel:
                    self.blocks *= statement.trips
            elif isinstance(statement, Compute):
                self.computed.append((statement, times))
                if OPERATORS[statement.op].contraction:
                    self.products.add(statement.result)
                elif splat_of(statement) is not None:
                    self.numbers.add(statement.result)
            elif statement.buffer.computed is not None and isinstance(statement, Load):
                flops = computed_flops(statement.buffer.computed)
                self.banded.append(flops * statement.result.type.padded.elements * times)
            elif (view := statement.buffer.view) is not None and isinstance(statement, Load):
                # Each element is found by an index of its own.
                if view.source >= 0:
                    buffer, size = program.params[view.source], DTYPE_BYTES[statement.buffer.type.dtype]
                    moved = statement.result.type.elements * size * times
                    self.moved[buffer, float(size)] = self.moved.get((buffer, float(size)), 0) + moved
                each = len(view.read.floors) + len(view.read.index) + sum(map(len, view.read.guard))
                self.banded.append(each * statement.result.type.padded.elements * times)
            elif statement.buffer in parameters:
                tile = statement.result if isinstance(statement, Load) else statement.value
                buffer, windows = statement.buffer, statement.windows
                run = run_bytes(buffer.type, [w.size for w in windows], [w.stride for w in windows])
                # What a tile has beyond a whole dimension is masked, and not moved.
                inside = math.prod(min(w.size, e) for w, e in zip(windows, buffer.type.shape, strict=True))
                moved = inside * DTYPE_BYTES[tile.dtype] * times
                self.moved[buffer, run] = self.moved.get((buffer, run), 0) + moved
                box = [_reach(w, e, around) for w, e in zip(windows, buffer.type.shape, strict=True)]
                known = zip(self._boxes.get(buffer, box), box, strict=True)
                self._boxes[buffer] = [(min(a, c), max(b, d)) for (a, b), (c, d) in known]

    def region_bytes(self, buffer: Buffer) -> int:
        """Bytes of the part of a parameter that windows are in: of a slice, where a kernel reads one in place."""
        if (box := self._boxes.get(buffer)) is None:  # read element by element
            return buffer.type.bytes
        return math.prod(stop - start for start, stop in box) * DTYPE_BYTES[buffer.type.dtype]

    def added(self, statement: Compute) -> bool:
        """Whether it adds a product to a tile of its shape, which the product's own instruction does."""
        shapes = {v.shape for v in statement.operands}
        return (
            primitive_of(statement) == "add"
            and len(shapes) == 1
            and not self.products.isdisjoint(statement.operands)
        )


def _reach(window: Window, extent: int, around: Sequence[Loop]) -> tuple[int, int]:
    """The first element of a dimension that a window has in any trip of the loops, and that behind the last."""
    scales = dict(window.terms)
    start = stop = window.base
    for loop in around:
        ends = [scales.get(loop.var, 0) * v for v in (loop.start, loop.start + (loop.trips - 1) * loop.step)]
        start, stop = start + min(ends), stop + max(ends)
    return max(start, 0), min(stop + (window.size - 1) * window.stride + 1, extent)


def _held(program: TileProgram) -> int:
    """The most bytes of tiles that a block holds at once; each is kept from its first use to its last."""
    loops = parallel_loops(program.body)
    uses: dict[Buffer, list[int]] = {}
    for place, outer in enumerate(loops[-1].body if loops else program.body):
        for statement, _ in within_loops([outer]):
            if isinstance(statement, Load | Store) and statement.buffer.is_tile:
                uses.setdefault(statement.buffer, []).append(place)
    spans = [(tile.type.bytes, places[0], places[-1]) for tile, places in uses.items()]
    return max((sum(n for n, a, b in spans if a <= begin <= b) for _, begin, _ in spans), default=0)


def _trips(body: Iterable[Statement], shown: Mapping[LoopVar, float]) -> float:
    """Trips of one block: loops within loops multiply, those one after the other add up."""
    total = 0.0
    for statement in body:
        if isinstance(statement, Loop):
            inner = _trips(statement.body, shown)
            own = shown.get(statement.var, statement.trips)
            total += inner if statement.parallel else own * max(inner, 1)
    return total
