"""What the winners' kernels do with memory, and what that changes: launches and prices without counts, and with.

    python -m benchmarks.counts                 programs that are not in benchmarks/results/counts.json yet
    python -m benchmarks.counts --again --programs gqa_decode_b8,examples/lora
    python -m benchmarks.counts --programs=     nothing more: only the tables of docs/benchmarking.md again

A program's winner is that of `benchmarks.ptx`, found again, or where the search ends with others the first one
that is certified. For each target: its kernels as `transforms/schedule/fit.py` chooses them without counts
("before") and with them ("now"), both counted (`cost/counted.py`) and priced with what was counted
(`cost/compiled.py`). What counts changed is checked: the TTIR of all kernels and the PTX of each.

`--seconds` of CPU time are spent at most; the next call goes on.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mugraph.programs import program
from benchmarks.ptx import programs
from benchmarks.record import keep, load
from benchmarks.search import certified, proposed
from benchmarks.winners import COMPILED_FOR, SEARCHED_FOR

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph
    from superopt.transforms.schedule.fit import Scheduled

ROOT = Path(__file__).resolve().parents[1]
PAGE, BEGIN, END = ROOT / "docs" / "benchmarking.md", "<!-- counts -->", "<!-- /counts -->"


def row(name: str, budget: float, known: str | None) -> dict[str, Any]:
    """The counts and prices of one program, by target; `known` is the hash of its winner."""
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program
    from superopt.verify import program_hash

    if "/" in name:
        graph = winner = read_program(ROOT / f"{name}.mlir", Diagnostics())
    else:
        graph = program(name)
        candidates = proposed(graph, SEARCHED_FOR, budget, {})
        found = (c for c in candidates.graphs if program_hash(c) == known)
        winner = next(found, None) or certified(graph, candidates, {})[0]
        if winner is None:
            return {"failed": "no candidate was certified"}
    return {
        "winner_sha256": program_hash(winner),
        "targets": {g: compared(graph, winner, g) for g in COMPILED_FOR},
    }


def compared(graph: KernelGraph, winner: KernelGraph, gpu: str) -> dict[str, Any]:
    """The kernels of `winner` as they are chosen for `gpu` without counts and with them."""
    from superopt.cost import target
    from superopt.errors import SuperoptError
    from superopt.transforms.emit.compile import CompilationFailed
    from superopt.transforms.lower import lower
    from superopt.transforms.schedule.fit import Compiler, fit

    compiler, lowered = Compiler(target(gpu)), lower(winner, gpu)
    try:
        before = fit(lowered, compiler, counted=False)
        now = fit(lowered, compiler)
    except SuperoptError as error:
        return {"failed": error.message}
    try:
        before = compiler.counting.scheduled(before.lowered, before.parameters)
        made = {"before": counts(before, compiler.target), "now": counts(now, compiler.target)}
    except CompilationFailed as error:
        return {"failed": error.message}
    if now.compiled == before.compiled:
        return made
    return {**made, "changed": now.reason, "checked": checked(graph, now)}


def counts(scheduled: Scheduled, gpu: Target) -> dict[str, Any]:
    """Wavefronts, sectors and prices of counted kernels, prices with those that suffice, and why others stay."""
    from superopt.cost import compiled_cost, compiled_seconds, priced_kernels
    from superopt.cost.counted import without_waste
    from superopt.program import TileProgram

    kernels: list[dict[str, Any]] = []
    nodes = iter(n for n in scheduled.lowered.nodes if isinstance(n.body, TileProgram))
    for priced in priced_kernels(scheduled.lowered, scheduled.compiled, gpu):
        if priced.compiled is None:
            continue
        node = next(nodes)
        if (found := priced.compiled.counts) is not None:
            alone, least = (
                compiled_cost(node, k, gpu).seconds for k in (priced.compiled, without_waste(priced.compiled))
            )
            why = scheduled.kept.get(priced.compiled.name)
            kernels.append(
                {
                    "name": priced.compiled.name,
                    "wavefronts": [found.shared.made, found.shared.needed],
                    "sectors": [found.device.made, found.device.needed],
                    "limit": priced.limit,
                    "us": round(priced.seconds * 1e6, 2),
                    "us_without": round((priced.seconds - alone + least) * 1e6, 2),
                    **({"kept": why.why} if why is not None else {}),
                }
            )
    seconds = compiled_seconds(scheduled.lowered, scheduled.compiled, gpu)
    return {"us": round(seconds * 1e6, 2), "kernels": kernels}


def checked(graph: KernelGraph, now: Scheduled) -> str:
    """ "verified", or what the checks of the TTIR and the PTX say."""
    from superopt.errors import SuperoptError
    from superopt.verify.ptx.check import PtxText, verify_ptx
    from superopt.verify.ttir.artifact import kernel_texts, verify_compiled

    texts = [PtxText(k.ptx, k.shared_bytes) for k in now.compiled]
    try:
        verify_compiled(graph, now.lowered, now.emitted, now.compiled)
        record = verify_ptx(now.lowered, kernel_texts(now.emitted, now.compiled), texts)
    except SuperoptError as error:
        return error.message
    return "; ".join(k.unverified for k in record.kernels if k.unverified) or "verified"


def ratios(kernels: list[dict[str, Any]]) -> list[float]:
    """Wavefronts over those that suffice, of kernels that use shared memory."""
    return [k["wavefronts"][0] / k["wavefronts"][1] for k in kernels if k["wavefronts"][1]]


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """By target: programs, kernels, conflicts and prices before and now."""
    from superopt.cost.counted import CONFLICTS

    found: dict[str, Any] = {}
    for gpu in COMPILED_FOR:
        at = [r["targets"][gpu] for r in rows.values() if "now" in r.get("targets", {}).get(gpu, {})]
        found[gpu] = {"programs": len(at), "changed": sum("changed" in t for t in at)}
        found[gpu]["unverified"] = [t["checked"] for t in at if t.get("checked", "verified") != "verified"]
        for when in ("before", "now"):
            kernels = [k for t in at for k in t[when]["kernels"]]
            found[gpu][when] = {
                "kernels": len(kernels),
                "conflicts": sum(r > CONFLICTS for r in ratios(kernels)),
                "largest_ratio": round(max(ratios(kernels), default=1.0), 2),
                "us": round(sum(t[when]["us"] for t in at), 1),
            }
    return found


def table(rows: dict[str, Any]) -> list[str]:
    """Markdown: conflicts and prices by target, then the programs with conflicts, before or now."""
    from superopt.cost.counted import CONFLICTS

    columns = "programs", "kernels", "conflicts before", "now", "largest ratio before", "now", "changed"
    out = _head("target", *columns, "prices before", "now")
    for gpu, s in summary(rows).items():
        b, n = s["before"], s["now"]
        out.append(
            f"| {gpu} | {s['programs']} | {n['kernels']} | {b['conflicts']} | {n['conflicts']} "
            f"| {b['largest_ratio']} | {n['largest_ratio']} | {s['changed']} | {b['us']} us | {n['us']} us |"
        )
    columns = "wavefronts / those that suffice, before", "now", "sectors before", "now", "price before", "now"
    out += ["", *_head(f"program, {SEARCHED_FOR}", *columns)]
    for name, made in sorted(rows.items()):
        at = made.get("targets", {}).get(SEARCHED_FOR, {})
        if "now" not in at:
            continue
        before, now = at["before"], at["now"]
        if "changed" not in at and max(ratios(before["kernels"]), default=1.0) <= CONFLICTS:
            continue
        cells = [" ".join(f"{r:.2f}" for r in ratios(t["kernels"])) for t in (before, now)]
        cells += [str(sum(k["sectors"][0] for k in t["kernels"])) for t in (before, now)]
        out.append(f"| {name} | {' | '.join(cells)} | {before['us']} us | {now['us']} us |")
    return [*out, "", *left(rows)]


def left(rows: dict[str, Any]) -> list[str]:
    """Markdown: the kernels that are left with more than suffices, what no launch could save, and why."""
    from superopt.cost.counted import CONFLICTS

    columns = *(f"{gpu}: wavefronts, sectors, price, without" for gpu in COMPILED_FOR), "why they stay"
    out = _head("kernels that keep more than 1.5 times of either", *columns)
    for name, made in sorted(rows.items()):
        at = {g: t["now"]["kernels"] for g, t in made.get("targets", {}).items() if "now" in t}
        kept = dict.fromkeys(k["name"] for ks in at.values() for k in ks if max(_ratios(k)) > CONFLICTS)
        for kernel in kept:
            found = {g: next((k for k in at.get(g, []) if k["name"] == kernel), None) for g in COMPILED_FOR}
            why = {g: k["kept"] for g, k in found.items() if k is not None and "kept" in k}
            first = SEARCHED_FOR if SEARCHED_FOR in why else next(iter(why), "")
            said = f"{first}: {why[first]}" if why else "not measured yet"
            cells = " | ".join([*map(_saved, found.values()), said])
            out.append(f"| {kernel if kernel.startswith(name) else name} | {cells} |")
    return out


def _ratios(kernel: dict[str, Any]) -> list[float]:
    """Wavefronts and sectors over those that suffice."""
    return [made / needed if needed else 1.0 for made, needed in (kernel["wavefronts"], kernel["sectors"])]


def _saved(kernel: dict[str, Any] | None) -> str:
    from superopt.cost.counted import CONFLICTS

    if kernel is None or max(_ratios(kernel)) <= CONFLICTS:
        return ""
    without = kernel.get("us_without")
    both = ", ".join(f"{ratio:.2f}" for ratio in _ratios(kernel))
    return f"{both}, {kernel['us']} us, " + (f"{without} us" if without else "not priced")


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]


def main() -> None:
    """Count, print, store."""
    from importlib.metadata import version

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join(programs()), help="comma-separated")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of each search")
    parser.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds after which to stop")
    parser.add_argument("--again", action="store_true", help="programs that are in the table, too")
    arguments = parser.parse_args()
    rows = load("counts")
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    start, seen = time.process_time(), set[str]()
    winners = {n: r.get("winner_sha256") for n, r in load("ptx").items()}
    for name in filter(None, arguments.programs.split(",")):
        twin = winners.get(name)
        done = twin in seen or (name in rows and not arguments.again)
        seen |= {twin} if twin else set()
        if done:
            continue
        if time.process_time() - start > arguments.seconds:
            break
        rows[name] = {**row(name, arguments.budget, twin), "commit": commit}
        for gpu, at in rows[name].get("targets", {}).items():
            us = [at[w]["us"] for w in ("before", "now")] if "now" in at else at["failed"]
            print(name, gpu, us, at.get("changed", ""), at.get("checked", ""), flush=True)
        keep("counts", rows, triton=version("triton"), budget=arguments.budget, summary=summary(rows))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *table(rows), "", END + after]))


if __name__ == "__main__":
    main()
