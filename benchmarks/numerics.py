"""How wrong programs are in floating point: the calibration of the numeric gate.

    python -m benchmarks.numerics            the table, kept in benchmarks/results/numerics.json

For each benchmark, distribution of inputs and dtype: the largest error against fp64, as a share of the
largest number of the output, of the program as PyTorch runs it ("eager": its own kernels in that dtype, on the
CPU), of the gate's model of that ("modelled": every operator rounds its result), of what the search made of it,
lowered ("ours"), and of the program in fp32. All but eager are evaluated as the gate does it: fp32 arithmetic,
rounding where a program stores. `of_tolerance` is what the gate says of ours: above 1 it is rejected. The last
rows are programs without the subtraction of the maximum, as candidates for those with it: the gate rejects them
by these numbers, there is no rule against them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.record import keep
from benchmarks.trinity.programs import PROGRAMS, Config

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.errors import SuperoptError
from superopt.inputs.programs import read_program
from superopt.numerics.checking import DISTRIBUTIONS, compare, make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.numerics.rounding import RoundingModel
from superopt.program import KernelGraph, Value
from superopt.transforms.emit.reference_source import reference_source
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.partition.segments import partition, stitch
from superopt.verify.domains import Array, FloatDomain, round_to
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import fewer_blocks, work

ROOT = Path(__file__).resolve().parents[1]
SMALL = Config(hidden=128, heads=2, ffn=256, groups=1, tokens=16, prefix=112)
SEARCH_SECONDS = 6.0
MOST_WORK = 1_000_000_000  # scalar operations of one evaluation, of 36
DTYPES = ("f16", "bf16")
# One of the shapes of each program: the others differ in the number of rows.
LEFT_OUT = ("_b8", "_b8_safe", "_prefill_b1", "_prefill_b1_safe", "_spec_b1", "_spec_b1_safe", "_public_b1")


def programs() -> Iterator[tuple[str, KernelGraph]]:
    """The benchmarks by name; Trinity's at small extents, as they go through segments of their own."""
    for folder in ("examples", "benchmarks/mugraph"):
        for path in sorted((ROOT / folder).glob("*.mlir")):
            if not path.stem.endswith(LEFT_OUT):
                yield f"{path.parent.name}/{path.stem}", read_program(path, Diagnostics())
    for name, make in PROGRAMS.items():
        yield f"trinity/{name}", make(SMALL, name)
        if name != "swiglu_ffn":
            yield f"trinity/{name}_safe", make(SMALL, name, safe=True)


def optimized(graph: KernelGraph, seconds: float = SEARCH_SECONDS) -> KernelGraph:
    """`graph` with the muGraph search's best candidates, by the cost model, in place of its segments."""
    gpu, whole = target("sm_90"), graph
    for segment in partition(graph):
        try:
            candidates = search_plans(segment.graph, gpu, budget=seconds).graphs
        except SuperoptError:
            continue
        if candidates:
            whole = stitch(whole, segment, min(candidates, key=lambda c: cost(c, gpu).seconds))
    return whole


def in_dtype(graph: KernelGraph, dtype: str) -> KernelGraph:
    """The program with all its tensors of another floating-point type."""
    text = canonical_text(graph)
    for other in ("f16", "bf16", "f32"):
        text = text.replace(f'"{other}"', f'"{dtype}"')
    return parse(text)


def measure(original: KernelGraph, candidate: KernelGraph) -> dict[str, Any]:
    """Errors by dtype and distribution; nothing for a program that takes too long."""
    original, candidate = fewer_blocks(original, candidate) or (original, candidate)
    if work(original) > MOST_WORK:
        return {}
    exact, faithful = FloatDomain(), FloatDomain(faithful=True)
    specs = [replace(s, shape=v.shape) for s, v in zip(input_specs(original), original.inputs, strict=True)]
    rows: dict[str, Any] = {}
    for dtype in DTYPES:
        typed = {
            "modelled": in_dtype(original, dtype),
            "ours": in_dtype(candidate, dtype),
            "fp32": in_dtype(original, "f32"),
        }
        for name in DISTRIBUTIONS:
            inputs = [round_to(x, dtype) for x in make_inputs(specs, name)]
            reference = _run(typed["modelled"], inputs, exact)
            found = {k: _run(g, inputs, faithful) for k, g in typed.items()}
            found["eager"] = eager(typed["modelled"], inputs)
            model = _run(typed["modelled"], inputs, RoundingModel())
            judged = [
                compare(name, "", dtype, got, want, same).ratio
                for got, want, same in zip(found["ours"], reference, model, strict=True)
            ]
            row: dict[str, float | None] = {k: _error(outputs, reference) for k, outputs in found.items()}
            rows.setdefault(dtype, {})[name] = {**row, "of_tolerance": _number(max(judged))}
    return rows


def eager(graph: KernelGraph, inputs: list[Array]) -> list[Array]:
    """What PyTorch makes of the program, operator by operator, with its own kernels for the program's dtypes."""
    torch: Any = import_module("torch")
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

    def rounded(value: Any, dtype: Any, again: object = None) -> Any:
        return value.to(dtype)

    held: dict[Value, Any] = {
        v: torch.from_numpy(np.ascontiguousarray(x)).to(dtypes[v.dtype])
        for x, v in zip(inputs, graph.inputs, strict=True)
    }
    for node in graph.nodes:
        operands = [held[v] for v in node.operands]
        if (kernel := getattr(torch.nn.functional, node.op, None)) and node.op in ("silu", "gelu", "relu"):
            held[node.result] = kernel(*operands)
        elif node.op in ("sigmoid", "tanh", "erf", "square", "reciprocal", "rsqrt"):
            held[node.result] = getattr(torch, node.op)(*operands)
        else:  # arithmetic and what moves data: its text in PyTorch is one call
            constants: dict[str, Array] = {}
            names: dict[str, Any] = {}
            used = list(dict.fromkeys(node.operands))
            exec(reference_source(KernelGraph("one", used, [node], list(node.results)), constants), names)
            kept = {k: torch.from_numpy(np.ascontiguousarray(c)) for k, c in constants.items()}
            made = names["run"](*(held[v] for v in used), rounded=rounded, constants=kept, externs=None)
            held.update(zip(node.results, made, strict=True))
    return [held[v].to(torch.float64).numpy() for v in graph.outputs]


def _run(graph: KernelGraph, inputs: list[Array], domain: FloatDomain) -> list[Array]:
    return [t.planes[0] for t in evaluate(graph, [domain.tensor(x) for x in inputs], domain)]


def _error(outputs: list[Array], reference: list[Array]) -> float | None:
    """The largest error as a share of the largest number; None where an output is not finite and should be."""
    worst = 0.0
    for got, want in zip(outputs, reference, strict=True):
        asked = np.isfinite(want)
        error = np.abs(np.asarray(got, np.float64) - want)[asked]
        if not np.isfinite(error).all():
            return None
        size = np.abs(want[asked]).max(initial=0.0)
        worst = max(worst, float(error.max(initial=0.0) / size) if size else 0.0)
    return _number(worst)


def _ratio(row: dict[str, float | None]) -> float:
    found = row["of_tolerance"]
    return math.inf if found is None else found


def _number(x: float) -> float | None:
    return float(f"{x:.3g}") if math.isfinite(x) else None


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Errors of the benchmarks in floating point.")
    parser.add_argument("--only", help="programs whose name has this in it")
    args = parser.parse_args()
    known, rows, unsafe = dict(programs()), dict[str, Any](), dict[str, Any]()
    for name, graph in known.items():
        if args.only and args.only not in name:
            continue
        candidate = lower(optimized(graph))
        if not (found := measure(graph, candidate)):
            print(f"{name}: left out, as it takes too long", flush=True)
            continue
        rows[name] = found
        worst = max(_ratio(r) for by in found.values() for r in by.values())
        print(f"{name}: at worst {worst:.2f} of the tolerance", flush=True)
        if (safe := known.get(f"{name}_safe")) is not None:
            unsafe[name] = measure(safe, lower(graph))
            rejected = {d: [n for n, r in by.items() if _ratio(r) > 1] for d, by in unsafe[name].items()}
            print(f"{name} in place of {name}_safe: rejected on {rejected}", flush=True)
    if not args.only:
        keep("numerics", rows, without_maximum=unsafe)


if __name__ == "__main__":
    main()
