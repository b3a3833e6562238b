"""What each PyTorch operator is in operators of the table, one handler per operator.

A handler takes the reader and the operator's arguments in the order of its schema: values of the graph, constant
tensors, numbers, lists. It raises NotExpressible where the table ends. `HANDLERS` is keyed by the name without
"aten.".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from superopt.operators import broadcast_shapes
from superopt.program import COMPUTE_DTYPES, Value
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.space import Aligned, Space
from superopt.transforms.ingest.torch_dialect import TorchReader

Args: TypeAlias = list[Any]
Handler: TypeAlias = Callable[[TorchReader, Args], Any]

HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for PyTorch operators."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def dim_of(x: Value, dim: int) -> int:
    """`dim` counted from the front."""
    rank = max(len(x.shape), 1)
    return dim + rank if dim < 0 else dim


def _value(r: TorchReader, held: Any) -> Value:
    """An operand of an operator that keeps the dtype: in its own, or as a constant in that of the result."""
    return r.tensor(held, held.dtype if isinstance(held, Value) else r.element)


def _fill(r: TorchReader, number: Any, like: Value) -> Value:
    """`number` as a constant of `like`'s dtype."""
    return r.tensor(number, like.dtype)


# --- pointwise --------------------------------------------------------------------------------------------


def _binary(op: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        if len(args) > 2 and isinstance(args[2], str):
            raise NotExpressible(f"division with rounding mode '{args[2]}'")
        return r.build.emit(op, r.tensor(args[0], r.element), r.tensor(args[1], r.element))

    return handler


def _unary(op: str) -> Handler:
    return lambda r, args: r.build.emit(op, r.tensor(args[0], r.element))


for _op, _names in {
    "mul": ("mul.Tensor", "mul.Scalar", "multiply.Tensor"),
    "div": (
        "div.Tensor",
        "div.Scalar",
        "div.Tensor_mode",
        "div.Scalar_mode",
        "divide.Tensor",
        "true_divide.Tensor",
    ),
    "max": ("maximum", "max.other"),
    "min": ("minimum", "min.other"),
}.items():
    handles(*_names)(_binary(_op))

for _op in ("neg", "exp", "log", "sqrt", "rsqrt", "square", "reciprocal", "sigmoid", "silu", "relu", "tanh",
            "erf", "sin", "cos"):  # fmt: skip
    handles(_op)(_unary(_op))


def _scaled_sum(op: str, swapped: bool) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        """a + alpha * b, a - alpha * b"""
        a, b = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
        if swapped:
            a, b = b, a
        alpha = args[2] if len(args) > 2 else 1
        if alpha != 1:
            scale = _fill(r, alpha, a)
            a, b = (r.build.emit("mul", a, scale), b) if swapped else (a, r.build.emit("mul", b, scale))
        return r.build.emit(op, a, b)

    return handler


for _names, _op, _swapped in (
    (("add.Tensor", "add.Scalar"), "add", False),
    (("sub.Tensor", "sub.Scalar"), "sub", False),
    (("rsub.Tensor", "rsub.Scalar"), "sub", True),
):
    handles(*_names)(_scaled_sum(_op, _swapped))


@handles("gelu")
def _gelu(r: TorchReader, args: Args) -> Value:
    if args[1] != "none":
        raise NotExpressible(f"gelu of the form '{args[1]}'")
    return r.build.emit("gelu", r.tensor(args[0], r.element))


@handles("abs")
def _abs(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    return r.build.emit("max", x, r.build.emit("neg", x))


@handles("log1p")
def _log1p(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    return r.build.emit("log", r.build.emit("add", x, _fill(r, 1, x)))


@handles("expm1")
def _expm1(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    return r.build.emit("sub", r.build.emit("exp", x), _fill(r, 1, x))


@handles("exp2")
def _exp2(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    return r.build.emit("exp", r.build.emit("mul", x, _fill(r, math.log(2), x)))


def _log_base(base: float) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        x = r.tensor(args[0], r.element)
        return r.build.emit("div", r.build.emit("log", x), _fill(r, math.log(base), x))

    return handler


handles("log2")(_log_base(2))
handles("log10")(_log_base(10))


@handles("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def _pow(r: TorchReader, args: Args) -> Value:
    x, exponent = r.tensor(args[0], r.element), args[1]
    if isinstance(exponent, Value) or getattr(exponent, "numel", lambda: 1)() != 1:
        raise NotExpressible("a power whose exponent is no constant")
    return r.build.emit("pow", x, exponent=float(exponent))


@handles("pow.Scalar")
def _pow_scalar(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[1], r.element)
    if args[0] <= 0:
        raise NotExpressible(f"a power of the base {args[0]}")
    return r.build.emit("exp", r.build.emit("mul", x, _fill(r, math.log(args[0]), x)))


@handles("clamp", "clamp.Tensor", "hardtanh", "clip")
def _clamp(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    if args[1] is not None:
        x = r.build.emit("max", x, r.tensor(args[1], r.element))
    return x if args[2] is None else r.build.emit("min", x, r.tensor(args[2], r.element))


@handles("clamp_min", "clamp_min.Tensor")
def _clamp_min(r: TorchReader, args: Args) -> Value:
    return r.build.emit("max", r.tensor(args[0], r.element), r.tensor(args[1], r.element))


@handles("clamp_max", "clamp_max.Tensor")
def _clamp_max(r: TorchReader, args: Args) -> Value:
    return r.build.emit("min", r.tensor(args[0], r.element), r.tensor(args[1], r.element))


@handles("relu6")
def _relu6(r: TorchReader, args: Args) -> Value:
    return r.build.emit("clamp", r.tensor(args[0], r.element), low=0.0, high=6.0)


@handles(
    "to.dtype", "to.dtype_layout", "to.device", "to.other", "_to_copy", "prims.convert_element_type", "type_as",
    "contiguous", "clone", "detach", "alias", "lift_fresh_copy", "lift_fresh", "dropout",
)  # fmt: skip
def _convert(r: TorchReader, args: Args) -> Value:
    """Anything that leaves the numbers as they are; the result's dtype says what is left to do."""
    if isinstance(args[0], Value) and args[0].dtype == r.element:
        return args[0]
    return r.tensor(args[0], r.element)


@handles("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(r: TorchReader, args: Args) -> Value:
    mask, x, y = args
    if isinstance(mask, Value):
        return _where_compared(r, mask, x, y)
    shape = broadcast_shapes([r.shape_of(a) for a in args])
    values = r.tensor(x, r.element), r.tensor(y, r.element)
    return r.build.where_constant(np.asarray(mask.numpy(), np.bool_), *values, shape)


def _where_compared(r: TorchReader, mask: Value, x: Any, y: Any) -> Value:
    """where(a > b, a, b) -> max(a, b), and its kin."""
    if mask not in r.comparisons:
        raise NotExpressible("a selection by a tensor that is no constant and no comparison")
    kind, *sides = r.comparisons[mask]
    left, right = (r.tensor(s, r.element) for s in sides)
    first, second = r.tensor(x, r.element), r.tensor(y, r.element)
    swapped = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
    for order, a, b in ((kind, left, right), (swapped.get(kind, ""), right, left)):
        if order in swapped and first is a and second is b:
            return r.build.emit("max" if order[0] == "g" else "min", a, b)
    raise NotExpressible("a selection by a comparison that is no maximum or minimum")


@handles("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(r: TorchReader, args: Args) -> Value:
    x, mask, number = args
    return _where(r, [mask, number, x])


# --- contractions -----------------------------------------------------------------------------------------


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
        product = r.build.emit("mul", product, _fill(r, alpha, product))
    added = r.tensor(bias, r.element)
    if beta != 1:
        added = r.build.emit("mul", added, _fill(r, beta, added))
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


# --- reductions -------------------------------------------------------------------------------------------


def _reduction(kind: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        """(x, dims or one dim or none, keepdim)"""
        x = _value(r, args[0])
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
        """The extremum, and its index as an operation of its own, which goes if nobody reads it."""
        best = HANDLERS[f"a{kind}"](r, args)
        return best, r.arg_extremum(kind, args, best)

    return handler


handles("max.dim")(_with_index("max"))
handles("min.dim")(_with_index("min"))


# --- moving data ------------------------------------------------------------------------------------------


def _moved(r: TorchReader, held: Any) -> Value:
    if isinstance(held, Value) and held.dtype not in COMPUTE_DTYPES:
        raise NotExpressible(f"tensors of element type {held.dtype}")
    return _value(r, held)


@handles("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")
def _view(r: TorchReader, args: Args) -> Value:
    x, shape = _moved(r, args[0]), list(args[1])
    if -1 in shape:
        known = math.prod(e for e in shape if e != -1)
        shape[shape.index(-1)] = x.type.elements // known
    return r.build.reshape(x, shape)


@handles("flatten.using_ints")
def _flatten(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    start, end = dim_of(x, args[1]), dim_of(x, args[2])
    return r.build.reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


@handles("unflatten.int")
def _unflatten(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim, sizes = dim_of(x, args[1]), list(args[2])
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[dim] // math.prod(e for e in sizes if e != -1)
    return r.build.reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


@handles("unsqueeze")
def _unsqueeze(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim = args[1] + len(x.shape) + 1 if args[1] < 0 else args[1]
    return r.build.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


@handles("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    chosen = range(len(x.shape)) if len(args) == 1 else [args[1]] if isinstance(args[1], int) else args[1]
    gone = {dim_of(x, d) for d in chosen}
    return r.build.reshape(x, [e for d, e in enumerate(x.shape) if e != 1 or d not in gone])


@handles("permute", "permute_copy")
def _permute(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    return r.build.transpose(x, [dim_of(x, d) for d in args[1]])


@handles("transpose.int", "t", "numpy_T", "swapaxes", "swapdims")
def _transpose(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    perm = list(range(len(x.shape)))
    if len(args) == 1:
        return r.build.transpose(x, perm[::-1])
    a, b = dim_of(x, args[1]), dim_of(x, args[2])
    perm[a], perm[b] = perm[b], perm[a]
    return r.build.transpose(x, perm)


@handles("expand", "broadcast_to", "expand_copy")
def _expand(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    lead = len(args[1]) - len(x.shape)
    return r.build.broadcast(x, [x.shape[i - lead] if e == -1 else e for i, e in enumerate(args[1])])


@handles("expand_as")
def _expand_as(r: TorchReader, args: Args) -> Value:
    return r.build.broadcast(_moved(r, args[0]), r.shape_of(args[1]))


@handles("repeat")
def _repeat(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    x = r.build.reshape(x, (*(1 for _ in range(len(args[1]) - len(x.shape))), *x.shape))
    for dim, times in enumerate(args[1]):
        if times < 1:
            raise NotExpressible("a tensor repeated no times")
        if times > 1:
            x = r.build.emit("repeat", x, dim=dim, times=int(times))
    return x


@handles("repeat_interleave.self_int")
def _repeat_interleave(r: TorchReader, args: Args) -> Value:
    """Each element `times` times in place: a unit dimension behind `dim`, spread and joined with it."""
    x, times = _moved(r, args[0]), args[1]
    if len(args) < 3 or args[2] is None:
        x, dim = r.build.reshape(x, [x.type.elements]), 0
    else:
        dim = dim_of(x, args[2])
    before, extent, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    spread = r.build.broadcast(
        r.build.reshape(x, (*before, extent, 1, *after)), (*before, extent, times, *after)
    )
    return r.build.reshape(spread, (*before, extent * times, *after))


@handles("cat", "concat")
def _cat(r: TorchReader, args: Args) -> Value:
    parts = [
        p for p in (r.tensor(a, r.element) for a in args[0] if 0 not in r.shape_of(a)) if p.type.elements
    ]
    return r.build.emit("concat", *parts, dim=dim_of(parts[0], args[1] if len(args) > 1 else 0))


@handles("slice_scatter", "slice_scatter_copy")
def _slice_scatter(r: TorchReader, args: Args) -> Value:
    """What an assignment to a slice becomes: the base, and the source in place of some of it."""
    base, source = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
    dim = dim_of(base, args[2] if len(args) > 2 else 0)
    extent = base.shape[dim]
    start = 0 if len(args) < 4 or args[3] is None else args[3]
    start = min(max(start + extent if start < 0 else start, 0), extent)
    if len(args) > 5 and args[5] != 1:
        raise NotExpressible("an assignment to a slice with gaps")
    if source.shape[dim] == extent:
        return source
    return r.build.emit("update_slice", base, source, dim=dim, offset=start)


@handles("stack")
def _stack(r: TorchReader, args: Args) -> Value:
    parts = [r.tensor(a, r.element) for a in args[0]]
    dim = args[1] + len(parts[0].shape) + 1 if args[1] < 0 else args[1]
    shape = (*parts[0].shape[:dim], 1, *parts[0].shape[dim:])
    return r.build.emit("concat", *(r.build.reshape(p, shape) for p in parts), dim=dim)


@handles("slice.Tensor", "slice_copy.Tensor")
def _slice(r: TorchReader, args: Args) -> Value:
    filled: Args = [*args, *(0, None, None, 1)[len(args) - 1 :]]
    _, dim, start, end, step = filled
    x = _moved(r, args[0])
    dim = dim_of(x, dim)
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    if last <= first:
        raise NotExpressible("an empty slice")
    return r.build.slice(x, dim, first, -(-(last - first) // step), step)


@handles("select.int", "select_copy.int")
def _select(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1])
    index = args[2] + x.shape[dim] if args[2] < 0 else args[2]
    return r.build.reshape(r.build.slice(x, dim, index, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


@handles("narrow")
def _narrow(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1])
    start = args[2] + x.shape[dim] if args[2] < 0 else args[2]
    return r.build.slice(x, dim, start, args[3])


def _split_at(r: TorchReader, held: Any, dim: int, sizes: Sequence[int]) -> list[Value]:
    x = _moved(r, held) if isinstance(held, Value) else held
    starts = np.cumsum([0, *sizes]).tolist()
    return [r.build.slice(x, dim, start, size) for start, size in zip(starts, sizes, strict=False)]


def _splitting(by_count: bool) -> Handler:
    def handler(r: TorchReader, args: Args) -> tuple[list[Value]]:
        """Pieces of one size (the last may be smaller), of given sizes, or of given number."""
        x, dim = args[0], dim_of(args[0], args[2] if len(args) > 2 else 0)
        extent, sizes = x.shape[dim], args[1]
        if isinstance(sizes, int):
            size = -(-extent // sizes) if by_count else sizes
            sizes = [min(size, extent - at) for at in range(0, extent, size)]
        return (_split_at(r, x, dim, sizes),)

    return handler


handles("split.Tensor", "split_with_sizes", "split.sizes", "unsafe_split.Tensor")(_splitting(False))
handles("chunk", "unsafe_chunk")(_splitting(True))


@handles("unbind.int")
def _unbind(r: TorchReader, args: Args) -> tuple[list[Value]]:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1] if len(args) > 1 else 0)
    return ([_select(r, [x, dim, i]) for i in range(x.shape[dim])],)


@handles("flip")
def _flip(r: TorchReader, args: Args) -> Value:
    """One slice for each element, so short dimensions only."""
    x = _moved(r, args[0])
    for dim in (dim_of(x, d) for d in args[1]):
        x = r.build.take(x, dim, range(x.shape[dim])[::-1])
    return x


@handles("roll")
def _roll(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    if not args[2]:
        raise NotExpressible("a roll of all elements")
    for shift, d in zip(args[1], args[2], strict=True):
        dim = dim_of(x, d)
        cut = -shift % x.shape[dim]
        if cut:
            parts = r.build.slice(x, dim, cut, x.shape[dim] - cut), r.build.slice(x, dim, 0, cut)
            x = r.build.emit("concat", *parts, dim=dim)
    return x


@handles("constant_pad_nd", "pad")
def _pad(r: TorchReader, args: Args) -> Value:
    """Constant padding as concatenations; negative amounts as slices."""
    x, amounts = _moved(r, args[0]), args[1]
    mode, number = (args[2], args[3]) if isinstance(args[2], str) else ("constant", args[2])
    if mode != "constant":
        raise NotExpressible(f"padding of mode '{mode}'")
    for i in range(len(amounts) // 2):
        dim = len(x.shape) - 1 - i
        before, after = amounts[2 * i], amounts[2 * i + 1]
        start, size = max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0)
        parts = [r.build.slice(x, dim, start, size)]
        for extent, at in ((before, 0), (after, 2)):
            if extent > 0:
                shape = (*x.shape[:dim], extent, *x.shape[dim + 1 :])
                parts.insert(at, r.build.constant(float(number or 0), x.dtype, shape))
        x = r.build.emit("concat", *parts, dim=dim)
    return x


# --- gathers at constant indices --------------------------------------------------------------------------


@handles("index_select")
def _index_select(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    if isinstance(args[2], Value):
        raise NotExpressible("a gather at indices that are no constants")
    return r.build.take(x, dim_of(x, args[1]), args[2].reshape(-1).tolist())


@handles("index.Tensor", "index.Tensor_hacked_twin")
def _index(r: TorchReader, args: Args) -> Value:
    """x[:, indices, :] with constant indices in one dimension."""
    x, indices = _moved(r, args[0]), args[1]
    given = [d for d, i in enumerate(indices) if i is not None]
    if any(isinstance(indices[d], Value) for d in given):
        raise NotExpressible("a gather at indices that are no constants")
    if len(given) != 1 or "bool" in str(indices[given[0]].dtype):
        raise NotExpressible("a gather in several dimensions at once")
    (dim,), index = given, indices[given[0]]
    picked = r.build.take(x, dim, index.reshape(-1).tolist())
    return r.build.reshape(picked, (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))


# --- constants shaped like a value ------------------------------------------------------------------------


@handles("zeros_like", "new_zeros")
def _zeros_like(r: TorchReader, args: Args) -> Any:
    return r.filled(0)


@handles("ones_like", "new_ones")
def _ones_like(r: TorchReader, args: Args) -> Any:
    return r.filled(1)


@handles("full_like")
def _full_like(r: TorchReader, args: Args) -> Any:
    return r.filled(args[1])


@handles("new_full")
def _new_full(r: TorchReader, args: Args) -> Any:
    return r.filled(args[2])


@handles("empty_like", "new_empty")
def _empty_like(r: TorchReader, args: Args) -> Any:
    """Memory that nobody may read: PyTorch leaves it undefined, so zeros are as good as any."""
    return r.filled(0)
