"""Contractions and reductions of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from superopt.operators import broadcast_shapes
from superopt.program import Value
from superopt.transforms.ingest.aten.table import HANDLERS, Args, Handler, dim_of, fill, handles, value_of
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.space import Aligned, Space
from superopt.transforms.ingest.torch_dialect import TorchReader

# --- contractions ---------------------------------------------------------------------------------------


@handles("mm", "bmm", "matmul", "mv", "dot")
def _matmul(r: TorchReader, args: Args) -> Value:
    a, b = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
    shape = list(broadcast_shapes([a.shape[:-2], b.shape[:-2]]))
    shape += a.shape[-2:-1] if len(a.shape) > 1 else []
    shape += b.shape[-1:] if len(b.shape) > 1 else []
    left = a if len(a.shape) > 1 else r.build.reshape(a, (1, *a.shape))
    right = b if len(b.shape) > 1 else r.build.reshape(b, (*b.shape, 1))
    return r.build.reshape(r.build.emit("matmul", left, right), shape)


@handles("linear")
def _linear(r: TorchReader, args: Args) -> Value:
    x, weight = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
    if len(weight.shape) != 2 or len(x.shape) < 2:
        raise NotExpressible("a linear layer on a vector")
    y = r.build.emit("matmul", x, weight, transpose_b=True)
    return y if args[2] is None else r.build.emit("add", y, r.tensor(args[2], r.element))


@handles("addmm", "baddbmm")
def _addmm(r: TorchReader, args: Args) -> Value:
    """beta * bias + alpha * a b"""
    bias, a, b, beta, alpha = (*args, 1, 1)[:5]
    product = _matmul(r, [a, b])
    if alpha != 1:
        product = r.build.emit("mul", product, fill(r, alpha, product))
    if beta == 0:  # PyTorch does not read the bias then, so it may hold anything
        return product
    added = r.tensor(bias, r.element)
    if beta != 1:
        added = r.build.emit("mul", added, fill(r, beta, added))
    return r.build.emit("add", product, added)


@handles("einsum")
def _einsum(r: TorchReader, args: Args) -> Value:
    """One or two operands, each index at most once in an operand."""
    equation, operands = args[0].replace(" ", ""), [r.tensor(o, r.element) for o in args[1]]
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if not arrow:
        letters = "".join(terms)
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if "." in equation or len(operands) > 2 or any(len(set(t)) != len(t) for t in [*terms, output]):
        raise NotExpressible(f"einsum '{args[0]}'")
    names = [*output, *sorted(set("".join(terms)) - set(output))]
    extents = {c: e for t, o in zip(terms, operands, strict=True) for c, e in zip(t, o.shape, strict=True)}
    space = Space(r.build, tuple(extents[c] for c in names), tuple(range(len(names))))
    aligned = [Aligned(o, tuple(names.index(c) for c in t)) for t, o in zip(terms, operands, strict=True)]
    reductions = tuple(range(len(output), len(names)))
    if len(aligned) == 2:
        made = space.contract(aligned[0], aligned[1], reductions)
    else:
        made = space.reduce("sum", aligned[0], reductions)
    return space.spread(made, tuple(range(len(output))))


# --- reductions -----------------------------------------------------------------------------------------


def _reduction(kind: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        """(x, dims or one dim or none, keepdim)"""
        x = value_of(r, args[0])
        if kind in ("sum", "mean"):
            x = r.build.cast(x, r.element)
        dims = args[1] if len(args) > 1 and not isinstance(args[1], bool) else None
        keepdim = len(args) > 2 and args[2] is True
        listed = range(len(x.shape)) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        return r.build.reduce(kind, x, [dim_of(x, d) for d in listed], keepdim) if x.shape else x

    return handler


for _kind, _names in {
    "sum": ("sum.dim_IntList",),
    "mean": ("mean.dim",),
    "max": ("amax",),
    "min": ("amin",),
}.items():
    handles(*_names)(_reduction(_kind))

handles("sum")(lambda r, args: HANDLERS["sum.dim_IntList"](r, args[:1]))
handles("mean")(lambda r, args: HANDLERS["mean.dim"](r, args[:1]))
handles("max")(lambda r, args: HANDLERS["amax"](r, args[:1]))
handles("min")(lambda r, args: HANDLERS["amin"](r, args[:1]))


def _with_index(kind: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> tuple[Any, Any]:
        """The extremum, and its index as a separate operation, which is dropped unless used."""
        best = HANDLERS[f"a{kind}"](r, args)
        return best, r.arg_extremum(kind, args, best)

    return handler


handles("max.dim")(_with_index("max"))
handles("min.dim")(_with_index("min"))


MOST_SUMMED = 1024
"""The longest dimension along which running sums are a product by a triangle of ones."""


@handles("cumsum")
def _cumsum(r: TorchReader, args: Args) -> Value:
    """Running sums: a product by a triangle of ones."""
    x = r.build.cast(value_of(r, args[0]), r.element)
    dim = dim_of(x, args[1])
    extent = x.shape[dim] if x.shape else 1
    if extent > MOST_SUMMED:
        raise NotExpressible(f"running sums of more than {MOST_SUMMED} numbers")
    if extent == 1:
        return x
    order = [*(d for d in range(len(x.shape)) if d != dim), dim]
    rows = r.build.transpose(x, order)
    flat = r.build.reshape(rows, (x.type.elements // extent, extent))
    ones = r.build.constant(np.triu(np.ones((extent, extent))), x.dtype)
    made = r.build.reshape(r.build.emit("matmul", flat, ones), rows.shape)
    return r.build.transpose(made, [order.index(d) for d in range(len(order))])
