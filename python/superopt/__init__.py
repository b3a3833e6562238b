"""superopt: a tensor superoptimizer.

    import superopt

    result = superopt.optimize("program.mlir", target="sm_90", budget=60)
    print(result.triton, result.ptx, result.certificate)
    result.save("bundle")

Everything heavy (the MLIR bindings, torch, triton, z3) is imported when it is used, not here.
"""

from __future__ import annotations

from superopt.api import Optimized, from_torch, optimize
from superopt.errors import SuperoptError

__version__ = "0.1.0"
__all__ = ["Optimized", "SuperoptError", "__version__", "from_torch", "optimize"]
