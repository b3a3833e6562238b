"""The relation of a program: each output as a polynomial in the inputs, from the nests of the operator table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from superopt.nests import Attrs, Shape
from superopt.operators import OPERATORS, Move, Operator, Scalar, elements_of, normalize_attrs
from superopt.program import Band, KernelGraph, Node, Ramp, Value, live_nodes
from superopt.quasi_affine import ALWAYS
from superopt.verify.relation.polynomials import Abstains, Polynomial, product, pulled, scaled, summed, total
from superopt.verify.relation.sizes import Access, Affine, Dim, Plan, Sizes, spelled_guard

if TYPE_CHECKING:
    import islpy as isl

# What a body may apply.
_POLYNOMIAL = frozenset({"arg", "const", "add", "sub", "mul", "neg", "div"})


def obstacle(graph: KernelGraph) -> str | None:
    """Why a program is not multilinear; None where it may be. Costs nothing."""
    for node in live_nodes(graph.nodes, graph.outputs, opaque=False):
        entry = OPERATORS.get(node.op)
        if entry is None:
            return f"'{node.op}' is not an operator of the table"
        joins = entry.combiner not in (None, "add")
        bodies = [entry.body(normalize_attrs(entry, node.attrs))] if entry.body else []
        if entry.finish:
            bodies.append(entry.finish(2))
        if joins or any(not _is_polynomial(body) for body in bodies):
            return f"'{node.op}' is not multilinear"
    return None


def _is_polynomial(body: Scalar) -> bool:
    return body.head in _POLYNOMIAL and all(map(_is_polynomial, body.args))


class Relations:
    """Reads programs on the same inputs in one isl context, which counts the work."""

    def __init__(self, context: isl.Context, sizes: Sizes) -> None:
        self.context, self.sizes = context, sizes
        self.ranks = [sum(map(len, dims)) for dims in sizes.inputs]

    def outputs(
        self, graphs: Sequence[KernelGraph], equations: Sequence[Affine] = ()
    ) -> tuple[list[list[Polynomial]], list[isl.Set]]:
        """The polynomials of the outputs of each program, and the empty set of the positions of each.

        `equations`, expressions that are 0, hold of the sizes besides their own. Raises Abstains.
        """
        for graph in graphs:
            if reason := obstacle(graph):
                raise Abstains(reason)
        planned = [self.planned(graph) for graph in graphs]
        each = zip(
            *([dims[v] for v in g.outputs] for g, (dims, _) in zip(graphs, planned, strict=True)), strict=True
        )
        alike = [self.alike(v.shape, dims) for v, dims in zip(graphs[0].outputs, each, strict=True)]
        for x in equations:
            self.sizes.equate(x, Affine(0))
        made = [self.run(graph, plans) for graph, (_, plans) in zip(graphs, planned, strict=True)]
        found = [
            [pulled(values[v], self.map(a[n])) for v, a in zip(graph.outputs, alike, strict=True)]
            for n, (graph, values) in enumerate(zip(graphs, made, strict=True))
        ]
        return found, [self.points(a[0].space, "false").domain() for a in alike]

    def planned(self, graph: KernelGraph) -> tuple[dict[Value, list[Dim]], dict[Node, Plan]]:
        """The dimensions of all values, and the plans of all nodes that outputs need."""
        dims, plans = dict(zip(graph.inputs, self.sizes.inputs, strict=True)), dict[Node, Plan]()
        nodes = live_nodes(graph.nodes, graph.outputs, opaque=False)
        if any(0 in v.shape for v in [*graph.inputs, *(n.result for n in nodes)]):
            raise Abstains("a tensor is empty")  # sizes are products of positive factors
        for node in nodes:
            plans[node], dims[node.result] = self.sizes.plan(node, [dims[v] for v in node.operands])
        return dims, plans

    def alike(self, shape: Shape, found: Sequence[list[Dim]]) -> list[Access]:
        """One space for an output of all programs, and where it is in that of each; positions where sizes are
        numbers."""
        numbers = [[Affine(e)] for e in shape]
        space = found[0] if self.sizes.symbolic else numbers
        accesses: list[Access] = []
        for dims in found:
            access, x, y = Access([f for d in space for f in d], [f for d in dims for f in d]), 0, 0
            for one, other in zip(space, dims, strict=True):
                self.sizes.same(access, one, x, other, y)
                x, y = x + len(one), y + len(other)
            accesses.append(access)
        return accesses

    def run(self, graph: KernelGraph, plans: Mapping[Node, Plan]) -> dict[Value, Polynomial]:
        """The polynomials of all values."""
        made = {v: self.input(n) for n, v in enumerate(graph.inputs)}
        for node, plan in plans.items():
            made[node.result] = self.node(node, plan, [made[v] for v in node.operands])
        return made

    def input(self, number: int) -> Polynomial:
        """Each element of an input."""
        factors = [f for d in self.sizes.inputs[number] for f in d]
        every = Access(factors, factors, [(f"d{n} - i{n}", Affine(0)) for n in range(len(factors))])
        return {(number,): {Fraction(1): self.map(every)}}

    def constant(self, value: float, where: isl.Map) -> Polynomial:
        """A number at the points of a map to nothing."""
        if not math.isfinite(value):
            raise Abstains(f"a constant is {value}")
        return {(): {Fraction(value): where}} if value and not where.is_empty() else {}

    def map(self, access: Access) -> isl.Map:
        """The index that is read at each point, where it is within the operand."""
        images = [f"i{n}" for n in range(len(access.operand))]
        inside = [f"0 <= {i} < {self.sizes.text(e)}" for i, e in zip(images, access.operand, strict=True)]
        equations = [f"{text} = {self.sizes.text(number)}" for text, number in access.equations]
        return self.points(access.space, *inside, *equations, f"({access.guard})", images=images)

    def points(self, space: Dim, *guards: str, images: Sequence[str] = ()) -> isl.Map:
        """The map from the points d0, d1, ... of a box, where the guards hold."""
        import islpy as isl

        names = [f"d{n}" for n in range(len(space))]
        inside = [f"0 <= {d} < {self.sizes.text(e)}" for d, e in zip(names, space, strict=True)]
        where = " and ".join([*inside, *guards])
        text = f"{{ [{', '.join(names)}] -> [{', '.join(images)}]{' : ' if where else ''}{where} }}"
        return isl.Map.read_from_str(self.context, self.sizes.prefix() + text)

    def node(self, node: Node, plan: Plan, operands: Sequence[Polynomial]) -> Polynomial:
        """The result of one operator: operands are read at each point, joined by the body, and summed."""
        entry = OPERATORS[node.op]
        attrs = normalize_attrs(entry, node.attrs)
        everywhere = self.points(plan.space)
        if entry.constant:
            return self.elements(entry, attrs, plan, node.result.shape)
        reads = [self.map(access) for access in plan.accesses]
        if entry.move is Move.UPDATE:
            reads[0] = reads[0].subtract_domain(reads[1].domain())
        arguments = [pulled(p, along) for p, along in zip(operands, reads, strict=True)]
        if entry.nest is None:
            return total(arguments)
        assert entry.body is not None
        nest = entry.nest([v.shape for v in node.operands], attrs)
        if nest.outside:
            for n, along in enumerate(reads):
                outside = everywhere.subtract(self.emptied(along))
                arguments[n] = total([arguments[n], self.constant(nest.outside, outside)])
        joined = self.body(entry.body(attrs), arguments, everywhere)
        if nest.where is not None and nest.where.guard != ALWAYS:
            held = self.points(plan.space, f"({spelled_guard(nest.where)})").domain()
            joined = {n: {c: m.intersect_domain(held) for c, m in p.items()} for n, p in joined.items()}
        # A sum over what nothing depends on is a multiple.
        names = [f"i{n}" for n in range(len(plan.space))]
        same = [f"d{n} = i{n}" for n in range(len(plan.space))]
        for n in plan.idle:
            first = self.points(plan.space, *same, f"d{n} = 0", images=names)
            joined = scaled(pulled(joined, first), Fraction(self.sizes.value(plan.space[n])))
        kept = [f"i{n}" for n in plan.result]
        result = self.points(plan.space, *(same[n] for n in plan.result), images=kept)
        numbers = {n: x.constant for n in plan.sums if not (x := self.sizes.resolved(plan.space[n])).terms}
        joined = summed(joined, result, numbers)
        if entry.finish is not None:
            box = self.points([plan.space[n] for n in plan.result])
            joined = self.body(entry.finish(nest.reduced), [joined], box)
        return joined

    def body(self, body: Scalar, arguments: Sequence[Polynomial], everywhere: isl.Map) -> Polynomial:
        """A scalar expression of the arguments at each point."""
        if body.head == "arg":
            return arguments[int(body.payload)]
        if body.head == "const":
            return self.constant(body.payload, everywhere)
        x, *rest = [self.body(a, arguments, everywhere) for a in body.args]
        if body.head == "neg":
            return scaled(x, Fraction(-1))
        (y,) = rest
        if body.head in ("add", "sub"):
            return total([x, y if body.head == "add" else scaled(y, Fraction(-1))])
        if body.head == "mul":
            return product(x, y, self.ranks)
        numbers = y.get((), {})
        if body.head != "div" or len(numbers) != 1 or any(m for i, m in y.items() if i):
            raise Abstains(f"'{body.head}' by what is not a number")
        ((number, where),) = numbers.items()
        if not everywhere.is_subset(where):
            raise Abstains("a quotient by what may be 0")
        return scaled(x, 1 / number)

    def elements(self, entry: Operator, attrs: Attrs, plan: Plan, shape: Shape) -> Polynomial:
        """The elements of a constant."""
        assert entry.elements is not None
        held = entry.elements(attrs)
        if isinstance(held, Band):
            column = f"d{len(plan.space) - 1}" if shape[-1] > 1 else "0"
            row = f"d{len(plan.space) - 1 - (shape[-1] > 1)}" if shape[-2] > 1 else "0"
            within = self.points(plan.space, f"{held.lower} <= {column} - {row} <= {held.upper}")
            without = self.points(plan.space).subtract(within)
            return total([self.constant(held.inside, within), self.constant(held.outside, without)])
        value = None if isinstance(held, Ramp) else elements_of(entry, attrs)
        if not isinstance(value, int | float):
            raise Abstains("a constant holds several numbers")
        return self.constant(value, self.points(plan.space))

    def emptied(self, m: isl.Map) -> isl.Map:
        """The points of a map, mapped to nothing."""
        import islpy as isl

        return m.project_out(isl.dim_type.out, 0, m.dim(isl.dim_type.out))
