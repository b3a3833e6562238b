"""Single elements of a program's outputs, on demand, from the program's canonical text."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np

from superopt import operators
from superopt.errors import BadInput
from superopt.operators import OPERATORS, Scalar, arg
from superopt.quasi_affine import Linear, Read, parse
from superopt.verify.checker.algebra import Algebra, Element

Index: TypeAlias = tuple[int, ...]
Get: TypeAlias = Callable[[Index], Element]
_PRODUCT = arg(0) * arg(1)
# An element of a block's tile beyond the end of the tensor: what is computed from it does not exist either, and
# sums and maxima leave it out.
MISSING = Element({})


@dataclass(frozen=True)
class Lazy:
    """A tensor whose elements are computed when asked for, once."""

    shape: Index
    get: Get


def memo(shape: Sequence[int], compute: Get) -> Lazy:
    """A tensor whose elements `compute` gives."""
    done: dict[Index, Element] = {}

    def get(index: Index) -> Element:
        if index not in done:
            done[index] = compute(index)
        return done[index]

    return Lazy(tuple(shape), get)


def _attr(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(int(v) for v in cast("list[Any]", data))
    if isinstance(data, dict):
        if "float" in data:
            return float.fromhex(str(data["float"]))  # type: ignore[reportUnknownArgumentType]
        parts = cast("dict[str, Any]", data)
        return np.frombuffer(base64.b64decode(parts["data"]), np.dtype(parts["dtype"])).reshape(
            parts["shape"]
        )
    return data


class Evaluator:
    """Elements of a program's outputs, on demand."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra

    def program(self, text: str) -> list[Lazy]:
        """The outputs of a canonical text, for the algebra's random inputs."""
        data = json.loads(text)
        values = self.nodes(data["nodes"], self.inputs(data["inputs"]))
        return [values[i] for i in data["outputs"]]

    def inputs(self, types: Sequence[Any]) -> list[Lazy]:
        """The algebra's random inputs."""
        made = [self.unknown(t[1:], "input", i) for i, t in enumerate(types)]
        return [self.truths(x) if t[0] == "i1" else x for x, t in zip(made, types, strict=True)]

    def truths(self, x: Lazy) -> Lazy:
        """A tensor of zeros and ones."""
        return memo(x.shape, lambda index: self.algebra.truth(x.get(index)))

    def unknown(self, shape: Sequence[int], *name: object) -> Lazy:
        """A tensor of independent random numbers."""
        return memo(shape, lambda index: self.algebra.variable(*name, index))

    def nodes(
        self, nodes: Sequence[Any], inputs: Sequence[Lazy], given: Mapping[int, Lazy] | None = None
    ) -> list[Lazy]:
        """Every value of a kernel or thread graph; those in `given`, by number, are kept as they are."""
        values: list[Lazy] = list(inputs)
        xs: list[Lazy]
        for op, operands, types, attrs, body in nodes:
            if given:
                values = [given.get(i, v) for i, v in enumerate(values)]
            xs = [values[i] for i in operands]
            if body is not None and "block" in body:
                values += _Block(self, body, xs).results([t[1:] for t in types])
            elif body is not None and "thread" in body:
                inner = self.nodes(body["thread"]["nodes"], xs)
                values += [inner[i] for i in body["thread"]["outputs"]]
            elif body is not None:
                values += _Tile(self, body["tile"], xs).results()
            elif op == "extern":
                values += self.extern(attrs, xs, types)
            else:
                values.append(self.operator(op, attrs, xs, types[0][1:]))
        return [given.get(i, v) for i, v in enumerate(values)] if given else values

    def extern(self, attrs: Any, xs: Sequence[Lazy], types: Sequence[Any]) -> list[Lazy]:
        """An opaque operation: a random function of all of its operands."""
        name = json.dumps(attrs, sort_keys=True)
        key: list[tuple[int | None, ...]] = []
        lost: list[Element] = []

        def element(n: int, index: Index) -> Element:
            if not key:
                for x in xs:
                    for i in itertools.product(*map(range, x.shape)):
                        e = x.get(i)
                        key.append((self.algebra.value(e), e.second, e.infinite))
                        lost.extend([e] * e.undefined)
            if lost:
                return lost[0]
            self.algebra.assumed.add("extern")
            return replace(self.algebra.variable(name, n, index, key), plain=False)

        return [memo(t[1:], lambda index, n=n: element(n, index)) for n, t in enumerate(types)]

    def operator(
        self, op: str, attributes: Mapping[str, Any], xs: Sequence[Lazy], shape: Sequence[int]
    ) -> Lazy:
        """A table operator: its nest and its scalar body, one element at a time."""
        entry, algebra = OPERATORS[op], self.algebra
        attrs: dict[str, Any] = {s.name: s.default for s in entry.attrs}
        attrs |= {k: _attr(v) for k, v in attributes.items()}
        if op == "constant":
            value = attrs["value"]
            return memo(
                shape,
                lambda index: algebra.constant(
                    float(value[index] if isinstance(value, np.ndarray) else value)
                ),
            )
        if op == "band":
            low, high, inside, outside = (attrs[k] for k in ("lower", "upper", "inside", "outside"))
            return memo(
                shape,
                lambda index: algebra.constant(inside if low <= index[-1] - index[-2] <= high else outside),
            )
        if op == "ramp":
            along, start, step = (int(attrs[k]) for k in ("along", "start", "step"))
            return memo(shape, lambda index: algebra.constant(float(start + step * index[along])))
        if (arrange := entry.arrange) is not None:
            starts = list(itertools.accumulate((math.prod(x.shape) for x in xs), initial=0))

            @functools.cache  # lazily: what a program moves may be large
            def places() -> Any:
                kind = np.int32 if starts[-1] < 1 << 31 else np.int64
                numbers = [
                    np.arange(s, s + math.prod(x.shape), dtype=kind).reshape(x.shape)
                    for s, x in zip(starts, xs, strict=False)
                ]
                return arrange(numbers, attrs)

            def moved(index: Index) -> Element:
                flat = int(places()[index])
                n = next(i for i in range(len(xs)) if flat < starts[i + 1])
                return xs[n].get(unflatten(flat - starts[n], xs[n].shape))

            return memo(shape, moved)
        assert entry.nest is not None
        assert entry.body is not None
        nest, body = entry.nest([x.shape for x in xs], attrs), entry.body(attrs)
        finish = entry.finish(nest.reduced) if entry.finish is not None and nest.reductions else None

        def at(point: Sequence[int]) -> list[Element]:
            if nest.reads:
                return [by_text(x, r, point) for x, r in zip(xs, nest.reads, strict=True)]
            return [read(x, maps, point) for x, maps in zip(xs, nest.operands, strict=True)]

        def read(x: Lazy, maps: Sequence[operators.Index], point: Sequence[int]) -> Element:
            place: list[int] = []
            for i, extent in zip(maps, x.shape, strict=True):
                numerator = i.offset + (0 if i.dim is None else i.stride * point[i.dim])
                numerator += sum(a.scale * math.floor(Fraction(point[a.dim], a.divisor)) for a in i.atoms)
                quotient, rest = divmod(numerator, i.divisor)
                if rest or not 0 <= quotient < extent:
                    if nest.outside is None:
                        raise BadInput(f"expected '{op}' to read within its operands, got index {numerator}")
                    return algebra.constant(nest.outside)
                place.append(quotient)
            return x.get(tuple(place))

        def by_text(x: Lazy, r: Read, point: Sequence[int]) -> Element:
            place = _place(r, point)
            if place is None or not all(0 <= n < e for n, e in zip(place, x.shape, strict=True)):
                return algebra.constant(0.0)
            return x.get(place)

        def compute(index: Index) -> Element:
            point = [0] * len(nest.extents)
            for d, i in zip(nest.result, index, strict=True):
                if d is not None:
                    point[d] = i
            if nest.where is not None and _place(nest.where, point) is None:
                return algebra.constant(0.0)
            if not nest.reductions:
                elements = at(point)
                return self.scalar(body, elements) if _exist(elements) else MISSING
            visited: list[list[Element]] = []
            for inner in itertools.product(*(range(nest.extents[d]) for d in nest.reductions)):
                for d, i in zip(nest.reductions, inner, strict=True):
                    point[d] = i
                elements = at(point)
                if _exist(elements):
                    visited.append(elements)
            if not visited:  # tiles start inside their tensor: some element of what is reduced exists
                return MISSING
            if len(visited) < nest.reduced and finish is not None:
                raise BadInput(f"expected '{op}' of elements that all exist, got some that do not")
            if entry.combiner == "add" and body == _PRODUCT:
                result = algebra.dot((a, b) for a, b in visited)
            elif entry.combiner == "add":
                one = algebra.constant(1.0)
                result = algebra.dot((self.scalar(body, v), one) for v in visited)
            else:
                result = algebra.join(str(entry.combiner), [self.scalar(body, v) for v in visited])
            return result if finish is None else self.scalar(finish, [result])

        return memo(nest.result_shape, compute)

    def scalar(self, body: Scalar, xs: Sequence[Element]) -> Element:
        """A scalar expression."""
        if body.head == "arg":
            return xs[int(body.payload)]
        if body.head == "const":
            return self.algebra.constant(float(body.payload))
        return self.algebra.apply(body.head, *(self.scalar(a, xs) for a in body.args))


def _place(r: Read, point: Sequence[int]) -> Index | None:
    """The indices that are read at a point; None where the guard fails."""
    numbers = list(point[: r.rank])

    def value(x: Linear) -> int:
        return x.constant + sum(c * numbers[d] for d, c in x.terms)

    for floor in r.floors:
        numbers.append(math.floor(Fraction(value(floor.of), floor.divisor)))
    for every in r.guard:
        values = [(value(c.of), c.equal) for c in every]
        if all(n == 0 if equal else n >= 0 for n, equal in values):
            return tuple(map(value, r.index))
    return None


def _exist(elements: Sequence[Element]) -> bool:
    return all(e is not MISSING for e in elements)


def unflatten(flat: int, shape: Sequence[int]) -> Index:
    """The index of element number `flat` of a tensor."""
    index: list[int] = []
    for extent in reversed(shape):
        flat, i = divmod(flat, extent)
        index.append(i)
    return tuple(reversed(index))


class _Block:
    """A block graph: an element belongs to one block of the grid and to one trip of each loop it varies over."""

    def __init__(self, evaluator: Evaluator, data: Any, operands: Sequence[Lazy]) -> None:
        self.evaluator, self.algebra = evaluator, evaluator.algebra
        self.grid, self.loops = data["grid"], data["loops"]
        self.graph, self.operands = data["block"], operands
        self.made: dict[tuple[int, Index, Index], Lazy] = {}
        self.producer: dict[int, Any] = {}
        number = len(self.graph["inputs"])
        for node in self.graph["nodes"]:
            for position in range(len(node[2])):
                self.producer[number] = (node, position)
                number += 1

    def results(self, shapes: Sequence[Sequence[int]]) -> list[Lazy]:
        """What the output savers write, in these shapes."""
        savers = [node for node in self.graph["nodes"] if node[0] == "save"]
        return [self.saved(node, shape) for node, shape in zip(savers, shapes, strict=True)]

    def saved(self, node: Any, shape: Sequence[int]) -> Lazy:
        omap, source = node[3]["omap"], node[1][0]
        tile = self.producer[source][0][2][self.producer[source][1]][1:]

        def compute(index: Index) -> Element:
            rest = list(index)
            block: list[int] = []
            for d in map(int, omap):
                block.append(0 if d < 0 else index[d] // int(tile[d]))
                if d >= 0:
                    rest[d] = index[d] % tile[d]
            found = self.value(source, tuple(block), (-1,) * len(self.loops)).get(tuple(rest))
            if found is MISSING:
                raise BadInput(f"expected element {index} of a result to be computed, got one that is not")
            return found

        return memo(shape, compute)

    def value(self, number: int, block: Index, trips: Index) -> Lazy:
        """A tile of one block, in one trip of each loop (-1: outside of it)."""
        key = (number, block, trips)
        if key not in self.made:
            node, position = self.producer[number]
            self.made[key] = self.compute(node, position, block, trips)
        return self.made[key]

    def compute(self, node: Any, position: int, block: Index, trips: Index) -> Lazy:
        op, operands, types, attrs, body = cast("tuple[str, list[int], list[Any], dict[str, Any], Any]", node)
        shape: list[int] = types[position][1:]
        if op == "iterator":
            return self.tile(attrs, operands[0], shape, block, trips)
        if op == "running_max":
            loop = int(attrs["loop"])
            past = [self.value(operands[0], block, _with(trips, loop, t)) for t in range(trips[loop] + 1)]
            return memo(shape, lambda index: self.joined("max", [x.get(index) for x in past]))
        if op == "accumulate":
            return self.accumulated(attrs, operands, shape, block, trips)
        xs = [self.value(i, block, trips) for i in operands]
        if body is not None:
            inner = self.evaluator.nodes(body["thread"]["nodes"], xs)
            return inner[int(body["thread"]["outputs"][position])]
        return self.evaluator.operator(op, attrs, xs, shape)

    def tile(self, attrs: Any, source: int, shape: Sequence[int], block: Index, trips: Index) -> Lazy:
        whole = self.operands[source]

        def compute(index: Index) -> Element:
            at = list(index)
            for d, extent in enumerate(shape):
                for n, mapped in enumerate(attrs["fmap"]):
                    if mapped == d:
                        at[d] += extent * trips[n]
                        extent *= self.loops[n]
                for n, mapped in enumerate(attrs["imap"]):
                    if mapped == d:
                        at[d] += extent * block[n]
            inside = all(i < e for i, e in zip(at, whole.shape, strict=True))
            return whole.get(tuple(at)) if inside else MISSING

        return memo(shape, compute)

    def joined(self, kind: str, items: Sequence[Element]) -> Element:
        """The sum or the maximum of what exists."""
        there = [x for x in items if x is not MISSING]
        if not there:
            return MISSING
        if kind == "max":
            return self.algebra.join("max", there)
        one = self.algebra.constant(1.0)
        return self.algebra.dot((x, one) for x in there)

    def accumulated(
        self, attrs: Any, operands: Sequence[int], shape: Sequence[int], block: Index, trips: Index
    ) -> Lazy:
        kind, loop, algebra = str(attrs["kind"]), int(attrs["loop"]), self.algebra
        count = self.loops[loop]

        def trip(operand: int, t: int) -> Lazy:
            return self.value(operands[operand], block, _with(trips, loop, t))

        def compute(index: Index) -> Element:
            if kind == "concat":
                dim = int(attrs["dim"])
                t, i = divmod(index[dim], shape[dim] // count)
                return trip(0, t).get((*index[:dim], i, *index[dim + 1 :]))
            items = [trip(0, t).get(index) for t in range(count)]
            if kind in ("max", "sum") or items[0] is MISSING:
                return self.joined(kind, items)
            total, old = items[0], self.scale(trip(1, 0), index)
            for t in range(1, count):
                new = self.scale(trip(1, t), index)
                total, old = algebra.mul(total, algebra.exp(algebra.add(old, new, -1))), new
                if items[t] is not MISSING:
                    total = algebra.add(total, items[t])
            return total

        return memo(shape, compute)

    def scale(self, x: Lazy, index: Index) -> Element:
        return x.get(tuple(0 if e == 1 else i for i, e in zip(index, x.shape, strict=True)))


def _with(trips: Index, loop: int, trip: int) -> Index:
    return (*trips[:loop], trip, *trips[loop + 1 :])


@dataclass(frozen=True)
class _Store:
    """A store into a buffer, and its previous contents. Windows are (first, stride, size)."""

    windows: list[tuple[int, int, int]]
    tile: Lazy
    before: _Store | None


_Stored: TypeAlias = _Store | None


class _Tile:
    """A tile program: runs the block that writes an element, computing its tiles on demand."""

    def __init__(self, evaluator: Evaluator, data: Any, operands: Sequence[Lazy]) -> None:
        self.evaluator, self.data, self.operands = evaluator, data, operands
        self.runs: dict[Index, dict[int, _Stored]] = {}

    def results(self) -> list[Lazy]:
        """The output buffers."""
        buffers = self.data["buffers"][: self.data["params"]]
        return [
            memo(b[1:-1], lambda index, n=n: self.element(n, index))
            for n, b in enumerate(buffers)
            if n >= self.data["inputs"]
        ]

    def element(self, buffer: int, index: Index) -> Element:
        body, ranges = self.data["body"], list[range]()
        while len(body) == 1 and body[0][0] == "loop" and body[0][4]:
            ranges.append(range(*body[0][1:4]))
            body = body[0][5]
        found: Element | None = None
        for block in itertools.product(*ranges):
            self.evaluator.algebra.spend(1)
            if not self.may_store(body, dict(enumerate(block)), buffer, index):
                continue
            if block not in self.runs:
                held: dict[int, _Stored] = {}
                self.run(body, dict(enumerate(block)), [], held, [len(block)])
                self.runs[block] = held
            stored = _lookup(self.runs[block].get(buffer), index)
            if stored is not None:
                if found is not None:
                    raise BadInput(f"expected one block to store element {index}, got two")
                found = stored
        if found is None:
            found = self.start(buffer, index)
        if found is None:
            raise BadInput(f"expected element {index} to be stored, got none")
        return found

    def start(self, buffer: int, index: Index) -> Element | None:
        """The initial element of an output that lies in an operand's memory."""
        aliases = self.data.get("aliases", ())
        at = aliases[buffer - self.data["inputs"]] if 0 <= buffer - self.data["inputs"] < len(aliases) else -1
        return self.operands[at].get(index) if at >= 0 else None

    def may_store(self, body: Sequence[Any], variables: dict[int, int], buffer: int, index: Index) -> bool:
        """Whether some store of this block could reach the element; loops inside widen its windows."""

        def search(statements: Sequence[Any], ranges: dict[int, tuple[int, int]], count: list[int]) -> bool:
            hit = False
            for s in statements:
                if s[0] == "loop":
                    number = count[0]
                    count[0] += 1
                    trips = range(*s[1:4])
                    inner = {**ranges, number: (trips[0], trips[-1])}
                    hit |= search(s[5], inner, count)
                elif s[0] == "store" and s[1] == buffer:
                    hit |= all(_reaches(w, ranges, i) for w, i in zip(s[2], index, strict=True))
            return hit

        return search(body, {k: (v, v) for k, v in variables.items()}, [len(variables)])

    def run(
        self,
        body: Sequence[Any],
        variables: dict[int, int],
        values: list[Lazy],
        held: dict[int, _Stored],
        count: list[int],
    ) -> None:
        """Run statements; loop variables and values are numbered in the order of the text."""
        for s in body:
            if s[0] == "loop":
                number, first = count[0], len(values)
                count[0] += 1
                inner = count[0]
                for trip in range(*s[1:4]):
                    count[0] = inner
                    del values[first:]
                    self.run(s[5], {**variables, number: trip}, values, held, count)
            elif s[0] == "load":
                values.append(self.load(s, variables, held))
            elif s[0] == "store":
                windows = [_window(w, variables) for w in s[2]]
                held[s[1]] = _Store(windows, values[int(s[3])], held.get(s[1]))
            else:
                operands = [values[int(i)] for i in s[2]]
                made = self.evaluator.operator(s[1], s[4], operands, s[3][1:])
                values.append(self.masked(made, s[4], s[5], variables) if len(s) > 5 else made)

    def masked(self, x: Lazy, attrs: Any, bounds: Sequence[Any], variables: Mapping[int, int]) -> Lazy:
        """`x` where its index along each bounded dimension is one of the whole tensor, else the fill."""
        cut = [(int(dim), int(extent), _window(w, variables)) for dim, extent, w in bounds]
        fill = self.evaluator.algebra.constant(float(_attr(attrs["fill"])))

        def compute(index: Index) -> Element:
            exists = all(0 <= first + stride * index[d] < extent for d, extent, (first, stride, _) in cut)
            return x.get(index) if exists else fill

        return memo(x.shape, compute)

    def load(self, statement: Any, variables: dict[int, int], held: dict[int, _Stored]) -> Lazy:
        _, buffer, windows, kind = statement
        shape = self.data["buffers"][buffer][1:-1]
        cut = [_window(w, variables) for w in windows]
        before = held.get(buffer)

        def compute(index: Index) -> Element:
            at = tuple(first + stride * i for (first, stride, _), i in zip(cut, index, strict=True))
            if any(not 0 <= i < e for i, e in zip(at, shape, strict=True)):
                return self.evaluator.algebra.variable("outside", buffer, at, cut)
            if buffer < self.data["inputs"]:
                return self.operands[int(buffer)].get(at)
            if (view := self.data.get("views", {}).get(str(buffer))) is not None:
                return self.shown(view, at)
            stored = _lookup(before, at)
            if stored is None:
                stored = self.start(int(buffer), at)
            if stored is None:
                raise BadInput(f"expected element {at} of buffer {buffer} to be stored before it is loaded")
            return stored

        return memo(kind[1:], compute)

    def shown(self, view: Any, at: Index) -> Element:
        """An element of a view."""
        source, places, guard = int(view[0]), str(view[1]), str(view[2])
        algebra = self.evaluator.algebra
        place = _place(parse(len(at), places, guard), at)
        if place is None:
            return algebra.constant(0.0)
        if source < 0:
            return algebra.constant(1.0)
        x = self.operands[source]
        inside = all(0 <= n < e for n, e in zip(place, x.shape, strict=True))
        return x.get(place) if inside else algebra.constant(0.0)


def _window(w: Any, variables: Mapping[int, int]) -> tuple[int, int, int]:
    size, base, terms, stride = w
    return base + sum(scale * variables[v] for v, scale in terms), stride, size


def _reaches(w: Any, ranges: Mapping[int, tuple[int, int]], index: int) -> bool:
    size, base, terms, stride = w
    low = base + sum(min(scale * v for v in ranges[var]) for var, scale in terms)
    high = base + sum(max(scale * v for v in ranges[var]) for var, scale in terms) + stride * (size - 1)
    return low <= index <= high


def _lookup(stored: _Stored, index: Index) -> Element | None:
    """The newest store that covers the element."""
    while stored is not None:
        inside: list[int] = []
        for (first, stride, size), i in zip(stored.windows, index, strict=True):
            step, rest = divmod(i - first, stride)
            if rest or not 0 <= step < size:
                break
            inside.append(step)
        else:
            return stored.tile.get(tuple(inside))
        stored = stored.before
    return None
