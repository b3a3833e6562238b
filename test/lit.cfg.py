"""lit configuration: `lit test`, against the installed package."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import lit.formats  # pyright: ignore[reportMissingImports]

config: Any = globals()["config"]  # put there by lit

config.name = "superopt"
config.test_format = lit.formats.ShTest(execute_external=False)  # pyright: ignore
config.suffixes = [".mlir", ".loops", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parent / "Output")

_SCRIPTS = Path(sysconfig.get_path("scripts"))
_ROOT = Path(__file__).parent.parent


def _script(name: str) -> str:
    """The console script beside the Python that runs lit, else whatever is on PATH."""
    beside = _SCRIPTS / name
    return str(beside) if beside.exists() else shutil.which(name) or name


for name in ("superopt-opt", "superopt-verify", "superopt-import", "superopt-run", "filecheck"):
    # The lookarounds keep `%superopt-opt-x` and paths that contain a name from being replaced.
    config.substitutions.append((rf"(?<![\w/.\-]){name}(?![\w/\-])", _script(name)))
config.substitutions.append(("%python", sys.executable))
config.substitutions.append(("%root", str(_ROOT)))
config.substitutions.append(("%examples", str(_ROOT / "examples")))


def _has_cuda() -> bool:
    """Whether a GPU answers; asked of the driver, because importing torch takes seconds."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


if importlib.util.find_spec("torch") is not None:
    config.available_features.add("torch")
if importlib.util.find_spec("transformers") is not None:
    config.available_features.add("transformers")
if _has_cuda():
    config.available_features.add("cuda")

# One thread a test: lit runs tests side by side, and numpy would otherwise take every core for each.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    config.environment[variable] = os.environ.get(variable, "1")
config.environment["SUPEROPT_STORE"] = "none"
for variable in ("HOME", "TRITON_CACHE_DIR"):
    if variable in os.environ:
        config.environment[variable] = os.environ[variable]
