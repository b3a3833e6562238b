"""The analytic cost of a program: what each kernel moves and computes, put through the native cost formula.

Counting is exact for what the IR says (tiles loaded, trips, blocks, flops of the operator table); the formula
(transforms/core/search/cost.hpp) is a roofline with waves, launches and loop latency. Predictions rank programs;
they are no promise of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from superopt.aliasing import copied, updates_in_place
from superopt.cost.gpus import Target
from superopt.operators import OPERATORS, Attrs, normalize_attrs
from superopt.program import (
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    Statement,
    Store,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
)
from superopt.spec import block_bytes, slices_in_place, stages

# Matrix units work on fragments of at least this many rows: a product with fewer costs as much.
MMA_ROWS = 16
# Tile of a library matrix product, whose operands are read again for every row and column of tiles.
LIBRARY_TILE = 128
# Library operators that move nothing: row-major views, and values known at compile time.
VIEWS = frozenset({"reshape", "constant"})


@dataclass(frozen=True)
class Traffic:
    """What one kernel moves (bytes) and computes (flops), over all its blocks; `shared_bytes` is per block."""

    dram_bytes: float = 0
    l2_bytes: float = 0
    tensor_flops: float = 0
    vector_flops: float = 0
    blocks: int = 1
    shared_bytes: int = 0
    loop_trips: int = 0


@dataclass(frozen=True)
class KernelCost:
    """One kernel's predicted seconds and what they were computed from."""

    name: str
    seconds: float
    traffic: Traffic


@dataclass(frozen=True)
class Cost:
    """A program's predicted seconds, kernel by kernel."""

    kernels: tuple[KernelCost, ...]

    @property
    def seconds(self) -> float:
        """Sum over the kernels, launches included; infinity where one does not fit the target."""
        return sum(k.seconds for k in self.kernels)


def cost(graph: KernelGraph, target: Target) -> Cost:
    """Predicted cost of `graph` on `target`; views, constants and slices read in place cost nothing.

    An output that is returned in an argument's memory is copied there where no kernel wrote it there.
    """
    in_place, free = updates_in_place(graph), slices_in_place(graph)
    kernels = [
        _update_cost(node, target) if node in in_place else kernel_cost(node, target)
        for node in graph.nodes
        if node.op not in VIEWS and not (node.op == "slice" and node.result in free)
    ]
    done = {node.result for node in in_place}
    for i in copied(graph):
        if (value := graph.outputs[i]) not in done:
            traffic = _moved(2 * value.type.bytes, target)
            kernels.append(KernelCost("copy", kernel_seconds(traffic, target), traffic))
    return Cost(tuple(kernels))


def _update_cost(node: Node, target: Target) -> KernelCost:
    """An `update_slice` in the memory of its first operand: only the second is moved."""
    traffic = _moved(2 * node.operands[1].type.bytes, target)
    return KernelCost(node.op, kernel_seconds(traffic, target), traffic)


def _moved(size: int, target: Target) -> Traffic:
    return Traffic(size, size, blocks=target.multiprocessors)


def kernel_cost(node: Node, target: Target) -> KernelCost:
    """Predicted cost of one kernel-level node."""
    traffic = node_traffic(node, target)
    return KernelCost(_kernel_name(node), kernel_seconds(traffic, target), traffic)


def kernel_seconds(traffic: Traffic, target: Target) -> float:
    """Seconds of one kernel by the native formula."""
    from superopt.transforms.core import _search

    kernel = _search.KernelTraffic()
    for name in Traffic.__dataclass_fields__:
        setattr(kernel, name, getattr(traffic, name))
    return _search.kernel_seconds(target.numbers(), kernel)


def node_traffic(node: Node, target: Target) -> Traffic:
    """What one kernel-level node moves and computes."""
    if isinstance(node.body, BlockGraph):
        return _block_traffic(node, node.body, target)
    if isinstance(node.body, TileProgram):
        return _tile_traffic(node.body, target)
    return _library_traffic(node, target)


def _kernel_name(node: Node) -> str:
    return node.body.name if isinstance(node.body, TileProgram) else node.op


def _flops(op: str, operands: Sequence[TensorType], attrs: Attrs) -> tuple[float, float]:
    """(on matrix units, elsewhere) of one application of a table operator."""
    entry = OPERATORS[op]
    shapes = [t.shape for t in operands]
    values = normalize_attrs(entry, attrs)
    flops = entry.flops(shapes, values)
    if op != "matmul":
        return 0.0, flops
    assert entry.nest is not None
    *_, rows, _columns, _depth = entry.nest(shapes, values).extents
    on_matrix_units = operands[0].dtype in ("f16", "bf16")
    padded = flops * max(rows, MMA_ROWS) / rows
    return (padded, 0.0) if on_matrix_units else (0.0, flops)


def _dram(tensor_bytes: int, loaded: float, waves: float, target: Target) -> float:
    """Device-memory bytes for a tensor of which blocks load `loaded` bytes: once if it stays in L2.

    A larger one is read again by each wave of blocks, as blocks of one wave share what they stream.
    """
    if tensor_bytes <= target.l2_capacity:
        return min(tensor_bytes, loaded)
    return min(loaded, tensor_bytes * max(waves, 1.0))


def _waves(blocks: int, shared: int, target: Target) -> float:
    fit = target.shared_per_multiprocessor // shared if shared else target.blocks_per_multiprocessor
    resident = min(max(fit, 1), target.blocks_per_multiprocessor)
    return math.ceil(blocks / (target.multiprocessors * resident))


def _library_traffic(node: Node, target: Target) -> Traffic:
    """A library operator as a well-made kernel of its own: every operand read, every result written.

    What it reduces is not split over blocks (`lower/kernel_to_tile.py`): a sum to few elements has few blocks.
    """
    ins, outs = sum(v.type.bytes for v in node.operands), sum(v.type.bytes for v in node.results)
    tensor, vector = (0.0, 0.0)
    if node.op in OPERATORS:
        tensor, vector = _flops(node.op, [v.type for v in node.operands], node.attrs)
    l2, blocks = float(ins + outs), target.multiprocessors
    if node.op in OPERATORS and OPERATORS[node.op].combiner is not None:
        blocks = min(blocks, node.result.type.elements)
    if node.op == "matmul":
        *batch, rows, columns = node.result.shape
        tiles_m, tiles_n = math.ceil(rows / LIBRARY_TILE), math.ceil(columns / LIBRARY_TILE)
        a, b = (v.type.bytes for v in node.operands)
        l2 = a * tiles_n + b * tiles_m + outs
        # Tiles are smaller where large ones would leave multiprocessors idle.
        least = math.ceil(rows / MMA_ROWS) * math.ceil(columns / MMA_ROWS)
        blocks = max(
            math.prod(batch) * tiles_m * tiles_n, min(math.prod(batch) * least, target.multiprocessors)
        )
    return Traffic(ins + outs, l2, tensor, vector, blocks)


def _block_traffic(node: Node, graph: BlockGraph, target: Target) -> Traffic:
    blocks = math.prod(graph.grid)
    stage = stages(graph)
    shared = block_bytes(graph)
    waves = _waves(blocks, shared, target)
    l2 = tensor = vector = 0.0
    loaded: dict[Value, float] = {}

    def trips(value: Value) -> int:
        return math.prod(graph.loops[: max(stage[value].varies, default=-1) + 1])  # and the loops around

    for inner in graph.nodes:
        if inner.op == "iterator":
            moved = float(inner.result.type.bytes * trips(inner.result) * blocks)
            source = inner.operands[0]
            loaded[source] = loaded.get(source, 0.0) + moved
            l2 += moved
        elif inner.op == "save":
            l2 += inner.operands[0].type.bytes * blocks
        elif inner.op in ("accumulate", "running_max"):
            vector += inner.operands[0].type.elements * math.prod(graph.loops) * blocks
        else:
            times = trips(inner.results[0]) * blocks
            for op, operands, attrs in _applications(inner):
                matrix, rest = _flops(op, operands, attrs)
                tensor += matrix * times
                vector += rest * times
    dram = sum(v.type.bytes for v in node.results)
    dram += sum(_dram(v.type.bytes, moved, waves, target) for v, moved in loaded.items())
    return Traffic(dram, l2, tensor, vector, blocks, shared, math.prod(graph.loops))


def _applications(node: Node) -> Iterable[tuple[str, list[TensorType], Attrs]]:
    nodes = node.body.nodes if isinstance(node.body, ThreadGraph) else [node]
    return [(n.op, [v.type for v in n.operands], n.attrs) for n in nodes]


def _tile_traffic(program: TileProgram, target: Target) -> Traffic:
    counts = _TileCounts(program)
    counts.visit(program.body, 1)
    waves = _waves(counts.blocks, counts.shared, target)
    dram = sum(_dram(b.type.bytes, moved, waves, target) for b, moved in counts.moved.items())
    l2 = sum(counts.moved.values())
    return Traffic(
        dram, l2, counts.tensor, counts.vector, counts.blocks, counts.shared, counts.trips // counts.blocks
    )


def tile_reads(program: TileProgram) -> dict[Buffer, float]:
    """Bytes that all blocks together load of each input."""
    counts = _TileCounts(program)
    counts.visit(program.body, 1)
    return {b: moved for b, moved in counts.moved.items() if b in program.params[: program.n_inputs]}


class _TileCounts:
    """Walks tile loops, counting what is moved and computed over all trips."""

    def __init__(self, program: TileProgram) -> None:
        self.moved = dict.fromkeys(program.params, 0.0)
        self.tensor = self.vector = 0.0
        self.blocks, self.trips = 1, 1
        self.shared = sum(b.type.bytes for b in program.locals if b.placement != "device")

    def visit(self, body: list[Statement], times: int) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                trips = math.ceil((statement.stop - statement.start) / statement.step)
                if statement.parallel:
                    self.blocks *= trips
                self.trips = max(self.trips, times * trips)
                self.visit(statement.body, times * trips)
            elif isinstance(statement, Compute):
                matrix, rest = _flops(statement.op, [v.type for v in statement.operands], statement.attrs)
                self.tensor += matrix * times
                self.vector += rest * times
            else:
                self.access(statement, times)

    def access(self, statement: Load | Store, times: int) -> None:
        if statement.buffer in self.moved:
            tile = statement.result if isinstance(statement, Load) else statement.value
            self.moved[statement.buffer] += float(tile.type.bytes * times)
