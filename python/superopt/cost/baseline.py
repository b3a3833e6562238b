"""What a program costs as a user would run it without superopt, by the same model.

    best_baseline(graph, target)    the fastest of
        eager       operator by operator; what PyTorch has as one operator (softmax, norms, mish) is one kernel
        inductor    chains of elementwise operators and reductions fused, epilogues in products where that pays
        attention   the same, `softmax(...) V` by FlashAttention-2, FlashDecoding, or with the queries that share
                    keys packed and the keys split (FlashInfer); whatever is done to the scores comes for free, as
                    with FlexAttention

Products are priced as cuBLAS runs them: the best of its tiles, the depth split over blocks where that pays
(split-K, stream-K). Opaque convolutions are priced by their flops, as cuDNN does them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from superopt.aliasing import updates_in_place
from superopt.cost.gpus import Target
from superopt.cost.model import KernelCost, Traffic, is_view, kernel_cost, kernel_seconds, update_cost
from superopt.operators import (
    OPERATORS,
    Move,
    is_constant,
    is_contraction,
    is_elementwise,
    move_of,
    nest_of,
    normalize_attrs,
    reduction_of,
    splat_of,
)
from superopt.program import DTYPE_BYTES, KernelGraph, Node, Value
from superopt.spec import slices_in_place
from superopt.transforms.core import _cost

# Rows and columns of the tiles that cuBLAS has kernels for, and the depth of one trip.
TILES = (
    (128, 256),
    (256, 128),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 32),
    (32, 64),
    (16, 64),
    (16, 32),
)
TILES_F32 = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (16, 32))
DEPTHS, DEPTH_F32 = (64, 128), 16
# Bytes of the tiles of a trip that are under way at once.
STAGES = 3
# Elements that one block of an elementwise kernel has, and depth of a reduction from which blocks share it.
POINTS, LONG = 1024, 8192


@dataclass(frozen=True)
class Baseline:
    """One way to run a program: its kernels and their predicted seconds."""

    name: str
    parts: tuple[KernelCost, ...]

    @property
    def seconds(self) -> float:
        """Of all kernels, launches included."""
        return sum(p.seconds for p in self.parts)


def best_baseline(graph: KernelGraph, target: Target) -> Baseline:
    """The fastest of the ways that a user has."""
    return min(baselines(graph, target), key=lambda b: b.seconds)


def baselines(graph: KernelGraph, target: Target) -> list[Baseline]:
    """Every way that a user has: eager and Inductor; with attention kernels where the program has attention."""
    plan = _Plan(graph, target)
    found = plan.attention()
    made = [Baseline("eager", plan.eager()), Baseline("inductor", plan.inductor([]))]
    if found:
        made.append(Baseline("attention", plan.inductor(found)))
    return made


# --- library kernels -----------------------------------------------------------------------------------------


def product_cost(
    target: Target,
    rows: int,
    columns: int,
    depth: int,
    *,
    batch: int = 1,
    dtype: str = "f16",
    operands: tuple[int, int] | None = None,
    split: bool = True,
    extra: Traffic | None = None,
) -> KernelCost:
    """A matrix product as a library runs it: the fastest of its tiles and splits.

    `operands` are the bytes of both where they are fewer than the extents say (one matrix for all of a batch).
    `extra` is what an epilogue adds; with it, as without `split`, the depth is not split over blocks.
    """
    size = DTYPE_BYTES[dtype]
    a, b = operands or (batch * rows * depth * size, batch * depth * columns * size)
    out = batch * rows * columns * size
    best, traffic = math.inf, Traffic()
    numbers = target.numbers()
    for tile_rows, tile_columns in TILES_F32 if dtype == "f32" else TILES:
        if (tile_rows > 64 and tile_rows >= 2 * rows) or (tile_columns > 32 and tile_columns >= 2 * columns):
            continue
        down, across = -(-rows // tile_rows), -(-columns // tile_columns)
        for step in (DEPTH_F32,) if dtype == "f32" else DEPTHS:
            shared = STAGES * (tile_rows + tile_columns) * step * size
            if shared > target.shared_per_block:
                continue
            for parts in _splits(depth, step) if split and extra is None else (1,):
                trips = -(-depth // (step * parts))
                kernel = _cost.KernelTraffic()
                kernel.blocks, kernel.loop_trips = batch * down * across * parts, trips
                kernel.shared_bytes = shared
                kernel.product(numbers, tile_rows, tile_columns, step, kernel.blocks * trips, size)
                kernel.move(numbers, a, batch * rows * depth * size * across, step * size)
                # Two blocks of a cluster, one above the other, fetch the columns that they share once.
                pairs = -(-down // 2) if target.has_copy_engine else down
                kernel.move(numbers, b, batch * depth * columns * size * pairs, step * size)
                kernel.move(numbers, out, out, tile_columns * size)
                if parts > 1:  # partial sums in fp32 pass through L2
                    kernel.l2_bytes += 2 * 4 * batch * rows * columns * parts
                if extra is not None:
                    kernel.dram_bytes += extra.dram_bytes
                    kernel.l2_bytes += extra.l2_bytes
                    kernel.vector_flops += extra.vector_flops
                    kernel.special_operations += extra.special_operations
                if (seconds := _cost.kernel_seconds(numbers, kernel)) < best:
                    best, traffic = seconds, Traffic.of(kernel)
    return KernelCost("matmul", best, traffic)


def _splits(depth: int, step: int) -> list[int]:
    most = max(depth // (4 * step), 1)
    return [1 << i for i in range(most.bit_length()) if 1 << i <= min(most, 64)]


def attention_cost(
    target: Target,
    heads: int,
    rows: int,
    keys: int,
    width: int,
    *,
    dtype: str = "f16",
    value_width: int | None = None,
    key_heads: int | None = None,
    extra_bytes: int = 0,
    share: float = 1,
) -> tuple[KernelCost, ...]:
    """Attention of `rows` queries for each of `heads` as a library runs it: one kernel, or two with split keys.

    With fewer `key_heads`, the queries of the heads that share keys may be packed as rows of one head. `share`
    is the part of the scores that is computed (about a half where they are causal).
    """
    best: tuple[KernelCost, ...] = ()
    groups = {(heads, rows), (key_heads or heads, rows * heads // (key_heads or heads))}
    for blocks, packed in sorted(groups):
        for block in (16, 32, 64, 128):
            if block > 16 and block >= 2 * packed:
                continue
            for part in (32, 64, 128):
                for split in _powers(max(keys // part, 1)):
                    if split > 1 and keys // split < part:
                        continue
                    made = _attention(
                        target, blocks, packed, keys, width, value_width or width, key_heads or heads, dtype,
                        block, part, split, extra_bytes, share,
                    )  # fmt: skip
                    if made and (not best or sum(k.seconds for k in made) < sum(k.seconds for k in best)):
                        best = made
    return best


def _attention(
    target: Target, heads: int, rows: int, keys: int, width: int, value_width: int, key_heads: int, dtype: str,
    block: int, part: int, split: int, extra: int, share: float,
) -> tuple[KernelCost, ...]:  # fmt: skip
    size, numbers = DTYPE_BYTES[dtype], target.numbers()
    down, trips = -(-rows // block), -(-keys // (part * split))
    kernel = _cost.KernelTraffic()
    kernel.blocks, kernel.loop_trips = heads * down * split, max(round(trips * share), 1)
    kernel.shared_bytes = (block * width + 2 * part * (width + value_width)) * size
    if kernel.shared_bytes > target.shared_per_block:
        return ()
    tiles = kernel.blocks * trips * share
    kernel.product(numbers, block, part, width, tiles, size)
    kernel.product(numbers, block, value_width, part, tiles, size)
    # Scale, maximum, difference and sum of each score; its exponential; the sums so far are scaled again.
    kernel.vector_flops += tiles * (5 * block * part + 2 * block * value_width)
    kernel.special_operations += tiles * block * part
    kv, q = key_heads * keys * (width + value_width) * size, heads * rows * (width + value_width) * size
    kernel.move(numbers, kv, heads * keys * (width + value_width) * size * down * share, width * size)
    kernel.move(numbers, q, q, width * size)
    kernel.move(numbers, max(extra, 1), extra, part * size)
    partial = 4 * heads * split * rows * (value_width + 2) if split > 1 else 0
    kernel.l2_bytes += partial
    made = [KernelCost("attention", _cost.kernel_seconds(numbers, kernel), Traffic.of(kernel))]
    if split > 1:
        join = Traffic(
            0, partial, vector_flops=partial / 2, blocks=max(heads * rows, 1), loop_trips=-(-split // 16)
        )
        made.append(KernelCost("join", kernel_seconds(join, target), join))
    return tuple(made)


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(min(most, 128).bit_length())]


# --- fusion --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Group:
    """Operators that one kernel computes: elementwise ones, moves, reductions of one shape."""

    nodes: list[Node] = field(default_factory=list[Node])
    full: int = 0
    reduced: int | None = None

    def takes(self, other: _Group) -> bool:
        """Whether the iteration spaces fit, as Inductor demands: one (rows, depth) for all reductions."""
        if self.reduced is None and other.reduced is None:
            return True
        if self.reduced is not None and other.reduced is not None:
            return (self.full, self.reduced) == (other.full, other.reduced)
        narrow, wide = (self, other) if self.reduced is None else (other, self)
        return narrow.full <= wide.full


@dataclass(frozen=True)
class _Attention:
    """Scores, what is done to them, and the product with the values; what only they used goes, too."""

    scores: Node
    group: _Group
    weighted: Node
    gone: frozenset[Node]


class _Plan:
    """A program as groups of operators that a compiler fuses."""

    def __init__(self, graph: KernelGraph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.in_place, self.sliced = updates_in_place(graph), slices_in_place(graph)
        self.alias: dict[Value, Value] = {}
        self.made: dict[Value, Node] = {}
        for node in graph.nodes:
            if move_of(node) is Move.RESHAPE:
                self.alias[node.result] = self.root(node.operands[0])
            for value in node.results:
                self.made[value] = node
        self.nodes = [n for n in graph.nodes if not is_view(n)]
        self.uses: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(map(self.root, node.operands)):
                self.uses.setdefault(value, []).append(node)
        self.outputs = {self.root(v) for v in graph.outputs}
        self.group: dict[Node, _Group] = {}
        self._fuse()

    def root(self, value: Value) -> Value:
        """The value whose elements a reshape shows."""
        return self.alias.get(value, value)

    def inputs(self, node: Node) -> list[Value]:
        """What `node` reads of memory, without numbers that the kernel knows."""
        values = dict.fromkeys(map(self.root, node.operands))
        return [v for v in values if (made := self.made.get(v)) is None or splat_of(made) is None]

    # --- groups

    def _fuse(self) -> None:
        for node in self.nodes:
            own = _Group([node], *_space(node))
            self.group[node] = own
            if not _fusible(node) or node in self.in_place:
                continue
            for value in self.inputs(node):
                producer = self.made.get(value)
                if producer is None or not _fusible(producer) or producer in self.in_place:
                    continue
                before, now = self.group[producer], self.group[node]
                if before is not now and before.takes(now) and not self._around(before, now):
                    self._merge(before, now)

    def _merge(self, a: _Group, b: _Group) -> None:
        for node in b.nodes:
            self.group[node] = a
        a.nodes += b.nodes
        a.full = max(a.full, b.full)
        a.reduced = b.reduced if a.reduced is None else a.reduced

    def _around(self, a: _Group, b: _Group) -> bool:
        """Whether something outside both stands between them: joined, they would need it and feed it."""
        seen: set[_Group] = set()
        inside = {a, b}
        open_groups = [g for x in inside for g in self._feeding(x) if g not in inside]
        while open_groups:
            group = open_groups.pop()
            if group in seen:
                continue
            seen.add(group)
            for before in self._feeding(group):
                if before in inside:
                    return True
                open_groups.append(before)
        return False

    def _feeding(self, group: _Group) -> set[_Group]:
        made = (self.made.get(v) for n in group.nodes for v in self.inputs(n))
        return {self.group[n] for n in made if n is not None and n in self.group} - {group}

    def order(self) -> list[_Group]:
        """The groups, once each."""
        return list(dict.fromkeys(self.group[n] for n in self.nodes))

    def written(self, nodes: Iterable[Node], gone: frozenset[Node] = frozenset()) -> list[Value]:
        """What others than `nodes` read of their results."""
        inside = set(nodes)
        return [
            v
            for n in inside
            for v in n.results
            if v in self.outputs or any(u not in inside and u not in gone for u in self.uses.get(v, ()))
        ]

    # --- prices

    def eager(self) -> tuple[KernelCost, ...]:
        """Operator by operator; a group with one large input and one output is one operator of PyTorch."""
        parts: list[KernelCost] = []
        for group in self.order():
            if len(group.nodes) > 1 and self._composite(group):
                parts += self._fused(group.nodes)
                continue
            for node in group.nodes:
                parts += self._alone(node) if _fusible(node) else self._single(node)
        return tuple(parts)

    def _composite(self, group: _Group) -> bool:
        inside = set(group.nodes)
        read = {v for n in inside for v in self.inputs(n) if self.made.get(v) not in inside}
        large = [v for v in read if v.type.elements * 2 > group.full]
        return len(large) <= 1 and len(self.written(inside)) == 1

    def inductor(self, found: Sequence[_Attention]) -> tuple[KernelCost, ...]:
        """Groups as one kernel each, or as the epilogue of a product where that is faster."""
        parts: list[KernelCost] = []
        gone = frozenset(n for a in found for n in a.gone)
        for attention in found:
            parts += self._attention_cost(attention)
        done: set[_Group] = set()
        for group in self.order():
            nodes = [n for n in group.nodes if n not in gone]
            if group in done or not nodes:
                continue
            if not is_product(nodes[0]):
                continue
            node = nodes[0]
            alone = self._single(node)
            epilogue = self._epilogue(node, gone)
            if epilogue is not None and epilogue not in done:
                apart = [*alone, *self._fused(epilogue.nodes, gone)]
                extra = self._traffic(epilogue.nodes, gone, without=node.result)
                together = [self._product(node, extra)]
                if _total(together) <= _total(apart):
                    parts += together
                    done.add(epilogue)
                    continue
            parts += alone
        for group in self.order():
            nodes = [n for n in group.nodes if n not in gone]
            if group in done or not nodes or is_product(nodes[0]):
                continue
            parts += self._fused(nodes, gone) if _fusible(nodes[0]) else self._single(nodes[0])
        return tuple(parts)

    def _epilogue(self, node: Node, gone: frozenset[Node]) -> _Group | None:
        """The elementwise operators that are all that uses a product."""
        groups = {self.group[u] for u in self.uses.get(node.result, ())}
        if len(groups) != 1 or node.result in self.outputs:
            return None
        (group,) = groups
        elementwise = (
            group.reduced is None and all(map(_fusible, group.nodes)) and gone.isdisjoint(group.nodes)
        )
        return group if elementwise and group.full == node.result.type.elements else None

    def _single(self, node: Node) -> list[KernelCost]:
        if node in self.in_place:
            return [update_cost(node, self.target)]
        if is_product(node):
            return [self._product(node, None)]
        return [kernel_cost(node, self.target)]

    def _alone(self, node: Node) -> list[KernelCost]:
        return self._fused([node])

    def _product(self, node: Node, extra: Traffic | None) -> KernelCost:
        nest = nest_of(node)
        assert nest is not None
        many, rows, columns, depth = nest.product
        a, b = (self._source(v).type.bytes for v in node.operands)
        weights = node.operands[1]
        if (
            is_contraction(node) and many > 1 and math.prod(weights.shape[:-2]) == 1
        ):  # one matrix for all of the batch
            rows, many = rows * many, 1
        return product_cost(
            self.target,
            rows,
            columns,
            depth,
            batch=many,
            dtype=node.operands[0].dtype,
            operands=(a, b),
            extra=extra,
        )

    def _source(self, value: Value) -> Value:
        """What a product reads where it can read strided: PyTorch transposes, slices and expands by strides."""
        node = self.made.get(self.root(value))
        if node is not None and move_of(node) is Move.BROADCAST and value.type.elements:
            return self._source(node.operands[0])
        return value

    def _fused(self, nodes: Sequence[Node], gone: frozenset[Node] = frozenset()) -> list[KernelCost]:
        """Elementwise operators, moves and reductions as one kernel; two where blocks share long reductions."""
        if all(move_of(n) in (Move.TRANSPOSE, Move.SLICE) for n in nodes) and not self.outputs & {
            v for n in nodes for v in n.results
        }:
            return []  # strides of a view
        if not self.written(nodes, gone):
            return []
        traffic = self._traffic(nodes, gone)
        name = "+".join(dict.fromkeys(n.op for n in nodes))
        parts = [KernelCost(name, kernel_seconds(traffic, self.target), traffic)]
        depth = max(
            (n.operands[0].type.elements // max(n.result.type.elements, 1) for n in nodes if _reduces(n)),
            default=1,
        )
        if traffic.blocks < self.target.multiprocessors and depth > LONG:
            wide = replace(
                traffic, blocks=min(traffic.blocks * (depth // LONG), 4 * self.target.multiprocessors)
            )
            join = Traffic(blocks=traffic.blocks)
            split = [KernelCost(name, kernel_seconds(wide, self.target), wide)]
            split.append(KernelCost("join", kernel_seconds(join, self.target), join))
            parts = min(parts, split, key=_total)
        return parts

    def _traffic(
        self, nodes: Sequence[Node], gone: frozenset[Node] = frozenset(), without: Value | None = None
    ) -> Traffic:
        inside = set(nodes)
        read: dict[Value, int] = {}
        flops = special = 0
        full, blocks = 1, 0
        for node in nodes:
            for value in self.inputs(node):
                if self.made.get(value) in inside or value is without:
                    continue
                size = node.result.type.bytes if move_of(node) is Move.SLICE else value.type.bytes
                read[value] = min(read.get(value, 0) + size, value.type.bytes)
            entry, shapes = OPERATORS[node.op], [v.shape for v in node.operands]
            attrs = normalize_attrs(entry, node.attrs)
            if move_of(node) is None:
                flops, special = flops + entry.flops(shapes, attrs), special + entry.special(shapes, attrs)
            full = max(full, *(v.type.elements for v in (*node.operands, *node.results)))
            if _reduces(node):
                blocks = max(blocks, node.result.type.elements)
        size = sum(read.values()) + sum(v.type.bytes for v in self.written(nodes, gone))
        points = -(-full // POINTS)
        return Traffic(
            size,
            size,
            vector_flops=flops,
            special_operations=special,
            blocks=min(blocks, points) if blocks else points,
        )

    # --- attention

    def attention(self) -> list[_Attention]:
        """Two products with a softmax between them, and nothing else that uses the scores."""
        found: list[_Attention] = []
        taken: set[Node] = set()
        for node in self.nodes:
            if is_contraction(node) and (match := self._attention(node)) and taken.isdisjoint(match.gone):
                found.append(match)
                taken |= match.gone
        return found

    def _attention(self, scores: Node) -> _Attention | None:
        groups = {self.group[u] for u in self.uses.get(scores.result, ())}
        if len(groups) != 1 or scores.result in self.outputs:
            return None
        (group,) = groups
        large = scores.result.type.elements
        softmax = any("exp" in primitives(n) for n in group.nodes) and group.reduced is not None
        weights = [v for v in self.written(group.nodes) if v.type.elements == large]
        if not softmax or group.full != large or len(weights) != 1 or weights[0] in self.outputs:
            return None
        users = self.uses.get(weights[0], [])
        if len(users) != 1 or not is_contraction(users[0]):
            return None
        (user,) = users
        if self.root(user.operands[0]) is not weights[0]:
            return None
        gone = {scores, user, *group.nodes}
        for value in (*scores.operands, user.operands[1]):  # moves that only they read
            node = self.made.get(self.root(value))
            while node is not None and move_of(node) in (Move.BROADCAST, Move.TRANSPOSE):
                if self.root(node.result) in self.outputs or not gone.issuperset(self.uses[node.result]):
                    break
                gone.add(node)
                node = self.made.get(self.root(node.operands[0]))
        return _Attention(scores, group, user, frozenset(gone))

    def _attention_cost(self, match: _Attention) -> tuple[KernelCost, ...]:
        first, second = nest_of(match.scores), nest_of(match.weighted)
        assert first is not None
        assert second is not None
        *batch, rows, keys, width = first.extents
        heads = math.prod(batch)
        value, key = (n.operands[1] for n in (match.weighted, match.scores))
        source = self._moved_from(key)
        key_heads = max(heads * source.type.elements // max(key.type.elements, 1), 1)
        if key.type.elements < heads * keys * width:  # the product itself broadcasts
            key_heads = max(key_heads * key.type.elements // (heads * keys * width), 1)
        inside = set(match.group.nodes)
        extra = {
            v: v.type.bytes
            for n in inside
            for v in self.inputs(n)
            if self.made.get(v) not in inside and v is not match.scores.result
        }
        written = sum(v.type.bytes for v in self.written(inside) if v.type.elements < match.group.full)
        return attention_cost(
            self.target, heads, rows, keys, width, dtype=value.dtype, value_width=second.extents[-2],
            key_heads=key_heads, extra_bytes=sum(extra.values()) + written,
        )  # fmt: skip

    def _moved_from(self, value: Value) -> Value:
        node = self.made.get(self.root(value))
        while node is not None and move_of(node) in (Move.BROADCAST, Move.TRANSPOSE):
            value = self.root(node.operands[0])
            node = self.made.get(value)
        return self.root(value)


def _total(parts: Iterable[KernelCost]) -> float:
    return sum(p.seconds for p in parts)


def _reduces(node: Node) -> bool:
    return reduction_of(node) is not None


def is_product(node: Node) -> bool:
    """Whether a library does it as a sum of products: a matrix product or a convolution."""
    entry = OPERATORS.get(node.op)
    return entry is not None and entry.combiner == "add" and entry.arity == 2


def _fusible(node: Node) -> bool:
    """Whether compilers fuse it: it computes elements, moves or reduces them."""
    moved = move_of(node)
    plain = is_elementwise(node) or _reduces(node) or (moved is not None and moved is not Move.UPDATE)
    return plain and not is_constant(node)


def _space(node: Node) -> tuple[int, int | None]:
    """Points that a node iterates over, and those that it leaves where it reduces."""
    out = node.results[0].type.elements
    return (node.operands[0].type.elements, out) if _reduces(node) else (out, None)


def primitives(node: Node) -> list[str]:
    """The primitives that a node applies to each element; none where it only moves elements."""
    entry = OPERATORS[node.op]
    return entry.body(normalize_attrs(entry, node.attrs)).primitives() if entry.body else []
