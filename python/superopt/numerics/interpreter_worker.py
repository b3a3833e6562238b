"""The child of `superopt.numerics.interpreter`; a plain script that needs torch, triton and numpy."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

# What programs have prepared of their weights, by name, the newest so many of them.
_PREPARED: dict[int, Any] = {}
KEPT = 16


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            _run(json.loads(line))
            answer = {}
        except ModuleNotFoundError as error:
            answer = {"missing": str(error.name)}
        except Exception:  # whatever a kernel does is reported, and costs only its request
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(request: dict[str, Any]) -> None:
    torch: Any = importlib.import_module("torch")
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    standalone = Path(__file__).parents[1] / "measure" / "standalone"
    _module("widening", standalone / "widening.py").mend(interpreter)
    torch.set_num_threads(1)
    folder = Path(request["folder"])
    _module("kernels", folder / "kernels.py")
    launch = _module("launch", folder / "launch.py")
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    with np.load(folder / "inputs.npz", allow_pickle=False) as arrays:
        inputs = [torch.from_numpy(arrays[f"arr_{i}"]) for i in range(len(request["dtypes"]))]
    given = [x.to(dtypes.get(d, x.dtype)) for x, d in zip(inputs, request["dtypes"], strict=True)]
    options: dict[str, Any] = {}
    if (name := request.get("prepared")) is not None:
        if name not in _PREPARED:
            _PREPARED[name] = launch.prepare(torch.device("cpu"), *(given[i] for i in request["takes"]))
            while len(_PREPARED) > KEPT:
                del _PREPARED[next(iter(_PREPARED))]
        options["prepared"] = _PREPARED[name]
    narrow = (torch.float16, torch.bfloat16)  # numpy lacks bf16
    outputs = [o.float() if o.dtype in narrow else o for o in launch.run(*given, **options)]
    np.savez(folder / "outputs.npz", *[o.numpy() for o in outputs])


def _module(name: str, path: Path) -> Any:
    """The module in a file; folders are not searched."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
