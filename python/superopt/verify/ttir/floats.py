"""Runs kernels in fp64 on ordinary and large inputs, and on such with larger ends: finds what fields hide.

Over a field a softmax does not depend on what is subtracted from its logits, so a kernel that adds the maximum,
or subtracts something enormous or the maximum of all keys but the last, is equal; in floats it divides zero by
zero, or infinity by infinity. fp64 holds numbers that overflow in a kernel, so numbers have the range of fp32
here. The numeric gate finds such faults in lowered programs; this check finds those introduced later. In programs
that are too large, only kernels that read just the inputs run, and only some of their blocks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits
from typing_extensions import override

from superopt.errors import NotEquivalent, UnsupportedProgram
from superopt.numerics.checking import make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.operators import is_constant
from superopt.program import KernelGraph, Node, TileProgram
from superopt.verify.domains import Array, FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.evaluate_tile import evaluate_written
from superopt.verify.reduce import work
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import Function
from superopt.verify.ttir.sampling import instances_of, some_blocks
from superopt.verify.ttir.work import instance_work

MOST_WORK = 2_000_000_000  # of the lowered program: matrix products are fast
FULL_WORK = 20_000_000  # elements up to which all instances of a kernel run
MOST_ELEMENTS = 100_000_000  # of the inputs: some gigabytes
SAMPLED = 4
DISTRIBUTIONS = ("ordinary", "large", "ends")
TOLERANCE = 1e-3  # of the largest number: literals in TTIR are fp32


class Fp32Range(FloatDomain):
    """fp64 with the range of fp32: infinite beyond its largest number, zero below its smallest normal one."""

    @override
    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        return _ranged(super().apply(primitive, *operands))

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        return _ranged(super().contract(a, b))

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        return _ranged(super().reduce(combiner, a))


def _ranged(a: Tensor) -> Tensor:
    limits, (x,) = np.finfo(np.float32), a.planes
    with np.errstate(all="ignore"):
        size = np.abs(x)
        outside = (size > limits.max) | ((size < limits.tiny) & (size > 0))
        if not outside.any():
            return a
        return Tensor((np.where(outside, np.where(size > 1, np.copysign(np.inf, x), 0.0), x),))


_Kernel: TypeAlias = tuple[Function, tuple[int, int, int], Sequence[tuple[str, int, str]]]


def check_floats(
    lowered: KernelGraph,
    kernels: Mapping[Node, _Kernel],
    stored: Mapping[Node, Sequence[Buffer]],
    first: Mapping[Node, Node],
    seed: int,
) -> str:
    """Compare what instances of each kernel store with the lowered program's numbers.

    `stored` says which instance of a kernel stores what, and `first` which node before computes the same by the
    same kernel: in a program that is too large that one stands for it. Returns the reason where a kernel was not
    compared. Raises NotEquivalent where they differ, and what `launch` raises.
    """
    if sum(v.type.elements for v in lowered.inputs) > MOST_ELEMENTS:
        return "kernels were not run in floats: the inputs are too large"
    # Tiles are small: threads of the BLAS would mostly wait for each other.
    with threadpool_limits(1, "blas"):
        return _compared(lowered, kernels, stored, first, seed)


def _with_large_ends(x: Array) -> Array:
    """Floats whose last row and first row, and every fourth row's last number, are larger than all else.

    Logits of the last key, which may be alone in a ragged tile, are then the largest ones of many rows, and above
    all others by more than fp32 has exponents: a maximum that leaves them out overflows.
    """
    if x.ndim and x.size and x.dtype.kind == "f":
        last = x[..., ::-4, -1:] if x.ndim > 1 else x[-1:]
        last[...] = 8 * np.abs(last) + 200 * np.abs(x).mean()
    if x.ndim > 1 and x.dtype.kind == "f":
        x[..., :1, :] *= 3
        x[..., -1:, :] *= 8
    return x


def _compared(
    lowered: KernelGraph,
    kernels: Mapping[Node, _Kernel],
    stored: Mapping[Node, Sequence[Buffer]],
    first: Mapping[Node, Node],
    seed: int,
) -> str:
    large = work(lowered) > MOST_WORK
    read = {v for node in lowered.nodes for v in node.operands}
    left: set[Node] = set()
    try:
        for name in DISTRIBUTIONS:
            domain = Fp32Range()
            ends = name == "ends"
            drawn = make_inputs(input_specs(lowered), "large" if ends else name, seed)
            drawn = [_with_large_ends(x) if ends else x for x in drawn]
            env = {v: domain.tensor(x, v.dtype) for v, x in zip(lowered.inputs, drawn, strict=True)}
            compared: set[Node] = set()
            for node in lowered.nodes:
                if any(v not in env for v in node.operands):
                    left.add(node)
                    continue
                if large and first.get(node) in compared:
                    continue
                operands = [env[v] for v in node.operands]
                # Where only some instances run, what the others compute matters to later nodes alone.
                few = node in kernels and (large or _instances(*kernels[node][:2], seed) is not None)
                blocks = few and (large or read.isdisjoint(node.results))
                if blocks and _compare_blocks(node, kernels[node], stored[node], operands, seed):
                    compared.add(node)
                    continue
                if large and not is_constant(node):
                    left.add(node)
                    continue
                alone = KernelGraph("node", list(node.operands), [node], list(node.results))
                results = evaluate(alone, [env[v] for v in alone.inputs], domain)
                if node in kernels:
                    _compare(node, *kernels[node], operands, results, domain, seed)
                env.update(zip(node.results, results, strict=True))
    except UnsupportedProgram as error:
        return f"kernels were not run in floats: {error.message}"
    count = len(left & kernels.keys())
    return f"{count} kernels were not run in floats: the program is too large" if count else ""


def _compare_blocks(
    node: Node, kernel: _Kernel, stored: Sequence[Buffer], operands: Sequence[Tensor], seed: int
) -> bool:
    """Compare the blocks at the corners of the grid, and as many random ones.

    Returns whether there are blocks, and their instances store nothing else.
    """
    function, grid, arguments = kernel
    assert isinstance(node.body, TileProgram)
    domain = Fp32Range()
    flat = [Tensor((np.ascontiguousarray(t.planes[0]).reshape(-1),), dtype=t.dtype) for t in operands]
    for drawn in (None, random.Random(f"{seed} {function.name}")):
        part = some_blocks(node.body, drawn)
        if part is None:
            return False
        written = evaluate_written(part, operands, domain)
        places = [np.flatnonzero(mask) for _, mask in written]
        buffers, found = launch_buffers(node, arguments, flat)
        launch(function, grid, buffers, domain, instances_of(stored, places))
        for buffer, (expected, _), at in zip(found, written, places, strict=True):
            _check(function.name, buffer, at, expected.planes[0].reshape(-1)[at])
        if any(np.count_nonzero(b.stored) != len(at) for b, at in zip(found, places, strict=True)):
            return False
    return True


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
        places = np.flatnonzero(buffer.initialised if instances is None else buffer.stored)
        _check(function.name, buffer, places, expected.planes[0].reshape(-1)[places])


def _check(name: str, buffer: Buffer, places: Array, wanted: Array) -> None:
    """Raise NotEquivalent unless a buffer holds the numbers that are `wanted` at flat places."""
    got = np.zeros(0) if buffer.contents is None else buffer.contents.planes[0][places]
    asked = np.isfinite(wanted)
    off = _off(got[asked], wanted[asked])
    if off.any():
        at = int(places[asked][np.argmax(off)])
        raise NotEquivalent(
            f"kernel '{name}': expected '{buffer.name}' as the lowered program computes it in fp64, "
            f"got another number at element {at}"
        )


def _off(got: Array, wanted: Array) -> Array:
    allowed = TOLERANCE * np.abs(wanted).max(initial=0.0) + np.finfo(np.float32).tiny
    with np.errstate(all="ignore"):
        return ~(np.abs(got - wanted) <= allowed)  # NaN is off


def _instances(function: Function, grid: tuple[int, int, int], seed: int) -> list[int] | None:
    count = math.prod(grid)
    if count <= SAMPLED or count * instance_work(function, grid) <= FULL_WORK:
        return None
    drawn = random.Random(f"{seed} {function.name}").sample(range(count), SAMPLED - 2)
    return sorted({0, count - 1, *drawn})
