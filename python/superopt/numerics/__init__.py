"""Whether a program's floating-point results are as good as those of the program that it replaces.

checking      inputs and tolerance (numpy alone; copied into bundles)
float_gate    the check of a lowered program without running its kernels: `gate`
rounding      the model of rounding that tolerances come from
externs       opaque operations in the gate
interpreter   emitted kernels in Triton's interpreter
runner        `run.py` of a bundle: checks and times the real kernels with torch, triton and numpy
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.numerics.float_gate import NumericsReport, gate

__all__ = ["NumericsReport", "gate"]


def __getattr__(name: str) -> Any:
    """Load on first use: not everybody needs to wait for the import of numpy."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from superopt.numerics import float_gate

    return getattr(float_gate, name)
