"""The operator table: everything superopt knows about each operator, in one place.

An entry gives an operator's loop nest (as in `linalg.generic`: extents, iterator types and an index map for
each operand, as functions of operand shapes and attributes) and its scalar body over a handful of primitives.
From these follow shape inference and the verifier of each level, the numpy reference, the evaluation over
finite fields, the abstract expression, flops and bytes, and the Triton spelling. Operators that only
move data (`reshape`, `repeat`, `concat`, `update_slice`) lack an affine nest: their entries define by hand how
they arrange elements.

Adding an operator is adding one entry here and one lit test (CONTRIBUTING.md shows it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, TypeAlias

import numpy as np

from superopt.nests import (
    Array,
    Attrs,
    Index,
    Nest,
    Shape,
    broadcast_nest,
    broadcast_shapes,
    concatenated_shape,
    conv_nest,
    conv_transpose_nest,
    elementwise_nest,
    fail,
    float_attr,
    g2bmm_nest,
    gbmm_nest,
    int_attr,
    ints_attr,
    matmul_nest,
    pad_nest,
    pool_nest,
    reduction_nest,
    repeated,
    repeated_shape,
    reshaped_shape,
    shifted_nest,
    slice_nest,
    transpose_nest,
    updated,
    updated_shape,
)
from superopt.nests_by_text import TERMS, nest_by_text, sum_of_products
from superopt.program import COMPUTE_DTYPES, NUMBER_DTYPES, Attr, Band, Computed, Ramp, TensorType
from superopt.scalars import Scalar, apply, arg, as_scalar, erf, exp, maximum, minimum, sqrt, where

__all__ = [
    "NEUTRAL",
    "OPERATORS",
    "AttrSpec",
    "Attrs",
    "Index",
    "Level",
    "Move",
    "Nest",
    "Operator",
    "Scalar",
    "arg",
    "broadcast_shapes",
    "computed_of",
    "dense_elements",
    "elements_of",
    "exp",
    "infer_type",
    "is_constant",
    "is_contraction",
    "is_conversion",
    "is_elementwise",
    "is_mask",
    "is_windowed",
    "move_of",
    "nest_of",
    "normalize_attrs",
    "primitive_of",
    "reduction_of",
    "splat_of",
    "sqrt",
]

# --- entries ----------------------------------------------------------------------------------------------

Combiner: TypeAlias = Literal["add", "max", "min"]
# What joining starts from.
NEUTRAL: dict[Combiner, float] = {"add": 0.0, "max": -math.inf, "min": math.inf}
Level: TypeAlias = Literal["kernel", "block", "thread", "tile"]
GRAPH_LEVELS: frozenset[Level] = frozenset({"kernel", "block", "tile"})
ALL_LEVELS: frozenset[Level] = frozenset({"kernel", "block", "thread", "tile"})
AttrKind: TypeAlias = Literal["int", "ints", "float", "bool", "dtype", "text", "value"]


class Move(Enum):
    """How an operator that computes nothing arranges elements, and what its attributes mean."""

    RESHAPE = "in row-major order, as another `shape`"
    BROADCAST = "each as often as `shape` asks"
    TRANSPOSE = "dimensions in the order of `perm`"
    SLICE = "`sizes` of them from `offsets` on, `strides` apart"
    REPEAT = "`times` one after the other along `dim`"
    CONCAT = "operands one after the other along `dim`"
    UPDATE = "the second operand in place of those from `offset` on along `dim`"


@dataclass(frozen=True)
class AttrSpec:
    """An attribute of an operator; required where `default` is None."""

    name: str
    kind: AttrKind
    default: Attr | None = None


@dataclass(frozen=True)
class Operator:
    """One entry of the table.

    `arity` is None for operators with any positive number of operands. Exactly one of `nest` (with `body`),
    `arrange` and, for constants, `elements` (a number, all of
    them, or what is computed of an index) is given. `arrange` maps arrays (of anything: floats, field
    elements, indices) to the result's array by moving elements only. `combiner` joins what a reduction visits;
    `finish` is applied to the joined value, given the number of elements reduced. `move` is given for operators
    that compute nothing. The nests of `windowed` ones are not plain: they read windows that may overlap and reach
    outside.

    Searches, lowering and emission decide by these fields, never by the name.
    """

    name: str
    arity: int | None
    doc: str
    levels: frozenset[Level] = GRAPH_LEVELS
    attrs: tuple[AttrSpec, ...] = ()
    nest: Callable[[Sequence[Shape], Attrs], Nest] | None = None
    body: Callable[[Attrs], Scalar] | None = None
    combiner: Combiner | None = None
    finish: Callable[[int], Scalar] | None = None
    arrange: Callable[[Sequence[Array], Attrs], Array] | None = None
    arranged_shape: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    elements: Callable[[Attrs], Attr | Computed] | None = None
    move: Move | None = None
    windowed: bool = False

    @property
    def elementwise(self) -> bool:
        """Whether it applies its body point by point (with broadcasting) and nothing else."""
        return self.nest is elementwise_nest

    @property
    def constant(self) -> bool:
        """Whether its attributes hold its elements."""
        return self.arity == 0

    @property
    def contraction(self) -> bool:
        """Whether it is a sum of products of its two operands along whole dimensions: a matrix product."""
        return self.combiner == "add" and self.arity == 2 and self.finish is None and not self.windowed

    @property
    def reduction(self) -> Combiner | None:
        """How it joins elements along whole dimensions of its one operand; None if it does not."""
        return self.combiner if self.arity == 1 and not self.windowed else None

    @property
    def conversion(self) -> bool:
        """Whether it gives the same numbers in another dtype."""
        return self.elementwise and any(a.kind == "dtype" for a in self.attrs)

    @property
    def partial(self) -> str:
        """The operator that computes a part of this one's result, before `finish`."""
        if self.finish is None:
            return self.name
        parts = (e for e in _ENTRIES if e.nest is self.nest and e.combiner == self.combiner and not e.finish)
        return next(parts).name

    def flops(self, shapes: Sequence[Shape], attrs: Attrs) -> int:
        """Scalar operations that one application performs; a fused multiply-add counts two."""
        if self.nest is None or self.body is None:
            return 0
        nest = self.nest(shapes, attrs)
        per_point = len(self.body(attrs).primitives()) + (self.combiner is not None)
        return nest.points * per_point

    def special(self, shapes: Sequence[Shape], attrs: Attrs, numbers: Container[int] = ()) -> int:
        """Those of them that only the special function units do; the operands `numbers` are numbers."""
        if self.nest is None or self.body is None:
            return 0
        return math.prod(self.nest(shapes, attrs).extents) * self.body(attrs).special(numbers)


def _pointwise(
    name: str, arity: int, doc: str, body: Callable[[Attrs], Scalar], *attrs: AttrSpec
) -> Operator:
    return Operator(name, arity, doc, ALL_LEVELS, attrs, elementwise_nest, body)


def _unary(name: str, doc: str, body: Callable[[Scalar], Scalar]) -> Operator:
    return _pointwise(name, 1, doc, lambda _: body(arg(0)))


def _binary(name: str, doc: str, body: Callable[[Scalar, Scalar], Scalar]) -> Operator:
    return _pointwise(name, 2, doc, lambda _: body(arg(0), arg(1)))


def _reduction(
    name: str,
    doc: str,
    combiner: Combiner,
    finish: Callable[[int], Scalar] | None = None,
) -> Operator:
    specs = (AttrSpec("dims", "ints"), AttrSpec("keepdims", "bool", False))
    return Operator(name, 1, doc, ALL_LEVELS, specs, reduction_nest, lambda _: arg(0), combiner, finish)


def _moving(
    name: str, doc: str, move: Move, nest: Callable[[Sequence[Shape], Attrs], Nest], *attrs: AttrSpec
) -> Operator:
    return Operator(name, 1, doc, GRAPH_LEVELS, attrs, nest, lambda _: arg(0), move=move)


def _windowed(
    name: str,
    arity: int,
    doc: str,
    nest: Callable[[Sequence[Shape], Attrs], Nest],
    combiner: Combiner | None,
    *attrs: AttrSpec,
) -> Operator:
    return Operator(
        name, arity, doc, frozenset({"kernel"}), attrs, nest,
        lambda _: arg(0) * arg(1) if arity == 2 else arg(0), combiner, windowed=True,
    )  # fmt: skip


def _sigmoid(x: Scalar) -> Scalar:
    return 1 / (1 + exp(-x))


def _tanh(x: Scalar) -> Scalar:
    return 1 - 2 / (exp(2 * x) + 1)


def _clamp(attrs: Attrs) -> Scalar:
    return minimum(maximum(arg(0), float_attr(attrs, "low")), float_attr(attrs, "high"))


LARGEST_POWER = 64  # written as a product


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
    x, exponent = arg(0), float_attr(attrs, "exponent")
    if exponent == int(exponent) and 1 <= abs(exponent) <= LARGEST_POWER:
        product = _whole_power(x, int(abs(exponent)))
        return product if exponent > 0 else 1 / product
    if exponent == 0:
        return as_scalar(1.0)
    if abs(exponent) == 0.5:
        return sqrt(x) if exponent > 0 else 1 / sqrt(x)
    return apply("pow", x, exponent)


# Of windows, for each spatial dimension: how far apart they are and what they read is, and the padding.
_WINDOWS = tuple(AttrSpec(name, "ints") for name in ("strides", "dilations", "low", "high"))

# Of bands: how far apart places are, and how many rows above its own the first of a row is (`low`).
_BAND = (AttrSpec("dilation", "int", 1), AttrSpec("low", "int"))

_ENTRIES: tuple[Operator, ...] = (
    Operator(
        "matmul", 2, "Matrix product over the last two dimensions; leading ones are batch and broadcast.",
        GRAPH_LEVELS, (AttrSpec("transpose_a", "bool", False), AttrSpec("transpose_b", "bool", False)),
        matmul_nest, lambda _: arg(0) * arg(1), "add",
    ),
    _binary("add", "a + b", lambda a, b: a + b),
    _binary("sub", "a - b", lambda a, b: a - b),
    _binary("mul", "a * b", lambda a, b: a * b),
    _binary("div", "a / b", lambda a, b: a / b),
    _binary("max", "The larger of a and b.", maximum),
    _binary("min", "The smaller of a and b.", minimum),
    _unary("neg", "-x", lambda x: -x),
    _unary("exp", "e to the x", exp),
    _unary("expm1", "exp(x) - 1, rounded once", lambda x: exp(x) - 1),
    _unary("log", "Natural logarithm.", lambda x: apply("log", x)),
    _unary("log1p", "log(1 + x), exact to a rounding where x is small", lambda x: apply("log1p", x)),
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
    _unary("sin", "Sine (radians).", lambda x: apply("sin", x)),
    _unary("cos", "Cosine (radians).", lambda x: apply("cos", x)),
    _pointwise("clamp", 1, "min(max(x, low), high)", _clamp,
               AttrSpec("low", "float"), AttrSpec("high", "float")),
    _unary("step", "1 where x > 0, else 0.", lambda x: where(x, 1.0, 0.0)),
    _pointwise("select", 2, "The second operand where the first one is positive, `other` elsewhere.",
               lambda a: where(arg(0), arg(1), float_attr(a, "other")), AttrSpec("other", "float")),
    _pointwise("pow", 1, "x to a constant exponent.", _pow, AttrSpec("exponent", "float")),
    _pointwise("cast", 1, "The same numbers in another dtype.", lambda _: arg(0), AttrSpec("dtype", "dtype")),
    Operator(
        "mask", 1, "The elements within the bounds of a statement of the tile level, `fill` in place of others.",
        frozenset({"tile"}), (AttrSpec("fill", "float"),), elementwise_nest, lambda _: arg(0),
    ),
    _reduction("reduce_sum", "Sum over `dims`.", "add"),
    _reduction("reduce_mean", "Mean over `dims`.", "add", lambda n: arg(0) / n),
    _reduction("reduce_max", "Maximum over `dims`.", "max"),
    _reduction("reduce_min", "Minimum over `dims`.", "min"),
    _windowed("conv", 2, "Convolution over 1 to 3 spatial dimensions, channels first, padded by zeros.",
              conv_nest, "add", *_WINDOWS, AttrSpec("groups", "int", 1)),
    _windowed("conv_transpose", 2, "The transpose of a convolution with the same weight and attributes.",
              conv_transpose_nest, "add", *_WINDOWS, AttrSpec("extra", "ints"), AttrSpec("groups", "int", 1)),
    _windowed("pool_max", 1, "Maximum of each window; what is outside does not count.",
              pool_nest(NEUTRAL["max"]), "max", AttrSpec("sizes", "ints"), *_WINDOWS),
    _windowed("pool_sum", 1, "Sum of each window.", pool_nest(NEUTRAL["add"]), "add",
              AttrSpec("sizes", "ints"), *_WINDOWS),
    _windowed("shifted_sum", 1, "Sum over kernel positions, each read where a convolution would read for it.",
              shifted_nest, "add", *_WINDOWS),
    _windowed("g2bmm", 2, "A band of the product of a matrix with a transposed one, each row's side by side.",
              g2bmm_nest, "add", AttrSpec("width", "int"), *_BAND),
    _windowed("gbmm", 2, "The product of a band matrix, each row's places side by side, with a matrix.",
              gbmm_nest, "add", *_BAND),
    _windowed("pad", 1, "Elements of `value` before and after each dimension.", pad_nest, None,
              AttrSpec("low", "ints"), AttrSpec("high", "ints"), AttrSpec("value", "float", 0.0)),
    Operator(
        "nest", None, "Sums of products of operands that `maps` read where `guards` hold, where `where` holds.",
        frozenset({"kernel"}),
        (AttrSpec("extents", "ints"), AttrSpec("rank", "int"), AttrSpec("maps", "text"),
         AttrSpec("guards", "text", ""), AttrSpec("where", "text", "true"), AttrSpec(TERMS, "ints", ())),
        nest_by_text, sum_of_products, "add", windowed=True,
    ),
    _moving("broadcast", "numpy.broadcast_to", Move.BROADCAST, broadcast_nest, AttrSpec("shape", "ints")),
    _moving("transpose", "numpy.transpose", Move.TRANSPOSE, transpose_nest, AttrSpec("perm", "ints")),
    _moving("slice", "A strided window.", Move.SLICE, slice_nest, AttrSpec("offsets", "ints"),
            AttrSpec("sizes", "ints"), AttrSpec("strides", "ints")),
    Operator(
        "reshape", 1, "Row-major elements in another shape.", GRAPH_LEVELS, (AttrSpec("shape", "ints"),),
        arrange=lambda xs, a: xs[0].reshape(ints_attr(a, "shape")), arranged_shape=reshaped_shape,
        move=Move.RESHAPE,
    ),
    Operator(
        "repeat", 1, "numpy.tile along `dim`.", GRAPH_LEVELS,
        (AttrSpec("dim", "int"), AttrSpec("times", "int")),
        arrange=repeated, arranged_shape=repeated_shape, move=Move.REPEAT,
    ),
    Operator(
        "concat", None, "Operands one after the other along `dim`.", GRAPH_LEVELS, (AttrSpec("dim", "int"),),
        arrange=lambda xs, a: np.concatenate(xs, axis=int_attr(a, "dim")), arranged_shape=concatenated_shape,
        move=Move.CONCAT,
    ),
    Operator(
        "update_slice", 2, "The first operand with the second in place of elements from `offset` on along `dim`.",
        GRAPH_LEVELS, (AttrSpec("dim", "int"), AttrSpec("offset", "int")),
        arrange=updated, arranged_shape=updated_shape, move=Move.UPDATE,
    ),
    Operator(
        "constant", 0, "A splat of `value`, or its elements where it is a dense array.", ALL_LEVELS,
        (AttrSpec("value", "value"), AttrSpec("shape", "ints"), AttrSpec("dtype", "dtype")),
        elements=lambda a: a["value"],
    ),
    Operator(
        "band", 0, "`inside` where lower <= column - row <= upper, by the last two dimensions, else `outside`.",
        frozenset({"kernel"}),
        (AttrSpec("lower", "int"), AttrSpec("upper", "int"), AttrSpec("inside", "float"),
         AttrSpec("outside", "float"), AttrSpec("shape", "ints"), AttrSpec("dtype", "dtype")),
        elements=lambda a: Band(*(int_attr(a, k) for k in ("lower", "upper")),
                                *(float_attr(a, k) for k in ("inside", "outside"))),
    ),
    Operator(
        "ramp", 0, "start + step * index, by the index along the dimension `along`, of which the last is -1.",
        frozenset({"kernel"}),
        (AttrSpec("along", "int"), AttrSpec("start", "int"), AttrSpec("step", "int"), AttrSpec("shape", "ints"),
         AttrSpec("dtype", "dtype")),
        elements=lambda a: Ramp(*(int_attr(a, k) for k in ("along", "start", "step"))),
    ),
)  # fmt: skip

OPERATORS: dict[str, Operator] = {entry.name: entry for entry in _ENTRIES}


# --- what a node applies ----------------------------------------------------------------------------------


class Applied(Protocol):
    """A node of a graph, a statement of a tile program, a term: what may apply an operator of the table."""

    @property
    def op(self) -> str:
        """The operator's name, or one that the level itself defines."""
        ...


class AppliedTo(Applied, Protocol):
    """The same with its attributes."""

    @property
    def attrs(self) -> Attrs:
        """The operator's attributes."""
        ...


class Shaped(Protocol):
    """A value of any level."""

    @property
    def shape(self) -> Shape:
        """Its extents."""
        ...


class AppliedOn(AppliedTo, Protocol):
    """The same with its operands."""

    @property
    def operands(self) -> Sequence[Shaped]:
        """What the operator is applied to."""
        ...


_NONE = Operator("", None, "What stands for operations of the level's own.")


def nest_of(node: AppliedOn) -> Nest | None:
    """The loop nest of `node` on its operands; None if its operator arranges elements by hand."""
    entry = OPERATORS.get(node.op, _NONE)
    if entry.nest is None:
        return None
    return entry.nest([v.shape for v in node.operands], normalize_attrs(entry, node.attrs))


def move_of(node: Applied) -> Move | None:
    """How `node` arranges elements; None if it computes, and for the level's own operations."""
    return OPERATORS.get(node.op, _NONE).move


def reduction_of(node: Applied) -> Combiner | None:
    """How `node` joins elements of its one operand; None where it does not."""
    return OPERATORS.get(node.op, _NONE).reduction


def primitive_of(node: Applied) -> str | None:
    """The one primitive that an elementwise `node` applies to its operands in order; None where it is not one."""
    return _PRIMITIVES.get(node.op)


def is_elementwise(node: Applied) -> bool:
    """Whether `node` applies a scalar body point by point."""
    return OPERATORS.get(node.op, _NONE).elementwise


def is_contraction(node: Applied) -> bool:
    """Whether `node` is a sum of products of its two operands."""
    return OPERATORS.get(node.op, _NONE).contraction


def is_windowed(node: Applied) -> bool:
    """Whether `node` reads windows that may overlap and reach outside."""
    return OPERATORS.get(node.op, _NONE).windowed


def is_general(node: AppliedOn) -> bool:
    """Whether `node` is a nest whose operands are read by general indices, or under guards."""
    if OPERATORS.get(node.op, _NONE).nest is not nest_by_text:
        return False
    nest = nest_of(node)
    return nest is not None and bool(nest.reads)


def is_conversion(node: Applied) -> bool:
    """Whether `node` gives the same numbers in another dtype."""
    return OPERATORS.get(node.op, _NONE).conversion


def is_mask(node: Applied) -> bool:
    """Whether `node` keeps the elements that the bounds of a statement of the tile level say exist."""
    return OPERATORS.get(node.op, _NONE).levels == frozenset({"tile"})


def is_constant(node: Applied) -> bool:
    """Whether the attributes of `node` hold its elements."""
    return OPERATORS.get(node.op, _NONE).constant


def splat_of(node: AppliedTo) -> int | float | None:
    """The number that every element of a constant is; None where they differ, and for other nodes."""
    value = node.attrs.get("value") if is_constant(node) else None
    return value if isinstance(value, int | float) else None


def elements_of(entry: Operator, attrs: Attrs) -> int | float | Array:
    """The number that every element of a constant is, or else all of them."""
    assert entry.elements is not None
    held = entry.elements(attrs)
    if isinstance(held, Computed):
        return held.elements(ints_attr(attrs, "shape"))
    assert isinstance(held, int | float | np.ndarray)
    return held


def dense_elements(node: AppliedTo) -> Array | None:
    """The elements of a constant that is not one number everywhere; None for others."""
    if not is_constant(node) or splat_of(node) is not None:
        return None
    entry = OPERATORS[node.op]
    return np.asarray(elements_of(entry, normalize_attrs(entry, node.attrs)))


def computed_of(node: AppliedTo) -> Computed | None:
    """What kernels compute of an index instead of loading it, where a constant is such; None for others."""
    entry = OPERATORS.get(node.op, _NONE)
    held = entry.elements(node.attrs) if entry.elements else None
    return held if isinstance(held, Computed) else None


def _only_primitive(entry: Operator) -> str | None:
    if entry.attrs or entry.body is None or not entry.elementwise:
        return None
    body = entry.body({})
    straight = tuple(arg(i) for i in range(entry.arity or 0))
    return body.head if straight and body.args == straight else None


_PRIMITIVES = {name: found for name, entry in OPERATORS.items() if (found := _only_primitive(entry))}


# --- what follows from an entry ---------------------------------------------------------------------------


_OF_KIND: dict[str, Callable[[Attr], bool]] = {
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "ints": lambda v: isinstance(v, tuple),
    "float": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, bool),
    "text": lambda v: isinstance(v, str),
    "dtype": lambda v: isinstance(v, str) and v in COMPUTE_DTYPES,
    "value": lambda v: isinstance(v, int | float | np.ndarray),
}


def normalize_attrs(entry: Operator, attrs: Attrs) -> dict[str, Attr]:
    """`attrs` with defaults filled in; an error where one is missing, unknown or of the wrong kind."""
    out: dict[str, Attr] = {}
    for spec in entry.attrs:
        value = attrs.get(spec.name, spec.default)
        if value is None:
            raise fail(f"'{entry.name}' expected attribute '{spec.name}' ({spec.kind}), got none")
        if not _OF_KIND[spec.kind](value):
            raise fail(f"'{entry.name}' expected attribute '{spec.name}' of kind {spec.kind}, got {value!r}")
        out[spec.name] = value
    if unknown := set(attrs) - {spec.name for spec in entry.attrs}:
        known = [s.name for s in entry.attrs] or "no attributes"
        raise fail(f"'{entry.name}' expected {known}, got unknown attribute '{min(unknown)}'")
    return out


def infer_type(name: str, operands: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Result type of operator `name`; raises IllegalProgram for operands or attributes it does not accept."""
    if name not in OPERATORS:
        raise fail(f"expected an operator of the table, got '{name}'")
    entry = OPERATORS[name]
    if (entry.arity is not None and len(operands) != entry.arity) or (entry.arity is None and not operands):
        raise fail(f"'{name}' expected {entry.arity or 'one or more'} operands, got {len(operands)}")
    values = normalize_attrs(entry, attrs)
    dtypes = {t.dtype for t in operands}
    if len(dtypes) > 1:
        raise fail(f"'{name}' expected operands of one dtype, got {' and '.join(sorted(dtypes))}")
    if dtypes - (NUMBER_DTYPES if entry.conversion or entry.move is Move.RESHAPE else COMPUTE_DTYPES):
        raise fail(f"'{name}' expected {', '.join(sorted(COMPUTE_DTYPES))}, got {dtypes.pop()}")
    shapes = [t.shape for t in operands]
    dtype = values.get("dtype")
    out_dtype = dtype if isinstance(dtype, str) else dtypes.pop()
    if entry.arranged_shape is not None:
        return TensorType(entry.arranged_shape(shapes, values), out_dtype)
    if entry.nest is None:
        return TensorType(_constant_shape(values), out_dtype)
    return TensorType(entry.nest(shapes, values).result_shape, out_dtype)


def _constant_shape(attrs: Attrs) -> Shape:
    shape, value = ints_attr(attrs, "shape"), attrs.get("value")
    if isinstance(value, np.ndarray) and value.shape != shape:
        raise fail(f"expected a value of shape {shape}, got {value.shape}")
    if "lower" in attrs and len(shape) < 2:
        raise fail(f"'band' expected rows and columns, got shape {shape}")
    if isinstance(along := attrs.get("along"), int) and not -len(shape) <= along < 0:
        raise fail(f"'ramp' expected a dimension from -1, the last, to {-len(shape)}, got {along}")
    return shape
