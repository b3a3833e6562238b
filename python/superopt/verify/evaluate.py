"""Evaluates kernel, block and thread graphs over any domain; tile programs are in `evaluate_tile`.

Nothing here knows an operator by name: a table operator is its nest and its scalar body. A block graph runs
as written: the trips of every loop one after the other, all blocks of the grid side by side as leading
dimensions of the arrays (extent 1 where a value is the same in every block).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from superopt import spec
from superopt.errors import IllegalProgram
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Attrs,
    Index,
    Nest,
    Operator,
    Scalar,
    arg,
    elements_of,
    nest_of,
    normalize_attrs,
)
from superopt.program import Attr, BlockGraph, KernelGraph, Node, ThreadGraph, TileProgram, Value, opaque_key
from superopt.quasi_affine import ALWAYS, Read
from superopt.verify.domains import Array, Domain, Shape, Tensor

_PRODUCT = arg(0) * arg(1)
# Elements that one operand of a nest is spread over at a time.
_SPREAD = 1 << 23

Env = MutableMapping[Value, Tensor]


class Shared:
    """Results of library operators, kept from the first program for `others` at the same inputs.

    Where they apply an operator to the same values, the result is the same. What only the others compute is not
    kept: a domain counts its assumptions, and these must be those of one of them and the first program.
    """

    def __init__(self, *others: KernelGraph) -> None:
        self.numbers: dict[str, int] = {}
        self.results: dict[int, Tensor] = {}
        self.filled = False
        self.wanted = {number for graph in others for number in self.of_nodes(graph).values()}

    def of_nodes(self, graph: KernelGraph) -> dict[Node, int]:
        """A number for each library operator on inputs and on results of such; equal results share one."""
        known = {v: f"input {i}" for i, v in enumerate(graph.inputs)}
        found: dict[Node, int] = {}
        for node in graph.nodes:
            if (
                node.body is not None
                or node.op not in OPERATORS
                or not all(v in known for v in node.operands)
            ):
                continue
            if any(isinstance(a, np.ndarray) for a in node.attrs.values()):
                continue
            attrs = sorted(normalize_attrs(OPERATORS[node.op], node.attrs).items())
            types = [v.type for v in (*node.operands, *node.results)]
            key = f"{node.op} {attrs!r} {types!r} {[known[v] for v in node.operands]}"
            number = found[node] = self.numbers.setdefault(key, len(self.numbers))
            known[node.result] = f"node {number}"
        return found


def evaluate(
    graph: KernelGraph, inputs: Sequence[Tensor], domain: Domain, shared: Shared | None = None
) -> list[Tensor]:
    """The outputs of `graph` for `inputs`, one tensor of the domain for each input.

    `shared` holds what earlier programs computed from the same inputs in the same domain. Raises IllegalProgram
    where a program reads what it never wrote or writes an element twice, and ZeroDivisionError where a finite
    field meets a zero denominator.
    """
    env: dict[Value, Tensor] = dict(zip(graph.inputs, inputs, strict=True))
    last = {v: i for i, n in enumerate(graph.nodes) for v in n.operands}
    kept = {*graph.outputs}
    used = {*graph.outputs}
    for node in reversed(graph.nodes):
        if not used.isdisjoint(node.results):
            used.update(node.operands)
    shared = shared or Shared()
    numbers = shared.of_nodes(graph)
    for i, node in enumerate(graph.nodes):
        operands = [env[v] for v in node.operands]
        number = numbers.get(node, -1)
        if number in shared.results and shared.filled:
            env[node.result] = shared.results[number]
        else:
            needed = not used.isdisjoint(node.results)
            with nullcontext() if needed else domain.aside():
                results = _kernel_node(node, operands, domain)
            for value, result in zip(node.results, results, strict=True):
                env[value] = domain.stored(result, value.dtype)
            if number in shared.wanted and needed and not shared.filled:
                shared.results[number] = env[node.result]
        for v in node.operands:
            if last[v] == i and v not in kept:
                env.pop(v, None)
    shared.filled = True
    return [env[v] for v in graph.outputs]


def _kernel_node(node: Node, operands: list[Tensor], domain: Domain) -> list[Tensor]:
    if isinstance(node.body, BlockGraph):
        return evaluate_block(node.body, operands, domain)
    if isinstance(node.body, TileProgram):
        from superopt.verify.evaluate_tile import evaluate_tile

        return evaluate_tile(node.body, operands, domain)
    if node.op == "extern":
        return domain.opaque(opaque_key(node), operands, [v.shape for v in node.results])
    return [evaluate_operator(node.op, node.attrs, operands, [v.dtype for v in node.operands], domain, 0)]


# --- table operators --------------------------------------------------------------------------------------


def evaluate_operator(
    name: str,
    attrs: Mapping[str, Attr],
    operands: Sequence[Tensor],
    dtypes: Sequence[str],
    domain: Domain,
    lead: int,
) -> Tensor:
    """A table operator on tensors, repeated over their `lead` leading dimensions."""
    entry = OPERATORS[name]
    values = normalize_attrs(entry, attrs)
    if entry.arrange is not None:
        result = _arrange(entry, values, operands, domain, lead)
    elif entry.nest is None:
        result = _constant(entry, values, domain, lead)
    else:
        nest = entry.nest([t.shape[lead:] for t in operands], values)
        if entry.combiner == "add" and entry.body is not None and entry.body(values) == _PRODUCT:
            operands = [domain.stored(t, d) for t, d in zip(operands, dtypes, strict=True)]
        result = _nest(entry, nest, values, operands, domain, lead)
    dtype = values.get("dtype")
    # Numbers inside kernels are literals of fp32, whatever their dtype: what is stored is rounded then.
    return domain.stored(result, dtype) if isinstance(dtype, str) and operands else result


def _nest(
    entry: Operator, nest: Nest, attrs: Attrs, operands: Sequence[Tensor], domain: Domain, lead: int
) -> Tensor:
    if not nest.plain:
        return _windows(entry, nest, attrs, operands, domain, lead)
    return _summed(entry, nest, entry.body(attrs) if entry.body else arg(0), operands, domain, lead)


def _summed(
    entry: Operator, nest: Nest, body: Scalar, operands: Sequence[Tensor], domain: Domain, lead: int
) -> Tensor:
    """A plain nest with this body; what it sums of several terms is the sum of as many nests."""
    if entry.combiner == "add" and entry.finish is None:
        if body.head == "add":
            parts = [_summed(entry, nest, term, operands, domain, lead) for term in body.args]
            return domain.apply("add", *parts)
        if body.head == "mul" and all(a.head == "arg" for a in body.args):
            a, b = (int(x.payload) for x in body.args)
            alone = replace(nest, operands=(nest.operands[a], nest.operands[b]))
            if _plain(alone):
                return _contract(alone, operands[a], operands[b], domain, lead)
    return _run_nest(entry, nest, body, operands, domain, lead)


def _windows(
    entry: Operator, nest: Nest, attrs: Attrs, operands: Sequence[Tensor], domain: Domain, lead: int
) -> Tensor:
    """A nest that is not plain: each operand is spread over the iteration dimensions that it depends on, part by
    part of the result where that takes much memory, which leaves a plain nest.
    """
    used = [sorted({d for index in maps for d in index.dims}) for maps in nest.operands]
    kept = [d for d in nest.result if d is not None]
    if not kept:
        one = replace(nest, extents=(*nest.extents, 1), result=(len(nest.extents),))
        made = _windows(entry, one, attrs, operands, domain, lead)
        return domain.move(lambda x: x.reshape(x.shape[:lead]), made)
    along = max(kept, key=lambda d: nest.extents[d])
    most = max(math.prod(nest.extents[d] for d in dims) for dims in used)
    step = max(1, nest.extents[along] * _SPREAD // max(_SPREAD, most))
    outside = domain.constant(nest.outside or 0.0)
    parts: list[Tensor] = []
    for start in range(0, nest.extents[along], step):
        size = min(step, nest.extents[along] - start)
        extents = (*nest.extents[:along], size, *nest.extents[along + 1 :])
        spread: list[Tensor] = []
        for n, (t, maps, dims) in enumerate(zip(operands, nest.operands, used, strict=True)):
            if nest.reads:
                places, inside = _read(nest.reads[n], extents, {along: start}, t.shape[lead:])
            else:
                places, inside = _places(maps, dims, extents, {along: start}, t.shape[lead:])
            spread.append(
                domain.move(lambda x, o, at=places, ok=inside: np.where(ok, x[(..., *at)], o), t, outside)
            )
        maps = tuple(tuple(map(Index, dims)) for dims in used)
        made = _nest(entry, Nest(extents, maps, nest.result, nest.reductions), attrs, spread, domain, lead)
        if nest.where is not None and nest.where.guard != ALWAYS:
            point = _ramps(kept, extents, {along: start}, kept)
            holds = np.asarray(nest.where.holds(nest.where.completed(point)))
            made = domain.move(lambda x, o, at=holds: np.where(at, x, o), made, domain.constant(0.0))
        parts.append(made)
    axis = lead + nest.result.index(along)
    return domain.move(lambda *x: np.concatenate(x, axis=axis), *parts) if len(parts) > 1 else parts[0]


def _ramps(
    dims: Sequence[int], extents: Shape, starts: Mapping[int, int], order: Sequence[int]
) -> dict[int, Array]:
    """The numbers of dimensions, each along its axis in an order."""
    return {
        d: (starts.get(d, 0) + np.arange(extents[d])).reshape([-1 if other == d else 1 for other in order])
        for d in dims
    }


def _read(read: Read, extents: Shape, starts: Mapping[int, int], shape: Shape) -> tuple[list[Array], Array]:
    """`_places` of a read, whose guard is part of what is inside."""
    full = read.completed(_ramps(read.dims, extents, starts, read.dims))
    inside = np.broadcast_to(np.asarray(read.holds(full)), [extents[d] for d in read.dims])
    places: list[Array] = []
    for index, extent in zip(read.index, shape, strict=True):
        place = np.asarray(index.at(full))
        inside = inside & (place >= 0) & (place < extent)
        places.append(np.broadcast_to(np.clip(place, 0, extent - 1), inside.shape))
    return places, inside


def _places(
    maps: Sequence[Index], dims: Sequence[int], extents: Shape, starts: Mapping[int, int], shape: Shape
) -> tuple[list[Array], Array]:
    """Where an operand of `shape` is read, over its iteration dimensions, and which of that is inside."""
    point = _ramps(dims, extents, starts, dims)
    inside = np.ones([extents[d] for d in dims], bool)
    places: list[Array] = []
    for index, extent in zip(maps, shape, strict=True):
        place, exact = index.at(point)
        inside &= exact & (place >= 0) & (place < extent)
        places.append(np.broadcast_to(np.clip(place, 0, extent - 1), inside.shape))
    return places, inside


def _constant(entry: Operator, attrs: Mapping[str, Attr], domain: Domain, lead: int) -> Tensor:
    shape = attrs["shape"]
    assert isinstance(shape, tuple)
    elements = np.asarray(elements_of(entry, attrs))
    return domain.move(lambda x: np.broadcast_to(x, (*(1,) * lead, *shape)), domain.constant(elements))


def _arrange(
    entry: Operator, attrs: Mapping[str, Attr], operands: Sequence[Tensor], domain: Domain, lead: int
) -> Tensor:
    """An operator that moves data by its own code; beside leading dimensions, by where element numbers go."""
    arrange = entry.arrange
    assert arrange is not None
    if all(n == 1 for t in operands for n in t.shape[:lead]):

        def moved(*planes: Array) -> Array:
            common = np.result_type(*planes)
            result = arrange([x.reshape(x.shape[lead:]).astype(common, copy=False) for x in planes], attrs)
            return result.reshape((*(1,) * lead, *result.shape))

        return domain.move(moved, *operands)
    sizes = [math.prod(t.shape[lead:]) for t in operands]
    starts = np.cumsum([0, *sizes])
    numbers: list[Array] = [
        start + np.arange(size).reshape(t.shape[lead:])
        for start, size, t in zip(starts.tolist(), sizes, operands, strict=False)
    ]
    places = arrange(numbers, attrs)
    if len(operands) == 1 and np.array_equal(places.reshape(-1), numbers[0].reshape(-1)):
        return domain.move(lambda x: x.reshape((*x.shape[:lead], *places.shape)), operands[0])

    def gather(*planes: Array) -> Array:
        common = np.broadcast_shapes(*(x.shape[:lead] for x in planes))
        flat = [
            np.broadcast_to(x, (*common, *x.shape[lead:])).reshape(*common, size)
            for x, size in zip(planes, sizes, strict=True)
        ]
        return np.concatenate(flat, axis=-1)[..., places]

    return domain.move(gather, *operands)


def _plain(nest: Nest) -> bool:
    """Whether both operands are indexed by distinct whole dimensions, and every reduced one is in both."""
    used: list[set[int]] = []
    for maps in nest.operands:
        if any(i.dim is not None and (i.stride, i.offset) != (1, 0) for i in maps):
            return False
        dims = [i.dim for i in maps if i.dim is not None]
        if len(set(dims)) != len(dims):
            return False
        used.append(set(dims))
    return all(d in dims for d in nest.reductions for dims in used)


def _contract(nest: Nest, a: Tensor, b: Tensor, domain: Domain, lead: int) -> Tensor:
    """A sum of products as one batched matrix product; dimensions of both operands are its batch."""
    # Dimensions are numbered: leading ones first, then the nest's.
    used: list[dict[int, int]] = []  # dimension -> axis of the operand
    for t, maps in ((a, nest.operands[0]), (b, nest.operands[1])):
        axes = {d: d for d in range(lead) if t.shape[d] != 1}
        axes |= {lead + i.dim: lead + axis for axis, i in enumerate(maps) if i.dim is not None}
        used.append(axes)
    reduced = [lead + d for d in nest.reductions]
    everything = [*range(lead), *(lead + d for d in range(len(nest.extents)))]
    batch = [d for d in everything if d in used[0] and d in used[1] and d not in reduced]
    rows = [d for d in everything if d in used[0] and d not in used[1]]
    columns = [d for d in everything if d in used[1] and d not in used[0]]

    def matrix(t: Tensor, axes: dict[int, int], groups: Sequence[Sequence[int]]) -> Tensor:
        order = [axes[d] for group in groups for d in group]
        rest = [axis for axis in range(len(t.shape)) if axis not in order]
        shape = tuple(math.prod(t.shape[axes[d]] for d in group) for group in groups)
        return domain.move(lambda x: x.transpose(*rest, *order)[(0,) * len(rest)].reshape(shape), t)

    product = domain.contract(
        matrix(a, used[0], (batch, rows, reduced)), matrix(b, used[1], (batch, reduced, columns))
    )
    extent = {d: t.shape[axis] for t, axes in ((a, used[0]), (b, used[1])) for d, axis in axes.items()}
    order = [*batch, *rows, *columns]
    kept = [*range(lead), *(lead + d for d in nest.result if d is not None)]

    def restore(x: Array) -> Array:
        x = x.reshape([extent[d] for d in order])
        present = [d for d in kept if d in extent]
        x = x.transpose([order.index(d) for d in present])
        return x.reshape([extent.get(d, 1) for d in kept])

    result = domain.move(restore, product)
    return _finish_shape(result, nest, domain, lead)


def _run_nest(
    entry: Operator, nest: Nest, body: Scalar, operands: Sequence[Tensor], domain: Domain, lead: int
) -> Tensor:
    views = [
        domain.move(lambda x, m=maps: _view(x, m, len(nest.extents), nest.extents, lead), t)
        for t, maps in zip(operands, nest.operands, strict=True)
    ]
    value = _body(body, views, domain, {})
    if not value.shape:  # the body is a number
        value = domain.move(lambda x: x.reshape((1,) * (lead + len(nest.extents))), value)
    if nest.reductions:
        value = _reduce(entry.combiner or "add", nest, value, domain, lead)
        if entry.finish is not None:
            value = _body(entry.finish(nest.reduced), [value], domain, {})
    elif tuple(nest.result) != tuple(range(len(nest.extents))):
        kept = [lead + d for d in nest.result if d is not None]
        value = domain.move(lambda x: x.transpose(*range(lead), *kept), value)
    return _finish_shape(value, nest, domain, lead, squeezed=bool(nest.reductions))


def _view(x: Array, maps: Sequence[Index], rank: int, extents: Shape, lead: int) -> Array:
    """`x` indexed by the iteration space: one axis per dimension, of extent 1 where it does not vary."""
    picks: list[Any] = [slice(None)] * lead
    axes: list[int] = []
    for index in maps:
        if index.dim is None:
            picks.append(index.offset)
            continue
        stop = index.offset + index.stride * (extents[index.dim] - 1) + 1
        picks.append(slice(index.offset, stop, index.stride))
        axes.append(index.dim)
    x = x[tuple(picks)]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    x = x.transpose(*range(lead), *(lead + i for i in order))
    shape = [1] * rank
    for position, i in enumerate(order):
        shape[axes[i]] = x.shape[lead + position]
    return x.reshape((*x.shape[:lead], *shape))


def _body(body: Scalar, operands: Sequence[Tensor], domain: Domain, done: dict[Scalar, Tensor]) -> Tensor:
    if body.head == "arg":
        return operands[int(body.payload)]
    if body not in done:
        done[body] = (
            domain.constant(body.payload)
            if body.head == "const"
            else domain.apply(body.head, *(_body(a, operands, domain, done) for a in body.args))
        )
    return done[body]


def _reduce(combiner: str, nest: Nest, value: Tensor, domain: Domain, lead: int) -> Tensor:
    reduced = [lead + d for d in nest.reductions]
    kept = [lead + d for d in nest.result if d is not None]

    def rows(x: Array) -> Array:
        shape = list(x.shape)
        for d, axis in zip(nest.reductions, reduced, strict=True):
            shape[axis] = nest.extents[d]  # what does not vary is summed as many times
        x = np.broadcast_to(x, shape).transpose(*range(lead), *kept, *reduced)
        return x.reshape(*x.shape[: lead + len(kept)], nest.reduced)

    return domain.reduce(combiner, domain.move(rows, value))


def _finish_shape(value: Tensor, nest: Nest, domain: Domain, lead: int, *, squeezed: bool = True) -> Tensor:
    """Restore dimensions of extent 1, and repeat along those that no operand has."""
    shape = (*value.shape[:lead], *nest.result_shape)
    if value.shape == shape:
        return value
    kept = iter(value.shape[lead:])
    own = tuple(1 if d is None else next(kept) for d in nest.result) if squeezed else value.shape[lead:]
    return domain.move(lambda x: np.broadcast_to(x.reshape((*x.shape[:lead], *own)), shape), value)


# --- block and thread graphs ------------------------------------------------------------------------------


def evaluate_block(graph: BlockGraph, operands: Sequence[Tensor], domain: Domain) -> list[Tensor]:
    """The kernel results of a block graph: what its output savers leave in device memory."""
    run = _BlockRun(graph, operands, domain)
    env: Env = {}
    run.run(env, {})
    return [run.saved(node, env[node.operands[0]]) for node in graph.savers]


class _BlockRun:
    """One execution. `ctx` gives the trip of each loop around the values being computed."""

    def __init__(self, graph: BlockGraph, operands: Sequence[Tensor], domain: Domain) -> None:
        self.graph, self.domain, self.lead = graph, domain, len(graph.grid)
        self.stages = spec.stages(graph)
        self.reach = spec.reaches(graph)
        self.ragged = any(map(any, self.reach.values()))
        arguments = dict(zip(graph.inputs, operands, strict=True))
        self.tiles = {
            n.result: domain.move(self._tiling(n), self._covered(n, arguments[n.operands[0]]))
            for n in graph.nodes
            if n.op == "iterator"
        }
        self.nodes = [n for n in graph.nodes if n.op != "save"]

    def run(self, env: Env, ctx: dict[int, int], state: dict[Node, Tensor] | None = None) -> None:
        """Compute every value of this context: those that neither vary over other loops nor follow one."""
        here = [n for n in self.nodes if n.results[0] not in env and self._belongs(n, ctx)]
        while here:
            waiting = [n for n in here if not self._step(n, env, ctx, state)]
            ended = next((n for n in waiting if n.op == "accumulate"), None)
            if ended is None:
                return
            self._sweep(int_attr(ended, "loop"), waiting, env, ctx)
            if ended.result not in env:
                raise IllegalProgram("'accumulate' expected operands computed in its loop", ended.location)
            here = [n for n in waiting if n.results[0] not in env]

    def _belongs(self, node: Node, ctx: dict[int, int]) -> bool:
        stage = self.stages[node.results[0]]
        return stage.varies <= ctx.keys() and not stage.after & ctx.keys()

    def _step(self, node: Node, env: Env, ctx: dict[int, int], state: dict[Node, Tensor] | None) -> bool:
        """Compute a node if its operands are there; accumulators wait for their loop."""
        if node.op == "accumulate" or (node.op != "iterator" and any(v not in env for v in node.operands)):
            return False
        if node.op == "iterator":
            fmap = node.attrs["fmap"]
            assert isinstance(fmap, tuple)
            trip = tuple(ctx[loop] for loop, dim in enumerate(fmap) if dim >= 0)
            env[node.result] = self.domain.move(lambda x: x[trip], self.tiles[node.result])
        elif node.op == "running_max":
            assert state is not None
            (source,) = node.operands
            value = self._joined(env[source], source, int_attr(node, "loop"), -math.inf, ctx)
            if node in state:
                value = self.domain.apply("max", state[node], value)
            state[node] = env[node.result] = value
        elif isinstance(node.body, ThreadGraph):
            operands = [env[v] for v in node.operands]
            inner: Env = dict(zip(node.body.inputs, operands, strict=True))
            for step in node.body.nodes:
                inner[step.result] = self._operator(step, inner, ctx)
            env.update(zip(node.results, (inner[v] for v in node.body.outputs), strict=True))
        else:
            env[node.result] = self._operator(node, env, ctx)
        return True

    def _operator(self, node: Node, env: Mapping[Value, Tensor], ctx: Mapping[int, int]) -> Tensor:
        """An operator of the table; what it reduces is what exists."""
        operands = [env[v] for v in node.operands]
        nest, entry = (nest_of(node) if self.ragged else None), OPERATORS[node.op]
        if nest is not None and entry.combiner is not None:
            for i, (value, maps) in enumerate(zip(node.operands, nest.operands, strict=True)):
                dims = [d for d, index in enumerate(maps) if index.dim in nest.reductions]
                operands[i] = self._existing(operands[i], value, dims, NEUTRAL[entry.combiner], ctx)
        dtypes = [v.dtype for v in node.operands]
        return evaluate_operator(node.op, node.attrs, operands, dtypes, self.domain, self.lead)

    def _existing(
        self, tensor: Tensor, value: Value, dims: Iterable[int], neutral: float, ctx: Mapping[int, int]
    ) -> Tensor:
        """`tensor`, with `neutral` in place of elements that do not exist along `dims`."""
        rank = self.lead + len(value.shape)
        for d in dims:
            if (reach := self.reach[value][d]) is None:
                continue
            places = np.arange(value.shape[d]).reshape([-1 if i == self.lead + d else 1 for i in range(rank)])
            for kind, number, stride in reach.terms:
                if kind == "loop":
                    places = places + stride * ctx[number]
                else:
                    blocks = np.arange(self.graph.grid[number]) * stride
                    places = places + blocks.reshape([-1 if i == number else 1 for i in range(rank)])
            exists = places < reach.extent
            tensor = self.domain.move(
                lambda x, y, m=exists: np.where(m, x, y), tensor, self.domain.constant(neutral)
            )
        return tensor

    def _sweep(self, loop: int, waiting: Sequence[Node], env: Env, ctx: dict[int, int]) -> None:
        """Run all trips of `loop`, with every accumulator that ends it here."""
        ending = [n for n in waiting if n.op == "accumulate" and int_attr(n, "loop") == loop]
        totals: dict[Node, Any] = {}
        state: dict[Node, Tensor] = {}
        for trip in range(self.graph.loops[loop]):
            inner: Env = ChainMap({}, env)  # type: ignore[arg-type]
            self.run(inner, {**ctx, loop: trip}, state)
            for node in ending:
                if all(v in inner for v in node.operands):
                    operands = [inner[v] for v in node.operands]
                    neutral = -math.inf if node.attrs["kind"] == "max" else 0.0
                    if node.attrs["kind"] != "concat":
                        at = {**ctx, loop: trip}
                        operands[0] = self._joined(operands[0], node.operands[0], loop, neutral, at)
                    self._accumulate(node, operands, totals)
        for node, total in totals.items():
            if node.attrs["kind"] == "concat":
                axis = self.lead + int_attr(node, "dim")
                total = self.domain.move(partial(_concatenate, axis), *total)
            elif node.attrs["kind"] == "rescaled":
                total = total[0]
            env[node.result] = total

    def _joined(
        self, tensor: Tensor, value: Value, loop: int, neutral: float, ctx: Mapping[int, int]
    ) -> Tensor:
        """What one trip of a loop adds: `neutral` where it has fewer elements than others."""
        moving = [
            d for d, r in enumerate(self.reach[value]) if r and any(t[:2] == ("loop", loop) for t in r.terms)
        ]
        return self._existing(tensor, value, moving, neutral, ctx)

    def _accumulate(self, node: Node, operands: list[Tensor], totals: dict[Node, Any]) -> None:
        kind, domain = node.attrs["kind"], self.domain
        if kind == "concat":
            totals.setdefault(node, []).append(operands[0])
        elif node not in totals:
            totals[node] = tuple(operands) if kind == "rescaled" else operands[0]
        elif kind == "rescaled":
            total, old = totals[node]
            scale = domain.apply("exp", domain.apply("sub", old, operands[1]))
            totals[node] = domain.apply("add", domain.apply("mul", total, scale), operands[0]), operands[1]
        else:
            primitive = {"sum": "add", "max": "max"}[str(kind)]
            totals[node] = domain.apply(primitive, totals[node], operands[0])

    def _covered(self, node: Node, tensor: Tensor) -> Tensor:
        """A whole tensor, with unknowns up to where the last tiles end."""
        if not any(self.reach[node.result]):
            return tensor
        shape = list(node.result.shape)
        for key, extents in (("imap", self.graph.grid), ("fmap", self.graph.loops)):
            maps = node.attrs[key]
            assert isinstance(maps, tuple)
            for d, extent in zip(maps, extents, strict=True):
                if d >= 0:
                    shape[d] *= extent
        beyond = self.domain.unknown(("beyond", self.graph.nodes.index(node)), tuple(shape))

        def place(x: Array, y: Array) -> Array:
            out = np.array(y, np.result_type(x, y))
            out[tuple(map(slice, x.shape))] = x
            return out

        return self.domain.move(place, tensor, beyond)

    def _tiling(self, node: Node) -> Callable[[Array], Array]:
        """Reorder a whole tensor to (loop trips..., grid..., tile...), a grid extent being 1 where unmapped."""
        imap, fmap = node.attrs["imap"], node.attrs["fmap"]
        assert isinstance(imap, tuple)
        assert isinstance(fmap, tuple)
        tile = node.result.shape

        def arrange(x: Array) -> Array:
            shape: list[int] = []
            grid_axis: dict[int, int] = {}
            loop_axis: dict[int, int] = {}
            tile_axes: list[int] = []
            for d, extent in enumerate(tile):
                for g, dim in enumerate(imap):
                    if dim == d:
                        grid_axis[g] = len(shape)
                        shape.append(self.graph.grid[g])
                for loop, dim in enumerate(fmap):
                    if dim == d:
                        loop_axis[loop] = len(shape)
                        shape.append(self.graph.loops[loop])
                tile_axes.append(len(shape))
                shape.append(extent)
            loops = [loop_axis[loop] for loop in sorted(loop_axis)]
            grids = [grid_axis[g] for g in sorted(grid_axis)]
            x = x.reshape(shape).transpose(*loops, *grids, *tile_axes)
            at = len(loops)
            for g in range(len(imap)):
                if g not in grid_axis:
                    x = np.expand_dims(x, at + g)
            return x

        return arrange

    def saved(self, node: Node, value: Tensor) -> Tensor:
        """The device tensor that a saver writes: each block's tile at its place."""
        omap, lead, reach = node.attrs["omap"], self.lead, self.reach[node.operands[0]]
        assert isinstance(omap, tuple)

        def arrange(x: Array) -> Array:
            x = np.broadcast_to(x, (*self.graph.grid, *x.shape[lead:]))
            order: list[int] = [g for g, dim in enumerate(omap) if dim < 0]
            shape: list[int] = []
            for d in range(x.ndim - lead):
                axes = [g for g, dim in enumerate(omap) if dim == d]
                order += [*axes, lead + d]
                shape.append(math.prod(x.shape[a] for a in [*axes, lead + d]))
            replicated = sum(dim < 0 for dim in omap)
            x = x.transpose(order)[(0,) * replicated].reshape(shape)
            return np.asarray(x[tuple(slice(r and r.extent) for r in reach)], order="C")

        return self.domain.move(arrange, value)


def _concatenate(axis: int, *parts: Array) -> Array:
    common = np.broadcast_shapes(*(x.shape[:axis] for x in parts))
    return np.concatenate([np.broadcast_to(x, (*common, *x.shape[axis:])) for x in parts], axis=axis)


def int_attr(node: Node, key: str) -> int:
    """Attribute `key` of a node, an integer."""
    value = node.attrs.get(key)
    if not isinstance(value, int):
        raise IllegalProgram(
            f"'{node.op}' expected attribute '{key}' (an integer), got {value}", node.location
        )
    return value
