"""Emitted kernels against hand-written Triton: instructions of the hot loop, registers, spills, shared memory.

    python -m benchmarks.hot_loops.compare                 the table, kept in benchmarks/results/hot_loops.json
    python -m benchmarks.hot_loops.compare --only attention --targets sm_90 --opcodes

Both kernels do the same work in a trip, with the same warps and pipeline stages; counts are of the machine code
that ptxas makes. No GPU is needed, and none was there: nothing here is a time.
"""

from __future__ import annotations

import argparse
import datetime
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.hot_loops.count import Loop, hot_loop
from benchmarks.hot_loops.programs import Case, cases, hand_written

from superopt.cost import target_names
from superopt.errors import SuperoptError
from superopt.program import TileProgram
from superopt.transforms.emit.compile import compile_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.lower import lower

RESULTS = Path(__file__).parents[1] / "results" / "hot_loops.json"
TARGETS = target_names()


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


def main() -> None:
    """Compare, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="programs whose name holds this; nothing is stored")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--opcodes", action="store_true", help="print both loops' opcodes")
    options = parser.parse_args()
    targets = options.targets.split(",")
    rows: dict[str, dict[str, Any]] = {}
    for case in (c for c in cases() if options.only in c.name):
        for target in targets:
            try:
                row, ours, theirs = compare(case, target)
            except SuperoptError as error:
                print(f"{case.name:32} {target:7} {error}", flush=True)
                continue
            rows.setdefault(case.name, {})[target] = row
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
    if options.only or targets != TARGETS:
        return
    data = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "triton": version("triton"),
        "programs": rows,
    }
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
