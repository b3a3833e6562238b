"""The operator table: everything superopt knows of an operator, said once.

An entry gives an operator's loop nest (as in `linalg.generic`: extents, iterator types and an index map for
each operand, as functions of operand shapes and attributes) and its scalar body over a handful of primitives.
From these follow shape inference and the verifier of each level, the numpy reference, the evaluation over
finite fields, the abstract expression, flops and bytes, the class, and the Triton spelling. Operators that only
move data (`reshape`, `repeat`, `concat`, `update_slice`) are no affine nest: they say by hand how they arrange
elements.

Adding an operator is adding one entry here and one lit test (CONTRIBUTING.md shows it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from superopt.errors import IllegalProgram
from superopt.program import COMPUTE_DTYPES, Attr, TensorType

Shape: TypeAlias = tuple[int, ...]
Attrs: TypeAlias = Mapping[str, Attr]
Array: TypeAlias = "np.ndarray[Any, Any]"

# --- scalar bodies ----------------------------------------------------------------------------------------

# What every domain (floats, finite fields, abstract expressions, Triton text) must provide.
PRIMITIVES: dict[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "exp": 1, "log": 1, "sqrt": 1, "erf": 1,
    "sin": 1, "cos": 1, "max": 2, "min": 2, "pow": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Scalar:
    """A scalar expression: an argument, a constant, or a primitive applied to expressions.

    `head` is "arg" (payload: index), "const" (payload: float), or a name of `PRIMITIVES`.
    """

    head: str
    args: tuple[Scalar, ...] = ()
    payload: float = 0

    def __add__(self, other: Scalar | float) -> Scalar:
        return Scalar("add", (self, as_scalar(other)))

    def __radd__(self, other: float) -> Scalar:
        return Scalar("add", (as_scalar(other), self))

    def __sub__(self, other: Scalar | float) -> Scalar:
        return Scalar("sub", (self, as_scalar(other)))

    def __rsub__(self, other: float) -> Scalar:
        return Scalar("sub", (as_scalar(other), self))

    def __mul__(self, other: Scalar | float) -> Scalar:
        return Scalar("mul", (self, as_scalar(other)))

    def __rmul__(self, other: float) -> Scalar:
        return Scalar("mul", (as_scalar(other), self))

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return Scalar("div", (self, as_scalar(other)))

    def __rtruediv__(self, other: float) -> Scalar:
        return Scalar("div", (as_scalar(other), self))

    def __neg__(self) -> Scalar:
        return Scalar("neg", (self,))

    def primitives(self) -> list[str]:
        """Every primitive applied, innermost first, with repetition."""
        below = [p for a in self.args for p in a.primitives()]
        return below if self.head in ("arg", "const") else [*below, self.head]


def as_scalar(x: Scalar | float) -> Scalar:
    """`x` itself, or the constant `x`."""
    return x if isinstance(x, Scalar) else Scalar("const", payload=float(x))


def arg(index: int) -> Scalar:
    """The operand number `index`."""
    return Scalar("arg", payload=index)


def _apply(name: str, *args: Scalar | float) -> Scalar:
    return Scalar(name, tuple(map(as_scalar, args)))


def exp(x: Scalar) -> Scalar:
    """The primitive `exp`, on an expression; the functions below likewise."""
    return _apply("exp", x)


def sqrt(x: Scalar) -> Scalar:
    """See `exp`."""
    return _apply("sqrt", x)


def erf(x: Scalar) -> Scalar:
    """See `exp`."""
    return _apply("erf", x)


def maximum(x: Scalar, y: Scalar | float) -> Scalar:
    """See `exp`."""
    return _apply("max", x, y)


def minimum(x: Scalar, y: Scalar | float) -> Scalar:
    """See `exp`."""
    return _apply("min", x, y)


# --- loop nests -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """One dimension of an index map: `offset + stride * dim`, or the constant `offset` where dim is None."""

    dim: int | None
    stride: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Nest:
    """An affine loop nest: `result[result_map] = combine over reductions of body(operand[operand_maps]...)`.

    `extents` are those of the iteration space; `reductions` its reduced dimensions. The result's dimensions
    are given by `result`: an iteration dimension each, or None for a dimension of extent 1 (keepdims).
    """

    extents: Shape
    operands: tuple[tuple[Index, ...], ...]
    result: tuple[int | None, ...]
    reductions: tuple[int, ...] = ()

    @property
    def result_shape(self) -> Shape:
        """Shape of the result."""
        return tuple(1 if d is None else self.extents[d] for d in self.result)

    @property
    def reduced(self) -> int:
        """Product of the reduced extents."""
        return math.prod(self.extents[d] for d in self.reductions)


# --- entries ----------------------------------------------------------------------------------------------

Level: TypeAlias = Literal["kernel", "block", "thread", "tile"]
GRAPH_LEVELS: frozenset[Level] = frozenset({"kernel", "block", "tile"})
ALL_LEVELS: frozenset[Level] = frozenset({"kernel", "block", "thread", "tile"})
AttrKind: TypeAlias = Literal["int", "ints", "float", "bool", "dtype", "value"]


@dataclass(frozen=True)
class AttrSpec:
    """An attribute of an operator; required where `default` is None."""

    name: str
    kind: AttrKind
    default: Attr | None = None


@dataclass(frozen=True)
class Operator:
    """One entry of the table.

    `arity` is None for operators with any positive number of operands. Exactly one of `nest` (with `body`)
    and `arrange` is given, or neither for `constant`. `arrange` maps arrays (of anything: floats, field
    elements, indices) to the result's array by moving elements only. `combiner` joins what a reduction visits;
    `finish` is applied to the joined value, given the number of elements reduced.
    """

    name: str
    arity: int | None
    doc: str
    levels: frozenset[Level] = GRAPH_LEVELS
    attrs: tuple[AttrSpec, ...] = ()
    nest: Callable[[Sequence[Shape], Attrs], Nest] | None = None
    body: Callable[[Attrs], Scalar] | None = None
    combiner: Literal["add", "max", "min"] | None = None
    finish: Callable[[int], Scalar] | None = None
    arrange: Callable[[Sequence[Array], Attrs], Array] | None = None
    arranged_shape: Callable[[Sequence[Shape], Attrs], Shape] | None = None

    @property
    def elementwise(self) -> bool:
        """Whether it applies its body point by point (with broadcasting) and nothing else."""
        return "thread" in self.levels

    def is_contraction(self, attrs: Attrs) -> bool:
        """Whether it is a sum of products of its two operands (so that a domain may use a matrix product)."""
        return self.combiner == "add" and self.arity == 2 and self.finish is None

    def operator_class(self, attrs: Attrs) -> Literal["multilinear", "division", "exponential", "other"]:
        """Its class in Mirage's Lax fragment (section 5): the hardest primitive that its body applies."""
        if self.body is None:
            return "multilinear"
        used = set(self.body(attrs).primitives())
        if self.combiner in ("max", "min") or used & {
            "log",
            "sqrt",
            "erf",
            "sin",
            "cos",
            "max",
            "min",
            "pow",
        }:
            return "other"
        if "exp" in used:
            return "exponential"
        return "division" if "div" in used else "multilinear"

    def flops(self, shapes: Sequence[Shape], attrs: Attrs) -> int:
        """Scalar operations that one application performs; a fused multiply-add counts two."""
        if self.nest is None or self.body is None:
            return 0
        nest = self.nest(shapes, attrs)
        per_point = len(self.body(attrs).primitives()) + (self.combiner is not None)
        return math.prod(nest.extents) * per_point


def _fail(message: str) -> IllegalProgram:
    return IllegalProgram(message)


def _int(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)
    return value


def _ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def _float(attrs: Attrs, name: str) -> float:
    value = attrs[name]
    assert isinstance(value, int | float)
    return float(value)


def _dims(dims: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    if len(set(dims)) != len(dims) or any(d < 0 or d >= rank for d in dims):
        raise _fail(f"expected distinct {what} in [0, {rank}), got {list(dims)}")
    return tuple(dims)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The shape that `shapes` broadcast to by numpy's rules."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[int] = []
    for column in zip(*padded, strict=True):
        extents = {e for e in column if e != 1}
        if len(extents) > 1:
            raise _fail(f"expected operand shapes that broadcast, got {' and '.join(map(str, shapes))}")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def _operand_map(shape: Shape, extents: Shape, dims: Sequence[int]) -> tuple[Index, ...]:
    """Index map of an operand whose dimensions follow `dims`; size 1 against a larger extent is held at 0."""
    return tuple(Index(None) if shape[i] == 1 and extents[d] != 1 else Index(d) for i, d in enumerate(dims))


def _elementwise_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    extents = broadcast_shapes(shapes)
    maps = tuple(_operand_map(s, extents, range(len(extents) - len(s), len(extents))) for s in shapes)
    return Nest(extents, maps, tuple(range(len(extents))))


def _reduction_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    (shape,) = shapes
    dims = _dims(_ints(attrs, "dims"), len(shape), "reduction dims")
    if not dims:
        raise _fail("expected at least one reduction dim, got none")
    keep = bool(attrs["keepdims"])
    result = tuple(None if d in dims else d for d in range(len(shape)) if keep or d not in dims)
    return Nest(tuple(shape), (tuple(map(Index, range(len(shape)))),), result, tuple(sorted(dims)))


def _matmul_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise _fail(f"expected matmul operands of rank 2 or more, got shapes {a} and {b}")
    m, k = (a[-1], a[-2]) if attrs["transpose_a"] else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if attrs["transpose_b"] else (b[-2], b[-1])
    if k != k2:
        raise _fail(f"expected equal contracted extents, got {k} and {k2} (shapes {a} and {b})")
    batch = broadcast_shapes([a[:-2], b[:-2]])
    r = len(batch)
    extents = (*batch, m, n, k)
    dm, dn, dk = r, r + 1, r + 2

    def operand(shape: Shape, rows: int, cols: int) -> tuple[Index, ...]:
        lead = len(shape) - 2
        batch_map = _operand_map(shape[:-2], extents, range(r - lead, r))
        return (*batch_map, Index(rows), Index(cols))

    maps = (
        operand(a, *((dk, dm) if attrs["transpose_a"] else (dm, dk))),
        operand(b, *((dn, dk) if attrs["transpose_b"] else (dk, dn))),
    )
    return Nest(extents, maps, (*range(r), dm, dn), (dk,))


def _broadcast_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    (shape,) = shapes
    target = _ints(attrs, "shape")
    if len(target) < len(shape) or broadcast_shapes([shape, target]) != target:
        raise _fail(f"expected a shape that {tuple(shape)} broadcasts to, got {target}")
    dims = range(len(target) - len(shape), len(target))
    return Nest(target, (_operand_map(shape, target, dims),), tuple(range(len(target))))


def _transpose_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    (shape,) = shapes
    perm = _dims(_ints(attrs, "perm"), len(shape), "perm entries")
    if len(perm) != len(shape):
        raise _fail(f"expected a permutation of {len(shape)} dimensions, got {list(perm)}")
    inverse = {source: d for d, source in enumerate(perm)}
    extents = tuple(shape[p] for p in perm)
    return Nest(extents, (tuple(Index(inverse[i]) for i in range(len(shape))),), tuple(range(len(shape))))


def _slice_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    (shape,) = shapes
    offsets, sizes, strides = (_ints(attrs, n) for n in ("offsets", "sizes", "strides"))
    if not len(offsets) == len(sizes) == len(strides) == len(shape):
        raise _fail(f"expected {len(shape)} offsets, sizes and strides, got {offsets}, {sizes}, {strides}")
    for o, n, s, e in zip(offsets, sizes, strides, shape, strict=True):
        if o < 0 or n < 1 or s < 1 or o + (n - 1) * s >= e:
            raise _fail(f"expected a slice within extent {e}, got offset {o}, size {n}, stride {s}")
    maps = tuple(Index(d, strides[d], offsets[d]) for d in range(len(shape)))
    return Nest(sizes, (maps,), tuple(range(len(shape))))


def _reshaped(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (shape,) = shapes
    target = _ints(attrs, "shape")
    if math.prod(shape) != math.prod(target) or any(e < 1 for e in target):
        raise _fail(f"expected a shape of {math.prod(shape)} elements, got {target}")
    return target


def _repeated(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (shape,) = shapes
    (dim,) = _dims((_int(attrs, "dim"),), len(shape), "dim")
    if _int(attrs, "times") < 1:
        raise _fail(f"expected a positive number of times, got {attrs['times']}")
    return (*shape[:dim], shape[dim] * _int(attrs, "times"), *shape[dim + 1 :])


def _concatenated(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    first = shapes[0]
    (dim,) = _dims((_int(attrs, "dim"),), len(first), "dim")
    for s in shapes:
        if len(s) != len(first) or any(s[d] != first[d] for d in range(len(first)) if d != dim):
            raise _fail(f"expected shapes equal but for dimension {dim}, got {list(shapes)}")
    return (*first[:dim], sum(s[dim] for s in shapes), *first[dim + 1 :])


def _updated_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    base, update = shapes
    (dim,) = _dims((_int(attrs, "dim"),), len(base), "dim")
    if len(update) != len(base) or any(update[d] != base[d] for d in range(len(base)) if d != dim):
        raise _fail(f"expected shapes equal but for dimension {dim}, got {list(shapes)}")
    offset = _int(attrs, "offset")
    if not 0 <= offset <= base[dim] - update[dim]:
        raise _fail(
            f"expected an offset within 0 and {base[dim] - update[dim]} along dimension {dim}, got {offset}"
        )
    return base


def _updated(arrays: Sequence[Array], attrs: Attrs) -> Array:
    base, update = arrays
    out, start = base.copy(), _int(attrs, "offset")
    dim = _int(attrs, "dim")
    out[(*(slice(None),) * dim, slice(start, start + update.shape[dim]))] = update
    return out


def _repeat(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (array,) = arrays
    times = [1] * array.ndim
    times[_int(attrs, "dim")] = _int(attrs, "times")
    return np.tile(array, times)


def _pointwise(
    name: str, arity: int, doc: str, body: Callable[[Attrs], Scalar], *attrs: AttrSpec
) -> Operator:
    return Operator(name, arity, doc, ALL_LEVELS, attrs, _elementwise_nest, body)


def _unary(name: str, doc: str, body: Callable[[Scalar], Scalar]) -> Operator:
    return _pointwise(name, 1, doc, lambda _: body(arg(0)))


def _binary(name: str, doc: str, body: Callable[[Scalar, Scalar], Scalar]) -> Operator:
    return _pointwise(name, 2, doc, lambda _: body(arg(0), arg(1)))


def _reduction(
    name: str,
    doc: str,
    combiner: Literal["add", "max", "min"],
    finish: Callable[[int], Scalar] | None = None,
) -> Operator:
    specs = (AttrSpec("dims", "ints"), AttrSpec("keepdims", "bool", False))
    return Operator(name, 1, doc, GRAPH_LEVELS, specs, _reduction_nest, lambda _: arg(0), combiner, finish)


def _moving(
    name: str, doc: str, nest: Callable[[Sequence[Shape], Attrs], Nest], *attrs: AttrSpec
) -> Operator:
    return Operator(name, 1, doc, GRAPH_LEVELS, attrs, nest, lambda _: arg(0))


def _sigmoid(x: Scalar) -> Scalar:
    return 1 / (1 + exp(-x))


def _tanh(x: Scalar) -> Scalar:
    return 1 - 2 / (exp(2 * x) + 1)


def _clamp(attrs: Attrs) -> Scalar:
    return minimum(maximum(arg(0), _float(attrs, "low")), _float(attrs, "high"))


LARGEST_POWER = 64  # of those that are products


def _whole_power(x: Scalar, n: int) -> Scalar:
    """A product; from the ninth power on by squaring, so that its text stays shallow."""
    if n > 8:
        half = _whole_power(x, n // 2)
        return half * half * x if n % 2 else half * half
    product = x
    for _ in range(n - 1):
        product = product * x
    return product


def _pow(attrs: Attrs) -> Scalar:
    """Small integers and halves in primitives that the verifier understands; the rest stays opaque."""
    x, exponent = arg(0), _float(attrs, "exponent")
    if exponent == int(exponent) and 1 <= abs(exponent) <= LARGEST_POWER:
        product = _whole_power(x, int(abs(exponent)))
        return product if exponent > 0 else 1 / product
    if exponent == 0:
        return as_scalar(1.0)
    if abs(exponent) == 0.5:
        return sqrt(x) if exponent > 0 else 1 / sqrt(x)
    return _apply("pow", x, exponent)


_ENTRIES: tuple[Operator, ...] = (
    Operator(
        "matmul", 2, "Matrix product over the last two dimensions; leading ones are batch and broadcast.",
        GRAPH_LEVELS, (AttrSpec("transpose_a", "bool", False), AttrSpec("transpose_b", "bool", False)),
        _matmul_nest, lambda _: arg(0) * arg(1), "add",
    ),
    _binary("add", "a + b", lambda a, b: a + b),
    _binary("sub", "a - b", lambda a, b: a - b),
    _binary("mul", "a * b", lambda a, b: a * b),
    _binary("div", "a / b", lambda a, b: a / b),
    _binary("max", "The larger of a and b.", maximum),
    _binary("min", "The smaller of a and b.", minimum),
    _unary("neg", "-x", lambda x: -x),
    _unary("exp", "e to the x", exp),
    _unary("log", "Natural logarithm.", lambda x: _apply("log", x)),
    _unary("sqrt", "Square root.", sqrt),
    _unary("rsqrt", "1 / sqrt(x)", lambda x: 1 / sqrt(x)),
    _unary("square", "x * x", lambda x: x * x),
    _unary("reciprocal", "1 / x", lambda x: 1 / x),
    _unary("sigmoid", "1 / (1 + exp(-x))", _sigmoid),
    _unary("silu", "x * sigmoid(x)", lambda x: x * _sigmoid(x)),
    _unary("gelu", "x * (1 + erf(x / sqrt 2)) / 2", lambda x: 0.5 * x * (1 + erf(math.sqrt(0.5) * x))),
    _unary("relu", "max(x, 0)", lambda x: maximum(x, 0.0)),
    _unary("tanh", "Hyperbolic tangent.", _tanh),
    _unary("erf", "The error function.", erf),
    _unary("sin", "Sine (radians).", lambda x: _apply("sin", x)),
    _unary("cos", "Cosine (radians).", lambda x: _apply("cos", x)),
    _pointwise("clamp", 1, "min(max(x, low), high)", _clamp,
               AttrSpec("low", "float"), AttrSpec("high", "float")),
    _pointwise("pow", 1, "x to a constant exponent.", _pow, AttrSpec("exponent", "float")),
    _pointwise("cast", 1, "The same numbers in another dtype.", lambda _: arg(0), AttrSpec("dtype", "dtype")),
    _reduction("reduce_sum", "Sum over `dims`.", "add"),
    _reduction("reduce_mean", "Mean over `dims`.", "add", lambda n: arg(0) / n),
    _reduction("reduce_max", "Maximum over `dims`.", "max"),
    _reduction("reduce_min", "Minimum over `dims`.", "min"),
    _moving("broadcast", "numpy.broadcast_to", _broadcast_nest, AttrSpec("shape", "ints")),
    _moving("transpose", "numpy.transpose", _transpose_nest, AttrSpec("perm", "ints")),
    _moving("slice", "A strided window.", _slice_nest, AttrSpec("offsets", "ints"), AttrSpec("sizes", "ints"),
            AttrSpec("strides", "ints")),
    Operator(
        "reshape", 1, "Row-major elements in another shape.", GRAPH_LEVELS, (AttrSpec("shape", "ints"),),
        arrange=lambda xs, a: xs[0].reshape(_ints(a, "shape")), arranged_shape=_reshaped,
    ),
    Operator(
        "repeat", 1, "numpy.tile along `dim`.", GRAPH_LEVELS,
        (AttrSpec("dim", "int"), AttrSpec("times", "int")),
        arrange=_repeat, arranged_shape=_repeated,
    ),
    Operator(
        "concat", None, "Operands one after the other along `dim`.", GRAPH_LEVELS, (AttrSpec("dim", "int"),),
        arrange=lambda xs, a: np.concatenate(xs, axis=_int(a, "dim")), arranged_shape=_concatenated,
    ),
    Operator(
        "update_slice", 2, "The first operand with the second in place of elements from `offset` on along `dim`.",
        GRAPH_LEVELS, (AttrSpec("dim", "int"), AttrSpec("offset", "int")),
        arrange=_updated, arranged_shape=_updated_shape,
    ),
    Operator(
        "constant", 0, "A splat of `value`, or its elements where it is a dense array.", GRAPH_LEVELS,
        (AttrSpec("value", "value"), AttrSpec("shape", "ints"), AttrSpec("dtype", "dtype")),
    ),
)  # fmt: skip

OPERATORS: dict[str, Operator] = {entry.name: entry for entry in _ENTRIES}


# --- what follows from an entry ---------------------------------------------------------------------------


def normalize_attrs(entry: Operator, attrs: Attrs) -> dict[str, Attr]:
    """`attrs` with defaults filled in; an error where one is missing, unknown or of the wrong kind."""
    out: dict[str, Attr] = {}
    for spec in entry.attrs:
        value = attrs.get(spec.name, spec.default)
        if value is None:
            raise _fail(f"'{entry.name}' expected attribute '{spec.name}' ({spec.kind}), got none")
        good = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "ints": isinstance(value, tuple),
            "float": isinstance(value, int | float) and not isinstance(value, bool),
            "bool": isinstance(value, bool),
            "dtype": isinstance(value, str) and value in COMPUTE_DTYPES,
            "value": isinstance(value, int | float | np.ndarray),
        }[spec.kind]
        if not good:
            raise _fail(f"'{entry.name}' expected attribute '{spec.name}' of kind {spec.kind}, got {value!r}")
        out[spec.name] = value
    if unknown := set(attrs) - {spec.name for spec in entry.attrs}:
        known = [s.name for s in entry.attrs] or "no attributes"
        raise _fail(f"'{entry.name}' expected {known}, got unknown attribute '{min(unknown)}'")
    return out


def infer_type(name: str, operands: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Result type of operator `name`; raises IllegalProgram for operands or attributes it does not take."""
    if name not in OPERATORS:
        raise _fail(f"expected an operator of the table, got '{name}'")
    entry = OPERATORS[name]
    if (entry.arity is not None and len(operands) != entry.arity) or (entry.arity is None and not operands):
        raise _fail(f"'{name}' expected {entry.arity or 'one or more'} operands, got {len(operands)}")
    values = normalize_attrs(entry, attrs)
    dtypes = {t.dtype for t in operands}
    if len(dtypes) > 1:
        raise _fail(f"'{name}' expected operands of one dtype, got {' and '.join(sorted(dtypes))}")
    if dtypes - COMPUTE_DTYPES:
        raise _fail(f"'{name}' expected {', '.join(sorted(COMPUTE_DTYPES))}, got {dtypes.pop()}")
    shapes = [t.shape for t in operands]
    dtype = values.get("dtype")
    out_dtype = dtype if isinstance(dtype, str) else dtypes.pop()
    if entry.arranged_shape is not None:
        return TensorType(entry.arranged_shape(shapes, values), out_dtype)
    if entry.nest is None:
        return TensorType(_constant_shape(values), out_dtype)
    return TensorType(entry.nest(shapes, values).result_shape, out_dtype)


def _constant_shape(attrs: Attrs) -> Shape:
    shape, value = _ints(attrs, "shape"), attrs["value"]
    if isinstance(value, np.ndarray) and value.shape != shape:
        raise _fail(f"expected a value of shape {shape}, got {value.shape}")
    return shape
