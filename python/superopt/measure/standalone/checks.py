"""Inputs to time with, and how far an output may be off; on the device, with torch alone.

The rule is that of superopt's numeric gate: four times the error that the program as written has at its own
precision, plus four roundings of the row's largest number. Both errors are against the program in fp32 (in fp64
where it computes in fp32 itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FACTOR = 4.0
EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


def dtypes(torch: Any) -> dict[str, Any]:
    """Torch's dtypes by their short names."""
    return {
        "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
        "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "i1": torch.bool,
    }  # fmt: skip


def make_inputs(torch: Any, program: dict[str, Any], device: str, seed: int) -> list[Any]:
    """Normal numbers times each input's scale; the same for the same seed, device type and torch.

    For i8 they are quantized weights; for truth values, and for integers of scale 1, 0 and 1: indices into any
    table of two.
    """
    made: list[Any] = []
    for i, spec in enumerate(program["inputs"]):
        generator = torch.Generator(device=device)
        generator.manual_seed(seed * 1_000_003 + i)
        numbers = torch.randn(spec["shape"], generator=generator, device=device, dtype=torch.float32)
        if spec["dtype"] in EPSILON:
            numbers = numbers * spec["scale"]
        elif spec["dtype"] not in ("i1", "i8") and spec["scale"] != 1.0:
            numbers = (numbers * spec["scale"]).round()
        else:
            numbers = (numbers * 32).clamp(-127, 127).round() if spec["dtype"] == "i8" else numbers > 0
        made.append(numbers.to(dtypes(torch)[spec["dtype"]]))
    return made


def _exact(x: Any, dtype: Any, again: object = None) -> Any:
    return x.double() if _becomes_float(x, dtype) else x


def _rounded(x: Any, dtype: Any, again: object = None) -> Any:
    return x.to(dtype).double() if _becomes_float(x, dtype) else x.to(dtype).to(x.dtype)


def _becomes_float(x: Any, dtype: Any) -> bool:
    """Whether a conversion to `dtype` makes floats of integers or truth values."""
    return dtype.is_floating_point and not x.is_floating_point()


class Expected:
    """What the outputs should be for some inputs, and how far each element may be off."""

    def __init__(
        self,
        torch: Any,
        reference: Any,
        constants: dict[str, Any],
        program: dict[str, Any],
        inputs: Sequence[Any],
    ) -> None:
        self.torch, self.outputs = torch, program["outputs"]
        single = any(spec["dtype"] == "f32" for spec in program["inputs"])
        wide = torch.float64 if single else torch.float32

        def run(rounded: Any) -> list[Any]:
            cast = [t.to(wide) if t.is_floating_point() else t for t in inputs]
            held = {n: t.to(wide) for n, t in constants.items()}
            made = reference.run(*cast, rounded=rounded, constants=held, externs={})
            return [t if t.is_floating_point() else t.to(wide) for t in made]

        self.exact = run(_exact)
        rough = run(_rounded)
        self.allowed = [
            self._allowed(e, r, o["dtype"]) for e, r, o in zip(self.exact, rough, self.outputs, strict=True)
        ]
        self.asked = [e.isfinite() & r.isfinite() for e, r in zip(self.exact, rough, strict=True)]

    def _allowed(self, exact: Any, rough: Any, dtype: str) -> Any:
        torch = self.torch
        asked = exact.isfinite() & rough.isfinite()
        zero = torch.zeros((), dtype=exact.dtype, device=exact.device)
        off = torch.where(asked, (rough - exact).abs(), zero)
        size = torch.where(asked, exact.abs(), zero)
        if off.dim():
            off = torch.maximum(off.amax(-1, keepdim=True), off.max() / 8)
            size = size.amax(-1, keepdim=True)
        return FACTOR * (off + EPSILON.get(dtype, 0.0) * size) + torch.finfo(torch.float32).tiny

    def ratio(self, got: Sequence[Any]) -> float:
        """The largest error of `got` as a share of what is allowed; infinite for wrong shapes and for NaN."""
        torch = self.torch
        worst = 0.0
        if len(got) != len(self.exact):
            return float("inf")
        for g, e, allowed, asked, o in zip(
            got, self.exact, self.allowed, self.asked, self.outputs, strict=True
        ):
            if tuple(g.shape) != tuple(o["shape"]) or g.dtype != dtypes(torch)[o["dtype"]]:
                return float("inf")
            if not g.numel():
                continue
            share = torch.where(asked, (g.to(e.dtype) - e).abs() / allowed, torch.zeros_like(e))
            found = float(torch.nan_to_num(share, nan=float("inf")).max())
            worst = max(worst, found)
        return worst
