"""What a program costs: by its tiles, by its compiled kernels, or by their machine code. All are predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from typing_extensions import override

from superopt import clock
from superopt.cost import Target, compiled_seconds, cost
from superopt.cost.compiled import priced_kernels
from superopt.cost.sass import code_seconds
from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph, TileProgram
from superopt.transforms.emit.compile import CompilationFailed
from superopt.transforms.schedule.fit import Compiler, Scheduled, ordered, oversized

PRICED = "priced"


@dataclass(frozen=True)
class Evaluation:
    """Seconds that a program is predicted to take, or None and the reason; `work` is what it took to find out.

    Work is in seconds of processor time. `program` is what was priced, where its launches had to change. Seconds
    that were measured, learned, or depend on where data is have an `interval`.
    """

    seconds: float | None
    status: str
    evaluator: str
    work: float = 0.0
    program: KernelGraph | None = None
    interval: tuple[float, float] | None = None


class Evaluator(Protocol):
    """Prices lowered programs; `blind` are the passes whose choices it cannot tell apart."""

    @property
    def name(self) -> str:
        """Its name in logs."""
        ...

    @property
    def blind(self) -> frozenset[str]:
        """Flags of passes."""
        ...

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """One evaluation for each program."""
        ...


@dataclass(frozen=True)
class ByTiles:
    """The analytic model on the tiles of a lowered program: milliseconds; it does not see launches."""

    target: Target
    name: str = "tiles"
    blind: frozenset[str] = frozenset({"choose-launch"})

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """Predicted seconds; what does not fit the target is rejected."""
        return [self._one(program) for program in programs]

    def _one(self, program: KernelGraph) -> Evaluation:
        begun = clock.now()
        seconds = cost(program, self.target).seconds
        if not math.isfinite(seconds):
            return Evaluation(None, "more than a block holds", self.name, clock.now() - begun)
        return Evaluation(seconds, PRICED, self.name, clock.now() - begun)


@dataclass(frozen=True)
class ByKernels:
    """The same model on what the compiler made of the kernels (`cost.compiled`); about a second a new kernel."""

    compiler: Compiler
    name: str = "kernels"
    blind: frozenset[str] = frozenset()

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """Predicted seconds; what does not compile, does not fit or spills is rejected."""
        return [self._one(program) for program in programs]

    def _one(self, program: KernelGraph) -> Evaluation:
        begun = clock.now()

        def said(status: str, seconds: float | None = None, priced: KernelGraph | None = None) -> Evaluation:
            return Evaluation(seconds, status, self.name, clock.now() - begun, priced)

        try:
            made = ordered(self.compiler.counting.scheduled(program), self.compiler.counting)
        except CompilationFailed:
            return said("does not compile")
        except UnsupportedProgram:
            return said("cannot be written as kernels")
        if oversized(made, self.compiler.target):
            return said("more shared memory than a block has")
        if any(k.spill_bytes for k in made.compiled):
            return said("spills registers")
        seconds, interval = self.price(made)
        if not math.isfinite(seconds):
            return said("more than a block holds")
        return replace(said(PRICED, seconds, made.lowered), interval=interval)

    def price(self, made: Scheduled) -> tuple[float, tuple[float, float] | None]:
        """Predicted seconds of compiled kernels, and their interval, if the model has one."""
        return compiled_seconds(made.lowered, made.compiled, self.compiler.target), None


@dataclass(frozen=True)
class ByCode(ByKernels):
    """At least that, and at least what their machine code takes to issue (`cost.sass`): for finalists.

    The interval is from loads that come from L2 to loads that come from device memory, which `seconds` is.
    """

    name: str = "code"
    _known: dict[bytes, tuple[float, float]] = field(default_factory=dict[bytes, "tuple[float, float]"])

    @override
    def price(self, made: Scheduled) -> tuple[float, tuple[float, float] | None]:
        """Predicted seconds and their interval; a kernel is disassembled once."""
        target = self.compiler.target
        bodies = [n.body for n in made.lowered.nodes if isinstance(n.body, TileProgram)]
        warps = {id(kernel): b.num_warps for kernel, b in zip(made.compiled, bodies, strict=True)}
        low = high = 0.0
        for kernel in priced_kernels(made.lowered, made.compiled, target):
            if kernel.prepared:
                continue
            code = kernel.seconds, kernel.seconds
            if (facts := kernel.compiled) is not None:
                if facts.cubin not in self._known:
                    of = facts, kernel.traffic, warps[id(facts)], target
                    self._known[facts.cubin] = code_seconds(*of)
                code = self._known[facts.cubin]
            low, high = low + max(code[0], kernel.seconds), high + max(code[1], kernel.seconds)
        return high, (low, high)
