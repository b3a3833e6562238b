"""Programs with random extents through every optimizer, down to lowered programs, kernels and their Triton IR.

    python test/random/extents.py --count=5000 --json=benchmarks/results/extents.json

Each program is of a common family (norms, gates, attention, softmax) with extents drawn from 1 to 200, few of which
divide well. What optimizers propose is evaluated in fp64 and compared with numpy, which shares nothing with superopt;
every few programs the kernels also run in Triton's interpreter, and their Triton IR is verified. With `--state` a
campaign goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from about import about

from superopt.cost import target
from superopt.numerics.interpreter import Interpreter
from superopt.operators import infer_type
from superopt.program import BlockGraph, KernelGraph, Loop, Node, TensorType, Value, walk
from superopt.spec import check_kernel, reaches
from superopt.transforms import optimizers
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.ttir import verify_compiled

Array: TypeAlias = "np.ndarray[Any, Any]"
Numpy: TypeAlias = Callable[..., Array]
MOST = 200
TOLERANCE = 1e-9  # relative, in fp64
KERNEL_TOLERANCE = 2e-3  # the same for f32 kernels


class Builder:
    """A kernel graph as it grows."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, op: str, *operands: Value, **attrs: Any) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.nodes.append(Node(op, operands, (result,), attrs))
        return result

    def over(self, op: str, x: Value) -> Value:
        """A reduction of the last dimension."""
        return self(op, x, dims=(len(x.shape) - 1,), keepdims=True)


def _tensor(*shape: int) -> Value:
    return Value(TensorType(shape, "f32"))


def _softmax(x: Array) -> Array:
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _soft(f: Builder, x: Value) -> Value:
    p = f("exp", f("sub", x, f.over("reduce_max", x)))
    return f("div", p, f.over("reduce_sum", p))


def _norm(x: Array, w: Array) -> Array:
    return (x / np.sqrt((x * x).mean(-1, keepdims=True))) @ w


def _layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True))


def _linear(x: Array, w: Array, b: Array) -> Array:
    return np.tanh(x @ w + b)


def _gate(x: Array, w: Array, u: Array) -> Array:
    return (x @ w) / (1 + np.exp(-(x @ w))) * (x @ u)


def _attention(q: Array, k: Array, v: Array) -> Array:
    return _softmax(q @ np.swapaxes(k, -1, -2)) @ v


def _statistics(x: Array, y: Array) -> Array:
    product = x * y
    return product.max(-1, keepdims=True) - product.mean(-1, keepdims=True)


FAMILIES: dict[str, Numpy] = {
    "norm": _norm, "layer norm": _layer_norm, "linear": _linear, "gate": _gate, "attention": _attention,
    "heads": _attention, "softmax": _softmax, "statistics": _statistics,
}  # fmt: skip


def drawn(draw: random.Random) -> tuple[str, KernelGraph]:
    """A program of some family, with random extents."""
    f = Builder()
    m, k, n = (draw.randint(1, MOST) for _ in range(3))
    family = draw.choice(list(FAMILIES))
    lead = (draw.randint(1, 4),) if family == "heads" else ()
    depth = draw.choice([8, 16, 33, 64])
    x, w, u, b = _tensor(m, k), _tensor(k, n), _tensor(k, n), _tensor(n)
    if family == "norm":
        inputs = [x, w]
        out = f("matmul", f("div", x, f("sqrt", f.over("reduce_mean", f("square", x)))), w)
    elif family == "layer norm":
        inputs = [x]
        centred = f("sub", x, f.over("reduce_mean", x))
        out = f("mul", centred, f("rsqrt", f.over("reduce_mean", f("square", centred))))
    elif family == "linear":
        inputs = [x, w, b]
        out = f("tanh", f("add", f("matmul", x, w), b))
    elif family == "gate":
        inputs = [x, w, u]
        out = f("mul", f("silu", f("matmul", x, w)), f("matmul", x, u))
    elif family in ("attention", "heads"):
        inputs = [_tensor(*lead, m, depth), _tensor(*lead, n, depth), _tensor(*lead, n, depth)]
        scores = f("matmul", inputs[0], inputs[1], transpose_b=True)
        out = f("matmul", _soft(f, scores), inputs[2])
    elif family == "softmax":
        inputs = [x]
        out = _soft(f, x)
    else:
        inputs = [w, u]
        product = f("mul", w, u)
        out = f("sub", f.over("reduce_max", product), f.over("reduce_mean", product))
    return family, KernelGraph(family.replace(" ", "_"), inputs, f.nodes, [out])


def ragged(graph: KernelGraph) -> bool:
    """Whether some tile reaches past its tensor."""
    for item in walk(graph):
        body = item.body if isinstance(item, Node) else None
        if isinstance(body, BlockGraph) and any(map(any, reaches(body).values())):
            return True
        if isinstance(item, Loop) and item.step > 1 and item.stop % item.step:
            return True
    return False


def wrong(found: Sequence[Array], expected: Array, tolerance: float) -> bool:
    """Whether the only output is not what numpy says."""
    (got,) = found
    return not np.allclose(
        got, expected, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(expected).max()))
    )


def examined(
    number: int, seed: int, budget: float, interpreter: Interpreter | None
) -> tuple[Counter[str], list[str]]:
    """What there was to count in one program, and what was wrong; kernels run where there is an interpreter."""
    counts: Counter[str] = Counter(programs=1)
    faults: list[str] = []
    domain, gpu = FloatDomain(), target("sm_90")
    family, graph = drawn(random.Random(f"{seed} {number}"))
    check_kernel(graph)
    shapes = [v.shape for v in graph.inputs]
    generator = np.random.default_rng([seed, number])
    arrays = [generator.standard_normal(s).astype(np.float32) for s in shapes]
    expected = FAMILIES[family](*(a.astype(np.float64) for a in arrays))
    tensors = [domain.tensor(a.astype(np.float64)) for a in arrays]
    for name in optimizers.names():
        proposals = optimizers.load(name).propose(graph, gpu, budget=budget)
        counts[f"{name}: programs with candidates"] += bool(proposals.found)
        if not proposals.found and not proposals.remark:
            faults.append(f"{number} {family} {shapes}: {name} is silent")
        candidates = proposals.graphs
        chosen = candidates[:1] + [c for c in candidates[1:] if ragged(c)][:1]
        for candidate in chosen:
            counts["candidates"] += 1
            counts["ragged candidates"] += ragged(candidate)
            lowered = lower(candidate)
            for what, made in (("candidate", candidate), ("lowered", lowered)):
                found = [t.planes[0] for t in evaluate(made, tensors, domain)]
                if wrong(found, expected, TOLERANCE):
                    faults.append(f"{number} {family} {shapes}: {name}'s {what} is wrong")
        if chosen and interpreter is not None:
            lowered = lower(chosen[-1])
            emitted = emit_program(lowered)
            ran = interpreter.run(emitted, arrays, [v.dtype for v in graph.inputs])
            counts["programs run in the interpreter"] += 1
            if wrong(ran, expected, KERNEL_TOLERANCE):
                faults.append(f"{number} {family} {shapes}: {name}'s kernels are wrong")
            compiled = compile_all(emitted.kernels, ["sm_90"], jobs=1)
            verify_compiled(graph, lowered, emitted, compiled)
            counts["programs verified as Triton IR"] += 1
    return counts, faults


def main() -> int:
    """The command line; returns the number of wrong programs, at most 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of work of one search")
    parser.add_argument("--kernels-every", type=int, default=10, help="programs for one whose kernels run")
    parser.add_argument("--state", type=Path, help="a line for each program; those in it are not made again")
    parser.add_argument("--json", help="also write the counts to this file")
    args = parser.parse_args()
    lines: list[str] = args.state.read_text().splitlines() if args.state and args.state.exists() else []
    rows = [json.loads(line) for line in lines]
    interpreter, record = Interpreter(), about()
    code = record["commit"]
    for number in range(len(rows), args.count):
        runs = interpreter if number % args.kernels_every == 0 else None
        counted, wrongs = examined(number, args.seed, args.budget, runs)
        rows.append({"commit": code, "counts": counted, "faults": wrongs})
        if args.state:
            with args.state.open("a") as state:
                state.write(json.dumps(rows[-1]) + "\n")
    faults = [fault for row in rows for fault in row["faults"]]
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["counts"])
    counts["wrong"] = len(faults)
    print("\n".join([*faults, *(f"{what}: {n}" for what, n in counts.items())]))
    if args.json:
        record["programs by commit"] = Counter(str(row["commit"]) for row in rows)
        record["counts"] = counts
        Path(args.json).write_text(json.dumps(record, indent=1) + "\n")
    return min(len(faults), 1)


if __name__ == "__main__":
    sys.exit(main())
