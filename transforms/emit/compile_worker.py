"""The process that runs Triton's compiler: one JSON request a line on standard input, one answer a line back.

It is a process of its own because LLVM aborts on what it cannot take, and because a compilation that hangs or
eats memory must cost only itself. `superopt.transforms.emit.compile` starts it.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import json
import linecache
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer requests until standard input ends."""
    # Ctrl-C goes to the whole process group; what it means is decided by who started this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What Triton prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="superopt-compile-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        os.environ.pop("TRITON_INTERPRET", None)
        for line in sys.stdin:
            try:
                answer = _compile(json.loads(line), Path(folder))
            except Exception as error:  # the compiler's own errors have no common class
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _compile(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.compiler")
    backends: Any = importlib.import_module("triton.backends.compiler")
    # Triton reads the source through `linecache`, and puts the file's name into the PTX: a name that is always
    # the same, and no file, make the PTX of a kernel always the same.
    file, text = f"{request['name']}.py", str(request["source"])
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module: Any = types.ModuleType(request["name"])
    exec(compile(text, file, "exec"), module.__dict__)
    signature = {name: f"*{dtype}" for name, dtype in request["parameters"]}
    # Every buffer that a launcher passes is aligned to 16 bytes, as torch allocates them.
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    source = compiler.ASTSource(getattr(module, request["name"]), signature, {}, attrs)
    target = backends.GPUTarget("cuda", request["capability"], 32)
    options = {k: request[k] for k in ("num_warps", "num_stages", "enable_fp_fusion")}
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        knobs = getattr(triton, "knobs", None)
        if knobs is not None:
            knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source, target=target, options=options)
    assembled = log.getvalue()
    if "registers" not in assembled:
        assembled = _assemble(compiled.asm["ptx"], folder, request["capability"])
    stages = {k: compiled.asm[k] for k in ("ttir", "ttgir", "llir", "ptx")}
    registers = re.findall(r"Used (\d+) registers", assembled)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", assembled)
    return {
        **stages,
        "cubin": base64.b64encode(compiled.asm["cubin"]).decode(),
        "shared_bytes": int(compiled.metadata.shared),
        "registers": max(map(int, registers), default=0),
        "spill_bytes": sum(map(int, spills)),
    }


def _assemble(ptx: str, folder: Path, capability: int) -> str:
    """What `ptxas -v` says, for a Triton that does not pass it on."""
    root = importlib.util.find_spec("triton.backends.nvidia")
    assert root is not None
    (base,) = root.submodule_search_locations or [""]
    tool = Path(base, "bin", "ptxas-blackwell" if capability >= 100 else "ptxas")
    (folder / "again.ptx").write_text(ptx)
    arch = re.search(r"\.target (\w+)", ptx)
    name = arch[1] if arch else f"sm_{capability}"
    command = [
        str(tool),
        "-v",
        f"--gpu-name={name}",
        str(folder / "again.ptx"),
        "-o",
        str(folder / "again.o"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


if __name__ == "__main__":
    main()
