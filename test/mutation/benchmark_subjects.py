"""The benchmarks as finished programs to inject faults into: what the search makes of each, and what that is lowered to.

Programs keep their structure and lose their sizes (`superopt.verify.reduce`: every grid, loop and tile boundary is crossed
once), so that thousands of mutants can be judged. Where that is not possible (sizes that the program depends on), the
program is built smaller. TTIR is that of programs built smaller, as a tile of two elements cannot be compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from subjects import Subject, compiled

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.errors import SuperoptError
from superopt.inputs.programs import read_program
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.partition.segments import partition, stitch
from superopt.verify import certify
from superopt.verify.reduce import reduce_extents, work

ROOT = Path(__file__).resolve().parents[2]
# One size of each program: the others differ in extents only.
FILES = ("examples/*.mlir", "benchmarks/mugraph/*.mlir")
LEFT_OUT = ("_b8", "_b8_safe")
SEARCH_SECONDS = 4.0
MOST_WORK = 500_000


def benchmark_subjects() -> list[Subject]:
    """Every benchmark at every level that it reaches."""
    found: list[Subject] = []
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            if not path.stem.endswith(LEFT_OUT):
                found += _levels(
                    f"{path.parent.name}/{path.stem}", read_program(path, Diagnostics()), small=False
                )
    for name, graph in _trinity():
        found += _levels(f"trinity/{name}", graph, small=True)
    return found


def _trinity() -> Iterator[tuple[str, KernelGraph]]:
    sys.path.insert(0, str(ROOT))
    programs: Any = importlib.import_module("benchmarks.trinity.programs")
    config = programs.Config(hidden=64, heads=2, ffn=96, groups=1, tokens=16, prefix=16)
    for name, make in programs.PROGRAMS.items():
        yield name, make(config, name)
        if name != "swiglu_ffn":
            yield f"{name}_safe", make(config, f"{name}_safe", safe=True)


def _levels(name: str, graph: KernelGraph, *, small: bool) -> Iterator[Subject]:
    """The program itself, as optimized, as lowered; and its TTIR where it is small as it is."""
    optimized = _optimized(graph)
    lowered = lower(optimized)
    levels = [("block", optimized), ("tile", lowered)] if optimized is not graph else [("tile", lowered)]
    if small:
        yield Subject(name, "kernel", graph, graph)
        for level, program in levels:
            yield Subject(name, level, graph, program)
        if (ttir := compiled(Subject(name, "tile", graph, lowered))) is not None:
            yield ttir
        return
    for level, program in [("kernel", graph), *levels]:
        pair = reduce_extents(graph, program)
        if pair is None or max(map(work, pair)) > MOST_WORK:
            print(f"{name} {level}: cannot be made small enough", file=sys.stderr)
        elif certify(*pair).equivalent:
            yield Subject(name, level, *pair)
        else:  # a number in it stands for an extent: mutants are compared with what it is now
            yield Subject(name, level, pair[1], pair[1])


def _optimized(graph: KernelGraph) -> KernelGraph:
    """The fastest candidates by the cost model in place of their segments."""
    gpu, whole = target("sm_90"), graph
    for segment in partition(graph):
        try:
            candidates = search_plans(segment.graph, gpu, budget=SEARCH_SECONDS).graphs
        except SuperoptError:
            continue
        if candidates:
            best = min(candidates, key=lambda c: cost(c, gpu).seconds)
            whole = stitch(whole, segment, best)
    return whole
