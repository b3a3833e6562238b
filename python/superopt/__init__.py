"""superopt: a tensor superoptimizer.

    import superopt

    layer.mlp = superopt.optimize(layer.mlp, inputs=(x,))  # a module for a module
    layer.mlp.save("bundle")  # superopt.load("bundle") elsewhere

    result = superopt.optimize("program.mlir", budget=60)
    print(result.triton, result.ptx, result.certificate)

Everything heavy (the MLIR bindings, torch, triton, z3) is imported when it is used, not here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.api import from_torch, optimize
    from superopt.pytorch.backend import explain
    from superopt.pytorch.replace import replace
    from superopt.pytorch.saving import load
    from superopt.result import Optimized

__version__ = "0.1.0"
__all__ = [
    "Optimized",
    "SuperoptError",
    "__version__",
    "explain",
    "from_torch",
    "load",
    "optimize",
    "replace",
]
_PLACES = {
    "Optimized": "result",
    "explain": "pytorch.backend",
    "from_torch": "api",
    "load": "pytorch.saving",
    "optimize": "api",
    "replace": "pytorch.replace",
}


def __getattr__(name: str) -> Any:
    """What the package offers, imported when it is used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'superopt' lacks '{name}'")
    return getattr(import_module(f"superopt.{_PLACES[name]}"), name)
