"""Mutation testing of the check of PTX: faults in compiled kernels, each killed or shown to change nothing.

    python test/mutation/ptx_harness.py --count=2000 --seed=0 --json=FILE      (make mutate-ptx)

Faults are injected into the PTX of kernels of the benchmarks, for three targets, and of the kernels of
`test/gpu`, which have the other families of opcodes: operands, numbers, addresses, predicates, fragments, bits of
swizzles and descriptors, types, fields of tensor maps, atomics, named barriers, swapped operands, fragments and stores,
offsets computed in 32 bits, phases of an mbarrier and bytes that it expects, faults that one block alone has,
instructions, copies, waits, fences and barriers dropped, left out in one trip alone, or moved, waits for an mbarrier that
end after some tests whatever these say, and waits for the kernel before that come late, or in some threads only.

A mutant is *refused* by the reader or as some blocks are not proved, *illegal* (a race, a bound, something undefined) or *different* (another value
or place). One that passes is run again at other points of the fields and on other blocks: if it is found there, it
is *wrong and accepted*, and the exit code is 1. The rest changes nothing that is stored, and it is shown why: *dead*
where all that it changes may be undefined instead (`Launch.plant`), *without effect* where it changes no register
and no memory in up to 64 blocks, *equal in every block* where all blocks of the grid store the same at a random point
(*equal and proved*, in a grid of more than 4,096, where 64 do, and all are proved at a second point as well),
*redundant order* where a wait, fence or barrier was dropped that orders nothing which others do not, as
`ptx_orders`, which shares no code with the check, finds as well, *redundant order by one rule* where that cannot read
the text, *unexplained* otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent))
sys.path.insert(2, str(Path(__file__).parents[2]))
sys.path.insert(3, str(Path(__file__).parent.parent / "gpu"))

import mutate_ptx
import numpy as np
import ptx_orders
from about import about
from kernels import CASES, DTYPES, KERNELS, Compiler

from superopt.cost.gpus import target as find_target
from superopt.errors import BadInput, IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.lower import lower
from superopt.transforms.schedule import fit as schedule
from superopt.verify.infinities import Extended
from superopt.verify.ptx.check import Reference
from superopt.verify.ptx.decode import Decoded, decode
from superopt.verify.ptx.launch import Launch, Stored
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import KernelText
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.points import ImageTriton
from superopt.verify.ttir.sampling import blocks_of

TARGETS = ("sm_80", "sm_90", "sm_100")
PROGRAMS = (
    "rmsnorm_linear_b1", "gated_mlp_b1", "lora_b1", "linear_attention", "layernorm_linear", "squeeze_excite",
    "qknorm_public_b1_safe", "low_rank_chain",
)  # fmt: skip
MORE_BLOCKS = 6
MOST_BLOCKS, MOST_OF_ALL_BLOCKS = 64, 4096


@dataclass
class Subject:
    """A compiled kernel, what it must store, and the same at another point on other blocks."""

    name: str
    ptx: str
    shared_bytes: int
    grid: tuple[int, int, int]
    first: Reference | Family
    second: Reference | Family
    others: Sequence[int] = ()
    early: bool = False  # whether it may start while the kernel before it runs

    def fate(self, text: str, reference: Reference | Family) -> str:
        """What the check says of a text; empty where it passes."""
        try:
            decoded = decode(parse(text, "mutant.ptx"))
            if reference is self.first:
                proved, _ = reference.prove(decoded, self.shared_bytes)
                if proved < math.prod(self.grid):
                    return "refused"
            else:  # whether they are proved or not
                reference.compare(decoded, self.shared_bytes, self.others)
        except (BadInput, UnsupportedProgram):
            return "refused"
        except IllegalProgram:
            return "illegal"
        except NotEquivalent:
            return "different"
        return ""


class Family:
    """What a kernel of `test/gpu` computes of random numbers, to compare its PTX with; all blocks run."""

    def __init__(self, name: str, point: str) -> None:
        self._kernel, self._field = KERNELS[name], ImageTriton(("mutation", point))

    def launch(self, decoded: Decoded, shared_bytes: int) -> Launch:
        """The kernel on its operands, none of its blocks run."""
        made: list[Buffer] = []
        for i, (dtype, size) in enumerate(self._kernel.pointers):
            made.append(Buffer(f"x{i}", size, DTYPES[dtype], writable=i == len(self._kernel.pointers) - 1))
            if not made[-1].writable:
                made[-1].fill(self._field.random(f"x{i}", (size,)))
        return Launch(decoded, (self._kernel.grid, 1, 1), made, self._field, shared_bytes)

    def prove(self, decoded: Decoded, shared_bytes: int) -> tuple[int, int]:
        """Run all blocks."""
        self.compare(decoded, shared_bytes)
        return self._kernel.grid, self._kernel.grid

    def compare(
        self, decoded: Decoded, shared_bytes: int, blocks: Sequence[int] = (), planted: Decoded | None = None
    ) -> Launch:
        """Run all blocks, as `Reference.compare` runs `blocks`."""
        del blocks
        launch = self.launch(decoded, shared_bytes)
        if planted is not None:
            launch.plant(planted)
        modulus = self._field.fields[0].modulus
        given = [b.contents.planes[0].astype(object) for b in launch.buffers if b.contents is not None]
        total = np.zeros(self._kernel.pointers[-1][1], object)
        written = np.zeros(total.shape, np.int64)
        for block in range(self._kernel.grid):
            stored = launch.run(block)[-1]
            if set(stored.atomics.tolist()) - {0, 1}:
                raise NotEquivalent("expected sums, got other atomics")
            total[stored.places] = (total[stored.places] + stored.values.astype(object)) % modulus
            written[stored.places] += np.where(stored.atomics == 0, self._kernel.grid, 1)
        if (written != self._kernel.grid).any():
            raise NotEquivalent("expected every element once, or a sum of every block's")
        if (total != self._kernel.reference(*given) % modulus).any():
            raise NotEquivalent("expected what the kernel computes, got something else")
        return launch


def families() -> list[Subject]:
    """The kernels of `test/gpu` that pass."""
    compiler, found = Compiler(), list[Subject]()
    for name, target in CASES:
        text = compiler(name, target)
        points = Family(name, "first"), Family(name, "second")
        made = Subject(
            f"test/gpu {target} {name}", text.ptx, text.shared_bytes, (KERNELS[name].grid, 1, 1), *points
        )
        if made.fate(made.ptx, made.first) == "":
            found.append(made)
    compiler.close()
    return found


def subjects(programs: Sequence[str], targets: Sequence[str], most: int) -> list[Subject]:
    """At most `most` kernels of each program and target that pass the check."""
    from benchmarks.mugraph.programs import program
    from benchmarks.mugraph.references import references

    found: list[Subject] = []
    for name in programs:
        for target in targets:
            graph = program(name)
            best = references(graph, find_target(target))
            lowered = lower(next(iter(best.values()), graph), target)
            made = schedule.fit(lowered, schedule.Compiler(find_target(target)))
            nodes = [n for n in made.lowered.nodes if isinstance(n.body, TileProgram)]
            kernels = kernel_texts(made.emitted, made.compiled)
            some = list(zip(nodes, kernels, made.compiled, strict=True))
            for node, kernel, compiled in sorted(some, key=lambda k: -len(k[2].ptx))[:most]:
                subject = subject_of(f"{name} {target} {kernel.name}", node, kernel, compiled)
                if subject.fate(subject.ptx, subject.first) == "":
                    found.append(subject)
    return found


def large(targets: Sequence[str]) -> list[Subject]:
    """A kernel whose offsets need more than 32 bits: sums of the rows of 6 GB."""
    x = Value(TensorType((65536, 49152), "f16"), "x")
    out = Value(TensorType((65536, 1), "f16"), "out")
    sums = Node("reduce_sum", (x,), (out,), {"dims": (1,), "keepdims": True})
    graph = KernelGraph("large", [x], [sums], [out])
    found: list[Subject] = []
    for target in targets:
        made = schedule.fit(lower(graph, target), schedule.Compiler(find_target(target)))
        (kernel,) = kernel_texts(made.emitted, made.compiled)
        subject = subject_of(f"large {target}", made.lowered.nodes[0], kernel, made.compiled[0])
        if subject.fate(subject.ptx, subject.first) == "":
            found.append(subject)
    return found


def subject_of(name: str, node: Node, kernel: KernelText, compiled: Any) -> Subject:
    count = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    others = random.Random(name).sample(range(count), min(MORE_BLOCKS, count))
    first, second = (
        Reference(node, kernel, Extended(ImageTriton(("mutation", point)))) for point in ("first", "second")
    )
    every = sorted({*blocks_of(kernel, 0), *others})
    return Subject(name, compiled.ptx, compiled.shared_bytes, kernel.grid, first, second, every, kernel.early)


def explained(subject: Subject, kind: str, text: str) -> str:
    """Why a mutant that passes stores the same."""
    if kind in mutate_ptx.ORDERS:
        return ordered(subject, text)
    reference = subject.second
    original = decode(parse(subject.ptx, "kernel.ptx"))
    mutant = decode(parse(text, "mutant.ptx"), original.numbers)
    launch = reference.launch(original, subject.shared_bytes)
    count = launch.blocks
    with contextlib.suppress(SuperoptError):
        if reference.compare(original, subject.shared_bytes, subject.others, mutant).differences:
            return "dead"
        launch.plant(mutant)
        for block in random.Random(subject.name).sample(range(count), min(MOST_BLOCKS, count)):
            launch.run(block)
        if not launch.differences:
            return "without effect"
    both = [reference.launch(k, subject.shared_bytes) for k in (original, mutant)]
    few = count <= MOST_OF_ALL_BLOCKS
    blocks = range(count) if few else random.Random(subject.name).sample(range(count), MOST_BLOCKS)
    if not all(_same(*(k.run(block) for k in both)) for block in blocks):
        return "wrong and accepted"
    if few:
        return "equal in every block"
    proved, _ = reference.prove(mutant, subject.shared_bytes)
    return "equal and proved" if proved == count else "unexplained"


def ordered(subject: Subject, text: str) -> str:
    """What a second reading says of a mutant in which nothing races by the first."""
    try:
        before, after = (
            ptx_orders.races(t, subject.shared_bytes, early=subject.early) for t in (subject.ptx, text)
        )
    except ptx_orders.Undecided:
        return "redundant order by one rule"
    return "unexplained" if before or after else "redundant order"


def _same(first: Sequence[Stored], second: Sequence[Stored]) -> bool:
    return all(
        np.array_equal(a.places, b.places) and np.array_equal(a.values, b.values)
        for a, b in zip(first, second, strict=True)
    )


def judge(subject: Subject, kind: str, text: str) -> str:
    """The fate of a mutant."""
    if fate := subject.fate(text, subject.first):
        return fate
    return "wrong and accepted" if subject.fate(text, subject.second) else explained(subject, kind, text)


def campaign(
    found: Sequence[Subject], count: int, seed: int, seconds: float, kinds: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Inject `count` faults, of `kinds` only if some are given, or as many as there is time for."""
    generator, start = random.Random(seed), time.process_time()
    fates: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    survivors: list[str] = []
    done = turn = 0
    while done < count and turn < 100 * count and time.process_time() - start < seconds:
        subject, turn = found[turn % len(found)], turn + 1
        if (mutant := mutate_ptx.mutate(subject.ptx, generator, subject.grid, kinds)) is None:
            continue
        kind, what, text = mutant
        fate = judge(subject, kind, text)
        fates[kind, fate] += 1
        done += 1
        entry = f"{subject.name}: {kind}: {what}"
        if fate == "wrong and accepted":
            wrong.append(entry)
        elif fate not in ("refused", "illegal", "different"):
            survivors.append(f"{fate}: {entry}")
    total = Counter[str]()
    for (_, fate), n in fates.items():
        total[fate] += n
    return {
        "mutants": done,
        "fates": dict(sorted(total.items())),
        "by_kind": {f"{k}: {f}": n for (k, f), n in sorted(fates.items())},
        "kernels": sorted({s.name for s in found}),
        "wrong": wrong,
        "survivors": survivors,
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--kinds", default="", help="comma-separated, of those that `by_kind` names; or all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    programs = [p for p in options.programs.split(",") if p]
    found = [*subjects(programs, TARGETS, 2), *families(), *large(TARGETS)]
    result = campaign(
        found, options.count, options.seed, options.seconds, frozenset(filter(None, options.kinds.split(",")))
    )
    print(json.dumps({k: v for k, v in result.items() if k not in ("survivors", "kernels")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps({**about(), **result}, indent=1) + "\n")
    return 1 if result["wrong"] or result["fates"].get("unexplained") else 0


if __name__ == "__main__":
    sys.exit(main())
