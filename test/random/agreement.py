"""Random programs, compiled: their PTX, their TTIR, Triton's interpreter and numpy must agree.

    python test/random/agreement.py --kernels=200 --json=benchmarks/results/agreement.json      (make agree)

Programs of products, reductions, elementwise operators, transposes, concatenations and causal masks have random
extents, few of which divide well, in f16, bf16 or f32. Each is lowered, and its kernels are compiled for three
targets. Over the fields, what the TTIR of all kernels stores is compared with the program, and what the PTX of each
kernel stores with its TTIR. On real numbers, what the kernels store in Triton's interpreter is compared with numpy,
which shares nothing with superopt.

Faults are planted: one operator or operand of the program is changed so that numpy's answer changes, and both the
TTIR's check and the interpreter must tell the kernels from it; and one instruction in the PTX of each kernel, whose
fate is that of `test/mutation/ptx_harness.py`. With `--state` a campaign goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "mutation"))

import mutate_ptx
import ptx_harness
from about import about

from superopt.cost import target
from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError
from superopt.numerics.interpreter import Interpreter
from superopt.operators import infer_type
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.spec import check_kernel
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import Compiler, Scheduled, ordered
from superopt.verify.primes import drawn as drawn_primes
from superopt.verify.ptx.check import PtxText, verify_kernel
from superopt.verify.ttir.artifact import kernel_texts, verify_compiled

Array: TypeAlias = "np.ndarray[Any, Any]"
TARGETS = ("sm_80", "sm_90", "sm_100")
EXTENTS = (1, 3, 8, 16, 17, 32, 40, 64, 64, 100, 128, 130)
EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
# Of any number in a program: what is larger could overflow f16 later on.
LARGEST = 50.0

# --- programs -------------------------------------------------------------------------------------------------


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "exp": np.exp, "square": np.square, "sigmoid": _sigmoid, "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh, "silu": lambda x: x * _sigmoid(x), "gelu": lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2, "erf": _erf,
}  # fmt: skip
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max, "reduce_min": np.min,
}  # fmt: skip
_KINDS = (
    "unary",
    "unary",
    "binary",
    "binary",
    "reduction",
    "product",
    "product",
    "transpose",
    "concat",
    "mask",
)


@dataclass(frozen=True)
class Step:
    """An operator on values before it: inputs first, then the results of steps."""

    op: str
    operands: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, xs: Sequence[Array]) -> Array:
        """By numpy."""
        a = self.attrs
        if self.op in _UNARY:
            return _UNARY[self.op](xs[0])
        if self.op in _BINARY:
            return _BINARY[self.op](xs[0], xs[1])
        if self.op in _REDUCTIONS:
            return _REDUCTIONS[self.op](xs[0], axis=a["dims"], keepdims=True)
        if self.op == "matmul":
            return xs[0] @ (np.swapaxes(xs[1], -1, -2) if a["transpose_b"] else xs[1])
        if self.op == "transpose":
            return np.transpose(xs[0], a["perm"])
        if self.op == "concat":
            return np.concatenate(xs, axis=a["dim"])
        if self.op == "band":
            rows, columns = int(a["shape"][-2]), int(a["shape"][-1])
            above = np.arange(columns) - np.arange(rows)[:, None]
            inside = (above >= a["lower"]) & (above <= a["upper"])
            made: Array = np.where(inside, float(a["inside"]), float(a["outside"]))
            return np.broadcast_to(made, a["shape"])
        assert self.op == "select"
        return np.where(xs[0] > 0, xs[1], a["other"])


@dataclass(frozen=True)
class Program:
    """Inputs and steps; the last step's result is the output."""

    dtype: str
    inputs: tuple[Array, ...]
    steps: tuple[Step, ...]

    def values(self, *, narrow: bool = False) -> list[Array]:
        """All values by numpy in fp64, rounded after each step where `narrow`."""
        found = list(self.inputs)
        for step in self.steps:
            made = step([found[i] for i in step.operands])
            found.append(rounded(made, self.dtype) if narrow else made)
        return found

    def graph(self) -> KernelGraph:
        """The program for superopt."""
        values = [Value(TensorType(x.shape, self.dtype), f"x{i}") for i, x in enumerate(self.inputs)]
        given, nodes = list(values), list[Node]()
        for step in self.steps:
            operands = tuple(values[i] for i in step.operands)
            values.append(Value(infer_type(step.op, [v.type for v in operands], step.attrs)))
            nodes.append(Node(step.op, operands, (values[-1],), dict(step.attrs)))
        graph = KernelGraph("drawn", given, nodes, [values[-1]])
        check_kernel(graph)
        return graph


def rounded(x: Array, dtype: str) -> Array:
    """To the nearest of `dtype`, ties to even."""
    if dtype != "bf16":
        return x.astype(np.float16 if dtype == "f16" else np.float32).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32)
    return (
        (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    )


def drawn(rng: random.Random) -> Program:
    """Two to six steps; what the output does not depend on is left out."""
    dtype = rng.choice(("f16", "f16", "bf16", "f32"))
    generator = np.random.default_rng(rng.getrandbits(64))

    def new(*shape: int) -> Array:
        return rounded(generator.uniform(-1, 1, shape), dtype)

    lead = (rng.choice((2, 3)),) if rng.random() < 0.2 else ()
    inputs = [new(*lead, rng.choice(EXTENTS), rng.choice(EXTENTS))]
    # A step's operands: an index below 0 is an input, that of ~i; renumbered when all are known.
    values, steps = {-1: inputs[0]}, list[Step]()

    def fresh(*shape: int) -> int:
        inputs.append(new(*shape))
        values[-len(inputs)] = inputs[-1]
        return -len(inputs)

    wanted = rng.randint(2, 6)
    last = -1
    while len(steps) < wanted:
        x = last if rng.random() < 0.7 else rng.choice(list(values))
        for step in _steps(rng, x, values, fresh):
            made = step([values[i] for i in step.operands])
            if step.op != "band" and not (made.size and np.abs(made).max() <= LARGEST):
                break
            last = len(steps)
            values[last] = made
            steps.append(replace(step, operands=tuple(step.operands)))
    return _pruned(dtype, inputs, steps)


def _steps(rng: random.Random, x: int, values: dict[int, Array], fresh: Callable[..., int]) -> list[Step]:
    """One operator on value `x`, after the constant that it needs."""
    shape, kind = values[x].shape, rng.choice(_KINDS)
    if kind == "unary":
        return [Step(rng.choice(list(_UNARY)), (x,))]
    if kind == "binary":
        same = [i for i, v in values.items() if v.shape in (shape, (*shape[:-1], 1))]
        y = rng.choice(same) if rng.random() < 0.6 else fresh(*shape)
        return [Step(rng.choice(list(_BINARY)), (x, y))]
    if kind == "reduction":
        return [Step(rng.choice(list(_REDUCTIONS)), (x,), {"dims": (len(shape) - 1,), "keepdims": True})]
    if kind == "product":
        n, turned = rng.choice(EXTENTS), rng.random() < 0.5
        y = fresh(*shape[:-2], *((n, shape[-1]) if turned else (shape[-1], n)))
        return [Step("matmul", (x, y), {"transpose_b": turned})]
    if kind == "transpose":
        return [Step("transpose", (x,), {"perm": (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)})]
    if kind == "concat":
        dim = rng.randrange(len(shape))
        other = [n if i != dim else rng.choice(EXTENTS[:6]) for i, n in enumerate(shape)]
        return [Step("concat", (x, fresh(*other)), {"dim": dim})]
    return _mask(rng, x, values)


def _mask(rng: random.Random, x: int, values: dict[int, Array]) -> list[Step]:
    """What is above a diagonal, or outside of a window, is another number."""
    shape = values[x].shape
    window = rng.choice((max(shape), 8))
    attrs = {"lower": -window, "upper": rng.choice((0, 0, 2)), "inside": 1.0, "outside": -1.0, "shape": shape}
    place = 1 + max(values)
    return [Step("band", (), attrs), Step("select", (place, x), {"other": rng.choice((0.0, -2.0))})]


def _pruned(dtype: str, inputs: list[Array], steps: list[Step]) -> Program:
    used = {len(steps) - 1}
    for i in range(len(steps) - 1, -1, -1):
        used |= set(steps[i].operands) if i in used else set()
    given = [i for i in range(len(inputs)) if -1 - i in used]
    kept = [i for i in range(len(steps)) if i in used]
    place = {old: new for new, old in enumerate([*(-1 - i for i in given), *kept])}
    made: list[Step] = []
    for i in kept:
        attrs = {**steps[i].attrs, "dtype": dtype} if steps[i].op == "band" else steps[i].attrs
        made.append(Step(steps[i].op, tuple(place[o] for o in steps[i].operands), attrs))
    return Program(dtype, tuple(inputs[i] for i in given), tuple(made))


def tolerance(program: Program) -> float:
    """How far a correct answer may be from fp64's: roundings of this size happen, and a few times larger ones."""
    exact, narrow = program.values(), program.values(narrow=True)
    largest = max(float(np.abs(v).max()) for v in exact)
    off = float(np.abs(exact[-1] - narrow[-1]).max())
    return 8 * off + 32 * EPSILON[program.dtype] * largest


_OTHER = {
    "add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max", "neg": "tanh", "exp": "silu",
    "square": "neg", "sigmoid": "tanh", "relu": "neg", "tanh": "neg", "silu": "neg", "gelu": "neg", "erf": "neg",
    "reduce_sum": "reduce_max", "reduce_mean": "reduce_max", "reduce_max": "reduce_min", "reduce_min": "reduce_max",
}  # fmt: skip


def faulty(program: Program, rng: random.Random) -> Program | None:
    """One operator or attribute changed, so that numpy's answer changes clearly; None where none was found."""
    most = 4 * tolerance(program)
    exact = program.values()[-1]
    for i in rng.sample(range(len(program.steps)), len(program.steps)):
        step = program.steps[i]
        if step.op in _OTHER:
            changed = replace(step, op=_OTHER[step.op])
        elif step.op == "band":
            changed = replace(step, attrs={**step.attrs, "upper": step.attrs["upper"] + 1})
        elif step.op == "select":
            changed = replace(step, attrs={**step.attrs, "other": step.attrs["other"] + 1})
        elif step.op == "concat":
            changed = replace(step, operands=step.operands[::-1])
        else:
            continue
        wrong = replace(program, steps=(*program.steps[:i], changed, *program.steps[i + 1 :]))
        try:
            made = wrong.values()[-1]
        except ValueError:  # shapes that do not fit
            continue
        if made.shape == exact.shape and np.abs(made).max() < LARGEST and np.abs(made - exact).max() > most:
            return wrong
    return None


# --- one program --------------------------------------------------------------------------------------------


class Campaign:
    """What programs say, one after the other."""

    def __init__(self, seed: int) -> None:
        self.seed, self.interpreter = seed, Interpreter()

    def row(self, number: int) -> dict[str, Any]:
        """The answers for one program, by what was asked; what differs is under "different"."""
        rng = random.Random(f"{self.seed} {number} agreement")
        program = drawn(rng)
        found: Counter[str] = Counter({f"programs in {program.dtype}": 1})
        different: list[str] = []
        what = f"{number}: {program.dtype} {[s.op for s in program.steps]} of {[x.shape for x in program.inputs]}"
        graph = program.graph()
        lowered = lower(graph)
        emitted = emit_program(lowered)
        compiled = compile_all(emitted.kernels, TARGETS, jobs=1)
        found["kernels"] = len(emitted.kernels)
        for step in program.steps:
            found[f"operator {step.op}"] += 1

        verdict = _ttir(graph, lowered, emitted, compiled)
        found[f"TTIR: {verdict}"] += 1
        if verdict != "agrees":
            different.append(f"{what}: TTIR: {verdict}")
        if self._wrong(program, emitted):
            different.append(f"{what}: the interpreter differs from numpy")
        found["interpreter: programs"] += 1

        wrong = faulty(program, rng)
        if wrong is not None:
            other = wrong.graph()
            found["faults in programs"] += 1
            if _ttir(other, lowered, emitted, compiled) != "differs":
                different.append(f"{what}: a planted fault passes the TTIR's check")
            if not self._wrong(program, emit_program(lower(other))):
                different.append(f"{what}: a planted fault passes in the interpreter")

        for i, gpu in enumerate(TARGETS):
            first = Scheduled(lowered, emitted, tuple(c for c in compiled if c.target == gpu))
            delivered = ordered(first, Compiler(target(gpu)))
            if delivered.compiled != first.compiled:
                found[f"PTX {gpu}: another launch, for an illegal order"] += 1
            said = _ptx(delivered, f"{number}", gpu, rng, range(i, len(emitted.kernels), len(TARGETS)))
            found.update(said[0])
            different += [f"{what}: {gpu}: {s}" for s in said[1]]
        return {"number": number, "found": dict(found), "different": different}

    def _wrong(self, program: Program, emitted: EmittedProgram) -> bool:
        """Whether kernels store something else in Triton's interpreter than numpy computes."""
        dtypes = [program.dtype] * len(program.inputs)
        (got,) = self.interpreter.run(emitted, program.inputs, dtypes)
        exact = program.values()[-1]
        if got.shape != exact.shape or not np.isfinite(got).all():
            return True
        return float(np.abs(got - exact).max()) > tolerance(program)


def _ttir(
    graph: KernelGraph, lowered: KernelGraph, emitted: EmittedProgram, compiled: Sequence[Compiled]
) -> str:
    try:
        verify_compiled(graph, lowered, emitted, compiled)
    except (NotEquivalent, IllegalProgram):
        return "differs"
    except SuperoptError as error:
        return f"unverified, {error.message}"
    return "agrees"


def _ptx(
    made: Scheduled, name: str, gpu: str, rng: random.Random, mutated: Sequence[int]
) -> tuple[Counter[str], list[str]]:
    """The verdict on each kernel's PTX, and the fate of a fault in those of `mutated`; and what is different."""
    found, different = Counter[str](), list[str]()
    nodes = [n for n in made.lowered.nodes if isinstance(n.body, TileProgram)]
    texts = kernel_texts(made.emitted, made.compiled)
    for i, (node, kernel, facts) in enumerate(zip(nodes, texts, made.compiled, strict=True)):
        if products := re.findall(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", facts.ptx):
            found[f"PTX {gpu}: kernels with {products[0]}"] += 1
        try:
            text = PtxText(facts.ptx, facts.shared_bytes)
            record = verify_kernel(node, kernel, text, drawn_primes(facts.ptx, kernel.ttir))
        except (NotEquivalent, IllegalProgram) as error:
            found[f"PTX {gpu}: differs"] += 1
            different.append(error.message)
            continue
        found[f"PTX {gpu}: {f'unverified, {record.unverified}' if record.unverified else 'agrees'}"] += 1
        if record.unverified or i not in mutated:
            continue
        subject = ptx_harness.subject_of(f"{name} {gpu} {kernel.name}", node, kernel, facts)
        fault = mutate_ptx.mutate(facts.ptx, rng)
        assert fault is not None
        kind, change, mutant = fault
        fate = ptx_harness.judge(subject, kind, mutant)
        found[f"fault in PTX: {fate}"] += 1
        if fate in ("wrong and accepted", "unexplained"):
            different.append(f"{fate}: {kind}: {change}")
    return found, different


def total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a campaign."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["found"])
    return {
        "programs": len(rows),
        "kernels": counts["kernels"],
        "counts": dict(sorted(counts.items())),
        "different": [d for row in rows for d in row["different"]],
    }


def main() -> int:
    """The command line; 1 where something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=200, help="stop once so many were compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="a line for each program; those in it are not made again")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.state and options.state.exists():
        rows = [json.loads(line) for line in options.state.read_text().splitlines()]
    campaign = Campaign(options.seed)
    while sum(row["found"]["kernels"] for row in rows) < options.kernels:
        rows.append(campaign.row(len(rows)))
        if options.state:
            with options.state.open("a") as state:
                state.write(json.dumps(rows[-1]) + "\n")
        for line in rows[-1]["different"]:
            print(line, flush=True)
    result = total(rows)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps({**about(), "seed": options.seed, **result}, indent=1) + "\n")
    return min(len(result["different"]), 1)


if __name__ == "__main__":
    sys.exit(main())
