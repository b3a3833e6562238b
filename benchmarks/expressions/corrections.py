"""Mutants of published convolutions: where they are wrong, what corrects them, whether that pays.

    python -m benchmarks.expressions.corrections      kept in benchmarks/results/corrections.json, and printed

Seconds are those of the processor. Every repair is certified as a whole, at the published sizes, and priced for
sm_90 beside its source; `chosen` is what the search takes.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.expressions.cases import CASES, program, windows
from benchmarks.record import commit, keep

from superopt.cost import cost, target
from superopt.program import KernelGraph
from superopt.transforms.derivation.mutants.correction import DIFFERENCES
from superopt.transforms.derivation.mutants.derived import MUTANTS, Mutant, alone, derived
from superopt.transforms.derivation.mutants.generated import AGREEMENT, MOST_WORK, generated
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.verify import certify

# PET's cases, OLLIE's, and pairs of images (PET, Figure 1).
NAMES = ("dilated", "conv5x5_small", "strided", "images")
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
        decided = decide(mutant.source, mutant.graph)
        found[name] = {"differ": decided.count, "seconds": round(time.process_time() - start, 3)}
        region = region or decided
    assert region is not None
    agrees = certify(mutant.source, mutant.graph).equivalent is (region.count == 0)
    made: dict[str, Any] = {}
    for repair, graph in repairs(mutant, region):
        start = time.process_time()
        equivalent = certify(mutant.source, graph).equivalent
        seconds = time.process_time() - start
        us = cost(graph, gpu).seconds * 1e6
        made[repair] = {
            "certified": equivalent,
            "seconds": round(seconds, 3),
            "us": round(us, 1),
            "chosen": us < before * 1e6,
        }
    return {
        "mutant": mutant.name,
        "outputs": region.size,
        **found,
        "certifier_agrees": agrees,
        "uncorrected_us": round(cost(mutant.graph, gpu).seconds * 1e6, 1),
        "source_us": round(before * 1e6, 1),
        "repairs": made,
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


def table(found: dict[str, Any]) -> None:
    """Print one line for each repair."""
    columns = ["case", "mutant", "outputs that differ", "relation, boxes, CPU s", "repair", "CPU s to prove"]
    columns.append("source, mutant, repaired, us")
    lines = [columns, ["---"] * len(columns)]
    for case, data in found.items():
        for m in data["derived"]["mutants"]:
            for repair, r in m["repairs"].items():
                differ = f"{m['relation']['differ']:,} of {m['outputs']:,}"
                asked = f"{m['relation']['seconds']:.2f}, {m['boxes']['seconds']:.2f}"
                us = f"{m['source_us']}, {m['uncorrected_us']}, {r['us']}"
                mutant, proof = f"`{m['mutant']}`", f"{r['seconds']:.2f}"
                lines.append([case, mutant, differ, asked, f"`{repair}`", proof, us])
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))


def main() -> None:
    """See the module's docstring."""
    found = {name: rows(alone(program(name, MORE).nodes[0])) for name in NAMES}
    keep("corrections", found, commit=commit())
    table(found)


if __name__ == "__main__":
    main()
