"""The verdicts on the PTX of the winners' kernels, what checking them costs, and what they do with memory.

    python -m benchmarks.ptx                     the programs that are not in benchmarks/results/ptx.json yet
    python -m benchmarks.ptx --again             all of them
    python -m benchmarks.ptx --programs lora_b8,examples/gated_mlp

For each program: the first candidate of its search for sm_90 that is proved and that the numeric gate takes, as
superopt delivers none other (the first that is proved, where the gate takes none of the first 16); for programs
outside `mugraph/` the program itself, lowered operator by operator. For each target its kernels as they are
delivered (`transforms/schedule/fit.py`), the verdict on the PTX of each, and what its first block does
(`cost/counted.py`).
Times are CPU seconds of this process: of the certificate, of the numeric gate on the winner as lowered for sm_90,
of the check of the TTIR of all kernels, of the check of the PTX of each. Programs that differ in their softmax's
maximum only and have the same winner are one row.

`--seconds` of CPU time are spent at most; the next call goes on. Each row says at which commit it was measured.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mugraph.programs import BLOCKS, OWN, names, program
from benchmarks.record import commit, keep, load
from benchmarks.search import proposed
from benchmarks.winners import COMPILED_FOR, SEARCHED_FOR

if TYPE_CHECKING:
    from superopt.cost.counted import KernelCounts
    from superopt.program import KernelGraph
    from superopt.transforms.schedule.fit import Scheduled

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("examples", "benchmarks/expressions")
MOST_TRIES = 16


def programs() -> list[str]:
    """Names of `mugraph/`, then the paths of the others without their suffix."""
    others = [p for folder in OTHERS for p in sorted((ROOT / folder).glob("*.mlir"))]
    return [*names(), *BLOCKS, *OWN, *(p.relative_to(ROOT).with_suffix("").as_posix() for p in others)]


def row(name: str, budget: float) -> dict[str, Any]:
    """The verdicts on one program's kernels, by target."""
    graph, winner, found = _winner(name, budget)
    if winner is None:
        return {"failed": "no candidate was certified"}
    targets = {gpu: delivered(graph, winner, gpu) for gpu in COMPILED_FOR}
    return {**found, "targets": targets}


def _winner(name: str, budget: float) -> tuple[KernelGraph, KernelGraph | None, dict[str, Any]]:
    """A program, its winner, and what certifying and gating that says; outside of `mugraph/` it is the program.

    `refused` is what the gate says of candidates that are proved and promise more.
    """
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program
    from superopt.verify import certify

    if "/" in name:
        graph = read_program(ROOT / f"{name}.mlir", Diagnostics())
        return graph, graph, _gate(graph, graph)
    graph = program(name)
    found: list[tuple[KernelGraph, dict[str, Any]]] = []
    for candidate in proposed(graph, SEARCHED_FOR, budget, {}).graphs[:MOST_TRIES]:
        start = time.process_time()
        if (certificate := certify(graph, candidate).certificate) is None:
            continue
        seconds = round(time.process_time() - start, 3)
        said = {"winner_sha256": certificate.second.sha256, "certificate_seconds": seconds}
        found.append((candidate, {**said, **_gate(graph, candidate)}))
        if found[-1][1]["gate"] == "passed":
            refused = [other["gate"] for _, other in found[:-1]]
            return graph, candidate, {**found[-1][1], **({"refused": refused} if refused else {})}
    return (graph, *found[0]) if found else (graph, None, {})


def _gate(graph: KernelGraph, winner: KernelGraph) -> dict[str, Any]:
    """What the numeric gate says of a program as it is lowered for the first search, and its CPU seconds."""
    from superopt.numerics import gate
    from superopt.transforms.lower import lower

    lowered = lower(winner, SEARCHED_FOR)
    start = time.process_time()
    report = gate(graph, lowered)
    said = "passed" if report.passed and not report.skipped else report.summary
    return {"gate": said, "gate_seconds": round(time.process_time() - start, 3)}


def delivered(graph: KernelGraph, winner: KernelGraph, gpu: str) -> dict[str, Any]:
    """The verdicts on the kernels of `winner` as they are delivered for `gpu`."""
    from superopt.cost import target
    from superopt.errors import SuperoptError
    from superopt.program import TileProgram
    from superopt.transforms.lower import lower
    from superopt.transforms.schedule.fit import Compiler, fit
    from superopt.verify.ptx.check import PtxText
    from superopt.verify.ttir.artifact import kernel_texts, verify_compiled
    from superopt.verify.ttir.ran import Ran

    try:
        made: Scheduled = fit(lower(winner, gpu), Compiler(target(gpu)))
    except SuperoptError as error:
        return {"failed": error.message}
    ran = Ran(frozenset(k.ptx for k in made.compiled))
    start = time.process_time()
    try:
        verify_compiled(graph, made.lowered, made.emitted, made.compiled, ran=ran)
        ttir = "verified"
    except SuperoptError as error:
        ttir = error.message
    seconds = time.process_time() - start
    nodes = [n for n in made.lowered.nodes if isinstance(n.body, TileProgram)]
    texts = kernel_texts(made.emitted, made.compiled)
    kernels: list[dict[str, Any]] = []
    for i, (node, kernel, facts) in enumerate(zip(nodes, texts, made.compiled, strict=True)):
        text = PtxText(facts.ptx, facts.shared_bytes)
        kernels.append(
            {
                "name": kernel.name,
                "blocks": math.prod(kernel.grid),
                **_verdict(node, kernel, text, ran),
                **_counts(made.emitted.kernels[i], facts),
            }
        )
    return {"ttir": ttir, "ttir_seconds": round(seconds, 3), "kernels": kernels}


def _verdict(node: Any, kernel: Any, text: Any, shared: Any) -> dict[str, Any]:
    """What the check of a kernel's PTX says, how many blocks it proves and ran, and its CPU seconds."""
    from superopt.errors import IllegalProgram, NotEquivalent
    from superopt.verify.primes import drawn
    from superopt.verify.ptx.check import verify_kernel

    start, ran = time.process_time(), dict[str, int]()
    try:
        record = verify_kernel(node, kernel, text, drawn(text.ptx, kernel.ttir), ran=shared)
        verdict = f"unverified: {record.unverified}" if record.unverified else "verified"
        ran = {"addressed": record.addressed, "evaluated": record.evaluated}
    except IllegalProgram as error:
        verdict = f"illegal: {error.message}"
    except NotEquivalent as error:
        verdict = f"different: {error.message}"
    return {"verdict": verdict, **ran, "ptx_seconds": round(time.process_time() - start, 3)}


def _counts(kernel: Any, facts: Any) -> dict[str, Any]:
    """What the first block does: transactions that it makes, and those that would suffice."""
    from superopt.cost.counted import counted
    from superopt.errors import IllegalProgram, UnsupportedProgram

    start = time.process_time()
    try:
        found: KernelCounts = counted(kernel, facts)
    except (IllegalProgram, UnsupportedProgram):
        return {}
    return {
        "wavefronts": [found.shared.made, found.shared.needed],
        "sectors": [
            sum(t.made for t in found.sectors.values()),
            sum(t.needed for t in found.sectors.values()),
        ],
        "count_seconds": round(time.process_time() - start, 3),
    }


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Verdicts by target, reasons of those that are not "verified", the worst ratios, and CPU seconds in all."""
    found: dict[str, Any] = {}
    for gpu in COMPILED_FOR:
        targets = [r["targets"][gpu] for r in rows.values() if "kernels" in r.get("targets", {}).get(gpu, {})]
        kernels = [k for t in targets for k in t["kernels"]]
        verdicts = Counter(k["verdict"].split(":")[0] for k in kernels)
        ratios = [k["wavefronts"][0] / k["wavefronts"][1] for k in kernels if k.get("wavefronts", [0, 0])[1]]
        found[gpu] = {
            "kernels": len(kernels),
            **{v: verdicts[v] for v in ("verified", "unverified", "illegal", "different")},
            "bank_conflicts_above_1.5": sum(r > 1.5 for r in ratios),
            "largest_ratio": round(max(ratios, default=0.0), 2),
            "ttir_seconds": round(sum(t["ttir_seconds"] for t in targets), 1),
            "ptx_seconds": round(sum(k["ptx_seconds"] for k in kernels), 1),
            "count_seconds": round(sum(k.get("count_seconds", 0.0) for k in kernels), 1),
        }
    for step in ("certificate", "gate"):
        seconds = [r[f"{step}_seconds"] for r in rows.values() if f"{step}_seconds" in r]
        found[step] = {"programs": len(seconds), "seconds": round(sum(seconds), 1)}
    return found


def line(name: str, made: dict[str, Any]) -> str:
    """A row for people."""
    if "failed" in made:
        return f"{name}: {made['failed']}"
    parts = [f"gate {made['gate']}, {made['gate_seconds']:.2f} s"] if "gate" in made else []
    for gpu, at in made["targets"].items():
        kernels = at.get("kernels", [])
        said = Counter(k["verdict"] for k in kernels)
        ratios = [f"{a / b:.2f}" for k in kernels for a, b in [k.get("wavefronts", (0, 0))] if b]
        spent = sum(k["ptx_seconds"] for k in kernels)
        parts.append(
            at.get("failed") or f"{gpu} {dict(said)}, wavefronts {' '.join(ratios) or 'none'}, {spent:.2f} s"
        )
    return f"{name}: " + "; ".join(parts)


def main() -> None:
    """Check, print, store."""
    from importlib.metadata import version

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join(programs()), help="comma-separated")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds after which to stop")
    parser.add_argument("--again", action="store_true", help="programs that are in the table, too")
    arguments = parser.parse_args()
    rows, start = load("ptx"), time.process_time()
    winners = {n: r.get("winner_sha256") for n, r in load("winners").items()}
    seen: set[str] = set()
    for name in arguments.programs.split(","):
        twin = winners.get(name)
        known = twin in seen or (name in rows and not arguments.again)
        seen |= {twin} if twin else set()
        if known:
            continue
        if time.process_time() - start > arguments.seconds:
            break
        rows[name] = {**row(name, arguments.budget), "commit": commit()[:7]}
        print(line(name, rows[name]), flush=True)
        keep("ptx", rows, triton=version("triton"), budget=arguments.budget, summary=summary(rows))


if __name__ == "__main__":
    main()
