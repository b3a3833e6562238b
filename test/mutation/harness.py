"""Mutation testing of the compiler: faults in finished programs, each killed or judged equivalent.

    python test/mutation/harness.py --count=2000 --seed=0 --json=FILE [--benchmarks]

Faults are injected into small programs of five kinds, or with --benchmarks (`make mutate`) into what the search makes of the
benchmarks and examples.

A mutant is *killed* by the rules of its level, by the reader, or by the verifier. One that every check accepts is
judged by evaluations that the verifier takes no part in: all outputs in fp64, and single elements by the independent
checker. If they differ, it is *wrong and accepted*: a fault of the verifier, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent))

import mutate_graph
import mutate_ttir
from about import about
from subjects import Subject, subjects

from superopt.errors import SuperoptError, UnsupportedProgram
from superopt.numerics.checking import make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.program import KernelGraph, TileProgram
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker import compare
from superopt.verify.domains import FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.symbolic import prove
from superopt.verify.ttir import Buffer, KernelText, launch, verify_ttir
from superopt.verify.ttir import parse as parse_ttir

TOLERANCE = 1e-9  # relative, in fp64


@dataclass
class Tally:
    """What became of the mutants: by level and fate, by kind of fault and fate; and those wrong and accepted."""

    fates: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    sources: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    wrong: list[str] = field(default_factory=list[str])
    crashes: list[str] = field(default_factory=list[str])

    @property
    def total(self) -> int:
        return sum(self.fates.values())

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "mutants": self.total,
            "fates": {f"{a}: {b}": n for (a, b), n in sorted(self.fates.items())},
            "sources": {f"{a}: {b}": n for (a, b), n in sorted(self.sources.items())},
            "kinds": {f"{a}: {b}": n for (a, b), n in sorted(self.kinds.items())},
            "wrong and accepted": self.wrong,
            "crashes": self.crashes,
        }


def run(count: int, seed: int, chosen: Sequence[Subject]) -> Tally:
    """Inject `count` faults, spread over the subjects."""
    generator, tally = random.Random(seed), Tally()
    seen: set[tuple[int, str]] = set()
    while tally.total < count:
        index = tally.total % len(chosen)
        subject = chosen[index]
        which = generator.randrange(len(subject.kernels)) if subject.kernels else 0
        if subject.kernels:
            kind, what, text = mutate_ttir.mutate(subject.kernels[which].ttir, generator)
        else:
            kind, what, text = mutate_graph.mutate(canonical_text(subject.program), generator)
        if (index, text) in seen and generator.random() < 0.9:
            continue  # a fault that was tried already
        seen.add((index, text))
        try:
            fate = _ttir(subject, which, text) if subject.kernels else _graph(subject, text)
        except Exception as error:  # what escapes is a fault of ours, and is reported as one
            fate = "crash"
            tally.crashes.append(f"{subject.name} {subject.level}: {what}: {type(error).__name__}: {error}")
        tally.fates[subject.level, fate] += 1
        tally.kinds[kind, fate] += 1
        tally.sources[subject.name.split("/")[0], fate] += 1
        if fate == "wrong and accepted":
            tally.wrong.append(f"{subject.name} {subject.level}: {what}")
    return tally


def _graph(subject: Subject, text: str) -> str:
    try:
        mutant = parse(text)
        mutant.nodes = list(mutant.nodes)
        check_kernel(mutant)
    except SuperoptError:
        return "killed by the rules of the level"
    try:
        verdict = certify(subject.original, mutant)
    except SuperoptError:
        return "killed by the verifier"
    proof = prove(subject.original, mutant)
    if not verdict.equivalent:
        # A normal form says what is computed; that no two blocks write one element is said by the evaluation.
        race = "undefined" in str(verdict.counterexample)
        return "killed by the verifier" if proof is None or race else "wrong and accepted"
    try:
        lowered = mutant if subject.level == "tile" else lower(mutant)
    except SuperoptError:
        return "killed by lowering"
    if not _gate(subject.original, lowered):
        return "killed by the numeric gate"
    if not _same_floats(subject.original, mutant):
        return "wrong and accepted"
    comparison = compare(canonical_text(subject.original), text, seed=7, elements=3, budget=3_000_000)
    return "equivalent" if comparison.different is None else "wrong and accepted"


def _gate(original: KernelGraph, mutant: KernelGraph) -> bool:
    """The numeric gate, which nothing passes by on its way out."""
    from superopt.numerics import gate

    try:
        return gate(original, mutant).passed
    except UnsupportedProgram:  # an opaque operation: there is no reference
        return True


def _inputs(graph: KernelGraph) -> list[np.ndarray[Any, Any]]:
    """Of ordinary size all through the program: where the original overflows, nothing can be told."""
    return [np.asarray(x, np.float64) for x in make_inputs(input_specs(graph), "ordinary", seed=3)]


def _extern(name: str, operands: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    return [np.cumsum(operands[0], axis=-1).reshape(s) for s in shapes]


def _close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    # Both may be no number: a mutant of a program is not told apart by what the program leaves undefined.
    scale = np.nanmax(np.abs(a), initial=1.0)
    return bool(np.allclose(a, b, rtol=1e-7, atol=TOLERANCE * scale, equal_nan=True))


class _Fp64(FloatDomain):
    """What is read outside of a buffer is some number, as everywhere: results may only differ if they depend on it."""

    def unknown(self, name: object, shape: tuple[int, ...]) -> Tensor:
        return self.tensor(np.random.default_rng(5).standard_normal(shape))


def _same_floats(original: KernelGraph, mutant: KernelGraph) -> bool:
    domain, values = _Fp64(extern=_extern), _inputs(original)
    outputs = [evaluate(g, [domain.tensor(x) for x in values], domain) for g in (original, mutant)]
    return all(_close(x.planes[0], y.planes[0]) for x, y in zip(*outputs, strict=True))


def _ttir(subject: Subject, which: int, text: str) -> str:
    kernel = subject.kernels[which]
    mutant = KernelText(kernel.name, text, kernel.grid, kernel.arguments)
    kernels = [*subject.kernels[:which], mutant, *subject.kernels[which + 1 :]]
    try:
        verify_ttir(subject.original, subject.program, kernels)
    except SuperoptError:
        return "killed by the verifier"
    return "equivalent" if _same_kernels(subject, kernels) else "wrong and accepted"


def _same_kernels(subject: Subject, kernels: Sequence[KernelText]) -> bool:
    """Run the kernels in fp64, and compare with the original program in fp64."""
    domain, values = FloatDomain(extern=_extern), _inputs(subject.original)
    expected = evaluate(subject.original, [domain.tensor(x) for x in values], domain)
    env = {v: domain.tensor(x) for v, x in zip(subject.program.inputs, values, strict=True)}
    remaining = list(kernels)
    for node in subject.program.nodes:
        operands = [env[v] for v in node.operands]
        if not isinstance(node.body, TileProgram):
            alone = KernelGraph("node", list(node.operands), [node], list(node.results))
            env.update(zip(node.results, evaluate(alone, operands, domain), strict=True))
            continue
        kernel = remaining.pop(0)
        buffers = [
            Buffer(n, size, dtype, i >= len(operands)) for i, (n, size, dtype) in enumerate(kernel.arguments)
        ]
        for buffer, tensor in zip(buffers, operands, strict=False):
            buffer.fill(Tensor((tensor.planes[0].reshape(-1),)))
        launch(parse_ttir(kernel.ttir), kernel.grid, buffers, domain)
        for value, buffer in zip(node.results, buffers[len(operands) :], strict=False):
            assert buffer.contents is not None
            env[value] = Tensor((buffer.contents.planes[0].reshape(value.shape),))
    # Literals in TTIR are fp32, so that agreement is to fp32 only.
    return all(
        np.allclose(env[v].planes[0], e.planes[0], rtol=1e-4, atol=1e-5, equal_nan=True)
        for v, e in zip(subject.program.outputs, expected, strict=True)
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Mutation testing of the compiler.")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--benchmarks", action="store_true")
    parser.add_argument("--level", choices=("kernel", "block", "tile", "ttir"))
    args = parser.parse_args()
    start = time.monotonic()
    found = (
        importlib.import_module("benchmark_subjects").benchmark_subjects() if args.benchmarks else subjects()
    )
    chosen = [s for s in found if args.level in (None, s.level)]
    tally = run(args.count, args.seed, chosen)
    record = {
        **about(),
        "seed": args.seed,
        **tally.record(),
        "seconds": round(time.monotonic() - start, 1),
        "subjects": len(chosen),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 1 if tally.wrong or tally.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
