"""The process that runs Triton's compiler: one JSON request per line on standard input, one answer per line back.

It is a separate process because LLVM aborts on input that it cannot handle, and because a compilation that hangs
or exhausts memory must not affect the caller. `superopt.transforms.emit.compile` starts it.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import linecache
import os
import re
import resource
import signal
import sys
import tempfile
import time
import types
from typing import Any


def main() -> None:
    """Answer requests until standard input ends."""
    # Ctrl-C goes to the whole process group; the process that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Triton's output must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="superopt-compile-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        os.environ.pop("TRITON_INTERPRET", None)
        # Before the first request, while its sender is still reading: not counted as work of a kernel.
        with contextlib.suppress(ImportError):  # the first request says so
            importlib.import_module("triton.compiler.code_generator")
            _without_digest(importlib.import_module("triton.runtime.cache"))
        for line in sys.stdin:
            start = _work()
            try:
                answer = _compile(json.loads(line))
            except Exception as error:  # the compiler's errors lack a common class
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps({**answer, "seconds": _work() - start}) + "\n")
            answers.flush()


def _without_digest(cache: Any) -> None:
    """Save Triton the digest of its own library of 460 MB, 0.4 s for the first kernel of each process: it tells
    versions apart in a cache that lasts, and the one here goes with the process."""
    if hasattr(cache, "triton_key"):
        cache.triton_key = str


def _work() -> float:
    """Processor seconds of this process, and of ptxas, which it starts."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.compiler")
    backends: Any = importlib.import_module("triton.backends.compiler")
    target = backends.GPUTarget("cuda", request["capability"], 32)
    options = {k: request[k] for k in ("num_warps", "num_stages", "enable_fp_fusion") if k in request}
    if "ptx" in request:
        backend = compiler.make_backend(target)
        made = backend.make_cubin(request["ptx"], {}, backend.parse_options(options), request["capability"])
        return {"cubin": base64.b64encode(made).decode()}
    source: Any = None if "ttir" in request else _source(request, compiler)
    log = io.StringIO()
    # ptxas reports what a kernel needs only while it runs: results from Triton's cache would lack that.
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True
    with contextlib.redirect_stdout(log), tempfile.TemporaryDirectory() as folder:
        if "ttir" in request:  # Triton takes the name of a file
            source = os.path.join(folder, "kernel.ttir")
            with open(source, "w") as file:
                file.write(request["ttir"])
        compiled = triton.compile(source, target=target, options=options)
    stages = {k: compiled.asm[k] for k in ("ttir", "ttgir", "llir", "ptx")}
    registers = re.findall(r"Used (\d+) registers", log.getvalue())
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log.getvalue())
    if not registers:
        raise RuntimeError("expected ptxas to say how many registers the kernel needs, got nothing")
    return {
        **stages,
        "cubin": base64.b64encode(compiled.asm["cubin"]).decode(),
        "shared_bytes": int(compiled.metadata.shared),
        "registers": max(map(int, registers)),
        "spill_bytes": sum(map(int, spills)),
    }


def _source(request: dict[str, Any], compiler: Any) -> Any:
    # Triton reads the source through `linecache` and puts the file's name into the PTX: a constant name without a
    # file keeps the PTX of a kernel constant.
    file, text = f"{request['name']}.py", str(request["source"])
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module: Any = types.ModuleType(request["name"])
    exec(compile(text, file, "exec"), module.__dict__)
    signature = {name: f"*{dtype}" for name, dtype in request["parameters"]}
    # Every buffer that a launcher passes is aligned to 16 bytes, as torch allocates them.
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    signature |= dict.fromkeys(request["extents"], "i32")
    constants = {}
    if "EARLY" in request:
        constants[(len(signature),)] = request["EARLY"]
        signature["EARLY"] = "constexpr"
    return compiler.ASTSource(getattr(module, request["name"]), signature, constants, attrs)


if __name__ == "__main__":
    main()
