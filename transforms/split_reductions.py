"""`--split-reductions`: reductions of much to few numbers, one behind the other.

    m = mean(x, dims = (0, 1))        ->       r = mean(x, dims = (1,))
                                               m = mean(r, dims = (0,))

A reduction over several dimensions is one over the last of them, then one over the first: sums of sums, means of
means of equally many, maxima of maxima. The blocks of a kernel are its results: a loss has one, and one block
would read all of `x`. Of two reductions the first has a block for each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from superopt.operators import OPERATORS, infer_type, normalize_attrs, reduction_of
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

FEW = 64
"""Results that are too few blocks for a GPU."""
MUCH = 1 << 16
"""Numbers that take one block longer to read than a second kernel takes to launch."""


@dataclass(frozen=True)
class SplitReductions(GraphPass):
    """Reduce what has few results along its last dimensions first, then along the first ones.

    The searches start from this form.
    """

    flag: ClassVar[str] = "split-reductions"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with reductions one behind the other; `graph` itself where none has few results."""
        return split(graph)


def split(graph: KernelGraph) -> KernelGraph:
    """`graph` with every reduction over several dimensions that gives few numbers as two; itself without such."""
    outer = {n: dims for n in graph.nodes if (dims := _outer(n))}
    if not outer:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _in_two(node, outer[node]) if node in outer else [node]
    return replace(graph, nodes=nodes)


def _reduced(node: Node) -> list[int]:
    """The dimensions that a reduction joins, without those of one element."""
    shape, dims = node.operands[0].shape, normalize_attrs(OPERATORS[node.op], node.attrs)["dims"]
    assert isinstance(dims, tuple)
    return sorted(d for d in (int(d) % len(shape) for d in dims) if shape[d] > 1)


def _outer(node: Node) -> list[int]:
    """The first dimensions of a reduction, which are to be joined last: as few as make enough blocks before."""
    if node.body is not None or reduction_of(node) is None:
        return []
    (source,), results = node.operands, node.result.type.elements
    dims = _reduced(node)
    if len(dims) < 2 or results >= FEW or source.type.elements < MUCH:
        return []
    shape = source.shape
    enough = (k for k in range(1, len(dims)) if results * math.prod(shape[d] for d in dims[:k]) >= FEW)
    return dims[: next(enough, len(dims) - 1)]


def _in_two(node: Node, outer: list[int]) -> list[Node]:
    """A reduction along all but `outer`, then along these."""
    attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
    inner = {**attrs, "dims": tuple(d for d in _reduced(node) if d not in outer), "keepdims": True}
    rows = Value(infer_type(node.op, [node.operands[0].type], inner), node.result.name)
    return [
        Node(node.op, node.operands, (rows,), inner, node.location),
        Node(node.op, (rows,), node.results, dict(node.attrs), node.location),
    ]
