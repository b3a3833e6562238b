"""What is delivered for every benchmark program, against the best that a user has: one model for both.

    python -m benchmarks.prices                      every program, kept in benchmarks/results/prices.json
    python -m benchmarks.prices --programs lora_b8   some of them
    python -m benchmarks.prices --table              print what is kept, and put it into docs/benchmarking.md

Each program goes through the whole flow in a process of its own, proofs included. `delivered` is the price in the
report, `kernels` the sum of its kernels, `least` what a launch, the inputs and the outputs take at the target's
rates. Rows of an earlier run are kept, so that an interrupted run goes on; `--again` repeats them. Each names the
commit of the code that made it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.record import keep, load
from benchmarks.verification_before import commit

ROOT = Path(__file__).resolve().parents[1]
PAGE, BEGIN, END = ROOT / "docs" / "benchmarking.md", "<!-- prices -->", "<!-- /prices -->"
FOLDERS = ("mugraph", "trinity")


def programs() -> dict[str, Path]:
    """Every benchmark program by name."""
    return {p.stem: p for f in FOLDERS for p in sorted((ROOT / "benchmarks" / f).glob("*.mlir"))}


def measure(path: Path, gpu: str, budget: float) -> dict[str, Any]:
    """One row: the delivered kernels, the best that a user has, and the limit of the hardware."""
    from superopt.cost import target
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program
    from superopt.pipeline import Superoptimize, superoptimize

    start = time.process_time()
    graph = read_program(path, Diagnostics())
    made = superoptimize(graph, Superoptimize(target=gpu, budget=budget, store=None), Diagnostics())
    report = made.report
    kernels = [k.predicted_seconds for k in (*report.kernels, *report.others)]
    slowest = max(report.kernels, key=lambda k: k.predicted_seconds, default=None)
    return {
        "commit": commit(ROOT),
        "delivered_us": round(report.predicted_seconds * 1e6, 2),
        "kernels_us": round(sum(kernels) * 1e6, 2),
        "kernels": len(kernels),
        "best_us": round(report.baseline_seconds * 1e6, 2),
        "best": report.baseline,
        "operators_us": round(report.input_predicted_seconds * 1e6, 2),
        "least_us": round(least_seconds(graph, target(gpu)) * 1e6, 2),
        "improved": report.improved,
        "spilled_bytes": sum(k.spilled_bytes or 0 for k in report.kernels),
        "limit": slowest.limit if slowest is not None else "",
        "guarantee": report.guarantee,
        "cpu_seconds": round(time.process_time() - start, 1),
        "remarks": [r for r in report.remarks if "the input is returned" in r or "budget" in r],
    }


def least_seconds(graph: Any, hardware: Any) -> float:
    """What no program is faster than: one launch, and the bytes of inputs and outputs at the peak rate."""
    size = sum(v.type.bytes for v in {*graph.inputs, *graph.outputs})
    return hardware.launch_seconds + math.hypot(hardware.floor_seconds, size / hardware.dram_bytes_per_second)


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
        "",
        "| program | delivered | best a user has | gain | one by one | limit of memory | kernels | code | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(made.items()):
        said = "" if row["improved"] else "the input is returned"
        said += f" {row['spilled_bytes']} bytes spilled" if row["spilled_bytes"] else ""
        lines.append(
            f"| {name} | {row['delivered_us']} us | {row['best_us']} us ({row['best']}) | "
            f"{row['best_us'] / row['delivered_us']:.2f} | {row['operators_us']} us | {row['least_us']} us | "
            f"{row['kernels']} | {row['commit']} | {said.strip()} |"
        )
    return "\n".join(lines)


def in_child(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of a program, made in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.prices", "--child", "--programs", name]
    command += ["--budget", str(arguments.budget), "--target", arguments.target]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=arguments.limit, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {arguments.limit:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join(programs()), help="comma-separated")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of work for each")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a program may take")
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--again", action="store_true", help="measure again what is kept already")
    parser.add_argument("--table", action="store_true", help="write the table of what is kept")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(programs()[arguments.programs], arguments.target, arguments.budget)))
        return
    rows = load("prices")
    if not arguments.table:
        for name in arguments.programs.split(","):
            if name in rows and not arguments.again:
                continue
            rows[name] = in_child(name, arguments)
            print(f"{name}: {rows[name]}", flush=True)
            keep("prices", rows, target=arguments.target, budget_seconds=arguments.budget)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}")


if __name__ == "__main__":
    main()
