"""Pointwise operators of PyTorch."""

from __future__ import annotations

import math
from typing import Any

from superopt.program import Value
from superopt.transforms.ingest.aten.table import Args, Handler, fill, handles
from superopt.transforms.ingest.aten.truths import truth
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.torch_dialect import TorchReader


def _binary(op: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        if len(args) > 2 and isinstance(args[2], str):
            raise NotExpressible(f"division with rounding mode '{args[2]}'")
        # PyTorch multiplies by numbers that f16 does not hold in f32.
        held = [a for a in args[:2] if isinstance(a, int | float) and a and math.isfinite(a)]
        lost = r.element == "f16" and any(not 2.0**-14 <= abs(a) < 65520 for a in held)
        element = "f32" if lost else r.element
        return r.build.cast(
            r.build.emit(op, r.tensor(args[0], element), r.tensor(args[1], element)), r.element
        )

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

for _op in ("neg", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "reciprocal",
            "sigmoid", "silu", "relu", "tanh", "erf", "sin", "cos"):  # fmt: skip
    handles(_op)(_unary(_op))


def _scaled_sum(op: str, swapped: bool) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        """a + alpha * b, a - alpha * b; with operands exchanged where `swapped`"""
        a, b = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
        if swapped:
            a, b = b, a
        alpha = args[2] if len(args) > 2 else 1
        return r.build.emit(op, a, b if alpha == 1 else r.build.emit("mul", b, fill(r, alpha, b)))

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


def _in_f32(r: TorchReader, held: Any) -> Value:
    """An operand of what PyTorch computes in f32 for f16 and bf16, which hold three digits of a constant."""
    return r.tensor(held, "f32")


@handles("exp2")
def _exp2(r: TorchReader, args: Args) -> Value:
    x = _in_f32(r, args[0])
    return r.build.cast(r.build.emit("exp", r.build.emit("mul", x, fill(r, math.log(2), x))), r.element)


def _log_base(base: float) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        x = _in_f32(r, args[0])
        made = r.build.emit("div", r.build.emit("log", x), fill(r, math.log(base), x))
        return r.build.cast(made, r.element)

    return handler


handles("log2")(_log_base(2))
handles("log10")(_log_base(10))


@handles("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def _pow(r: TorchReader, args: Args) -> Value:
    x, exponent = r.tensor(args[0], r.element), args[1]
    if isinstance(exponent, Value) or getattr(exponent, "numel", lambda: 1)() != 1:
        raise NotExpressible("a power whose exponent is not constant")
    return r.build.emit("pow", x, exponent=float(exponent))


@handles("pow.Scalar")
def _pow_scalar(r: TorchReader, args: Args) -> Value:
    x = _in_f32(r, args[1])
    if args[0] <= 0:
        raise NotExpressible(f"a power of the base {args[0]}")
    return r.build.cast(r.build.emit("exp", r.build.emit("mul", x, fill(r, math.log(args[0]), x))), r.element)


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
    "contiguous", "clone", "detach", "alias", "lift_fresh_copy", "lift_fresh",
)  # fmt: skip
def _convert(r: TorchReader, args: Args) -> Value:
    """Operators that keep the numbers; the result's dtype says whether a cast remains."""
    if r.element == "i1" and isinstance(args[0], Value):
        return truth(r, args[0])
    if isinstance(args[0], Value) and args[0].dtype == r.element and args[0] not in r.truths:
        if r.element == "i8" and (args[0] in r.unsigned) != r.makes_unsigned:
            raise NotExpressible("bytes that gain or lose their sign")
        return args[0]
    return r.tensor(args[0], r.element)
