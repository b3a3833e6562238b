"""Mutants of published convolutions: where they are wrong, what corrects them, whether that pays.

    python -m benchmarks.expressions.corrections            kept in benchmarks/results/corrections.json
    python -m benchmarks.expressions.corrections g2bmm      this case again
    python -m benchmarks.expressions.corrections --prices   what is kept, with the prices of today's model

Seconds are those of the processor. Every repair is certified as a whole, at the published sizes, and priced for
sm_90 beside its source; `chosen` is what the search takes. Those of one kernel are compiled for each of
`TARGETS`, and their TTIR is checked. Found is also printed, as a table.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.expressions.cases import CASES, program, windows
from benchmarks.record import commit, keep, load

from superopt.cost import cost, target
from superopt.program import KernelGraph
from superopt.transforms.derivation.mutants.correction import DIFFERENCES, predicted_seconds
from superopt.transforms.derivation.mutants.derived import MUTANTS, Mutant, alone, derived
from superopt.transforms.derivation.mutants.generated import AGREEMENT, MOST_WORK, generated
from superopt.transforms.derivation.mutants.points import Undecided
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.ttir import verify_compiled

# PET's cases, OLLIE's, and pairs of images (PET, Figure 1).
NAMES = ("dilated", "conv5x5_small", "strided", "images", "g2bmm")
TARGETS = ("sm_80", "sm_90", "sm_100")
MORE = CASES | {"images": ("conv", (16, 64, 14, 14), [(64, 64, 3, 3)], windows(pad=1))}
# Operators of generated mutants.
OPERATORS = 3


def row(mutant: Mutant) -> dict[str, Any]:
    """Outputs that differ by each decision, and the repairs of the exact one."""
    gpu, found = target("sm_90"), dict[str, Any]()
    before = cost(mutant.source, gpu).seconds
    region = None
    for name, decide in DIFFERENCES.items():
        start = time.process_time()
        try:
            decided = decide(mutant.source, mutant.graph)
        except Undecided as reason:
            found[name] = {"undecided": str(reason)}
            continue
        found[name] = {"differ": decided.count, "seconds": round(time.process_time() - start, 3)}
        region = region or decided
    assert region is not None
    agrees = certify(mutant.source, mutant.graph).equivalent is (region.count == 0)
    made: dict[str, Any] = {}
    for repair, graph in repairs(mutant, region):
        start = time.process_time()
        equivalent = certify(mutant.source, graph).equivalent
        seconds = time.process_time() - start
        us = predicted_seconds(graph, gpu) * 1e6
        made[repair] = {
            "certified": equivalent,
            "seconds": round(seconds, 3),
            "us": round(us, 1),
            "chosen": us < before * 1e6,
        }
        if len(graph.nodes) == 1:
            made[repair] |= one_kernel(mutant, graph)
    return {
        "mutant": mutant.name,
        "outputs": region.size,
        **found,
        "certifier_agrees": agrees,
        "uncorrected_us": round(cost(mutant.graph, gpu).seconds * 1e6, 1),
        "source_us": round(before * 1e6, 1),
        "repairs": made,
    }


def one_kernel(mutant: Mutant, graph: KernelGraph) -> dict[str, Any]:
    """The proof of its tile program, and the check of the TTIR for each target."""
    start = time.process_time()
    lowered = lower(graph)
    equivalent = certify(mutant.source, lowered).equivalent
    seconds = time.process_time() - start
    emitted, checked = emit_program(lowered), dict[str, Any]()
    for gpu in TARGETS:
        compiled, start = compile_all(emitted.kernels, [gpu]), time.process_time()
        records = verify_compiled(mutant.source, lowered, emitted, compiled)
        checked[gpu] = {
            "end_to_end": all(record.end_to_end for record in records.values()),
            "seconds": round(time.process_time() - start, 3),
        }
    return {
        "kernels": len(lowered.nodes),
        "tiles": equivalent,
        "seconds_tiles": round(seconds, 3),
        "ttir": checked,
    }


def rows(source: KernelGraph) -> dict[str, Any]:
    """Every derived mutant, and generated ones by how many outputs differ."""
    start = time.process_time()
    made = [*derived(source, tuple(MUTANTS))]
    derivation = time.process_time() - start
    start = time.process_time()
    others = [*generated(source, OPERATORS, AGREEMENT, MOST_WORK)]
    generation = time.process_time() - start
    differ = sorted(DIFFERENCES["relation"](m.source, m.graph).count for m in others)
    return {
        "derived": {"seconds": round(derivation, 3), "mutants": [row(m) for m in made]},
        "generated": {"seconds": round(generation, 3), "operators": OPERATORS, "differ": differ},
    }


def priced(source: KernelGraph, data: dict[str, Any]) -> None:
    """Prices anew of what is kept; nothing is proved again."""
    gpu = target("sm_90")
    before = cost(source, gpu).seconds
    for mutant, kept in zip(derived(source, tuple(MUTANTS)), data["derived"]["mutants"], strict=True):
        region = DIFFERENCES["relation"](mutant.source, mutant.graph)
        uncorrected = cost(mutant.graph, gpu).seconds
        kept |= {"source_us": round(before * 1e6, 1), "uncorrected_us": round(uncorrected * 1e6, 1)}
        for repair, graph in repairs(mutant, region):
            if repair not in kept["repairs"]:  # of a run before this repair was built
                continue
            seconds = predicted_seconds(graph, gpu)
            kept["repairs"][repair] |= {"us": round(seconds * 1e6, 1), "chosen": seconds < before}
    data["priced"] = commit()


def table(found: dict[str, Any]) -> None:
    """Print one line for each repair."""
    columns = ["case", "mutant", "outputs that differ", "relation, boxes, CPU s", "repair", "CPU s to prove"]
    columns.append("source, mutant, repaired, us")
    lines = [columns, ["---"] * len(columns)]
    for case, data in found.items():
        for m in data["derived"]["mutants"]:
            for repair, r in m["repairs"].items():
                differ = f"{m['relation']['differ']:,} of {m['outputs']:,}"
                asked = ", ".join(
                    f"{m[d]['seconds']:.2f}" if "differ" in m[d] else "none" for d in DIFFERENCES
                )
                us = f"{m['source_us']}, {m['uncorrected_us']}, {r['us']}"
                mutant, proof = f"`{m['mutant']}`", f"{r['seconds']:.2f}"
                lines.append([case, mutant, differ, asked, f"`{repair}`", proof, us])
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))


def main() -> None:
    """See the module's docstring."""
    found = load("corrections")
    if sys.argv[1:] == ["--prices"]:
        for name, data in found.items():
            priced(alone(program(name, MORE).nodes[0]), data)
        keep("corrections", found)
        table(found)
        return
    for name in sys.argv[1:] or NAMES:
        found[name] = rows(alone(program(name, MORE).nodes[0])) | {"commit": commit()}
        keep("corrections", found)
    table(found)


if __name__ == "__main__":
    main()
