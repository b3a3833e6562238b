"""Small helpers for writing tile programs: statements with inferred types, and readable names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from superopt.operators import Scalar, infer_type
from superopt.program import (
    Attr,
    Bound,
    Buffer,
    Compute,
    Load,
    Statement,
    Store,
    TensorType,
    Value,
    Window,
)


def whole(buffer: Buffer) -> tuple[Window, ...]:
    """The windows of all of a buffer."""
    return tuple(Window(e) for e in buffer.type.shape)


def load(out: list[Statement], buffer: Buffer, windows: tuple[Window, ...], name: str = "") -> Value:
    """Append `result = buffer[windows]`."""
    shape = tuple(w.size for w in windows)
    result = Value(TensorType(shape, buffer.type.dtype), name)
    out.append(Load(result, buffer, windows))
    return result


def store(out: list[Statement], buffer: Buffer, windows: tuple[Window, ...], value: Value) -> None:
    """Append `buffer[windows] = value`."""
    out.append(Store(buffer, windows, value))


def compute(
    out: list[Statement],
    op: str,
    operands: Sequence[Value],
    attrs: dict[str, Attr] | None = None,
    name: str = "",
) -> Value:
    """Append `result = op(operands)`, with the type that the operator table infers."""
    attrs = dict(attrs or {})
    result = Value(infer_type(op, [v.type for v in operands], attrs), name)
    out.append(Compute(op, tuple(operands), result, attrs))
    return result


def mask(out: list[Statement], value: Value, bounds: tuple[Bound, ...], fill: float) -> Value:
    """Append `value` with `fill` in place of what is beyond the bounds."""
    result = Value(value.type, value.name)
    out.append(Compute("mask", (value,), result, {"fill": fill}, bounds))
    return result


def constant(out: list[Statement], value: float, shape: tuple[int, ...], dtype: str, name: str = "") -> Value:
    """Append a splat of `value`."""
    return compute(out, "constant", (), {"value": float(value), "shape": shape, "dtype": dtype}, name)


def apply_scalar(out: list[Statement], body: Scalar, arguments: Sequence[Value], name: str = "") -> Value:
    """Append the statements that compute a scalar body on tiles; every primitive is a separate operator."""
    if body.head == "arg":
        return arguments[int(body.payload)]
    if body.head == "const":
        return constant(out, body.payload, (), arguments[0].dtype)
    return compute(out, body.head, [apply_scalar(out, a, arguments) for a in body.args], name=name)


def identifier(text: str, default: str) -> str:
    """`text` as a Python identifier, or `default` where nothing remains."""
    text = re.sub(r"\W+", "_", text).strip("_").lower()
    return text if text and not text[0].isdigit() else default
