"""What a program takes on the CPU: measured, where `evaluators` predict.

A lowered program is compiled for one thread (`superopt.transforms.cpu`) and runs in a process of its own, in
turns with an anchor, a fixed product. What counts is the median of the ratios of neighbours, whose interval needs
no assumption: a clock that drifts, or a neighbour that takes the cache, slows both. CPU time of the thread is
measured, not wall time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from superopt import clock
from superopt.errors import UnsupportedProgram
from superopt.measure.standalone.intervals import paired_ratio
from superopt.numerics.checking import EPSILON, make_inputs
from superopt.numerics.child import ChildFailed
from superopt.numerics.cpu import Bound, Cpu, bind
from superopt.numerics.float_gate import input_specs
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.lower.lower import lower
from superopt.tuning.evaluators import Evaluation
from superopt.verify.domains import FloatDomain, round_to
from superopt.verify.evaluate import evaluate

Array = np.ndarray[Any, Any]

MEASURED = "measured"
# Roundings of an output's largest number that results may be off by. Proofs are due elsewhere.
_ROUNDINGS = 16
# Rows, depth and columns of the anchor: about a third of a millisecond.
_ANCHOR = (64, 512, 512)


@cache
def anchor() -> Bound:
    """A product of f16 matrices, lowered by the defaults."""
    rows, depth, columns = _ANCHOR
    shapes = (rows, depth), (depth, columns), (rows, columns)
    x, w, out = (Value(TensorType(shape, "f16")) for shape in shapes)
    graph = KernelGraph("anchor", [x, w], [Node("matmul", (x, w), (out,))], [out])
    draw = np.random.default_rng(0)
    return bind(lower(graph), [draw.standard_normal(v.shape) for v in (x, w)])[0]


@dataclass
class ByCpu:
    """CPU seconds of lowered programs that compute what `graph` does; it does not see launches.

    `anchor_seconds` is what the anchor takes: seconds are ratios times that. What crashes, hangs or computes
    something else on random inputs is rejected.
    """

    graph: KernelGraph
    cpu: Cpu = field(default_factory=Cpu)
    name: str = "cpu"
    blind: frozenset[str] = frozenset({"choose-launch"})
    seed: int = 0

    @cached_property
    def anchor_seconds(self) -> float:
        """The median of some rounds of the anchor beside itself."""
        return statistics.median(taken for taken, _ in self.cpu.launch(anchor(), anchor()))

    @cached_property
    def _inputs(self) -> list[Array]:
        specs = input_specs(self.graph)
        made = make_inputs(specs, "ordinary", self.seed)
        return [round_to(np.asarray(x, np.float32), s.dtype) for x, s in zip(made, specs, strict=True)]

    @cached_property
    def _expected(self) -> list[Array]:
        domain = FloatDomain()
        return [t.planes[0] for t in evaluate(self.graph, [domain.tensor(x) for x in self._inputs], domain)]

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """Measured seconds and their interval of 95 %."""
        return [self._one(program) for program in programs]

    def _one(self, program: KernelGraph) -> Evaluation:
        begun, compiled = clock.now(), self.cpu.seconds

        def said(
            status: str, seconds: float | None = None, interval: tuple[float, float] | None = None
        ) -> Evaluation:
            work = clock.now() - begun + self.cpu.seconds - compiled
            return Evaluation(seconds, status, self.name, work, interval=interval)

        try:
            bound, outputs = bind(program, self._inputs)
            rounds = self.cpu.launch(bound, anchor())
        except UnsupportedProgram:
            return said("cannot be compiled for the CPU")
        except ChildFailed:
            return said("crashes or hangs")
        if not self._right(outputs()):
            return said("computes something else")
        ratio, low, high = paired_ratio([t for t, _ in rounds], [t for _, t in rounds])
        reference = self.anchor_seconds
        return said(MEASURED, ratio * reference, (low * reference, high * reference))

    def _right(self, outputs: Sequence[Array]) -> bool:
        """Whether outputs are those of the program in fp64, but for roundings."""
        for got, want, value in zip(outputs, self._expected, self.graph.outputs, strict=True):
            most = _ROUNDINGS * EPSILON[value.dtype] * float(np.abs(want).max(initial=0.0))
            if not (np.abs(got - want) <= most).all():
                return False
        return True
