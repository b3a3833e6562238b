"""PET's generator of mutants (OSDI 2021, section 4, Algorithm 1): every graph of up to `operators` operators with
the inputs and the output type of a source, kept where it agrees with the source on a share of positions.

Operators are convolutions with other strides, dilations, pads and groups, matrix products, and `Arrange`, which
is PET's compound of reshapes and a transpose; two of these in a row would be one. Graphs are evaluated on
integers, at few channels where the source is a convolution, and what was computed before is not looked at again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from superopt.errors import IllegalProgram
from superopt.nests import Array, Shape
from superopt.operators import OPERATORS, infer_type, is_contraction, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, TensorType, Value, users
from superopt.transforms.derivation.mutants.derived import Mutant
from superopt.transforms.derivation.rewrite import Rewrite
from superopt.transforms.derivation.rules import is_conv
from superopt.transforms.optimizers import never
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import program_hash

# The share of positions on which a mutant agrees (section 8.1), and the work for one source, 10 to 60 CPU s:
# elements and products, and for each value that is tried as much as is done meanwhile.
AGREEMENT = 0.7
MOST_WORK = 1_000_000_000
_EACH = 1000
# Operators of a source, and of a mutant (`operators`).
MOST_OPERATORS = 4
# Factors that dimensions are split by, beside strides and dilations of the source.
_FACTORS = (2, 3, 4)
# Channels of a group that are evaluated, and the elements of a value that still can be.
_FEW = 2
_MOST_ELEMENTS = 1 << 18
# Integers up to this size are drawn: two products of them, and sums of those, are exact in fp64.
_LARGEST = 1000


@dataclass(frozen=True)
class Arrange:
    """Splits `dims` by `factor`, and moves what is taken to the dimension `target`, or in front of the rest.

    `take` says which part: i = factor * q + r gives the `residue` r, i = size * b + q the `block` b. It becomes
    the outer or the inner part of the target. Without a target, dimensions keep their extents: residues come
    first, blocks last.
    """

    dims: tuple[int, ...]
    factor: int
    take: Literal["residue", "block"]
    target: int | None = None
    outer: bool = True

    def steps(self, shape: Shape) -> tuple[Shape, tuple[int, ...], Shape] | None:
        """The shape that is split, the transposition, the shape after it; None where it does not fit."""
        if any(shape[d] % self.factor or shape[d] == 1 for d in self.dims):
            return None
        split, taken = list[int](), list[int]()
        kept: list[list[int]] = []
        for d, extent in enumerate(shape):
            first = len(split)
            if d not in self.dims:
                split.append(extent)
                kept.append([first])
            elif self.take == "residue":
                split += [extent // self.factor, self.factor]
                kept.append([first] if self.target is not None else [first + 1, first])
                taken.append(first + 1)
            else:
                split += [self.factor, extent // self.factor]
                kept.append([first + 1] if self.target is not None else [first + 1, first])
                taken.append(first)
        if self.target is not None:
            here = kept[self.target]
            kept[self.target] = [*taken, *here] if self.outer else [*here, *taken]
        after = tuple(math.prod(split[i] for i in axes) for axes in kept)
        return tuple(split), tuple(itertools.chain(*kept)), after

    def apply(self, write: Rewrite, x: Value) -> Value | None:
        """As operators; None where it does not fit."""
        if (steps := self.steps(x.shape)) is None:
            return None
        split, perm, after = steps
        return write.reshape(write.transpose(write.reshape(x, *split), *perm), *after)


@dataclass(frozen=True)
class Apply:
    """An operator of the table."""

    op: str
    attrs: tuple[tuple[str, Attr], ...]


# What is applied to which values: inputs first, then results in order.
Step: TypeAlias = tuple[Arrange | Apply, tuple[int, ...]]


def chain(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """`node` and the convolutions and products behind it, up to four operators, each the only reader of the one
    before: what lies between operators that are not linear. None where that is `node` alone.
    """
    nodes, used = [node], users(graph.nodes)
    while len(nodes) < MOST_OPERATORS and (value := nodes[-1].result) not in graph.outputs:
        (*others, then) = used[value]
        if others or not (is_conv(then) or is_contraction(then)):
            break
        nodes.append(then)
    if len(nodes) == 1:
        return None
    made = {n.result for n in nodes}
    inputs = dict.fromkeys(v for n in nodes for v in n.operands if v not in made)
    return KernelGraph("source", list(inputs), nodes, [nodes[-1].result])


def generated(
    source: KernelGraph,
    operators: int,
    agreement: float,
    limit: int,
    stop: Callable[[], bool] = never,
) -> Iterator[Mutant]:
    """Mutants of a program of one output, those with the fewest operators first.

    Ends after `limit` elements and products, those of values that were known included. Nothing for sources that
    do not consist of convolutions and products.
    """
    if not all(is_conv(n) or is_contraction(n) for n in source.nodes):
        return
    small = _few_channels(source)
    if sum(math.prod(v.shape) for v in [*small.inputs, *small.outputs]) > _MOST_ELEMENTS:
        return
    same = program_hash(source)
    search = _Search(small, agreement, limit, stop)
    for count in range(1, operators + 1):
        for steps in search.programs(count):
            graph = _written(source, steps)
            if graph is not None and program_hash(graph) != same:
                yield Mutant("generated", source, graph)


class _Search:
    """Programs as lists of steps, evaluated on one draw of the inputs."""

    def __init__(self, source: KernelGraph, agreement: float, limit: int, stop: Callable[[], bool]) -> None:
        rng = np.random.default_rng(0)
        draw = [rng.integers(1, _LARGEST, v.shape) * rng.choice([-1.0, 1.0], v.shape) for v in source.inputs]
        domain = FloatDomain()
        self.inputs: list[Array] = draw
        self.wanted: Array = evaluate(source, [domain.tensor(x) for x in draw], domain)[0].planes[0]
        self.agreement, self.left, self.stop = agreement, limit, stop
        self.known = [(n.op, normalize_attrs(OPERATORS[n.op], n.attrs)) for n in source.nodes]
        lists = [attrs.get(name, ()) for _, attrs in self.known for name in ("strides", "dilations")]
        numbers: set[int] = {n for found in lists if isinstance(found, tuple) for n in found}
        self.factors = sorted({*_FACTORS, *numbers} - {1})
        # Numbers of values by what they hold, and states that were seen: operators left, values nobody used yet.
        self.numbers: dict[tuple[Shape, bytes], int] = {}
        self.seen: set[tuple[int, frozenset[int]]] = set()

    def programs(self, count: int) -> Iterator[list[Step]]:
        """Those of exactly `count` operators, in which every value is used."""
        self.seen.clear()
        numbers = list(range(len(self.inputs)))
        yield from self._more([], self.inputs, [-1 - i for i in numbers], set(numbers), count)

    def _more(
        self, steps: list[Step], values: list[Array], names: list[int], unused: set[int], left: int
    ) -> Iterator[list[Step]]:
        for step in self._steps(steps, values, unused, last=left == 1):
            if self.left <= 0 or self.stop():
                return
            after = (unused - {*step[1]}) | {len(values)}
            # Each operator of two operands leaves one value less that nobody uses.
            if len(after) > left or (left == 1 and len(after) > 1):
                continue
            value = self._value(step, values)
            self.left -= _EACH + self._work(step, values, value)
            if value is None or (left == 1 and value.shape != self.wanted.shape):
                continue
            number = self.numbers.setdefault((value.shape, value.tobytes()), len(self.numbers))
            named = [*names, number]
            key = (left, frozenset(named[i] for i in after))
            if key in self.seen:
                continue
            self.seen.add(key)
            if left > 1:
                yield from self._more([*steps, step], [*values, value], named, after, left - 1)
            elif float((value == self.wanted).mean()) >= self.agreement:
                yield [*steps, step]

    def _steps(
        self, before: list[Step], values: list[Array], unused: set[int], *, last: bool
    ) -> Iterator[Step]:
        for i in sorted(unused):
            number = i - len(self.inputs)
            # Two in a row would be one; those of two values come in one order.
            if number >= 0 and isinstance(before[number][0], Arrange):
                continue
            if before and isinstance(before[-1][0], Arrange) and i < before[-1][1][0]:
                continue
            for arrange in _arrangements(values[i].shape, self.factors):
                steps = arrange.steps(values[i].shape)
                if steps is not None and (not last or steps[2] == self.wanted.shape):
                    yield arrange, (i,)
        for (op, attrs), (i, j) in itertools.product(
            self.known, itertools.permutations(range(len(values)), 2)
        ):
            if {i, j} & unused:
                for changed in _variants(op, attrs, values[i].shape, values[j].shape):
                    yield Apply(op, tuple(sorted(changed.items()))), (i, j)

    def _value(self, step: Step, values: list[Array]) -> Array | None:
        what, operands = step
        if isinstance(what, Arrange):
            steps = what.steps(values[operands[0]].shape)
            assert steps is not None
            split, perm, after = steps
            return np.ascontiguousarray(values[operands[0]].reshape(split).transpose(perm).reshape(after))
        inputs = [Value(TensorType(values[i].shape, "f32")) for i in operands]
        try:
            result = Value(infer_type(what.op, [v.type for v in inputs], dict(what.attrs)))
        except IllegalProgram:
            return None
        if math.prod(result.shape) > 4 * self.wanted.size:
            return None
        graph = KernelGraph(
            "step", inputs, [Node(what.op, tuple(inputs), (result,), dict(what.attrs))], [result]
        )
        domain = FloatDomain()
        (made,) = evaluate(graph, [domain.tensor(values[i]) for i in operands], domain)
        return np.ascontiguousarray(made.planes[0])

    def _work(self, step: Step, values: list[Array], value: Array | None) -> int:
        """Elements, and what was multiplied for them."""
        if value is None:
            return 0
        what, operands = step
        if isinstance(what, Arrange):
            return value.size
        entry = OPERATORS[what.op]
        assert entry.nest is not None
        return value.size + entry.nest([values[i].shape for i in operands], dict(what.attrs)).points


def _arrangements(shape: Shape, factors: Sequence[int]) -> Iterator[Arrange]:
    rank = len(shape)
    groups: list[tuple[int, ...]] = [(d,) for d in range(rank)]
    if rank > 3:
        groups.append(tuple(range(2, rank)))
    for dims in groups:
        sizes = {f for f in factors if all(shape[d] % f == 0 and shape[d] > f for d in dims)}
        if len(dims) == 1 and 1 < shape[dims[0]] <= max(factors):
            sizes.add(shape[dims[0]])
        for factor, take in itertools.product(sorted(sizes), ("residue", "block")):
            if all(shape[d] > factor for d in dims):
                yield Arrange(dims, factor, take)
            for target, outer in itertools.product(range(rank), (True, False)):
                if target not in dims:
                    yield Arrange(dims, factor, take, target, outer)


def _variants(op: str, attrs: Mapping[str, Attr], x: Shape, w: Shape) -> Iterator[dict[str, Attr]]:
    """The attributes of a node of the source, and others of its kind."""
    if "groups" not in attrs:
        for a, b in itertools.product((False, True), repeat=2):
            yield {**attrs, "transpose_a": a, "transpose_b": b}
        return
    if len(x) != len(w) or x[1] % w[1]:
        return
    numbers: dict[str, tuple[int, ...]] = {n: v for n, v in attrs.items() if isinstance(v, tuple)}
    one = (1,) * (len(x) - 2)
    if len(numbers["strides"]) != len(one):
        return
    for strides, dilations in itertools.product({numbers["strides"], one}, {numbers["dilations"], one}):
        pads = {(numbers["low"], numbers["high"]), ((0,) * len(one), (0,) * len(one))}
        # As many windows reach outside as do in the source.
        fewer = tuple(
            tuple(p * d // e for p, d, e in zip(numbers[side], dilations, numbers["dilations"], strict=True))
            for side in ("low", "high")
        )
        for low, high in sorted({*pads, (fewer[0], fewer[1])}):
            yield {
                "strides": strides,
                "dilations": dilations,
                "low": low,
                "high": high,
                "groups": x[1] // w[1],
            }


def _few_channels(source: KernelGraph) -> KernelGraph:
    """A convolution with as many groups, and two channels of each, before and behind it; others as they are."""
    (node, *others) = source.nodes
    if others or not is_conv(node) or len(source.inputs) < 2:
        return source
    groups = node.attrs.get("groups", 1)
    assert isinstance(groups, int)
    x, w = (v.type for v in node.operands)
    columns = groups * min(_FEW, w.shape[0] // groups)
    depth = min(_FEW, w.shape[1])
    x = Value(replace(x, shape=(x.shape[0], groups * depth, *x.shape[2:])), "x")
    w = Value(replace(w, shape=(columns, depth, *w.shape[2:])), "w")
    result = Value(infer_type(node.op, [x.type, w.type], node.attrs))
    return KernelGraph("few", [x, w], [replace(node, operands=(x, w), results=(result,))], [result])


def _written(source: KernelGraph, steps: Sequence[Step]) -> KernelGraph | None:
    """The steps on the source's own types; None where they do not fit, or do not give its output type."""
    write, values = Rewrite(source, source.nodes[-1]), list(source.inputs)
    for what, operands in steps:
        if isinstance(what, Arrange):
            made = what.apply(write, values[operands[0]])
        else:
            made = _applied(write, what, [values[i] for i in operands])
        if made is None:
            return None
        values.append(made)
    (output,), result = source.outputs, values[-1]
    return replace(source, nodes=write.nodes, outputs=[result]) if result.type == output.type else None


def _applied(write: Rewrite, what: Apply, operands: Sequence[Value]) -> Value | None:
    attrs = dict(what.attrs)
    if "groups" in attrs:
        x, w = (v.shape for v in operands)
        if x[1] % w[1]:
            return None
        attrs["groups"] = x[1] // w[1]
    try:
        return write.emit(what.op, *operands, **attrs)
    except IllegalProgram:
        return None
