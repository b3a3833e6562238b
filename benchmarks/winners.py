"""The winners of `benchmarks.search`, compiled for every target, run and replayed.

    python -m benchmarks.winners                         every program, kept in benchmarks/results/winners.json
    python -m benchmarks.winners --programs gqa_decode_b1,lora_b8

For each program: the search, the certificate of its best candidate, its kernels as they are delivered for each
target (`transforms/schedule/fit.py`), their run in Triton's interpreter at the extents to which the certifier
reduces them, against fp64, and the certificate replayed. The search is for sm_90; a target on which its winner
does not fit or spills has a search of its own, as a user of that target would.

`--jobs` processes share the programs; one takes those together that differ in their softmax's maximum only, as
they often have the same winner, which is then compiled once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.mugraph.programs import BLOCKS, OWN, names, program
from benchmarks.record import keep, load
from benchmarks.search import certified, proposed, search_commit

if TYPE_CHECKING:
    from superopt.numerics.interpreter import Interpreter
    from superopt.program import KernelGraph
    from superopt.verify import Certificate

COMPILED_FOR = ("sm_80", "sm_90", "sm_100")
SEARCHED_FOR = "sm_90"

# What was compiled in this process, by the winner's hash.
Kept = dict[str, dict[str, Any]]


def measure(name: str, budget: float, kept: Kept, interpreter: Interpreter) -> dict[str, Any]:
    """One row of the table."""
    start, clock = time.process_time(), time.perf_counter()
    graph = program(name)
    winner, certificate = certified(graph, proposed(graph, SEARCHED_FOR, budget, {}), {})
    if winner is None or certificate is None:
        return {"failed": "no candidate was certified"}
    row = {"winner_sha256": certificate.second.sha256}
    return {
        **row,
        **checked(graph, winner, certificate, budget, kept, interpreter),
        "cpu_seconds": round(time.process_time() - start, 1),
        "seconds": round(time.perf_counter() - clock, 1),
        "search_commit": search_commit(),
    }


def checked(
    graph: KernelGraph,
    winner: KernelGraph,
    certificate: Certificate,
    budget: float,
    kept: Kept,
    interpreter: Interpreter,
) -> dict[str, Any]:
    """The winner compiled for every target, interpreted at reduced extents, its certificate replayed."""
    from superopt.verify.certifier import replay

    compiled = kept.setdefault(certificate.second.sha256, {})
    for gpu in COMPILED_FOR:
        if gpu not in compiled:
            compiled[gpu] = _compiled(winner, gpu)
            if gpu != SEARCHED_FOR and _bad(compiled[gpu]):
                own, _ = certified(graph, proposed(graph, gpu, budget, {}), {})
                found = _compiled(own, gpu) if own is not None else None
                if isinstance(found, dict) and not _bad(found):
                    compiled[gpu] = {**found, "searched_for": gpu}
    return {
        "compiled": compiled,
        "interpreter": _interpreted(graph, winner, interpreter),
        "replay": replay(certificate),
    }


def _bad(compiled: dict[str, Any] | str) -> bool:
    return isinstance(compiled, str) or sum(compiled["spilled_bytes"]) > 0


def _compiled(winner: KernelGraph, gpu: str) -> dict[str, Any] | str:
    """What the compiler says of the kernels of `winner` as delivered for `gpu`; a string where it fails."""
    from superopt.cost import target
    from superopt.transforms.emit.compile import CompilationFailed
    from superopt.transforms.lower import lower
    from superopt.transforms.schedule.fit import Compiler, fit
    from superopt.verify.certifier import certify

    try:
        fitted = fit(lower(winner, gpu), Compiler(target(gpu)))
    except CompilationFailed as error:
        return error.message
    kernels = fitted.compiled
    facts = {
        "registers": [k.registers for k in kernels],
        "shared_bytes": [k.shared_bytes for k in kernels],
        "spilled_bytes": [k.spill_bytes for k in kernels],
    }
    if not fitted.reason:
        return facts
    proved = not fitted.parameters or certify(winner, fitted.lowered).equivalent
    return {**facts, "shape": fitted.reason, "proved": proved}


def _interpreted(graph: KernelGraph, winner: KernelGraph, interpreter: Interpreter) -> dict[str, Any]:
    """The emitted kernels at reduced extents against the program in fp64; the error is that of the largest.

    Where a constant stands for the extent of a mean, it shrinks with it.
    """
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify import certify
    from superopt.verify.domains import FloatDomain
    from superopt.verify.evaluate import evaluate
    from superopt.verify.reduce import reduce_extents

    pairs = (reduce_extents(graph, winner, numbers=numbers) for numbers in (False, True))
    pair = next((p for p in pairs if p is not None and certify(*p).equivalent), None)
    if pair is None:
        return {"error": None, "reason": "the reduced programs differ, or the extents cannot be reduced"}
    small, kernels = pair
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=v.shape).astype(np.float16).astype(np.float64) / 2 for v in small.inputs]
    domain = FloatDomain()
    wanted = [np.asarray(t.planes[0]) for t in evaluate(small, [domain.tensor(x) for x in inputs], domain)]
    got = interpreter.run(emit_program(lower(kernels)), inputs, [v.dtype for v in small.inputs])
    errors = [
        float(np.abs(x.reshape(y.shape) - y).max() / np.abs(y).max())
        for x, y in zip(got, wanted, strict=True)
    ]
    return {"error": float(f"{max(errors):.1e}"), "shapes": [list(v.shape) for v in small.inputs]}


def together(programs: Iterable[str]) -> list[list[str]]:
    """The programs, those in one list that differ in their softmax's maximum only."""
    found: dict[str, list[str]] = {}
    for name in programs:
        found.setdefault(name.removesuffix("_safe"), []).append(name)
    return list(found.values())


def child(programs: Iterable[str], budget: float) -> None:
    """Print a row for each program, one a line."""
    from superopt.numerics.interpreter import Interpreter

    kept: Kept = {}
    interpreter = Interpreter()
    try:
        for name in programs:
            print(json.dumps({name: measure(name, budget, kept, interpreter)}), flush=True)
    finally:
        interpreter.close()


def in_child(programs: list[str], budget: float, limit: float) -> dict[str, Any]:
    """Rows of `measure`, made in a process of its own; rows with "failed" where that does not end well."""
    command = [sys.executable, "-m", "benchmarks.winners", "--child", "--programs", ",".join(programs)]
    command += ["--budget", str(budget)]
    most = limit * len(programs)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most, check=False)
        output, why = done.stdout, f"exit status {done.returncode}"
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [why])[-1]
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        why = f"took more than {most:g} s"
    rows: dict[str, Any] = {}
    for line in output.splitlines():
        rows |= json.loads(line)
    return {name: rows.get(name, {"failed": why}) for name in programs}


def main() -> None:
    """Check, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join([*names(), *BLOCKS, *OWN]), help="comma-separated")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a program may take")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes that share the programs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    programs = arguments.programs.split(",")
    if arguments.child:
        child(programs, arguments.budget)
        return
    rows = load("winners")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        work = [pool.submit(in_child, p, arguments.budget, arguments.limit) for p in together(programs)]
        for done in as_completed(work):
            for name, row in done.result().items():
                rows[name] = row
                said = (
                    row.get("failed") or f"{row['compiled']} {row['interpreter']} {row['replay'] or 'holds'}"
                )
                print(f"{name}: {said}", flush=True)
            keep("winners", rows, budget=arguments.budget)


if __name__ == "__main__":
    main()
