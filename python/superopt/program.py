"""The in-memory form of a program at every level: what searches, the verifier and lowering work on.

MLIR is what goes in and what comes out (`superopt.dialects.reader`, `superopt.dialects.writer`); in between a
program is these plain objects. `Value`s are compared by identity; a graph's nodes stand in topological order.

    KernelGraph   library operators, `custom` nodes (body: BlockGraph), `tiled` nodes (body: TileProgram),
                  `extern` nodes
    BlockGraph    grid, loops, `iterator` / `accumulate` / `running_max` / `save` nodes and table operators;
                  `fused` nodes have a ThreadGraph as body
    ThreadGraph   elementwise table operators and the reduction that ends them, kept in registers
    TileProgram   loops, loads, stores and table operators on tiles; buffers in device memory or on chip

The rules of each level are in `superopt.spec`; what an operator means is in `superopt.operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import numpy as np

from superopt.errors import UNKNOWN, Location
from superopt.quasi_affine import Read

COMPUTE_DTYPES = frozenset({"f16", "bf16", "f32"})

# What `cast` and `reshape` take: also integers and truth values, which are the numbers 0 and 1.
NUMBER_DTYPES = COMPUTE_DTYPES | {"i64", "i32", "i16", "i8", "i1"}

# Those besides `COMPUTE_DTYPES` may only be inputs, outputs, operands of `cast`, and operands and results of
# `reshape` and `extern` nodes.
DTYPE_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}

Attr: TypeAlias = "bool | int | float | str | tuple[int, ...] | np.ndarray[Any, Any]"


def power_of_two(extent: int) -> int:
    """The smallest power of two that is at least `extent`."""
    return 1 << max(extent - 1, 0).bit_length()


@dataclass(frozen=True)
class TensorType:
    """Shape (static extents, in elements) and dtype (a key of `DTYPE_BYTES`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def padded(self) -> TensorType:
        """The tile that Triton makes of it: every extent is the next power of two."""
        return TensorType(tuple(map(power_of_two, self.shape)), self.dtype)

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


@dataclass(eq=False)
class Value:
    """One SSA value; compared by identity."""

    type: TensorType
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Element type of the tensor."""
        return self.type.dtype


class NodeKind(StrEnum):
    """Operations of the levels' own: what `Node.op` may be besides a name of the operator table."""

    CUSTOM = "custom"
    TILED = "tiled"
    EXTERN = "extern"
    FUSED = "fused"
    ITERATOR = "iterator"
    ACCUMULATE = "accumulate"
    RUNNING_MAX = "running_max"
    SAVE = "save"


# Their values carry over from one trip of a loop to the next.
CARRIED = frozenset({NodeKind.ACCUMULATE, NodeKind.RUNNING_MAX})


@dataclass(eq=False)
class Node:
    """One operation of a kernel, block or thread graph.

    `op` is a name of the operator table or a `NodeKind` (see the module's docstring).
    Attributes of the level's own operations:
      iterator    imap: per grid dimension the data dimension it partitions, or -1; fmap: the same per loop
      accumulate  kind: "sum" | "max" | "concat" | "rescaled"; loop: index of the loop it ends; dim: for
                  concat. A rescaled sum has a second operand, the `running_max` it is rescaled by.
      running_max loop: index of the loop; its value in an iteration is the maximum so far, that one included
      save        omap: per grid dimension the data dimension it partitions
      extern      target, reason: strings; what it computes and why it is opaque
    """

    op: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    location: Location = UNKNOWN
    body: BlockGraph | ThreadGraph | TileProgram | None = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@dataclass(eq=False)
class KernelGraph:
    """A function: its inputs, nodes in topological order, outputs.

    `aliases`: for each output the number of the input in whose memory it is returned (the caller's tensor is
    overwritten), or -1; empty where there is none. See `superopt.aliasing`.
    `weights`: the numbers of the inputs that stay as they are from call to call. See `superopt.weights`.
    """

    name: str
    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Value]
    location: Location = UNKNOWN
    aliases: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()


@dataclass(eq=False)
class BlockGraph:
    """What one thread block does; the region of a `custom` node.

    `grid` has up to three extents (x, y, z); `loops` are the trip counts of the nested for-loops, outermost
    first. `inputs` are whole tensors of the kernel level, one for each operand of the node; the savers, in
    order, give the node's results.
    """

    grid: tuple[int, ...]
    loops: tuple[int, ...]
    inputs: list[Value]
    nodes: list[Node]

    @property
    def savers(self) -> list[Node]:
        """The `save` nodes, in the order of the kernel's results."""
        return [n for n in self.nodes if n.op == NodeKind.SAVE]


@dataclass(eq=False)
class ThreadGraph:
    """Elementwise operators, and a reduction at most, fused in registers; the region of a `fused` node."""

    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Value]


# A side of a band that leaves out nothing.
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class Band:
    """A matrix whose elements depend on column - row alone: `inside` from `lower` to `upper`, else `outside`.

    Causal masks, sliding windows and triangles are bands; sides of -UNBOUNDED and UNBOUNDED leave out nothing.
    """

    lower: int
    upper: int
    inside: float
    outside: float

    def elements(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The matrices of `shape`, by its last two dimensions, in float64."""
        distance = np.arange(shape[-1])[None] - np.arange(shape[-2])[:, None]
        kept = (distance >= self.lower) & (distance <= self.upper)
        return np.broadcast_to(np.where(kept, self.inside, self.outside), tuple(shape))


@dataclass(frozen=True)
class Ramp:
    """A tensor whose elements are start + step * index, by the index along the dimension `along`.

    That is counted from the last, which is -1. Numbers of classes and positions are ramps.
    """

    along: int
    start: int
    step: int

    def elements(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The tensor of `shape`, in float64."""
        line = self.start + self.step * np.arange(shape[self.along], dtype=np.float64)
        return np.broadcast_to(line.reshape(-1, *[1] * (-1 - self.along)), tuple(shape))


# What kernels compute of an index instead of loading it.
Computed: TypeAlias = Band | Ramp


# --- tile level -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What a buffer shows of an input without memory of its own: at each index what `read` reads of the input
    with this number, and zero where its guard fails or it is outside.

    Where the number is negative there is no input: it is 1 where the guard holds.
    """

    source: int
    read: Read


@dataclass(eq=False)
class Buffer:
    """Memory a tile program reads and writes: a parameter, or local with an open or decided placement.

    A local belongs to one block (one point of the parallel loops): on "chip" it is a tile in registers or
    shared memory and is always read and written whole; in "device" memory it is scratch that windows cut.
    An input that is `computed` needs no memory: kernels compute what they load of it. Nor does a local that is a
    `view`, which is only loaded: windows cut it, and each element is read where the view says.
    """

    type: TensorType
    name: str
    placement: str = "device"  # "device" | "chip" | "open" | "view"
    computed: Computed | None = None
    view: View | None = None

    @property
    def band(self) -> Band | None:
        """The band that it is."""
        return self.computed if isinstance(self.computed, Band) else None

    @property
    def in_memory(self) -> bool:
        """Whether it is in device memory: neither on chip nor computed."""
        return self.placement == "device" and self.computed is None

    @property
    def is_tile(self) -> bool:
        """Whether it is, or may be, on chip: read and written whole."""
        return self.placement not in ("device", "view")


@dataclass(eq=False)
class LoopVar:
    """The variable of a tile loop; takes the values start, start + step, ... below stop."""

    name: str


@dataclass(frozen=True)
class Window:
    """`size` elements of one buffer dimension, `stride` apart, from `base + sum of scale * var` on.

    `terms` are the (var, scale) pairs: a dimension may be cut by a grid dimension and by a loop at once. A
    window starts inside its buffer and may reach past its end: what lies outside is not written, and is read
    as any number (the emitter reads 0, an evaluator may repeat the last element), so that no result inside
    may depend on it. Before a reduction runs over such elements, a `mask` makes them neutral. A load that only
    masks with its own bounds use may also start outside, on either side.
    """

    size: int
    base: int = 0
    terms: tuple[tuple[LoopVar, int], ...] = ()
    stride: int = 1


@dataclass(frozen=True)
class Bound:
    """Elements of a tile's dimension `dim` exist where their index in `window` is in [0, extent)."""

    dim: int
    window: Window
    extent: int


@dataclass(eq=False)
class Loop:
    """`for var in range(start, stop, step)`; a parallel loop is a grid dimension (outermost only).

    Sequential loops run in order; parallel ones in any order, and no block sees what another stores.
    """

    var: LoopVar
    start: int
    stop: int
    step: int
    parallel: bool
    body: list[Statement]

    @property
    def trips(self) -> int:
        """How often its body runs."""
        covered = self.stop - self.start
        return max(0, covered // self.step + (covered % self.step > 0))


@dataclass(eq=False)
class Load:
    """`result = buffer[windows]`; the result has the windows' sizes as its shape."""

    result: Value
    buffer: Buffer
    windows: tuple[Window, ...]


@dataclass(eq=False)
class Store:
    """`buffer[windows] = value`; `value` has the windows' sizes as its shape."""

    buffer: Buffer
    windows: tuple[Window, ...]
    value: Value


@dataclass(eq=False)
class Compute:
    """`result = op(operands)`, `op` of the operator table, on tiles.

    Arithmetic is in f32 whatever the dtype of the values, and a tile on chip keeps its f32 bits: numbers are
    rounded to their dtype where they are stored to device memory, and as operands of `matmul` (whose products
    are summed in f32). A constant of minus infinity is the identity of `max`, and its exponential is 0.
    Only a `mask` has `bounds`: it keeps the elements that all of them say exist, and fills in the others.
    """

    op: str
    operands: tuple[Value, ...]
    result: Value
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    bounds: tuple[Bound, ...] = ()

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of its bounds."""
        return tuple(b.window for b in self.bounds)


Statement: TypeAlias = "Loop | Load | Store | Compute"


# What a launch may switch on, besides its warps and stages.
LAUNCH_FLAGS = ("cache_hints", "descriptors", "separate_loads", "separate_masks", "alone")


@dataclass(eq=False)
class TileProgram:
    """One kernel as tile loops. `params`: inputs, then outputs, in the order of the `tiled` node.

    `cache_hints`: loads say whether what they read will be read again. `descriptors`: tiles that
    loops load come by tensor descriptors, where they may. `separate_loads`: what products and other operators
    use is loaded once for each (`superopt.separate_loads`). `separate_masks`: trips that a band leaves whole run
    in a loop of their own, without it (`superopt.hidden_trips`). `alone`: it lets no other kernel start before it
    ends (`superopt.early`). `aliases`: for each output the number of the
    input whose memory it is, or -1; empty where there is none. Such an output starts as that input, which nothing
    else accesses.
    """

    name: str
    params: list[Buffer]
    n_inputs: int
    locals: list[Buffer]
    body: list[Statement]
    num_warps: int = 4
    num_stages: int = 2
    cache_hints: bool = False
    descriptors: bool = False
    separate_loads: bool = False
    separate_masks: bool = False
    alone: bool = False
    aliases: tuple[int, ...] = ()

    @property
    def arguments(self) -> list[Buffer]:
        """The parameters that a launch passes: outputs, and inputs that need memory in which no output lies."""
        return [
            b
            for i, b in enumerate(self.params)
            if i >= self.n_inputs or (i not in self.aliases and b.computed is None)
        ]

    def statements(self) -> Iterator[Statement]:
        """Every statement, outer before inner, in program order."""
        return statements(self.body)


# --- traversal --------------------------------------------------------------------------------------------

Graph: TypeAlias = "KernelGraph | BlockGraph | ThreadGraph"
G = TypeVar("G", KernelGraph, BlockGraph, ThreadGraph)


def walk(region: Graph | TileProgram) -> Iterator[Node | Statement]:
    """Every node and statement at every level in program order; what a node holds comes after the node."""
    if isinstance(region, TileProgram):
        yield from statements(region.body)
        return
    for node in region.nodes:
        yield node
        if node.body is not None:
            yield from walk(node.body)


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement of `body`, outer before inner, in program order."""
    return (statement for statement, _ in within_loops(body))


def within_loops(
    body: Iterable[Statement], around: tuple[Loop, ...] = ()
) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    """Every statement of `body` with the loops around it, outermost first; a loop before its body."""
    for statement in body:
        yield statement, around
        if isinstance(statement, Loop):
            yield from within_loops(statement.body, (*around, statement))


def parallel_loops(body: Sequence[Statement]) -> list[Loop]:
    """The parallel loops of a program, outermost first."""
    if len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        return [body[0], *parallel_loops(body[0].body)]
    return []


def executions(around: Sequence[Loop]) -> int:
    """How often all blocks together run a statement inside these loops."""
    return math.prod(loop.trips for loop in around)


def rebuild(graph: G, change: Callable[[Node], Node | Iterable[Node]]) -> G:
    """`graph` with `change(node)`, one node or some or none, in place of each of its nodes."""
    nodes: list[Node] = []
    for node in graph.nodes:
        made = change(node)
        nodes += [made] if isinstance(made, Node) else made
    return replace(graph, nodes=nodes)


def rebuild_statements(
    body: Iterable[Statement], change: Callable[[Statement], Iterable[Statement]]
) -> list[Statement]:
    """`body` with `change(statement)` in place of each statement; a loop's body is changed before the loop."""
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            statement = replace(statement, body=rebuild_statements(statement.body, change))
        out += change(statement)
    return out


def producers(nodes: Iterable[Node]) -> dict[Value, Node]:
    """The node that produces each value."""
    return {v: n for n in nodes for v in n.results}


def users(nodes: Iterable[Node]) -> dict[Value, list[Node]]:
    """The nodes that use each value, in order, once per use; unused values lack an entry."""
    found: dict[Value, list[Node]] = {}
    for node in nodes:
        for operand in node.operands:
            found.setdefault(operand, []).append(node)
    return found


# What PyTorch and MLIR call a change of element type: from truth values or integers to floats, and back.
_CONVERSIONS = frozenset({"aten.to.dtype", "aten.gt.Scalar", "arith.uitofp", "arith.sitofp"})


def is_conversion(node: Node) -> bool:
    """Whether an opaque operation converts its only operand element by element, so that it is the same operation
    at every extent.

    Of all other opaque operations, nothing is known of what an extent or an index means to them.
    """
    if node.op != NodeKind.EXTERN or node.attrs.get("target") not in _CONVERSIONS:
        return False
    return len(node.operands) == len(node.results) == 1 and node.operands[0].shape == node.result.shape


def opaque_key(node: Node) -> str:
    """What an opaque operation computes from its operands: operations of one key are one function."""
    named = {k: v for k, v in node.attrs.items() if k != "reason"}
    return f"{node.attrs.get('target')} {sorted(named.items(), key=lambda kv: kv[0])!r}"


def live_nodes(
    nodes: Sequence[Node],
    outputs: Iterable[Value],
    *,
    opaque: bool = True,
    trim: Callable[[Node, set[Value]], Node] = lambda node, _: node,
) -> list[Node]:
    """Those of `nodes` that `outputs` need, in order; with `opaque`, `extern` ones and what they need, too.

    `trim` gives what is left of a node, given all values that are needed.
    """
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if (opaque and node.op == NodeKind.EXTERN) or not needed.isdisjoint(node.results):
            kept.append(trim(node, needed))
            needed.update(kept[-1].operands)
    return kept[::-1]


Program: TypeAlias = KernelGraph
