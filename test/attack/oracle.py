"""Decides by direct evaluation whether two programs are equal; shares no code with what it judges.

Numbers are of three kinds: Python integers and fractions, exact, with no functions beyond arithmetic, max and min;
fp64; and floats of 60 digits (mpmath), which decide where fp64 and the pair's construction contradict each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from evaluator import Array, Inexact, Numbers, TooLarge, converted, evaluate

from superopt.program import BlockGraph, Compute, KernelGraph, ThreadGraph, TileProgram

Point = tuple[bool, list[Array]]  # numbers for the inputs; whether they are in general position
Answer = Literal["equal", "different", "undefined", "domains", "undecided"]


@dataclass(frozen=True)
class Decision:
    """The answer, and where the programs differ: an output, an index, what each has there."""

    answer: Answer
    where: str = ""


def decide(
    a: KernelGraph, b: KernelGraph, claim: Literal["equal", "near"], seed: int, *, careful: bool = False
) -> Decision:
    """Whether the programs compute the same where they are defined, and are defined somewhere.

    `claim` is what the pair is by construction; to find otherwise takes exact numbers or 60 digits, and so does every
    answer where `careful`. "domains": they are the same where both are defined, but one of them takes a root or
    logarithm that the other does not. Infinities of silu and gelu may be read by formula or as limits: what depends on
    it is undecided.
    """
    if not _same_interface(a, b):
        return Decision("different", "types of inputs or outputs, or memory of outputs")
    limits = (True, False) if _limited(a, b) else (True,)
    answers = [_decide(a, b, claim, seed, limit, careful) for limit in limits]
    if len({_refused(d) for d in answers}) > 1 or any(d.answer == "undecided" for d in answers):
        return Decision("undecided", answers[0].where)
    return answers[0]


def _refused(d: Decision) -> bool:
    return d.answer in ("different", "undefined")


def _same_interface(a: KernelGraph, b: KernelGraph) -> bool:
    def interface(g: KernelGraph) -> object:
        aliases = [(i, j) for i, j in enumerate(g.aliases) if j >= 0]
        return [v.type for v in g.inputs], [v.type for v in g.outputs], aliases

    return interface(a) == interface(b)


def _limited(*graphs: KernelGraph) -> bool:
    return bool(_operators(*graphs) & {"silu", "gelu"})


def _operators(*graphs: KernelGraph) -> set[str]:
    found = set[str]()
    for node in (node for graph in graphs for node in graph.nodes):
        found.add(node.op)
        if isinstance(node.body, BlockGraph):
            for inner in node.body.nodes:
                found.add(inner.op)
                if isinstance(inner.body, ThreadGraph):
                    found |= {x.op for x in inner.body.nodes}
        elif isinstance(node.body, TileProgram):
            found |= {s.op for s in node.body.statements() if isinstance(s, Compute)}
    return found


def _points(shapes: Sequence[tuple[int, ...]], rng: random.Random, sort: str) -> list[Array]:
    """Numbers for each input: integers, "small" or "large"; fractions up to 3, "positive" or "mixed"."""

    def one() -> int | Fraction:
        sign = 1 if sort == "positive" else rng.choice((-1, 1))
        if sort == "large":
            return sign * rng.randrange(1, 1 << 31)
        if sort == "small":
            return sign * rng.randrange(1, 10)
        return sign * Fraction(rng.randrange(1 << 10, 3 << 13) * 2 + 1, 1 << 14)

    out: list[Array] = []
    for shape in shapes:
        x = np.empty(shape, object)
        for index in np.ndindex(*shape):
            x[index] = one()
        out.append(x)
    return out


def _decide(
    a: KernelGraph, b: KernelGraph, claim: Literal["equal", "near"], seed: int, limits: bool, careful: bool
) -> Decision:
    shapes = [v.shape for v in a.inputs]
    rng = random.Random(seed)
    try:
        sorts = ("large", "small", "positive", "mixed")
        found = _compare(
            a, b, [(s != "small", _points(shapes, rng, s)) for s in sorts], Numbers("exact"), 0.0
        )
        # Polynomials that agree at random points are equal; where maxima choose, others may come into play.
        chosen = {"max", "min", "relu", "clamp", "reduce_max", "reduce_min", "accumulate"} & _operators(a, b)
        return Decision("undecided") if found.answer == "equal" and claim == "near" and chosen else found
    except Inexact:
        pass
    points = [(True, _points(shapes, rng, s)) for s in ("mixed", "positive", "mixed")]
    found = _compare(a, b, points, Numbers("float", limits=limits), 1e-6)
    if careful or (found.answer == "equal") != (claim == "equal") or found.answer == "undecided":
        found = _decide_high(a, b, points, claim, limits)
    if found.answer in ("undefined", "different") and _operators(a, b) & {
        "sqrt",
        "rsqrt",
        "log",
        "log1p",
        "pow",
    }:
        total = _compare(a, b, points, Numbers("float", limits=limits, total=True), 1e-6)
        if found.answer == "undefined" and total.answer != "undefined":
            return Decision("undecided", "a root or logarithm of negative numbers")
        if found.answer == "different" and total.answer == "equal":
            return Decision("domains", found.where)
    return _somewhere(a, b, found, rng)


def _somewhere(a: KernelGraph, b: KernelGraph, found: Decision, rng: random.Random) -> Decision:
    """Undefined at some points is undefined, unless a few more say otherwise: a denominator may be a maximum with 0."""
    if found.answer != "undefined":
        return found
    shapes = [v.shape for v in a.inputs]
    more = [(True, _points(shapes, rng, "mixed")) for _ in range(24)]
    again = _compare(a, b, more, Numbers("float"), math.inf)
    return found if again.answer == "undefined" else Decision("undecided", "undefined at many inputs")


def _decide_high(
    a: KernelGraph, b: KernelGraph, points: Sequence[Point], claim: str, limits: bool
) -> Decision:
    """With 60 digits, of which 25 may be lost."""
    try:
        found = _compare(a, b, points, Numbers("high", limits=limits), 1e-35)
    except TooLarge:
        return Decision("undecided", "an exponential is too large")
    return Decision("undecided") if found.answer == "equal" and claim == "near" else found


def _compare(
    a: KernelGraph, b: KernelGraph, points: Sequence[Point], n: Numbers, tolerance: float
) -> Decision:
    """Element by element at all points; NaN in one program only is a difference, in both everywhere undefined.

    Among small integers denominators may vanish that do not in general: NaN says nothing there.
    """
    lost: list[Array] | None = None
    some = False
    for draw, (general, point) in enumerate(points):
        given = [converted(x, n) for x in point]
        pair = [evaluate(g, given, n, draw) for g in (a, b)]
        missing: list[Array] = []
        for i, (x, y) in enumerate(zip(*pair, strict=True)):
            absent = [np.asarray(v != v, np.bool_) for v in (x, y)]
            if general and (absent[0] != absent[1]).any():
                at = tuple(int(k) for k in np.argwhere(absent[0] != absent[1])[0])
                return Decision("different", f"output {i} at {at}: {x[at]} and {y[at]}")
            scale = (
                max([1.0, *(abs(float(v)) for v in x.reshape(-1) if v == v and abs(v) < 1e300)])
                if tolerance
                else 1
            )
            for at in np.ndindex(*x.shape):
                p, q = x[at], y[at]
                if p == q or absent[0][at] or absent[1][at]:
                    continue
                if not tolerance or _apart(p, q, tolerance, scale):
                    return Decision("different", f"output {i} at {at}: {p} and {q}")
            missing.append(absent[0])
            some |= general and bool(absent[0].any())
        lost = missing if lost is None else [p & q for p, q in zip(lost, missing, strict=True)]
    if lost is not None and any(m.any() for m in lost):
        i = next(i for i, m in enumerate(lost) if m.any())
        return Decision("undefined", f"output {i} at {tuple(int(k) for k in np.argwhere(lost[i])[0])}")
    if some and n.kind != "exact" and not _operators(a) & {"sqrt", "rsqrt", "log", "log1p", "pow"}:
        return Decision("undecided", "defined at some inputs only")
    return Decision("equal")


def _apart(p: Any, q: Any, tolerance: float, scale: float) -> bool:
    if abs(p) == math.inf or abs(q) == math.inf:
        return True
    return bool(abs(p - q) > tolerance * max(abs(p), abs(q), scale if tolerance < 1e-20 else 1e-3 * scale))
