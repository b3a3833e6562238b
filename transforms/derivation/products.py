"""Matrix products that are alike as one, and sums of windows as convolutions by ones."""

from __future__ import annotations

from superopt.operators import OPERATORS, is_contraction, is_windowed, normalize_attrs
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.derivation.rewrite import Rewrite, can_be_one

# Merged are products whose weights together have at most this many columns, or output channels.
MOST_COLUMNS = 4096


def one_matmul(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """a @ b1, a @ b2 -> slices of a @ concat(b1, b2); b1 @ a, b2 @ a likewise, by their rows."""
    if not is_contraction(node):
        return None
    attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
    for other, name in ((1, "transpose_b"), (0, "transpose_a")):
        along = -1 if (other == 1) is not attrs[name] else -2
        first = node.operands[other]
        at = len(first.shape) + along

        def rest(n: Node, at: int = at, other: int = other) -> tuple[int, ...]:
            shape = n.operands[other].shape
            return (*shape[:at], *shape[at + 1 :])

        alike = [
            n
            for n in graph.nodes
            if (n.op, n.attrs) == (node.op, node.attrs)
            and n.operands[1 - other] is node.operands[1 - other]
            and rest(n) == rest(node)
        ]
        extents = [n.operands[other].shape[at] for n in alike]
        if not can_be_one(graph, alike, node) or sum(extents) > MOST_COLUMNS:
            continue
        write = Rewrite(graph, node)
        joined = write.concat(at, [n.operands[other] for n in alike])
        operands = (node.operands[0], joined) if other == 1 else (joined, node.operands[1])
        made = write.emit(node.op, *operands, **node.attrs)
        dim, starts = (
            len(made.shape) - (1 if other == 1 else 2),
            [sum(extents[:i]) for i in range(len(extents))],
        )
        parts = zip(alike, starts, extents, strict=True)
        return write.instead({n.result: write.slice(made, {dim: (s, e, 1)}) for n, s, e in parts})
    return None


def batched_matmul(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """a1 @ b1, a2 @ b2 -> slices of a product with one more dimension of batch (PET, section 8.3.4)."""
    if not is_contraction(node) or len(node.operands[0].shape) != len(node.operands[1].shape):
        return None
    alike = [
        n
        for n in graph.nodes
        if (n.op, n.attrs) == (node.op, node.attrs)
        and [v.shape for v in n.operands] == [v.shape for v in node.operands]
    ]
    if not can_be_one(graph, alike, node):
        return None
    write, operands = Rewrite(graph, node), list[Value]()
    for number in range(2):
        values = list(dict.fromkeys(n.operands[number] for n in alike))
        values = values if len(values) == 1 else [n.operands[number] for n in alike]
        operands.append(write.concat(0, [write.reshape(v, 1, *v.shape) for v in values]))
    made = write.emit(node.op, *operands, **node.attrs)
    if made.shape[0] != len(alike):
        return None  # the same product several times
    parts = [write.slice(made, {0: (i, 1, 1)}) for i in range(len(alike))]
    return write.instead(
        {n.result: write.reshape(p, *n.result.shape) for n, p in zip(alike, parts, strict=True)}
    )


def pool_as_conv(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """pool_sum(x) -> conv(x, ones), of which each channel is a group."""
    attrs = dict(node.attrs)
    if not is_windowed(node) or OPERATORS[node.op].combiner != "add" or "sizes" not in attrs:
        return None
    (x,), write, sizes = node.operands, Rewrite(graph, node), attrs.pop("sizes")
    assert isinstance(sizes, tuple)
    ones = write.emit("constant", value=1.0, shape=(x.shape[1], 1, *sizes), dtype=x.dtype)
    return write.instead({node.result: write.emit("conv", x, ones, **attrs, groups=x.shape[1])})
