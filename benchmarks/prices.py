"""What is delivered for every benchmark program, against the best that a user has: one model for both.

    python -m benchmarks.prices                      every program, kept in benchmarks/results/prices.json
    python -m benchmarks.prices --programs lora_b8   some of them
    python -m benchmarks.prices --table              put what is kept into docs/benchmarking.md
    python -m benchmarks.prices --limits             work out the limits of what is kept again

Each program goes through the whole flow in a process of its own, proofs included. `delivered` is the price in the
report, `kernels` the sum of its kernels, `again` what they are priced at when they are read from the text of the
lowered program, compiled and counted anew, `least` what no kernels of the program as it stands take less than,
`launch` and `further` what a first and each further kernel takes that does nothing. Rows of an earlier run are
kept, so that an interrupted run goes on; `--again` repeats them. Each names the commit of the code that made it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.campaign import ROOT, Campaign, without_places
from benchmarks.record import load
from benchmarks.verification_before import commit

if TYPE_CHECKING:
    from superopt.cost.gpus import Target
    from superopt.program import KernelGraph

FOLDERS = ("mugraph", "trinity")
# A smaller gain has its reason beside it.
ASKED = 1.3


def programs() -> dict[str, Path]:
    """Every benchmark program by name."""
    return {p.stem: p for f in FOLDERS for p in sorted((ROOT / "benchmarks" / f).glob("*.mlir"))}


def measure(path: Path, gpu: str, budget: float) -> dict[str, Any]:
    """The row of a file."""
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program

    return priced(lambda: read_program(path, Diagnostics()), gpu, budget)


def priced(read: Callable[[], KernelGraph], gpu: str, budget: float) -> dict[str, Any]:
    """One row: the delivered kernels, the best that a user has, and the limit of the hardware."""
    from superopt.cost import target
    from superopt.diagnostics import Diagnostics
    from superopt.pipeline import Superoptimize, superoptimize

    start = time.process_time()
    graph = read()
    made = superoptimize(graph, Superoptimize(target=gpu, budget=budget, store=None), Diagnostics())
    report = made.report
    kernels = [k.predicted_seconds for k in (*report.kernels, *report.others)]
    slowest = max(report.kernels, key=lambda k: k.predicted_seconds, default=None)
    return {
        "commit": commit(ROOT),
        "delivered_us": round(report.predicted_seconds * 1e6, 2),
        "kernels_us": round(sum(kernels) * 1e6, 2),
        "again_us": round(seconds_again(made.lowered, target(gpu)) * 1e6, 2),
        "kernels": len(kernels),
        "best_us": round(report.baseline_seconds * 1e6, 2),
        "best": report.baseline,
        "operators_us": round(report.input_predicted_seconds * 1e6, 2),
        **_limits_of(graph, target(gpu)),
        "improved": report.improved,
        "spilled_bytes": sum(k.spilled_bytes or 0 for k in report.kernels),
        "limit": slowest.limit if slowest is not None else "",
        "guarantee": report.guarantee,
        "cpu_seconds": round(time.process_time() - start, 1),
        "remarks": [
            without_places(r) for r in report.remarks if "the input is returned" in r or "budget" in r
        ],
    }


def seconds_again(lowered: KernelGraph, hardware: Target) -> float:
    """The price of the kernels that the text of a lowered program has, as a bundle states it: written, compiled
    and counted anew."""
    from superopt.cost import compiled_seconds
    from superopt.dialects.reader import read
    from superopt.dialects.writer import to_text
    from superopt.transforms.schedule.fit import Compiler, fit

    made = fit(read(to_text(lowered), "lowered.mlir"), Compiler(hardware), fixed=True)
    return compiled_seconds(made.lowered, made.compiled, hardware)


def _limits_of(graph: KernelGraph, hardware: Target) -> dict[str, float]:
    launch = hardware.launch_seconds + hardware.floor_seconds
    return {
        "least_us": round(least_seconds(graph, hardware) * 1e6, 2),
        "launch_us": round(launch * 1e6, 2),
        "further_us": round((launch - hardware.early_seconds) * 1e6, 2),
    }


def least_seconds(graph: Any, hardware: Any) -> float:
    """The roofline of a program as it stands: one launch, and the longest of bytes, products and exponentials.

    Inputs and outputs move once, at the peak rate. What needs fewer products, or moves less, takes less.
    """
    from superopt.operators import OPERATORS, nest_of, normalize_attrs

    size = sum(v.type.bytes for v in {*graph.inputs, *graph.outputs})
    seconds, special = size / hardware.dram_bytes_per_second, 0.0
    products = {"f32": 0.0, "": 0.0}
    for node in graph.nodes:
        entry, nest = OPERATORS.get(node.op), nest_of(node)
        if entry is None or nest is None:
            continue
        if entry.contraction:
            products["f32" if node.operands[0].dtype == "f32" else ""] += 2.0 * math.prod(nest.extents)
        else:
            special += entry.special([v.shape for v in node.operands], normalize_attrs(entry, node.attrs))
    computed = products[""] / hardware.tensor_flops + products["f32"] / hardware.vector_flops
    seconds = max(seconds, computed, special / hardware.special_operations)
    return hardware.launch_seconds + math.hypot(hardware.floor_seconds, seconds)


def _limits(rows: dict[str, Any], gpu: str) -> None:
    from superopt.cost import target
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program

    for name, row in rows.items():
        if "failed" not in row:
            graph = read_program(programs()[name], Diagnostics())
            row |= _limits_of(graph, target(gpu))


def outcome(row: dict[str, Any]) -> str:
    """Whether a row is a win, a tie within 1 %, or left as it is, against the best that a user has."""
    if not row["improved"]:
        return "input"
    return "win" if row["delivered_us"] < 0.99 * row["best_us"] else "tie"


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown, and what they say together."""
    made = {name: row for name, row in rows.items() if "failed" not in row}
    gains = [row["best_us"] / min(row["delivered_us"], row["best_us"]) for row in made.values()]
    counts = {what: sum(outcome(r) == what for r in made.values()) for what in ("win", "tie", "input")}
    geomean = math.exp(sum(map(math.log, gains)) / max(len(gains), 1))
    lines = [
        f"{len(made)} of {len(programs())} programs: {counts['win']} faster than the best that a user has, "
        f"{counts['tie']} as fast within 1 %, {counts['input']} returned as they are; geometric mean of the "
        f"gains {geomean:.2f}.",
        *_again(made),
        "",
        "| program | delivered | best a user has | gain | one by one | limit | of the limit | kernels | code | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(made.items()):
        said = "; ".join(filter(None, [_returned(row), _reason(row)]))
        said += f" {row['spilled_bytes']} bytes spilled" if row["spilled_bytes"] else ""
        delivered = f"{row['delivered_us']} us" if row["improved"] else ""
        cells = [
            name,
            delivered,
            f"{row['best_us']} us ({row['best']})",
            f"{gain(row):.2f}",
            f"{row['operators_us']} us",
            f"{row['least_us']} us",
            f"{row['least_us'] / min(row['delivered_us'], row['best_us']):.0%}",
            str(row["kernels"]),
            row["commit"],
            said.strip(),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _returned(row: dict[str, Any]) -> str:
    """Why the input is returned, in short: the best candidate's price, or why there is none."""
    if row["improved"]:
        return ""
    said = next((r for r in row["remarks"] if "the input is returned" in r), "")
    best = re.search(r"the best (?:other )?candidate ([\d.]+ us)", said)
    if refused := re.search(r"what promises less \(([\d.]+ us) at best\) was refused: (.*?) \(\d", said):
        return f"the input is returned: {refused[1]} are promised, but {refused[2]}"
    return "the input is returned" + (f": the best candidate takes {best[1]}" if best else "")


def gain(row: dict[str, Any]) -> float:
    """How many times as long the best that a user has takes."""
    return row["best_us"] / row["delivered_us"] if row["improved"] else 1.0


def _reason(row: dict[str, Any]) -> str:
    """Why a row gains less than is asked for, by its figures; empty where it does not."""
    if gain(row) >= ASKED:
        return ""
    said = list[str]()
    most, wanted = row["best_us"] / row["least_us"], row["best_us"] / ASKED
    two = row["launch_us"] + row["further_us"]
    if most < ASKED:
        allows = f", which allows a gain of {most:.2f}" if most > 1 else ""
        said.append(f"the best a user has is at {1 / most:.0%} of the limit{allows}")
    elif wanted < two:
        said.append(f"a gain of {ASKED} asks for {wanted:.2f} us, two launches take {two:.2f} us")
    if not row["improved"] or said:
        return "; ".join(said)
    if row["kernels"] > 1:
        launches = row["launch_us"] + (row["kernels"] - 1) * row["further_us"]
        said.append(f"{row['kernels']} launches, one after the other, take {launches:.2f} us at least")
    return "; ".join([*said, f"the slowest kernel is bound by {row['limit']}"])


def _again(made: dict[str, dict[str, Any]]) -> list[str]:
    """How far the printed prices are from those of kernels that were compiled anew."""
    apart = [abs(r["delivered_us"] / r["again_us"] - 1) for r in made.values() if "again_us" in r]
    if not apart:
        return []
    return [
        f"Of {len(apart)} programs the kernels were read from the text of the lowered program and compiled and "
        f"priced anew: the largest difference from the printed price is {max(apart):.2%}."
    ]


def main() -> None:
    """Measure, print, store."""
    campaign = Campaign(
        "prices",
        list(programs()),
        lambda name, gpu, budget: measure(programs()[name], gpu, budget),
        table,
        limit=900.0,
    )
    parser = campaign.parser(__doc__)
    parser.add_argument("--limits", action="store_true", help="work out the limits of what is kept again")
    arguments = parser.parse_args()
    if arguments.limits:
        rows = load("prices")
        _limits(rows, arguments.target)
        campaign.keep(rows, arguments)
        arguments.table = True
    campaign.run(arguments)


if __name__ == "__main__":
    main()
