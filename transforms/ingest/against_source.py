"""A reading beside its source: the numbers of the graph against those of an independent execution.

The policy is that of the numeric gate: the graph, in fp64 and rounding each operator's result to its dtype, may
be off from the source in fp64 by a multiple of what the source is off in its own dtypes. Where the source runs
in f32, too, the graph in fp64 may be off by a multiple of what is lost there: in fp64 no order of sums matters,
and a constant that is slightly wrong would hide behind what f16 loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from superopt.errors import Location, UnsupportedProgram
from superopt.numerics.checking import EPSILON, Comparison, compare, farthest
from superopt.program import COMPUTE_DTYPES, Attr, KernelGraph, Node, NodeKind, Value
from superopt.transforms.ingest.extern import run_extern_arrays
from superopt.verify.domains import FloatDomain, Tensor, round_to
from superopt.verify.evaluate_operator import evaluate_operator

Array: TypeAlias = "np.ndarray[Any, Any]"

DRAWS = 8
"""Draws of a source's roundings, where its reading is out of the tolerance of one run."""


_HIDDEN = ", as the softmax of a row that a mask hides wholly, where PyTorch gives 0,"


@dataclass(frozen=True)
class Difference:
    """An output of the graph that the source does not compute."""

    output: int
    comparison: Comparison
    rounded: bool
    """Whether the graph is right in fp64 and loses it by rounding."""

    def __str__(self) -> str:
        row = self.comparison
        how = "in its own dtypes" if self.rounded else "in fp64"
        off = f"is off by {row.error:.2e}" if math.isfinite(row.error) else f"is not finite{_HIDDEN}"
        return f"result {self.output} {off} {how} on '{row.distribution}' inputs ({row.tolerance:.2e} is allowed)"

    def error(self, source: str, where: Location) -> UnsupportedProgram:
        """What is raised for it; `source` says what was read and executed."""
        return UnsupportedProgram(f"expected to read what {source} computes, got a graph whose {self}", where)


def graph_values(graph: KernelGraph, inputs: Sequence[Array], *, faithful: bool) -> dict[Value, Array]:
    """The numbers of every value of `graph`, whose opaque operations run as their sources say.

    In fp64, or (`faithful`) in fp32 with every result rounded to its dtype. Raises UnsupportedProgram for an
    operation that cannot be executed. Inputs in fp32 are numbers of their value's dtype.
    """
    domain = FloatDomain(faithful=faithful)
    made = {
        v: domain.tensor(x, v.dtype) if x.dtype == np.float32 else _held(domain, x, v.dtype)
        for v, x in zip(graph.inputs, inputs, strict=True)
    }
    for node in graph.nodes:
        operands = [made[v] for v in node.operands]
        if node.op == NodeKind.EXTERN:
            results = run_extern_arrays(node, [t.planes[0] for t in operands])
            made.update((v, _held(domain, x, v.dtype)) for v, x in zip(node.results, results, strict=True))
            continue
        dtypes = [v.dtype for v in node.operands]
        result = evaluate_operator(node.op, node.attrs, operands, dtypes, domain, 0)
        made[node.result] = domain.stored(result, node.result.dtype)
    return {v: t.planes[0] for v, t in made.items()}


def _held(domain: FloatDomain, numbers: Array, dtype: str) -> Tensor:
    if dtype not in ("f16", "bf16", "f32", "f64"):
        return Tensor((numbers,), dtype=dtype)
    return domain.tensor(round_to(numbers, dtype) if domain.faithful else numbers)


def first_difference(
    graph: KernelGraph,
    inputs: Sequence[Array],
    distribution: str,
    reference: Sequence[Array],
    same_precision: Sequence[Array] | None,
    rounded_again: Callable[[], Sequence[Sequence[Array]]] | None = None,
    in_f32: Sequence[Array] | None = None,
) -> Difference | None:
    """The first output of `graph` that is not what the source computes, in fp64 and in its own dtypes.

    Where the source did not run in the graph's dtypes, what the graph itself loses by rounding is the measure.
    One run of the source may lose nothing by luck (a sum that cancels), where another order of its roundings
    loses much: what is out of tolerance is judged again by the draws of `rounded_again`, the source's results
    with other roundings. By `in_f32`, the source's results in f32, the graph is judged in fp64, where all that it
    rounds are its constants.
    """
    values = {faithful: graph_values(graph, inputs, faithful=faithful) for faithful in (False, True)}
    opaque = _of_opaque(graph)
    for i, output in enumerate(graph.outputs):
        exact, rounded = values[False][output], values[True][output]
        same = reference[i] + (rounded - exact) if same_precision is None else same_precision[i]
        if in_f32 is None or output in opaque or output.dtype not in COMPUTE_DTYPES:
            row = _judged(output, exact, distribution, reference[i], same, i, rounded_again)
        else:
            wider = replace(output, type=replace(output.type, dtype="f32"))
            again = partial(_constants_again, graph, inputs, reference, values[False])
            row = _judged(wider, exact, distribution, reference[i], in_f32[i], i, again)
        if row.ratio > 1:
            return Difference(i, row, rounded=False)
        if output.dtype == "f64":  # it is opaque: only PyTorch runs it, and nothing rounds it
            continue
        row = _judged(output, rounded, distribution, reference[i], same, i, rounded_again)
        if row.ratio > 1:
            return Difference(i, row, rounded=True)
    return None


def _judged(
    value: Value,
    found: Array,
    distribution: str,
    reference: Array,
    same: Array,
    output: int,
    again: Callable[[], Sequence[Sequence[Array]]] | None,
) -> Comparison:
    """`judge`, and where that is out of tolerance, once more with the draws that `again` gives of all outputs."""
    row = judge(value, found, distribution, reference, same)
    if row.ratio > 1 and again is not None:
        for drawn in again():
            same = farthest(reference, same, drawn[output])
        row = judge(value, found, distribution, reference, same)
    return row


def _of_opaque(graph: KernelGraph) -> set[Value]:
    """What opaque operations give and what is made of it: they compute in their own dtypes, in fp64, too."""
    found = set[Value]()
    for node in graph.nodes:
        if node.op == NodeKind.EXTERN or not found.isdisjoint(node.operands):
            found.update(node.results)
    return found


def _constants_again(
    graph: KernelGraph, inputs: Sequence[Array], reference: Sequence[Array], exact: Mapping[Value, Array]
) -> list[list[Array]]:
    """The source's results where it takes other constants that are rounded to those of the graph.

    PyTorch multiplies f16 by 0.1 in f32; the graph has the nearest number of f16.
    """
    rng = np.random.default_rng(0)
    found: list[list[Array]] = []
    for _ in range(DRAWS):
        nodes = [replace(n, attrs=_others(n, rng)) for n in graph.nodes]
        values = graph_values(replace(graph, nodes=nodes), inputs, faithful=False)
        with np.errstate(all="ignore"):
            pairs = zip(graph.outputs, reference, strict=True)
            found.append([x + (values[v] - exact[v]) for v, x in pairs])
    return found


def _others(node: Node, rng: np.random.Generator) -> dict[str, Attr]:
    """The attributes, with numbers at the ends of what is rounded to those of the node's dtype."""
    half = EPSILON.get(node.results[0].dtype, 0.0) / 2
    return {
        name: np.asarray(x) * (1 + half * rng.choice((-1, 1), np.shape(x)))
        if isinstance(x, float) or (isinstance(x, np.ndarray) and x.dtype.kind == "f")
        else x
        for name, x in node.attrs.items()
    }


def judge(value: Value, found: Array, distribution: str, reference: Array, same: Array) -> Comparison:
    """`numerics.checking.compare` ignores places where the source is not finite; this compares infinities."""
    row = compare(distribution, value.name or "", value.dtype, found, reference, same)
    infinite = np.isinf(reference) & (reference == same)
    if np.any(infinite & (found != reference)):
        return replace(row, error=math.inf, tolerance=0.0, ratio=math.inf)
    return row
