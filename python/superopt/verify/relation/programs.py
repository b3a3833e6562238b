"""The relation of a program: each output as a polynomial in the inputs, from the nests of the operator table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from superopt.nests import Attrs, Index, Nest, Shape, int_attr
from superopt.operators import OPERATORS, Move, Operator, Scalar, elements_of, normalize_attrs
from superopt.program import Band, KernelGraph, Node, Value, live_nodes
from superopt.verify.relation.polynomials import Abstains, Polynomial, product, pulled, scaled, summed, total

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
    """Reads programs in one isl context, which counts the work."""

    def __init__(self, context: isl.Context, inputs: Sequence[Value]) -> None:
        self.context, self.ranks = context, [len(v.shape) for v in inputs]

    def outputs(self, graph: KernelGraph) -> list[Polynomial]:
        """The polynomial of each output; raises Abstains."""
        if reason := obstacle(graph):
            raise Abstains(reason)
        made = {v: self.input(number, v.shape) for number, v in enumerate(graph.inputs)}
        for node in live_nodes(graph.nodes, graph.outputs, opaque=False):
            made[node.result] = self.node(node, [made[v] for v in node.operands])
        return [made[v] for v in graph.outputs]

    def input(self, number: int, shape: Shape) -> Polynomial:
        """Each element of an input."""
        return {(number,): {Fraction(1): self.map(shape, [f"d{d}" for d in range(len(shape))])}}

    def constant(self, value: float, where: isl.Map) -> Polynomial:
        """A number at the points of a map to nothing."""
        if not math.isfinite(value):
            raise Abstains(f"a constant is {value}")
        return {(): {Fraction(value): where}} if value and not where.is_empty() else {}

    def map(self, space: Shape, images: Sequence[str], *guards: str) -> isl.Map:
        """The map from the points d0, d1, ... of a box, where the guards hold."""
        import islpy as isl

        names = [f"d{d}" for d in range(len(space))]
        inside = [f"0 <= {d} < {e}" for d, e in zip(names, space, strict=True)]
        where = " and ".join([*inside, *guards])
        text = f"{{ [{', '.join(names)}] -> [{', '.join(images)}]{' : ' if where else ''}{where} }}"
        return isl.Map.read_from_str(self.context, text)

    def node(self, node: Node, operands: Sequence[Polynomial]) -> Polynomial:
        """The result of one operator."""
        entry = OPERATORS[node.op]
        attrs = normalize_attrs(entry, node.attrs)
        shapes = [v.shape for v in node.operands]
        if entry.nest is not None:
            return self.nest(entry, entry.nest(shapes, attrs), attrs, operands, shapes)
        if entry.constant:
            return self.elements(entry, attrs, node.result.shape)
        return self.moved(entry, attrs, operands, shapes, node.result.shape)

    # --- operators with a nest

    def nest(
        self,
        entry: Operator,
        nest: Nest,
        attrs: Attrs,
        operands: Sequence[Polynomial],
        shapes: Sequence[Shape],
    ) -> Polynomial:
        """Operands are read at each point of the iteration space, joined by the body, and summed."""
        assert entry.body is not None
        everywhere = self.map(nest.extents, [])
        arguments: list[Polynomial] = []
        for p, maps, shape in zip(operands, nest.operands, shapes, strict=True):
            along = self.reads(nest.extents, maps, shape)
            arguments.append(pulled(p, along))
            if nest.outside:
                outside = everywhere.subtract(self.emptied(along))
                arguments[-1] = total([arguments[-1], self.constant(nest.outside, outside)])
        joined = self.body(entry.body(attrs), arguments, everywhere)
        # A sum over what nothing depends on is a multiple.
        used = {d for maps in nest.operands for i in maps for d in i.dims}
        idle = [d for d in nest.reductions if d not in used]
        for d in idle:
            first = self.map(nest.extents, [f"d{k}" for k in range(len(nest.extents))], f"d{d} = 0")
            joined = scaled(pulled(joined, first), Fraction(nest.extents[d]))
        result = self.map(nest.extents, ["0" if d is None else f"d{d}" for d in nest.result])
        joined = summed(joined, result, {d: nest.extents[d] for d in nest.reductions if d not in idle})
        if entry.finish is not None:
            joined = self.body(entry.finish(nest.reduced), [joined], self.map(nest.result_shape, []))
        return joined

    def reads(self, space: Shape, maps: Sequence[Index], shape: Shape) -> isl.Map:
        """The index that is read at each point, where it is within an operand of `shape`."""
        names = [f"i{k}" for k in range(len(maps))]
        index = [f"0 <= {i} < {e}" for i, e in zip(names, shape, strict=True)]
        for i, at in zip(names, maps, strict=True):
            place = [str(at.offset)] + ([f"{at.stride}*d{at.dim}"] if at.dim is not None else [])
            place += [f"{a.scale}*floor(d{a.dim}/{a.divisor})" for a in at.atoms]
            index.append(f"{at.divisor}*{i} = {' + '.join(place)}")
        return self.map(space, names, *index)

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

    # --- operators without one

    def elements(self, entry: Operator, attrs: Attrs, shape: Shape) -> Polynomial:
        """The elements of a constant."""
        assert entry.elements is not None
        held = entry.elements(attrs)
        if isinstance(held, Band):
            row, column = f"d{len(shape) - 2}", f"d{len(shape) - 1}"
            within = self.map(shape, [], f"{held.lower} <= {column} - {row} <= {held.upper}")
            without = self.map(shape, []).subtract(within)
            return total([self.constant(held.inside, within), self.constant(held.outside, without)])
        value = elements_of(entry, attrs)
        if not isinstance(value, int | float):
            raise Abstains("a constant holds several numbers")
        return self.constant(value, self.map(shape, []))

    def moved(
        self,
        entry: Operator,
        attrs: Attrs,
        operands: Sequence[Polynomial],
        shapes: Sequence[Shape],
        target: Shape,
    ) -> Polynomial:
        """Elements in other places."""
        if entry.move is Move.RESHAPE:
            return pulled(operands[0], self.reshape(target, shapes[0]))
        along = int_attr(attrs, "dim")
        names = [f"d{d}" for d in range(len(target))]

        def shifted(part: int, offset: int) -> isl.Map:
            moved = [f"d{d} - {offset}" if d == along else d_ for d, d_ in enumerate(names)]
            extent = shapes[part][along]
            return self.map(target, moved, f"{offset} <= d{along} < {offset + extent}")

        if entry.move is Move.REPEAT:
            names[along] = f"d{along} mod {shapes[0][along]}"
            return pulled(operands[0], self.map(target, names))
        if entry.move is Move.CONCAT:
            starts = [sum(s[along] for s in shapes[:n]) for n in range(len(shapes))]
            return total(
                [pulled(p, shifted(n, s)) for n, (p, s) in enumerate(zip(operands, starts, strict=True))]
            )
        if entry.move is Move.UPDATE:
            window = shifted(1, int_attr(attrs, "offset"))
            kept = self.map(target, names).subtract_domain(window.domain())
            return total([pulled(operands[0], kept), pulled(operands[1], window)])
        raise Abstains(f"'{entry.name}' is not known here")

    def reshape(self, target: Shape, source: Shape) -> isl.Map:
        """Positions of one row-major place; dimensions are grouped as finely as their products allow."""
        left, right = list(range(len(target))), list(range(len(source)))
        equations: list[str] = [f"0 <= i{k} < {e}" for k, e in enumerate(source)]
        while left or right:
            xs, ys = [left.pop(0)] if left else [], [right.pop(0)] if right else []
            while (a := math.prod(target[d] for d in xs)) != (b := math.prod(source[k] for k in ys)):
                (xs if a < b else ys).append((left if a < b else right).pop(0))
            equations.append(f"{_flat('d', xs, target)} = {_flat('i', ys, source)}")
        return self.map(target, [f"i{k}" for k in range(len(source))], *equations)

    def emptied(self, m: isl.Map) -> isl.Map:
        """The points of a map, mapped to nothing."""
        import islpy as isl

        return m.project_out(isl.dim_type.out, 0, m.dim(isl.dim_type.out))


def _flat(name: str, dims: Sequence[int], shape: Shape) -> str:
    """The row-major place of an index."""
    strides = [math.prod(shape[d] for d in dims[n + 1 :]) for n in range(len(dims))]
    return " + ".join(f"{s}*{name}{d}" for s, d in zip(strides, dims, strict=True)) or "0"
