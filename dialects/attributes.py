"""Between MLIR's types and attributes and plain Python ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from superopt.dialects.mlir import ir
from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.operators import OPERATORS, AttrSpec, Operator
from superopt.program import DTYPE_BYTES, Attr, TensorType


def tensor_type(mlir_type: Any) -> TensorType:
    """The plain form of a ranked tensor or memref type with static extents."""
    if not isinstance(mlir_type, ir.RankedTensorType | ir.MemRefType):
        raise IllegalProgram(f"expected a ranked tensor, got {mlir_type}")
    if not mlir_type.has_static_shape:
        raise UnsupportedProgram(f"expected static extents, got the dynamic shape {mlir_type}")
    dtype = str(mlir_type.element_type)
    if dtype not in DTYPE_BYTES:
        raise UnsupportedProgram(f"expected an element type of {', '.join(DTYPE_BYTES)}, got {dtype}")
    return TensorType(tuple(mlir_type.shape), dtype)


def read_attr(attribute: Any) -> Attr:
    """The plain form of one attribute."""
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.StringAttr):
        return str(attribute.value)
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return tuple(int(x) for x in attribute)
    if isinstance(attribute, ir.TypeAttr):
        return str(attribute.value)
    if isinstance(attribute, ir.DenseElementsAttr):
        return _read_dense(attribute)
    raise IllegalProgram(
        f"expected an integer, float, bool, string, i64 array or dense attribute, got {attribute}"
    )


def _read_dense(attribute: Any) -> Attr:
    shape = tuple(attribute.type.shape)
    if attribute.is_splat:
        return float(attribute.get_splat_value().value)
    if str(attribute.type.element_type) not in ("f16", "f32", "f64"):
        raise IllegalProgram(f"expected dense elements of f16, f32 or f64, got {attribute.type}")
    return np.array(attribute).reshape(shape)


def implied(spec: AttrSpec, result: TensorType) -> Attr | None:
    """The value of an attribute that the result type says (`shape`, `dtype`), which MLIR text leaves out."""
    if spec.name == "shape" and spec.kind == "ints":
        return result.shape
    if spec.name == "dtype" and spec.kind == "dtype":
        return result.dtype
    return None


def read_attrs(operation: Any, result: TensorType | None = None) -> dict[str, Attr]:
    """All attributes of `operation`; with a table operator's result type, those it implies as well."""
    attrs = {name: read_attr(operation.attributes[name]) for name in operation.attributes}
    entry = OPERATORS.get(operation.name.partition(".")[2])
    if entry is not None and result is not None:
        for spec in entry.attrs:
            if (value := implied(spec, result)) is not None:
                attrs.setdefault(spec.name, value)
            # MLIR users write `1 : i64` and `1.0` alike for a real number.
            if spec.kind == "float" and isinstance(attrs.get(spec.name), int):
                attrs[spec.name] = float(attrs[spec.name])  # type: ignore[arg-type]
    return attrs


def explicit_attrs(entry: Operator | None, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    """`attrs` without those that the result type implies or that equal their default."""
    if entry is None:
        return dict(attrs)
    hidden = {s.name for s in entry.attrs if (s.name, s.kind) in (("shape", "ints"), ("dtype", "dtype"))}
    defaults = {s.name: s.default for s in entry.attrs if s.default is not None}
    return {n: v for n, v in attrs.items() if n not in hidden and not (n in defaults and defaults[n] == v)}


def write_attr(value: Attr, dtype: str = "f32") -> str:
    """MLIR text of an attribute; dense arrays have element type f32, or f16 for `dtype` f16."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{_float_text(value)} : f64"
    if isinstance(value, str):
        return value if value in DTYPE_BYTES else _quote(value)
    if isinstance(value, tuple):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    element = "f16" if dtype == "f16" else "f32"
    data = np.ascontiguousarray(value, dtype=np.float16 if element == "f16" else np.float32)
    shape = "x".join([*map(str, data.shape), element])
    return f'dense<"0x{data.tobytes().hex().upper()}"> : tensor<{shape}>'


def _float_text(value: float) -> str:
    """A float that MLIR reads back exactly; non-finite ones as their bits."""
    if not np.isfinite(value):
        return f"0x{np.float64(value).view(np.uint64):016X}"
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    return text


def _quote(text: str) -> str:
    """An MLIR string literal."""
    escaped = "".join(
        c if 32 <= ord(c) < 127 and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode())
        for c in text
    )
    return f'"{escaped}"'
