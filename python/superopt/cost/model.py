"""The analytic cost of a program: what each kernel moves and computes, put through the native cost formula.

Counting is exact for what the IR says (tiles loaded, trips, blocks, flops of the operator table); the formula
(transforms/core/cost/) is a roofline with waves, launches and loop latency. Predictions rank programs;
they do not promise seconds.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, fields, replace

from superopt.aliasing import copied, updates_in_place
from superopt.cost.gpus import Target
from superopt.levels.ragged import saved_shape
from superopt.operators import OPERATORS, Attrs, Move, is_constant, is_contraction, move_of, normalize_attrs
from superopt.program import (
    CARRIED,
    DTYPE_BYTES,
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    NodeKind,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    executions,
    within_loops,
)
from superopt.spec import block_bytes, reaches, slices_in_place, stages
from superopt.transforms.core import _cost

# Tile of a library matrix product, whose operands are read again for every row and column of tiles.
LIBRARY_TILE = 128


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


_TRAFFIC = [field.name for field in fields(Traffic)]


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


def is_view(node: Node) -> bool:
    """Whether `node` moves nothing: a row-major view, or values known at compile time."""
    return move_of(node) is Move.RESHAPE or is_constant(node)


def cost(graph: KernelGraph, target: Target) -> Cost:
    """Predicted cost of `graph` on `target`; views, constants and slices read in place cost nothing.

    An output that is returned in an argument's memory is copied there where no kernel wrote it there.
    """
    in_place, free = updates_in_place(graph), slices_in_place(graph)
    kernels = [
        _update_cost(node, target) if node in in_place else kernel_cost(node, target)
        for node in graph.nodes
        if not is_view(node) and free.keys().isdisjoint(node.results)
    ]
    return Cost((*kernels, *copy_costs(graph, target, {node.result for node in in_place})))


def copy_costs(graph: KernelGraph, target: Target, done: Container[Value] = ()) -> list[KernelCost]:
    """The copies of outputs, but for those `done` already, into the arguments whose memory they share."""
    found: list[KernelCost] = []
    for i in copied(graph):
        if (value := graph.outputs[i]) not in done:
            traffic = _moved(2 * value.type.bytes, target)
            found.append(KernelCost("copy", kernel_seconds(traffic, target), traffic))
    return found


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
    kernel = _cost.KernelTraffic()
    for name in _TRAFFIC:
        setattr(kernel, name, getattr(traffic, name))
    return _cost.kernel_seconds(target.numbers(), kernel)


def node_traffic(node: Node, target: Target) -> Traffic:
    """What one kernel-level node moves and computes."""
    if isinstance(node.body, BlockGraph):
        return _block_traffic(node.body, target)
    if isinstance(node.body, TileProgram):
        return _tile_traffic(node.body, target)
    return _library_traffic(node, target)


def _kernel_name(node: Node) -> str:
    return node.body.name if isinstance(node.body, TileProgram) else node.op


class _Count:
    """Counts what one kernel moves and computes on a target."""

    def __init__(self, target: Target) -> None:
        self._target, self._counted = target.numbers(), _cost.KernelTraffic()

    def compute(self, op: str, operands: Sequence[TensorType], attrs: Attrs, times: int = 1) -> None:
        """An operator of the table, applied so many times."""
        entry = OPERATORS[op]
        shapes, values = [t.shape for t in operands], normalize_attrs(entry, attrs)
        if entry.combiner != "add" or entry.arity != 2:
            self.elements(entry.flops(shapes, values) * times)
            return
        assert entry.nest is not None
        batch, rows, columns, depth = entry.nest(shapes, values).product
        times *= batch
        self._counted.product(self._target, rows, columns, depth, times, DTYPE_BYTES[operands[0].dtype])

    def elements(self, flops: float) -> None:
        """Operations outside the matrix units."""
        self._counted.vector_flops += flops

    def launch(self, blocks: int, shared_bytes: int = 0, loop_trips: int = 0) -> None:
        """The blocks, and of each its shared memory and the trips of its loops: before anything is moved."""
        self._counted.blocks, self._counted.shared_bytes = blocks, shared_bytes
        self._counted.loop_trips = loop_trips

    def move(self, tensor_bytes: int, moved: float) -> None:
        """What all blocks together load and store of one tensor, in bytes."""
        self._counted.move(self._target, tensor_bytes, moved)

    def traffic(self) -> Traffic:
        """What was counted."""
        return Traffic(*(getattr(self._counted, name) for name in _TRAFFIC))


def _library_traffic(node: Node, target: Target) -> Traffic:
    """A library operator as a well-made kernel of its own: every operand read, every result written.

    What it reduces is not split over blocks (`lower/kernel_to_tile.py`): a sum to few elements has few blocks.
    """
    count = _Count(target)
    ins, outs = sum(v.type.bytes for v in node.operands), sum(v.type.bytes for v in node.results)
    if node.op in OPERATORS:
        count.compute(node.op, [v.type for v in node.operands], node.attrs)
    l2, blocks = ins + outs, target.multiprocessors
    if node.op in OPERATORS and OPERATORS[node.op].combiner is not None:
        blocks = min(blocks, node.result.type.elements)
    if is_contraction(node):
        *batch, rows, columns = node.result.shape
        tiles_m, tiles_n = math.ceil(rows / LIBRARY_TILE), math.ceil(columns / LIBRARY_TILE)
        a, b = (v.type.bytes for v in node.operands)
        l2 = a * tiles_n + b * tiles_m + outs
        # Tiles are smaller where large ones would leave multiprocessors idle.
        least = math.ceil(rows / target.matrix_side) * math.ceil(columns / target.matrix_side)
        blocks = max(
            math.prod(batch) * tiles_m * tiles_n, min(math.prod(batch) * least, target.multiprocessors)
        )
    return replace(count.traffic(), dram_bytes=ins + outs, l2_bytes=l2, blocks=blocks)


def _block_traffic(graph: BlockGraph, target: Target) -> Traffic:
    count, blocks = _Count(target), math.prod(graph.grid)
    stage, reach = stages(graph), reaches(graph)
    count.launch(blocks, block_bytes(graph), math.prod(graph.loops))
    loaded: dict[Value, int] = {}

    def times(
        value: Value,
    ) -> int:  # over the blocks, and the loops that it varies in or that stand around them
        return blocks * math.prod(graph.loops[: max(stage[value].varies, default=-1) + 1])

    for inner in graph.nodes:
        if inner.op == NodeKind.ITERATOR:
            (source,) = inner.operands
            loaded[source] = loaded.get(source, 0) + inner.result.type.bytes * times(inner.result)
        elif inner.op == NodeKind.SAVE:
            (value,) = inner.operands
            saved = TensorType(
                saved_shape(inner, graph, reach[value]), value.dtype
            ).bytes  # each element once
            count.move(saved, saved)
        elif inner.op in CARRIED:
            count.elements(inner.operands[0].type.elements * math.prod(graph.loops) * blocks)
        else:
            for op, operands, attrs in _applications(inner):
                count.compute(op, operands, attrs, times(inner.results[0]))
    for value, moved in loaded.items():
        count.move(value.type.bytes, moved)
    return count.traffic()


def _applications(node: Node) -> Iterable[tuple[str, list[TensorType], Attrs]]:
    nodes = node.body.nodes if isinstance(node.body, ThreadGraph) else [node]
    return [(n.op, [v.type for v in n.operands], n.attrs) for n in nodes]


def _tile_traffic(program: TileProgram, target: Target) -> Traffic:
    tiles = _TileCounts(program)
    count = _Count(target)
    count.launch(tiles.blocks, tiles.shared, tiles.trips // tiles.blocks)
    for statement, times in tiles.computed:
        count.compute(statement.op, [v.type for v in statement.operands], statement.attrs, times)
    for buffer, moved in tiles.moved.items():
        count.move(buffer.type.bytes, moved)
    return count.traffic()


def tile_reads(program: TileProgram) -> dict[Buffer, int]:
    """Bytes that all blocks together load of each input."""
    moved = _TileCounts(program).moved
    return {b: moved[b] for b in program.params[: program.n_inputs]}


class _TileCounts:
    """What tile loops do over all trips: bytes moved by parameter, operators and how often, blocks and trips."""

    def __init__(self, program: TileProgram) -> None:
        self.moved = dict.fromkeys(program.params, 0)
        self.computed: list[tuple[Compute, int]] = []
        self.blocks, self.trips = 1, 1
        self.shared = sum(b.type.bytes for b in program.locals if b.placement != "device")
        for statement, around in within_loops(program.body):
            times = executions(around)
            if isinstance(statement, Loop):
                if statement.parallel:
                    self.blocks *= statement.trips
                self.trips = max(self.trips, times * statement.trips)
            elif isinstance(statement, Compute):
                self.computed.append((statement, times))
            elif statement.buffer in self.moved:
                tile = statement.result if isinstance(statement, Load) else statement.value
                self.moved[statement.buffer] += tile.type.bytes * times
