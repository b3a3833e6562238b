"""What experts write for the programs of `programs.py`, in superopt's own IR: kernels, grids and loops by hand.

FlashAttention-2 and FlashDecoding, and the graphs that Mirage's paper shows for grouped queries (figures 4c and
8), LoRA (9b) and the adapter (10b); plain fusions for the rest. Tile sizes and splits are those of a short list
that the cost model likes best on the target, so that a reference loses by its structure and not by its sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from benchmarks.mugraph.blocks import Block
from benchmarks.mugraph.programs import ATTENTION
from benchmarks.trinity.programs import Builder

from superopt.errors import IllegalProgram
from superopt.program import KernelGraph, Value
from superopt.spec import check_kernel

if TYPE_CHECKING:
    from superopt.cost import Target

Variants: TypeAlias = Iterable[Callable[[], KernelGraph]]
EPSILON = float(np.float16(1e-5))
TILES = (16, 32, 64, 128, 256)


def references(program: KernelGraph, target: Target) -> dict[str, KernelGraph]:
    """The references for a program of `programs.names()`, each at its best sizes on `target`."""
    found = {label: _best(variants, target) for label, variants in _variants(program).items()}
    return {label: graph for label, graph in found.items() if graph is not None}


def _variants(program: KernelGraph) -> Mapping[str, Variants]:
    family = program.name.removesuffix("_safe").rsplit("_b", 1)[0]
    if family in ATTENTION:
        return _attention(_Sizes.of(program, family), program)
    return _OTHERS[family](program) if family in _OTHERS else {}


def _best(variants: Variants, target: Target) -> KernelGraph | None:
    """The cheapest variant that is legal on the target."""
    from superopt import cost

    best: tuple[float, KernelGraph] | None = None
    for make in variants:
        try:
            graph = make()
            check_kernel(graph, target.shared_per_block)
        except IllegalProgram:
            continue
        seconds = cost.cost(graph, target).seconds
        if best is None or seconds < best[0]:
            best = (seconds, graph)
    return best[1] if best else None


def _tiles(extent: int, choices: Iterable[int] = TILES) -> list[int]:
    """The choices that divide `extent`, or all of it where it is shorter than each."""
    return [t for t in choices if t <= extent and extent % t == 0] or [extent]


# --- attention --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Attention of `groups` key heads, each for `each` query heads of `rows` queries, to `keys` keys."""

    groups: int
    each: int
    rows: int
    keys: int
    width: int
    transposed: bool  # keys as (groups, width, keys)
    scale: float | None
    safe: bool
    qk_norm: bool

    @staticmethod
    def of(program: KernelGraph, family: str) -> _Sizes:
        q, k, v = (x.shape for x in program.inputs)
        safe, public = program.name.endswith("_safe"), len(q) == 3
        if public:
            return _Sizes(q[0], 1, q[1], v[1], q[2], True, None, safe, family.startswith("qknorm"))
        scale = float(np.float16(math.sqrt(q[3])))
        return _Sizes(k[0] * k[1], q[1] // k[1], q[2], k[2], q[3], False, scale, safe, False)

    def folded(self) -> _Sizes:
        """The query heads of a group as rows of one product (Mirage, figure 4c)."""
        return _Sizes(
            self.groups, 1, self.each * self.rows, self.keys, self.width, self.transposed, self.scale,
            self.safe, self.qk_norm,
        )  # fmt: skip


def _attention(sizes: _Sizes, program: KernelGraph) -> Mapping[str, Variants]:
    tiles = [(r, n) for r in _tiles(sizes.rows) for n in _tiles(sizes.keys, (32, 64, 128))]
    found: dict[str, Variants] = {
        "FlashAttention-2": [
            _later(_attend, program, sizes, r, n, 1, norms)
            for r, n in tiles
            for norms in (("apart", "inside") if sizes.qk_norm else ("",))
        ],
        "FlashDecoding": _split(program, sizes, [sizes.rows]),
    }
    folded = sizes.folded()
    label = "Mirage 4c" if sizes.rows == 1 else "Mirage 8"
    found[label] = _split(program, folded, _tiles(folded.rows))
    return found


def _later(make: Callable[..., KernelGraph], *arguments: object) -> Callable[[], KernelGraph]:
    return lambda: make(*arguments)


def _split(program: KernelGraph, sizes: _Sizes, rows: Iterable[int]) -> Iterator[Callable[[], KernelGraph]]:
    norms = ("apart", "inside") if sizes.qk_norm else ("",)
    for r, splits, norm in itertools.product(rows, (2, 4, 8, 16, 32, 64), norms):
        for n in _tiles(sizes.keys // splits, (32, 64, 128)):
            yield _later(_attend, program, sizes, r, n, splits, norm)


def _attend(
    program: KernelGraph, sizes: _Sizes, row_tile: int, key_tile: int, splits: int, norms: str
) -> KernelGraph:
    """Attention; a block takes `row_tile` queries and one of `splits` parts of the keys, `key_tile` a trip."""
    b = Builder(program.name, "f16")
    q, k, v = (b.input(x.name, *x.shape) for x in program.inputs)
    s = sizes
    q = b.op("reshape", q, shape=(s.groups, s.each, s.rows, s.width))
    k = b.op("reshape", k, shape=(s.groups, *((s.width, s.keys) if s.transposed else (s.keys, s.width))))
    v = b.op("reshape", v, shape=(s.groups, s.keys, s.width))
    if norms == "apart":
        q, k = _normalized(b, q, 3), _normalized(b, k, 1 if s.transposed else 2)
    row_tiles = s.rows // row_tile
    # With splits, blocks go by heads or by rows: a grid has three dimensions.
    if splits > 1 and s.each > 1 and row_tiles > 1:
        raise IllegalProgram("expected whole rows or one head a group")
    by_rows = splits == 1 or s.each == 1
    dims = (s.each, row_tiles) if splits == 1 else ((row_tiles,) if by_rows else (s.each,))
    grid = (s.groups, *dims, *((splits,) if splits > 1 else ()))
    trips = s.keys // splits // key_tile
    block = Block(b, grid, (trips,))
    imap = (0, 1, 2) if splits == 1 else ((0, 2, -1) if by_rows else (0, 1, -1))
    keys_imap = (0, *(-1 for _ in dims))
    qt = block.reshape(block.load(q, imap), 1, row_tile, s.width)
    key_dim = 2 if s.transposed else 1
    cut = (key_dim,) if splits > 1 else ()
    kt = block.load(k, (*keys_imap, *cut), (key_dim,))
    vt = block.load(v, (*keys_imap, *((1,) if splits > 1 else ())), (1,))
    if norms == "inside":
        qt, kt = block.rms(qt, 2, EPSILON), block.rms(kt, 1 if s.transposed else 2, EPSILON)
    scores = block.op("matmul", qt, kt, transpose_b=not s.transposed)
    if s.scale is not None:
        scores = block.op("div", scores, block.number(s.scale))
    largest = running = None
    if s.safe:
        largest = block.reduce("max", scores, 2)
        running = block.running_max(largest)
        scores = block.op("sub", scores, running)
    e = block.op("exp", scores)
    o = block.accumulate(block.op("matmul", e, vt), running)
    total = block.accumulate(block.reduce("sum", e, 2), running)
    if splits == 1:
        tile = block.reshape(block.op("div", o, total), 1, 1, row_tile, s.width)
        out = block.save(tile, (0, 1, 2), "o")
        block.finish()
    else:
        omap = (0, 3, 2) if by_rows else (0, 1, 2)
        parts = [
            block.save(block.reshape(x, 1, 1, 1, row_tile, x.shape[2]), omap, name)
            for x, name in ((o, "part"), (total, "total"))
        ]
        if largest is not None:
            parts.append(
                block.save(block.reshape(block.maximum(largest), 1, 1, 1, row_tile, 1), omap, "largest")
            )
        block.finish()
        flat = [b.op("reshape", x, shape=(s.groups * s.each, splits, s.rows, x.shape[4])) for x in parts]
        out = _combined(b, flat, min(row_tile, 16))
    return b.outputs(b.op("reshape", out, shape=program.outputs[0].shape))


def _combined(b: Builder, parts: list[Value], row_tile: int) -> Value:
    """The second kernel: partial sums over all splits, rescaled where maxima come with them, and divided."""
    heads, _, rows, _ = parts[0].shape
    row_tile = math.gcd(row_tile, rows)
    block = Block(b, (heads, rows // row_tile))
    part, total, *largest = (block.load(x, (0, 2)) for x in parts)
    if largest:
        weight = block.op("exp", block.op("sub", largest[0], block.reduce("max", largest[0], 1)))
        part, total = block.op("mul", part, weight), block.op("mul", total, weight)
    out = block.op("div", block.reduce("sum", part, 1), block.reduce("sum", total, 1))
    saved = block.save(out, (0, 2), "o")
    block.finish()
    return saved


def _normalized(b: Builder, x: Value, dim: int) -> Value:
    """A kernel that normalises along `dim`, sixteen rows to a block where there are so many."""
    rows = len(x.shape) - 1 if dim != len(x.shape) - 1 else len(x.shape) - 2
    block = Block(b, (x.shape[0], x.shape[rows] // math.gcd(16, x.shape[rows])))
    saved = block.save(block.rms(block.load(x, (0, rows)), dim, EPSILON), (0, rows), x.name)
    block.finish()
    return saved


# --- the others -------------------------------------------------------------------------------------------


def _kernels(program: KernelGraph) -> tuple[Builder, list[Value]]:
    b = Builder(program.name, "f16")
    return b, [b.input(x.name, *x.shape) for x in program.inputs]


def _sizes(depth: int, columns: int) -> Iterator[tuple[int, int]]:
    """(columns of a tile, trips over the depth)."""
    return itertools.product(_tiles(columns), [depth // t for t in _tiles(depth)])


def _lora(program: KernelGraph) -> Mapping[str, Variants]:
    """(W || B) x (X || A X) in one kernel; concatenation is two products into one accumulator."""

    def make(columns: int, trips: int) -> KernelGraph:
        b, (x, w, a, c) = _kernels(program)
        block = Block(b, (w.shape[1] // columns,), (trips,))
        xt, wt, at = block.load(x, (-1,), (1,)), block.load(w, (1,), (0,)), block.load(a, (-1,), (0,))
        wide = block.accumulate(block.op("matmul", xt, wt))
        narrow = block.accumulate(block.op("matmul", xt, at))
        y = block.op("add", wide, block.op("matmul", narrow, block.load(c, (1,))))
        out = block.save(y, (1,), "y")
        block.finish()
        return b.outputs(out)

    depth, columns = program.inputs[1].shape
    return {"Mirage 9b": [_later(make, *s) for s in _sizes(depth, columns)]}


def _mlp(program: KernelGraph) -> Mapping[str, Variants]:
    """Partial sums of the first product in one kernel; their sum, ReLU, the second product and X in the next."""

    def make(splits: int, columns: int) -> KernelGraph:
        b, (x, a, c) = _kernels(program)
        first = Block(b, (splits,))
        part = first.op("matmul", first.load(x, (1,)), first.load(a, (0,)))
        parts = first.save(first.reshape(part, 1, *part.shape), (0,), "parts")
        first.finish()
        second = Block(b, (c.shape[1] // columns,))
        whole = second.op("reduce_sum", second.load(parts, (-1,)), dims=(0,), keepdims=False)
        y = second.op("matmul", second.op("relu", whole), second.load(c, (1,)))
        out = second.save(second.op("add", y, second.load(x, (1,))), (1,), "y")
        second.finish()
        return b.outputs(out)

    choices = itertools.product((8, 16, 32, 64, 128), _tiles(program.inputs[2].shape[1]))
    return {"Mirage 10b": [_later(make, *c) for c in choices]}


def _gated_mlp(program: KernelGraph) -> Mapping[str, Variants]:
    """Both products in one loop, gated in the same kernel."""

    def make(columns: int, trips: int) -> KernelGraph:
        b, (x, w, u) = _kernels(program)
        block = Block(b, (w.shape[1] // columns,), (trips,))
        xt = block.load(x, (-1,), (1,))
        gate, up = (block.accumulate(block.op("matmul", xt, block.load(m, (1,), (0,)))) for m in (w, u))
        out = block.save(block.op("mul", block.op("silu", gate), up), (1,), "y")
        block.finish()
        return b.outputs(out)

    return {"fused": [_later(make, *s) for s in _sizes(*program.inputs[1].shape)]}


def _moe(program: KernelGraph) -> Mapping[str, Variants]:
    """Each expert's first product with its SiLU, then the second product."""

    def make(columns: int, trips: int) -> KernelGraph:
        b, (x, w, u) = _kernels(program)
        hidden = x
        for weight, activation in ((w, True), (u, False)):
            block = Block(b, (w.shape[0], w.shape[2] // columns), (trips,))
            xt, wt = block.load(hidden, (0, -1), (2,)), block.load(weight, (0, 2), (1,))
            y = block.accumulate(block.op("matmul", xt, wt))
            hidden = block.save(block.op("silu", y) if activation else y, (0, 2), "y")
            block.finish()
        return b.outputs(hidden)

    return {"fused": [_later(make, *s) for s in _sizes(*program.inputs[1].shape[1:])]}


def _rmsnorm_linear(program: KernelGraph) -> Mapping[str, Variants]:
    """The normalisation behind the product, its sum of squares in the same loop."""

    def make(columns: int, trips: int) -> KernelGraph:
        b, (x, w) = _kernels(program)
        block = Block(b, (w.shape[1] // columns,), (trips,))
        xt, wt = block.load(x, (-1,), (1,)), block.load(w, (1,), (0,))
        product = block.accumulate(block.op("matmul", xt, wt))
        squares = block.accumulate(block.reduce("sum", block.op("square", xt), 1))
        mean = block.op("div", squares, block.number(float(x.shape[1])))
        root = block.op("rsqrt", block.op("add", mean, block.number(EPSILON)))
        out = block.save(block.op("mul", product, root), (1,), "y")
        block.finish()
        return b.outputs(out)

    return {"fused": [_later(make, *s) for s in _sizes(*program.inputs[1].shape)]}


def _norm_transformer(program: KernelGraph) -> Mapping[str, Variants]:
    """A row or a few to a block, everything in one kernel."""

    def make(rows: int) -> KernelGraph:
        b, (h, x, alpha) = _kernels(program)
        block = Block(b, (h.shape[0] // rows,))
        ht, xt, at = (block.load(v, (0,)) for v in (h, x, alpha))
        step = block.op("mul", at, block.op("sub", block.rms(xt, 1, EPSILON), ht))
        out = block.save(block.rms(block.op("add", ht, step), 1, EPSILON), (0,), "y")
        block.finish()
        return b.outputs(out)

    return {"fused": [_later(make, r) for r in (1, 2, 4, 8)]}


_OTHERS: dict[str, Callable[[KernelGraph], Mapping[str, Variants]]] = {
    "lora": _lora,
    "mlp": _mlp,
    "gated_mlp": _gated_mlp,
    "moe": _moe,
    "rmsnorm_linear": _rmsnorm_linear,
    "norm_transformer": _norm_transformer,
}
