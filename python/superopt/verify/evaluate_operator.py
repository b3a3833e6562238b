"""Evaluates operators of the table over any domain: each is its nest and its scalar body, whatever its name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.operators import (
    OPERATORS,
    Attrs,
    Index,
    Nest,
    Operator,
    Scalar,
    arg,
    elements_of,
    normalize_attrs,
)
from superopt.program import Attr
from superopt.quasi_affine import ALWAYS, Read
from superopt.verify.domains import Array, Domain, Shape, Tensor

_PRODUCT = arg(0) * arg(1)
# Elements that one operand of a nest is spread over at a time.
_SPREAD = 1 << 23


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
    if entry.conversion and dtypes[0] == "i1":
        domain.truths_given(operands[0])
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
    # Along a dimension of the operand that is spread over most: along others all of it would be, for each part.
    largest = max(used, key=lambda dims: math.prod(nest.extents[d] for d in dims))
    most = math.prod(nest.extents[d] for d in largest)
    along = max([d for d in kept if d in largest] or kept, key=lambda d: nest.extents[d])
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
