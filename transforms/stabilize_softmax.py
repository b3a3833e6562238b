"""`--stabilize-softmax`: exponentials that are normalized get a maximum subtracted.

    e = exp(x)                            m = max x over the summed axes;  e = exp(x - m)
    p = e / sum e                 ->      p = e / sum e

exp(x) / sum exp(x) = exp(x - m) / sum exp(x - m) for any m that does not vary along the sum (Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018). The maximum makes every exponential at most 1, so
that no logit overflows; and the rules of tile saturation rescale by a running maximum in one pass.

The test is the degree argument of `mugraph_search/exponentials.py`, on the operator table: exp(x - m) is
exp(x) exp(-m), of degree 1 in exp(-m); products add degrees, quotients subtract them, sums need equal ones, and
other operators do not take a value with a degree. Where every result has degree 0, m does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from superopt.axes import reshape_groups
from superopt.operators import (
    OPERATORS,
    Move,
    Operator,
    Scalar,
    infer_type,
    is_conversion,
    move_of,
    normalize_attrs,
    primitive_of,
    reduction_of,
)
from superopt.program import Attr, KernelGraph, Node, Value, producers, users
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics


# The initial value of a maximum that is only subtracted: it keeps the maximum finite for a part of a row that
# minus infinity hides entirely. For f16, kernels scale it by log2(e) before they subtract
# (`emit/operators.py`), so that product must be finite, too. In the wider types masks use the least number
# itself, perhaps for a whole row, and the initial value must not exceed it.
LOWEST = {"f16": -1e30, "bf16": -3.4028234663852886e38, "f32": -3.4028234663852886e38}


@dataclass(frozen=True)
class StabilizeSoftmax(GraphPass):
    """Subtract a maximum from the arguments of exponentials that are divided by their sum.

    Tile saturation also starts from this form: kernels fused from it do not overflow on large logits.
    """

    flag: ClassVar[str] = "stabilize-softmax"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with maxima, or `graph` itself where no exponential needs one; remarks say which do."""
        for node in graph.nodes:
            if dims := _maximum_over(graph, node):
                diagnostics.remark(f"its maximum over dims {list(dims)} is subtracted first", node.location)
        return stabilized(graph)


def stabilized(graph: KernelGraph) -> KernelGraph:
    """`graph` with a maximum for each exponential that may have one and lacks it; `graph` itself without such."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if dims := _maximum_over(graph, node):
            (x,) = node.operands
            top = _appended(
                nodes, "reduce_max", (x,), {"dims": dims, "keepdims": True}, f"{x.name}_max", node
            )
            shifted = _appended(nodes, "sub", (x, top), {}, f"{x.name}_shifted", node)
            node = replace(node, operands=(shifted,))
        nodes.append(node)
    return replace(graph, nodes=nodes) if len(nodes) > len(graph.nodes) else graph


def _appended(
    nodes: list[Node], op: str, operands: tuple[Value, ...], attrs: dict[str, Attr], name: str, near: Node
) -> Value:
    values = normalize_attrs(OPERATORS[op], attrs)
    result = Value(infer_type(op, [v.type for v in operands], values), name if operands[0].name else "")
    nodes.append(Node(op, operands, (result,), values, near.location))
    return result


def _maximum_over(graph: KernelGraph, node: Node) -> tuple[int, ...]:
    """The dimensions over which an exponential may have a maximum subtracted; empty where it must or need not."""
    if primitive_of(node) != "exp" or _is_relative(graph, node.operands[0]):
        return ()
    degrees = _Degrees(node.result)
    for other in graph.nodes:
        if other is not node and not degrees.follow(other):
            return ()
    if degrees.constant_along - degrees.summed or any(degrees.of.get(v, 0) for v in graph.outputs):
        return ()
    return tuple(sorted(degrees.summed))


def _is_view(node: Node) -> bool:
    """Whether `node` keeps all its numbers in the same order."""
    return is_conversion(node) or move_of(node) in (Move.BROADCAST, Move.RESHAPE)


def _is_relative(graph: KernelGraph, x: Value) -> bool:
    """Whether `x` already is a difference from its own maximum."""
    made = producers(graph.nodes)

    def through_views(v: Value) -> Node | None:
        node = made.get(v)
        while node is not None and _is_view(node):
            node = made.get(node.operands[0])
        return node

    difference = through_views(x)
    if difference is None or primitive_of(difference) != "sub":
        return False
    top = through_views(difference.operands[1])
    return top is not None and reduction_of(top) == "max" and top.operands[0] is difference.operands[0]


def maxima_only_shift(graph: KernelGraph) -> bool:
    """Whether every maximum of `graph` is only subtracted from arguments of exponentials that are normalized.

    Then any number that does not vary where a maximum does not may replace it.
    """
    made, used_by = producers(graph.nodes), users(graph.nodes)

    def shifted(m: Value) -> list[Node] | None:
        """The exponentials of differences from `m`; None where `m` is used for something else."""
        found: list[Node] = []
        for node in used_by.get(m, []):
            if _is_view(node):
                below = shifted(node.result)
            elif primitive_of(node) == "sub" and node.operands[1] is m and node.operands[0] is not m:
                below = used_by.get(node.result, [])
            else:
                return None
            if below is None or node.result in graph.outputs or any(primitive_of(n) != "exp" for n in below):
                return None
            found += below
        return found

    for top in graph.nodes:
        if reduction_of(top) != "max":
            continue
        exponentials = None if top.result in graph.outputs else shifted(top.result)
        if exponentials is None or not all(_is_relative(graph, n.operands[0]) for n in exponentials):
            return False
        for exponential in exponentials:
            difference = made[exponential.operands[0]]
            dims = normalize_attrs(OPERATORS[top.op], top.attrs)["dims"]
            assert isinstance(dims, tuple)
            rank = len(top.operands[0].shape)
            held = (1,) * (rank - len(difference.operands[1].shape)) + difference.operands[1].shape
            if len(difference.result.shape) != rank or any(held[int(d)] != 1 for d in dims):
                return False
            degrees = _Degrees(exponential.result)
            if not all(degrees.follow(n) for n in graph.nodes if n is not exponential):
                return False
            varies = degrees.summed | degrees.constant_along
            if not varies <= {*dims} or any(degrees.of.get(v, 0) for v in graph.outputs):
                return False
    return True


Labels = tuple[int | None, ...]
"""For each dimension of a value, the dimension of the exponential that it runs along."""


@dataclass
class _Degrees:
    """The consequences of one exponential, node by node in the order of the graph."""

    start: Value
    of: dict[Value, int] = field(default_factory=dict[Value, int])
    """Degrees in exp(-m); no entry where it is 0."""
    labels: dict[Value, Labels] = field(default_factory=dict[Value, Labels])
    """The labels of values that have a degree."""
    summed: set[int] = field(default_factory=set[int])
    """Dimensions of the exponential along which values of a degree are summed: m is constant there."""
    constant_along: set[int] = field(default_factory=set[int])
    """Dimensions along which m must be constant for other reasons."""

    def __post_init__(self) -> None:
        self.of[self.start] = 1
        self.labels[self.start] = tuple(d if e > 1 else None for d, e in enumerate(self.start.shape))

    def follow(self, node: Node) -> bool:
        """Record the degree of the node's result; False where a value with a degree is not allowed."""
        if not any(v in self.of for v in node.operands):
            return True
        entry = OPERATORS.get(node.op)
        if entry is None or node.body is not None:
            return False
        attrs = normalize_attrs(entry, node.attrs)
        if entry.move is Move.RESHAPE:
            labels = self._reshaped(self.labels[node.operands[0]], node.operands[0].shape, node.result.shape)
            self._note(node.result, self.of[node.operands[0]], labels)
            return True
        if entry.nest is None or entry.windowed or entry.body is None or entry.combiner in ("max", "min"):
            return False
        degree = _degree(entry.body(attrs), [self.of.get(v, 0) for v in node.operands])
        if degree is None:
            return False
        self._note(node.result, degree, self._through(entry, node, attrs))
        return True

    def _note(self, value: Value, degree: int, labels: Labels) -> None:
        if degree:
            self.of[value] = degree
            self.labels[value] = labels

    def _through(self, entry: Operator, node: Node, attrs: Mapping[str, Attr]) -> Labels:
        """The result's labels by the operator's loop nest; records what the nest requires of m."""
        assert entry.nest is not None
        nest = entry.nest([v.shape for v in node.operands], attrs)
        # Operands with a degree must be relative to the same m at every point of the nest.
        seen: list[set[int | None]] = [set() for _ in nest.extents]
        for value, indices in zip(node.operands, nest.operands, strict=True):
            if value not in self.of:
                continue
            at: dict[int, int | None] = {}
            for label, index, extent in zip(self.labels[value], indices, value.shape, strict=True):
                if index.dim is None:
                    continue
                at[index.dim] = label
                whole = index.stride == 1 and index.offset == 0 and nest.extents[index.dim] == extent
                if label is not None and not whole:
                    self.constant_along.add(label)
            for dim, found in enumerate(seen):
                found.add(at.get(dim))
        for found in seen:
            if len(found) > 1:
                self.constant_along |= {label for label in found if label is not None}
        one = [min((label for label in found if label is not None), default=None) for found in seen]
        self.summed |= {label for d in nest.reductions if (label := one[d]) is not None}
        return tuple(None if d is None else one[d] for d in nest.result)

    def _reshaped(self, labels: Labels, old: Sequence[int], new: Sequence[int]) -> Labels:
        """Labels of the dimensions that a reshape keeps."""
        out: list[int | None] = [None] * len(new)
        for before, after in reshape_groups(old, new):
            if len(before) == len(after) == 1:
                out[after[0]] = labels[before[0]]
            else:
                self.constant_along |= {label for d in before if (label := labels[d]) is not None}
        return tuple(out)


def _degree(body: Scalar, operands: Sequence[int]) -> int | None:
    """The degree of a scalar expression over operands of these degrees; None where it is undefined."""
    if body.head == "arg":
        return operands[int(body.payload)]
    if body.head == "const":
        return 0
    below = [_degree(a, operands) for a in body.args]
    found = [d for d in below if d is not None]
    if len(found) < len(below):
        return None
    if body.head == "mul":
        return found[0] + found[1]
    if body.head == "div":
        return found[0] - found[1]
    if body.head in ("add", "sub", "neg"):
        return found[0] if len(set(found)) == 1 else None
    return None if any(found) else 0
