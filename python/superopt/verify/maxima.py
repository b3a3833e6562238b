"""Whether programs take maxima and minima, and how the checks of kernels compared them, for their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from superopt.diagnostics import counted
from superopt.operators import OPERATORS, Scalar, normalize_attrs
from superopt.program import Compute, KernelGraph, Node, NodeKind, walk

Maxima: TypeAlias = Literal["none", "sets", "order"]
"""By the sets of what they join, or by one random order, which seldom tells that a number is left out."""


def said_of(maxima: Iterable[Maxima]) -> str:
    """What a summary adds on those of its kernels."""
    counts = Counter(maxima)
    if counts["order"]:
        return (
            f", maxima in {counts['order']} of {counted(counts.total(), 'kernel')} by one random order only"
        )
    return ", maxima as sets" if counts["sets"] else ""


def takes_maxima(graph: KernelGraph) -> bool:
    """Whether a program takes a maximum or minimum anywhere, be it of a number and a constant."""
    return any(isinstance(n, Node | Compute) and _takes(n) for n in walk(graph))


def _takes(node: Node | Compute) -> bool:
    entry = OPERATORS.get(node.op)
    if entry is None:  # of those without an entry, accumulators alone join elements
        return node.op == NodeKind.RUNNING_MAX or node.attrs.get("kind", "sum") not in ("sum", "concat")
    if entry.combiner in ("max", "min"):
        return True
    return entry.body is not None and _joins(entry.body(normalize_attrs(entry, node.attrs)))


def _joins(body: Scalar) -> bool:
    return body.head in ("max", "min") or any(map(_joins, body.args))
