"""Emitted kernels against hand-written Triton: instructions of the hot loop, registers, spills, shared memory.

    python -m benchmarks.hot_loops.compare                 kept in results/hot_loops.json and docs/emission.md
    python -m benchmarks.hot_loops.compare --missing       the programs of which nothing is kept yet
    python -m benchmarks.hot_loops.compare --table         put what is kept into docs/emission.md
    python -m benchmarks.hot_loops.compare --only attention --targets sm_90 --opcodes

Both kernels do the same work in a trip, with the same warps and pipeline stages; counts are of the machine code
that ptxas makes. No GPU is needed, and none was there: nothing here is a time.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.hot_loops.count import Loop, hot_loop
from benchmarks.hot_loops.programs import Case, cases, hand_written
from benchmarks.record import commit, today

from superopt.cost import target_names
from superopt.errors import SuperoptError
from superopt.program import TileProgram
from superopt.transforms.emit.compile import compile_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.lower import lower

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "hot_loops.json"
PAGE, BEGIN, END = ROOT / "docs" / "emission.md", "<!-- hot loops -->", "<!-- /hot loops -->"
# One for each kind of matrix instruction.
TARGETS = [name for name in target_names() if name.startswith("sm_")]
MOST = 1.05


def measure(kernel: TritonKernel, target: str) -> tuple[dict[str, Any], Loop]:
    """What the compiler says of a kernel."""
    compiled = compile_kernel(kernel, target, timeout=600)
    loop = hot_loop(compiled.cubin)
    facts = {
        "instructions": loop.total,
        **loop.counts,
        "registers": compiled.registers,
        "spilled_bytes": compiled.spill_bytes,
        "shared_bytes": compiled.shared_bytes,
    }
    return facts, loop


def compare(case: Case, target: str) -> tuple[dict[str, Any], Loop, Loop]:
    """Both kernels of a case, and the ratio of the instructions in a trip."""
    lowered = lower(case.graph, target)
    (kernel,) = emit_program(lowered).kernels
    (program,) = (n.body for n in lowered.nodes if isinstance(n.body, TileProgram))
    ours, our_loop = measure(kernel, target)
    theirs, their_loop = measure(hand_written(case, program, kernel), target)
    # ptxas unrolls as it likes: what is compared is instructions for the same matrix work.
    unrolled = ours["matrix"] / theirs["matrix"] if theirs["matrix"] else 1.0
    row = {
        "warps": kernel.num_warps,
        "stages": kernel.num_stages,
        "emitted": ours,
        "hand_written": theirs,
        "ratio": round(ours["instructions"] / theirs["instructions"] / (unrolled or 1.0), 3),
    }
    return row, our_loop, their_loop


def table(data: dict[str, Any]) -> str:
    """What is kept, as Markdown."""
    rows: dict[str, dict[str, Any]] = data["programs"]
    found = [of[t] for of in rows.values() for t in TARGETS if t in of]
    over = sum(row["ratio"] > MOST for row in found)
    spilled = sum(row["emitted"]["spilled_bytes"] > 0 for row in found)
    lines = [
        f"To {data['date']}, Triton {data['triton']}: {len(found) - over} of {len(found)} are within "
        f"{MOST - 1:.0%} or shorter, the largest ratio is {max(row['ratio'] for row in found):.3f}; "
        f"{spilled or 'none'} of the emitted kernels spill{'s' * (spilled == 1)}.",
        "",
        f"| program | {' | '.join(TARGETS)} |",
        f"| --- |{' --- |' * len(TARGETS)}",
    ]
    for name, of in rows.items():
        cells = [_cell(of[t]) if t in of else "" for t in TARGETS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    ours, theirs = row["emitted"], row["hand_written"]
    further = "*" * (ours["matrix"] > theirs["matrix"])
    return f"{ours['instructions']}{further} / {theirs['instructions']} = {row['ratio']:.3f}"


def write(data: dict[str, Any]) -> None:
    """Put the table of what is kept into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(data)}\n\n{END}{after}")


def main() -> None:
    """Compare, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="programs whose name holds this; nothing is stored")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--missing", action="store_true", help="add what is not kept yet, one by one")
    parser.add_argument("--opcodes", action="store_true", help="print both loops' opcodes")
    parser.add_argument("--table", action="store_true", help="write the table of what is kept")
    options = parser.parse_args()
    if options.table:
        write(json.loads(RESULTS.read_text()))
        return
    targets = options.targets.split(",")
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if options.missing else {}
    rows: dict[str, dict[str, Any]] = kept.get("programs", {})
    for case in (c for c in cases() if options.only in c.name and c.name not in rows):
        for target in targets:
            try:
                row, ours, theirs = compare(case, target)
            except SuperoptError as error:
                print(f"{case.name:32} {target:7} {error}", flush=True)
                continue
            rows.setdefault(case.name, {})[target] = {"date": today(), "commit": commit(), **row}
            a, b = row["emitted"], row["hand_written"]
            print(
                f"{case.name:32} {target:7} {a['instructions']:5} / {b['instructions']:5} = {row['ratio']:5.3f}"
                f"  matrix {a['matrix']}/{b['matrix']}  registers {a['registers']}/{b['registers']}"
                f"  spilled {a['spilled_bytes']}/{b['spilled_bytes']}"
                f"  shared {a['shared_bytes']}/{b['shared_bytes']}",
                flush=True,
            )
            if options.opcodes:
                for name in sorted({*ours.opcodes, *theirs.opcodes}):
                    print(f"    {name:40} {ours.opcodes.get(name, 0):5} {theirs.opcodes.get(name, 0):5}")
        if options.missing and targets == TARGETS:
            keep(rows)
    if not (options.only or options.missing or targets != TARGETS):
        keep(rows)


def keep(rows: dict[str, dict[str, Any]]) -> None:
    """Keep the rows, and put their table into the page."""
    data = {
        "date": today(),
        "triton": version("triton"),
        "programs": rows,
    }
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")
    write(data)


if __name__ == "__main__":
    main()
