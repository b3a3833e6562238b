"""Runs kernels in fp64 on ordinary inputs, beside the lowered program: what equal functions hide, floats show.

Over a field a softmax does not depend on what is subtracted from its logits, and a kernel that subtracts
something enormous is equal; in floats it divides zero by zero. The numeric gate sees such faults in lowered
programs; this sees those that come after.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from superopt.errors import NotEquivalent, UnsupportedProgram
from superopt.numerics.checking import make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.program import KernelGraph, Node, Value
from superopt.verify.domains import Array, FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.reduce import work
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.parser import Function
from superopt.verify.ttir.work import instance_work

MOST_WORK = 2_000_000_000  # of the lowered program: matrix products are fast
FULL_WORK = 20_000_000  # elements up to which all instances of a kernel are run
SAMPLED = 4
TOLERANCE = 1e-3  # of the largest number: literals in TTIR are fp32


def check_floats(
    lowered: KernelGraph,
    kernels: Mapping[Node, tuple[Function, tuple[int, int, int], Sequence[tuple[str, int, str]]]],
    seed: int,
) -> str:
    """Compare what instances of each kernel store with the lowered program's numbers.

    Gives the reason where that was not done. Raises NotEquivalent where they differ, and what `launch` raises.
    """
    if work(lowered) > MOST_WORK:
        return "kernels were not run in floats: the program is too large"
    domain = FloatDomain()
    env: dict[Value, Tensor] = {
        v: domain.tensor(x)
        for v, x in zip(lowered.inputs, make_inputs(input_specs(lowered), "ordinary", seed), strict=True)
    }
    try:
        for node in lowered.nodes:
            operands = [env[v] for v in node.operands]
            alone = KernelGraph("node", list(node.operands), [node], list(node.results))
            results = evaluate(alone, [env[v] for v in alone.inputs], domain)
            if node in kernels:
                _compare(node, *kernels[node], operands, results, domain, seed)
            env.update(zip(node.results, results, strict=True))
    except UnsupportedProgram as error:
        return f"kernels were not run in floats: {error.message}"
    return ""


def _compare(
    node: Node,
    function: Function,
    grid: tuple[int, int, int],
    arguments: Sequence[tuple[str, int, str]],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    domain: FloatDomain,
    seed: int,
) -> None:
    flat = [Tensor((np.ascontiguousarray(t.planes[0]).reshape(-1),)) for t in operands]
    buffers, stored = launch_buffers(node, arguments, flat)
    instances = _instances(function, grid, seed)
    launch(function, grid, buffers, domain, instances)
    for buffer, expected in zip(stored, results, strict=True):
        assert buffer.contents is not None
        places = np.flatnonzero(buffer.initialised if instances is None else buffer.stored)
        got, wanted = buffer.contents.planes[0][places], expected.planes[0].reshape(-1)[places]
        asked = np.isfinite(wanted)
        off = _off(got[asked], wanted[asked])
        if off.any():
            at = int(places[asked][np.argmax(off)])
            raise NotEquivalent(
                f"kernel '{function.name}': expected '{buffer.name}' as the lowered program computes it in fp64, "
                f"got another number at element {at}"
            )


def _off(got: Array, wanted: Array) -> Array:
    allowed = TOLERANCE * np.abs(wanted).max(initial=0.0) + np.finfo(np.float32).tiny
    with np.errstate(all="ignore"):
        return ~(np.abs(got - wanted) <= allowed)  # NaN is off


def _instances(function: Function, grid: tuple[int, int, int], seed: int) -> list[int] | None:
    count = math.prod(grid)
    if count <= SAMPLED or count * instance_work(function) <= FULL_WORK:
        return None
    drawn = random.Random(f"{seed} {function.name}").sample(range(count), SAMPLED - 2)
    return sorted({0, count - 1, *drawn})
