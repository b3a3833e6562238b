"""What Triton's interpreter lacks: products of bf16, which numpy lacks, too, and loops up to an argument."""

from __future__ import annotations

from typing import Any


def mend(interpreter: Any) -> None:
    """Let the interpreter multiply bf16 tiles, and run loops whose ends are computed from arguments."""
    _widen_products(interpreter)
    _count_with_scalars(interpreter)


def _count_with_scalars(interpreter: Any) -> None:
    """A scalar is an array of one element, which recent versions of numpy do not take for an integer."""
    original = interpreter._patch_lang_tensor
    if getattr(original, "mended", False):
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", number)

    def number(scalar: Any) -> int:
        return int(scalar.handle.data.item())

    setattr(patch, "mended", True)  # noqa: B010 - the type of a function lacks this attribute
    interpreter._patch_lang_tensor = patch


def _widen_products(interpreter: Any) -> None:
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
