"""Scalar bodies of linalg operations as kernel operators on whole tensors.

A body's values are numbers that vary over the iteration space. Each is an array known at
import (it depends only on constants and indices), a tensor aligned to the space, a comparison of two of these, or
truth values made of such.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from superopt.transforms.ingest.builder import FOLD_LIMIT, GraphBuilder, NotExpressible
from superopt.transforms.ingest.interpret import check_rounding, predicate, scalar_operation, to_dtype
from superopt.transforms.ingest.space import Aligned, Space

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Comparison:
    """`left <predicate> right`: `o` or `u` (the answer for NaN: no or yes), then eq, ne, lt, le, gt or ge."""

    predicate: str
    left: Aligned
    right: Aligned

    @property
    def kind(self) -> str:
        """How numbers are compared."""
        return self.predicate[1:]


@dataclass(frozen=True)
class Truth:
    """Zeros and ones that stand for truth values."""

    value: Aligned


Form: TypeAlias = "Array | Aligned | Comparison | Truth"

_BINARY = {
    "arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div",
    "arith.maximumf": "max", "arith.maxnumf": "max", "arith.minimumf": "min", "arith.minnumf": "min",
}  # fmt: skip
_UNARY = {
    "arith.negf": "neg", "math.exp": "exp", "math.expm1": "expm1", "math.log": "log", "math.log1p": "log1p",
    "math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "math.erf": "erf", "math.tanh": "tanh",
    "math.sin": "sin", "math.cos": "cos",
}  # fmt: skip
_LOGIC = {"arith.andi": "mul", "arith.ori": "max"}
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


@dataclass
class Body:
    """Evaluates values of one operation's body over `space`.

    `known` holds what the body's arguments stand for; `outer` gives the form of values from outside the body.
    """

    space: Space
    known: dict[Any, Form]
    outer: Callable[[Any], Form]
    floats: Callable[[str], str]
    """The kernel dtype of an element type's name; raises NotExpressible for unsupported ones."""
    tensor: Callable[[Any], Any] = field(default=lambda value: value)
    """What a tensor value used inside the body stands for: a graph value or an array."""

    @property
    def build(self) -> GraphBuilder:
        """The builder of the graph."""
        return self.space.build

    def form(self, value: Any) -> Form:
        """What `value` stands for."""
        if value not in self.known:
            owner = value.owner
            # The owner of a block argument is a block; all arguments of the body itself are known.
            name = getattr(owner, "name", None)
            inside = name is not None and name != "builtin.module"
            self.known[value] = (
                self._operation(owner) if inside and self._inside(owner) else self.outer(value)
            )
        return self.known[value]

    def aligned(self, value: Any) -> Aligned:
        """The form of `value` as a tensor of the element type that `value` has."""
        return self._tensor(self.form(value), str(value.type))

    def _inside(self, operation: Any) -> bool:
        parent = operation.parent
        return parent is not None and parent.operation.name.split(".")[0] in ("linalg", "tensor")

    # --- operations ---------------------------------------------------------------------------------------

    def _operation(self, operation: Any) -> Form:
        name = operation.name
        if name == "arith.constant":
            return to_dtype(np.asarray(operation.attributes["value"].value), str(operation.results[0].type))
        if name == "linalg.index":
            return self._index(int(operation.attributes["dim"].value))
        if name == "tensor.extract":
            return self._extract(operation)
        return self.operation_on(operation, [self.form(v) for v in operation.operands])

    def operation_on(self, operation: Any, forms: list[Form]) -> Form:
        """An arith or math operation whose operands stand for `forms`."""
        if operation.name == "arith.select":
            return self._select(operation, forms)
        arrays = [f for f in forms if isinstance(f, np.ndarray)]
        if len(arrays) == len(forms):
            if math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) > FOLD_LIMIT:
                raise NotExpressible("a constant expression over too large a space")
            return scalar_operation(operation, arrays)
        if operation.name in ("arith.cmpf", "arith.cmpi"):
            return self._compare(operation, forms)
        check_rounding(operation)
        element = _element(operation.results[0])
        if operation.name in ("arith.andi", "arith.ori", "arith.xori") and element == "i1":
            return self._logic(operation.name, [self._truth(f, "f32") for f in forms])
        if operation.name == "arith.uitofp" and isinstance(forms[0], Comparison | Truth):
            return self._truth(forms[0], self.floats(element))
        args = [self._tensor(f, _element(v)) for f, v in zip(forms, operation.operands, strict=True)]
        return self._apply(operation.name, args, _element(operation.results[0]), forms)

    def _apply(self, name: str, args: list[Aligned], element: str, forms: list[Form]) -> Aligned:
        """An arith or math operation on tensors, with a result of element type `element`."""
        space = self.space
        if name in ("arith.maxnumf", "arith.minnumf"):
            self.build.check_defined(*(x.value for x in args))
        if name in _BINARY:
            return space.apply(_BINARY[name], *args)
        if name in _UNARY:
            return space.apply(_UNARY[name], *args)
        if name in ("arith.extf", "arith.truncf"):
            return space.apply("cast", *args, dtype=self.floats(element))
        (x, *rest) = args

        def number(n: float) -> Aligned:
            return Aligned(self.build.constant(n, x.value.dtype, ()), ())

        match name:
            case "math.powf" | "math.fpowi":
                base, exponent = forms
                if (
                    name == "math.powf"
                    and isinstance(base, np.ndarray)
                    and base.size == 1
                    and base.flat[0] > 0
                ):
                    return space.apply("exp", space.apply("mul", rest[0], number(math.log(base.flat[0]))))
                if not isinstance(exponent, np.ndarray) or exponent.size != 1:
                    raise NotExpressible(f"'{name}' with an exponent that is not constant")
                return space.apply("pow", x, exponent=float(exponent.flat[0]))
            case "math.absf":
                return space.apply("max", x, space.apply("neg", x))
            case "math.exp2":
                return space.apply("exp", space.apply("mul", x, number(math.log(2))))
            case "math.log2" | "math.log10":
                base = 2 if name == "math.log2" else 10
                return space.apply("div", space.apply("log", x), number(math.log(base)))
            case "math.fma":
                return space.apply("add", space.apply("mul", x, rest[0]), rest[1])
            case _:
                raise NotExpressible(f"the scalar operation '{name}'")

    def _index(self, dim: int) -> Array:
        shape = [1] * len(self.space.extents)
        shape[dim] = self.space.extents[dim]
        return np.arange(shape[dim]).reshape(shape)

    def _tensor(self, form: Form, element: str) -> Aligned:
        if isinstance(form, Aligned):
            return form
        if isinstance(form, Comparison | Truth):
            raise NotExpressible("a truth value that is not constant, used as a number")
        if element in ("index", "i1", "i8", "i16", "i32", "i64"):
            element = "f32"  # the exponent of fpowi, which is read from its form
        array = np.asarray(form, dtype=np.float64)
        dims = tuple(d for d in range(array.ndim) if array.shape[d] != 1)
        squeezed = array.reshape([array.shape[d] for d in dims])
        return Aligned(self.build.constant(squeezed, self.floats(element)), dims)

    # --- gathers ------------------------------------------------------------------------------------------

    def _extract(self, operation: Any) -> Form:
        """`tensor.extract`: folded on arrays, a slice where each index is affine in one dimension."""
        source, *indices = operation.operands
        forms = [self.form(i) for i in indices]
        if not all(isinstance(f, np.ndarray) for f in forms):
            raise NotExpressible("'tensor.extract' at indices that are not constant")
        arrays = [f for f in forms if isinstance(f, np.ndarray)]
        held = self.tensor(source)
        for array, extent in zip(arrays, source.type.shape, strict=True):
            if array.min() < 0 or array.max() >= extent:
                raise NotExpressible("'tensor.extract' out of bounds")
        if isinstance(held, np.ndarray):
            return np.asarray(cast("Any", held)[tuple(arrays)])
        value, dims = held, list[int]()
        for axis, array in enumerate(arrays):
            varying = [d for d in range(array.ndim) if array.shape[d] != 1]
            if len(varying) > 1:
                raise NotExpressible("'tensor.extract' at indices that vary along several dimensions")
            value = self.build.take(value, axis, array.reshape(-1).tolist())
            dims.append(varying[0] if varying else -1)
        kept = [d for d in dims if d >= 0]
        if len(set(kept)) != len(kept):
            raise NotExpressible("'tensor.extract' along a diagonal")
        shape = [e for e, d in zip(value.shape, dims, strict=True) if d >= 0]
        return Aligned(self.build.reshape(value, shape), tuple(kept))

    # --- selections ---------------------------------------------------------------------------------------

    def _compare(self, operation: Any, forms: list[Form]) -> Form:
        if operation.name == "arith.cmpi":
            raise NotExpressible("a comparison of integers that are not constant")
        kind = predicate(operation)
        if kind in ("true", "false"):
            return np.asarray(kind == "true")
        if kind in ("ord", "uno") or any(isinstance(f, np.ndarray) and np.isnan(f).any() for f in forms):
            raise NotExpressible("a comparison that asks for NaN")
        element = _element(operation.operands[0])
        left, right = (self._tensor(f, element) for f in forms)
        if left != right:
            return Comparison(kind, left, right)
        if (kind[0] == "u") != (kind[1:] in ("eq", "le", "ge")):
            raise NotExpressible("a number compared with itself, to find NaN")
        return np.asarray(kind[0] == "u")

    def _select(self, operation: Any, forms: list[Form]) -> Form:
        """select(a > b, a, b) -> max(a, b), and its variants; by a constant mask: see `where_constant`."""
        test, *branches = forms
        element = _element(operation.results[0])
        if isinstance(test, np.ndarray):
            if test.size == 1:
                return branches[0] if test.flat[0] else branches[1]
            arrays = [f for f in branches if isinstance(f, np.ndarray)]
            if len(arrays) == 2:
                return scalar_operation(operation, [test, *arrays])
            return self._masked(test, *(self._tensor(f, element) for f in branches))
        if not isinstance(test, Comparison | Truth):
            raise NotExpressible("a selection by a tensor that is not a comparison")
        self.floats(element)  # numbers that are chosen are floats, and no truth values or integers
        first, second = (self._tensor(f, element) for f in branches)
        if isinstance(test, Truth):
            return self._where(test, first, second)
        for kind, a, b in ((test.kind, test.left, test.right), (_SWAPPED[test.kind], test.right, test.left)):
            if kind in ("gt", "ge", "lt", "le") and (first, second) == (a, b):
                self.build.check_defined(
                    b.value if test.predicate[0] == "u" else a.value
                )  # NaN selects the other
                return self.space.apply("max" if kind[0] == "g" else "min", a, b)
        return self._leaky(test, first, second) or self._where(test, first, second)

    def _leaky(self, test: Comparison, first: Aligned, second: Aligned) -> Aligned | None:
        """select(x > 0, x, k x) -> max(x, k x) for 0 <= k <= 1, min for k > 1; variants likewise."""
        x, bound, larger = test.left, test.right, test.kind in ("gt", "ge")
        if test.kind in ("eq", "ne"):
            return None
        if self.build.scalar(x.value) is not None:
            x, bound, larger = bound, x, not larger
        kept, scaled = (first, second) if larger else (second, first)
        product = self.build.defined_by(scaled.value, "mul")
        if self.build.scalar(bound.value) != 0 or kept != x or scaled.dims != x.dims or product is None:
            return None
        slopes = [self.build.scalar(v) for v in product.operands if v is not x.value]
        if len(slopes) != 1 or slopes[0] is None or not slopes[0] >= 0:
            return None
        return self.space.apply("max" if slopes[0] <= 1 else "min", x, scaled)

    def _where(self, test: Comparison | Truth, x: Aligned, y: Aligned) -> Aligned:
        """A selection between tensors of one dtype."""
        self.build.check_defined(x.value, y.value)
        truth = self._truth(test, x.value.dtype)
        hidden = self.space.apply("sub", self._number(1.0, truth), truth)
        for chosen, other, where in ((x, y, truth), (y, x, hidden)):
            if (number := self.build.scalar(other.value)) is not None:
                return self.space.apply("select", where, chosen, other=number)
        parts = (self.space.apply("select", t, z, other=0.0) for t, z in ((truth, x), (hidden, y)))
        return self.space.apply("add", *parts)

    def _number(self, number: float, like: Aligned) -> Aligned:
        return Aligned(self.build.constant(number, like.value.dtype, ()), ())

    def _truth(self, form: Form, dtype: str) -> Aligned:
        """A truth value as zeros and ones."""
        if isinstance(form, Truth):
            return self.space.apply("cast", form.value, dtype=dtype)
        if isinstance(form, np.ndarray):
            return self._tensor(form.astype(np.float64), dtype)
        if not isinstance(form, Comparison):
            raise NotExpressible("a truth value that is an input")
        a, b = form.left, form.right
        self.build.check_comparable(a.value, b.value)
        larger = [self.space.apply("step", self.space.apply("sub", *pair)) for pair in ((a, b), (b, a))]
        made = {"gt": larger[0], "le": larger[0], "lt": larger[1], "ge": larger[1]}.get(form.kind)
        made = self.space.apply("max", *larger) if made is None else made
        if form.kind in ("le", "ge", "eq"):
            made = self.space.apply("sub", self._number(1.0, made), made)
        return self.space.apply("cast", made, dtype=dtype)

    def _logic(self, name: str, truths: list[Aligned]) -> Truth:
        if name in _LOGIC:
            return Truth(self.space.apply(_LOGIC[name], *truths))
        a, b = truths
        square = self.space.apply("square", self.space.apply("sub", a, b))
        return Truth(square)

    def _masked(self, mask: Array, x: Aligned, y: Aligned) -> Aligned:
        varying = {d for d in range(mask.ndim) if mask.shape[d] != 1}
        dims = self.space.sorted(varying | {*x.dims, *y.dims})
        extents = self.space.extents
        spread = np.broadcast_to(mask, [extents[d] if d in varying else 1 for d in range(len(extents))])
        axes = [d for d in dims if d in varying]
        ordered = spread.reshape([extents[d] for d in sorted(varying)])
        ordered = ordered.transpose([sorted(varying).index(d) for d in axes])
        ordered = ordered.reshape([extents[d] if d in varying else 1 for d in dims])
        chosen, other = self.space.arrange(x, dims), self.space.arrange(y, dims)
        return Aligned(self.build.where_constant(ordered, chosen, other, [extents[d] for d in dims]), dims)


def _element(value: Any) -> str:
    """The name of a value's element type, or of its type where it is a scalar."""
    return str(getattr(value.type, "element_type", value.type))
