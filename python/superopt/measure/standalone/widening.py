"""Triton's interpreter and bf16: numpy lacks such numbers, so products of them are computed in f32."""

from __future__ import annotations

from typing import Any


def widen_products(interpreter: Any) -> None:
    """Let the interpreter multiply bf16 tiles: it keeps them as 16-bit patterns, which it multiplies as
    integers."""
    original = interpreter.InterpreterBuilder.create_dot
    if getattr(original, "widened", False):
        return

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        def wide(x: Any) -> Any:
            if str(x.dtype.scalar) != "bf16":
                return x
            bits = x.data.astype("uint32") << 16
            return interpreter.TensorHandle(bits.view("float32"), interpreter.tl.float32)

        return original(self, wide(a), wide(b), d, *rest)

    setattr(create_dot, "widened", True)  # noqa: B010 - the type of a function lacks this attribute
    interpreter.InterpreterBuilder.create_dot = create_dot
