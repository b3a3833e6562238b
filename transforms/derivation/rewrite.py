"""Writing an expression in place of a node, from operators of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.operators import Move, infer_type, move_of
from superopt.program import Attr, KernelGraph, Node, Value, live_nodes
from superopt.transforms.partition.segments import in_order


class Rewrite:
    """New nodes of `graph`, at the place of `node`; nothing changes until `instead`."""

    def __init__(self, graph: KernelGraph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.nodes: list[Node] = []

    def emit(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """The result of an operator."""
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.nodes.append(Node(op, operands, (result,), attrs, self.node.location))
        return result

    def reshape(self, x: Value, *shape: int) -> Value:
        """`x` in row-major order; `x` itself where it has that shape. Of a reshape, what that one is of."""
        if self.nodes and self.nodes[-1].result is x and move_of(self.nodes[-1]) is Move.RESHAPE:
            (x,) = self.nodes[-1].operands
        return x if x.shape == shape else self.emit("reshape", x, shape=shape)

    def cast(self, x: Value, dtype: str) -> Value:
        """`x` in another element type; `x` itself where it has that."""
        return x if x.dtype == dtype else self.emit("cast", x, dtype=dtype)

    def transpose(self, x: Value, *perm: int) -> Value:
        """numpy.transpose; `x` itself where the order stays."""
        return x if perm == tuple(range(len(perm))) else self.emit("transpose", x, perm=perm)

    def slice(self, x: Value, cuts: Mapping[int, tuple[int, int, int]]) -> Value:
        """Along some dimensions (offset, size, stride); `x` itself where all of it is taken."""
        whole = [cuts.get(d, (0, e, 1)) for d, e in enumerate(x.shape)]
        if all(cut == (0, e, 1) for cut, e in zip(whole, x.shape, strict=True)):
            return x
        offsets, sizes, strides = zip(*whole, strict=True)
        return self.emit("slice", x, offsets=offsets, sizes=sizes, strides=strides)

    def concat(self, dim: int, parts: Sequence[Value]) -> Value:
        """One after the other along `dim`."""
        return parts[0] if len(parts) == 1 else self.emit("concat", *parts, dim=dim)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        """Zeros before and after each dimension; `x` itself where there are none."""
        return self.emit("pad", x, low=tuple(low), high=tuple(high)) if any([*low, *high]) else x

    def flip(self, x: Value, dims: Sequence[int]) -> Value:
        """Elements along `dims` in reverse order."""
        for d in dims:
            x = self.concat(d, [self.slice(x, {d: (i, 1, 1)}) for i in reversed(range(x.shape[d]))])
        return x

    def instead(self, made: Mapping[Value, Value]) -> KernelGraph:
        """The graph where each value of `made` is computed as the other; a view where that is not a new one."""
        nodes, names = list(self.nodes), dict[Value, Value]()
        produced = {v for n in nodes for v in n.results}
        for old, new in made.items():
            if new in produced and new not in names:
                names[new] = old
            else:
                nodes.append(Node("reshape", (names.get(new, new),), (old,), {"shape": old.shape}))
        nodes = [
            replace(
                n,
                operands=tuple(names.get(v, v) for v in n.operands),
                results=tuple(names.get(v, v) for v in n.results),
            )
            for n in nodes
        ]
        kept = [n for n in self.graph.nodes if made.keys().isdisjoint(n.results)]
        return replace(self.graph, nodes=live_nodes(in_order([*kept, *nodes]), self.graph.outputs))


def can_be_one(graph: KernelGraph, alike: Sequence[Node], node: Node) -> bool:
    """Whether several nodes, of which `node` is the first, can be one: none reads what another makes."""
    behind = {v for n in alike for v in n.results}
    for n in graph.nodes:
        if any(v in behind for v in n.operands):
            behind.update(n.results)
    return len(alike) > 1 and alike[0] is node and not any(v in behind for n in alike for v in n.operands)
