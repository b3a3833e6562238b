"""The winners of `benchmarks.search`, compiled for every target, run and replayed.

    python -m benchmarks.winners                         every program, kept in benchmarks/results/winners.json
    python -m benchmarks.winners --programs gqa_decode_b1,lora_b8

For each program, in a process of its own: the search, the certificate of its best candidate, its kernels as they
are delivered for each target (`superopt.shaping`), their run in Triton's interpreter at the extents to which the
certifier reduces them, against fp64, and the certificate replayed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.mugraph.programs import BLOCKS, OWN, names, program
from benchmarks.record import keep, load
from benchmarks.search import certified, proposed, search_commit

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.verify import Certificate

COMPILED_FOR = ("sm_80", "sm_90", "sm_100")
# Scalar operations up to which a program is certified at full extents too, not at reduced only.
FULL_WORK = 3e9


def measure(name: str, budget: float) -> dict[str, Any]:
    """One row of the table."""
    start = time.process_time()
    graph = program(name)
    winner, certificate = certified(graph, proposed(graph, "sm_90", budget, {}), {}, FULL_WORK)
    if winner is None or certificate is None:
        return {"failed": "no candidate was certified"}
    row = {"winner_sha256": certificate.second.sha256, **checked(graph, winner, certificate)}
    return {**row, "cpu_seconds": round(time.process_time() - start, 1), "search_commit": search_commit()}


def checked(graph: KernelGraph, winner: KernelGraph, certificate: Certificate) -> dict[str, Any]:
    """The winner compiled for every target, interpreted at reduced extents, its certificate replayed."""
    from superopt.cost import target
    from superopt.shaping import shape
    from superopt.transforms.emit.compile import CompilationFailed
    from superopt.transforms.lower import lower
    from superopt.verify.certifier import certify, replay

    out: dict[str, Any] = {"compiled": {}}
    for gpu in COMPILED_FOR:
        try:
            shaped = shape(graph, lower(winner, gpu), target(gpu))
        except CompilationFailed as error:
            out["compiled"][gpu] = error.message
            continue
        kernels = shaped.compiled
        out["compiled"][gpu] = {
            "registers": [k.registers for k in kernels],
            "shared_bytes": [k.shared_bytes for k in kernels],
            "spilled_bytes": [k.spill_bytes for k in kernels],
        }
        if shaped.reason:
            proved = not shaped.parameters or certify(winner, shaped.lowered).equivalent
            out["compiled"][gpu] |= {"shape": shaped.reason, "proved": proved}
    out["interpreter"] = _interpreted(graph, winner)
    out["replay"] = replay(certificate)
    return out


def _interpreted(graph: KernelGraph, winner: KernelGraph) -> dict[str, Any]:
    """The emitted kernels at reduced extents against the program in fp64; the error is that of the largest."""
    from superopt.numerics.interpreter import Interpreter
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify import certify
    from superopt.verify.domains import FloatDomain
    from superopt.verify.evaluate import evaluate
    from superopt.verify.reduce import reduce_extents

    pair = reduce_extents(graph, winner)
    if pair is None:
        return {"error": None, "reason": "the extents cannot be reduced"}
    small, kernels = pair
    if not certify(small, kernels).equivalent:
        return {"error": None, "reason": "a constant stands for an extent: the reduced programs differ"}
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=v.shape).astype(np.float16).astype(np.float64) / 2 for v in small.inputs]
    domain = FloatDomain()
    wanted = [np.asarray(t.planes[0]) for t in evaluate(small, [domain.tensor(x) for x in inputs], domain)]
    interpreter = Interpreter()
    try:
        got = interpreter.run(emit_program(lower(kernels)), inputs, [v.dtype for v in small.inputs])
    finally:
        interpreter.close()
    errors = [
        float(np.abs(x.reshape(y.shape) - y).max() / np.abs(y).max())
        for x, y in zip(got, wanted, strict=True)
    ]
    return {"error": float(f"{max(errors):.1e}"), "shapes": [list(v.shape) for v in small.inputs]}


def in_child(name: str, budget: float, limit: float) -> dict[str, Any]:
    """`measure` in a process of its own; a row with "failed" where that does not end well."""
    command = [sys.executable, "-m", "benchmarks.winners", "--child", "--programs", name]
    command += ["--budget", str(budget)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:g} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"failed": last[0]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Check, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join([*names(), *BLOCKS, *OWN]), help="comma-separated")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a program may take")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.programs, arguments.budget)))
        return
    rows = load("winners")
    for name in arguments.programs.split(","):
        rows[name] = row = in_child(name, arguments.budget, arguments.limit)
        keep("winners", rows, budget=arguments.budget)
        said = row.get("failed") or f"{row['compiled']} {row['interpreter']} {row['replay'] or 'holds'}"
        print(f"{name}: {said}", flush=True)


if __name__ == "__main__":
    main()
