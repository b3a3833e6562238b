"""Pairs about numbers: infinities, constants, signs, quotients, maxima, exponentials."""

from __future__ import annotations

import math

import numpy as np
from pairs import EQUAL, NEAR, Array, Draw, Pair, T, Three, Two, family

from superopt.verify import fields

INF = math.inf
BOUNDED = ("sigmoid", "tanh", "erf")  # have limits at both infinities


def mask(d: Draw, rows: int, columns: int, *, lost: bool = False) -> Array:
    """0 and minus infinity; every row keeps an element unless `lost`."""
    m = np.where(np.array([[d.rng.random() < 0.4 for _ in range(columns)] for _ in range(rows)]), -INF, 0.0)
    for row in m:
        row[d.rng.randrange(columns)] = 0.0
    if lost:
        m[d.rng.randrange(rows)] = -INF
    elif not np.isinf(m).any() and columns > 1:
        i = d.rng.randrange(rows)
        m[i] = 0.0
        m[i, d.rng.randrange(columns)] = -INF
    return m


def other(d: Draw, m: Array) -> Array:
    """The mask with one element changed."""
    n, at = m.copy(), (d.rng.randrange(m.shape[0]), d.rng.randrange(m.shape[1]))
    n[at] = 0.0 if np.isinf(n[at]) else -INF
    return n


@family("masked softmax", weight=2)
def masked_softmax(d: Draw) -> Pair:
    m, n, k = d.extent(), d.extent(2, 5), d.extent(1, 4)
    a = mask(d, m, n, lost=d.rng.random() < 0.2)
    b, c = other(d, a), d.number()
    forms: list[Three] = [
        ("quotient after product", EQUAL, lambda s, v, x: (s + a).softmax(1) @ v,
         lambda s, v, x: ((s + a).exp() @ v) / (s + a).exp().sum(1)),
        ("stable", EQUAL, lambda s, v, x: (s + a).softmax(1) @ v, lambda s, v, x: (s + a).softmax(1, stable=True) @ v),
        ("another mask", NEAR, lambda s, v, x: (s + a).softmax(1) @ v, lambda s, v, x: (s + b).softmax(1) @ v),
        ("mask times constant", EQUAL, lambda s, v, x: (s + a).softmax(1), lambda s, v, x: (s - s.const(-a) * 2.0).softmax(1)),
        ("mask as zeros of exp", EQUAL, lambda s, v, x: (s + a).exp() @ v,
         lambda s, v, x: (s.exp() * np.where(np.isinf(a), 0.0, 1.0)) @ v),
        ("mask left out", NEAR, lambda s, v, x: (s + a).exp() @ v, lambda s, v, x: s.exp() @ v),
        ("logits times an input", NEAR, lambda s, v, x: ((s + a) * x).softmax(1) @ v, lambda s, v, x: ((s + a) * x).softmax(1) @ (v * c)),
        ("logits over an input", NEAR, lambda s, v, x: ((s + a) / x).softmax(1), lambda s, v, x: ((s + a) / x).softmax(1) * c),
        ("logits times an input, the same", EQUAL, lambda s, v, x: ((s + a) * x).softmax(1), lambda s, v, x: (x * (s + a)).softmax(1)),
        ("softmax times an input", EQUAL, lambda s, v, x: (s + a).softmax(1) * x, lambda s, v, x: ((s + a).exp() * x) / (s + a).exp().sum(1)),
        ("sum left out", NEAR, lambda s, v, x: (s + a).softmax(1) @ v, lambda s, v, x: (s + a).exp() @ v),
        ("sum without mask", NEAR, lambda s, v, x: (s + a).softmax(1) @ v, lambda s, v, x: ((s + a).exp() @ v) / s.exp().sum(1)),
        ("mask after scaling", EQUAL, lambda s, v, x: (s * 0.5 + a).softmax(1) @ v, lambda s, v, x: ((s + a) * 0.5).softmax(1) @ v),
        ("scaled by a negative number", NEAR, lambda s, v, x: ((s + a) * -1.0).softmax(1), lambda s, v, x: ((s + a) * -1.0).softmax(1) * 2.0),
        ("maximum of the unmasked", EQUAL, lambda s, v, x: (s + a).softmax(1) @ v,
         lambda s, v, x: ((s + a - s.over("max", 1)).exp() @ v) / (s + a - s.over("max", 1)).exp().sum(1)),
        ("maximum over the other dimension", NEAR, lambda s, v, x: (s + a).softmax(1, stable=True),
         lambda s, v, x: (s + a - (s + a).over("max", 0)).exp() / s.exp().sum(1)),
    ]  # fmt: skip
    return d.table([(m, n), (n, k), (m, n)], forms)


@family("infinities", weight=2)
def infinities(d: Draw) -> Pair:
    m, n, k = d.extent(), d.extent(2, 5), d.extent(1, 4)
    a = mask(d, m, n) * d.pick(1.0, -1.0)
    z, c = np.where(np.isinf(a), 0.0, 1.0), d.number()
    g = d.pick("sigmoid", "silu", "gelu", "tanh", "erf", "relu", "exp", "square", "neg")
    h = d.pick(*BOUNDED)
    low = -a if (a > 0).any() else a
    forms: list[Two] = [
        ("function of masked", NEAR, lambda s, v: (s + a).f(g) @ v, lambda s, v: (s + a).f(g) @ (v * c)),
        ("function of masked, doubled", NEAR, lambda s, v: (s + a).f(g), lambda s, v: (s + a).f(g) * 2.0),
        ("function of masked, the same", EQUAL, lambda s, v: (s + a).f(h) @ v, lambda s, v: (s.const(a) + s).f(h) @ v),
        ("sigmoid at minus infinity", EQUAL, lambda s, v: (s + low).f("sigmoid") @ v, lambda s, v: (s.f("sigmoid") * z) @ v),
        ("sigmoid at infinity is not 0", NEAR, lambda s, v: (s - low).f("sigmoid") @ v, lambda s, v: (s.f("sigmoid") * z) @ v),
        ("tanh at minus infinity is not 0", NEAR, lambda s, v: (s + low).f("tanh"), lambda s, v: s.f("tanh") * z),
        ("tanh at minus infinity", EQUAL, lambda s, v: (s + low).f("tanh"), lambda s, v: s.f("tanh") * z + (z - 1.0)),
        ("erf at infinity", EQUAL, lambda s, v: (s - low).f("erf"), lambda s, v: s.f("erf") * z + (1.0 - z)),
        ("erf at infinity is not 0", NEAR, lambda s, v: (s - low).f("erf"), lambda s, v: s.f("erf") * z),
        ("relu at minus infinity", EQUAL, lambda s, v: (s + low).f("relu") @ v, lambda s, v: (s.f("relu") * z) @ v),
        ("0 times infinity", NEAR, lambda s, v: (s - s) * a + s, lambda s, v: s * c),
        ("0 times infinity, doubled", NEAR, lambda s, v: s.const(0.0) * s.const(a) + s, lambda s, v: s.const(0.0) * s.const(a) + s * 2.0),
        ("infinity minus itself", NEAR, lambda s, v: (s + a) - (s + a), lambda s, v: s * 0.0),
        ("infinity minus itself, doubled", NEAR, lambda s, v: (s + a) - a, lambda s, v: (s + a) - a + s),
        ("masked and unmasked again", NEAR, lambda s, v: (s + a) - a, lambda s, v: s * 1.0),
        ("quotient of infinities", NEAR, lambda s, v: (s + a) / (s + a), lambda s, v: s / s),
        ("over infinity", NEAR, lambda s, v: s / (s.const(a) + 1.0), lambda s, v: s * c),
        ("over infinity is 0", EQUAL, lambda s, v: s / (s.const(a) + 1.0), lambda s, v: s * z),
        ("reciprocal of masked", NEAR, lambda s, v: (s + a).f("reciprocal"), lambda s, v: s.f("reciprocal")),
        ("reciprocal of masked is 0", EQUAL, lambda s, v: (s + a).f("reciprocal"), lambda s, v: s.f("reciprocal") * z),
        ("infinity times an input", NEAR, lambda s, v: (s + a) * s, lambda s, v: (s + a) * (s * c)),
        ("infinity in a product", NEAR, lambda s, v: (s + a) @ v, lambda s, v: (s + a) @ (v * 2.0)),
        ("infinity in a product, other", NEAR, lambda s, v: (s + a) @ v, lambda s, v: (s * c + a) @ v),
        ("maximum of masked", EQUAL, lambda s, v: (s + low).over("max", 1), lambda s, v: (low_const(s, low) + s).t().over("max", 0).t()),
        ("maximum without mask", NEAR, lambda s, v: (s + low).over("max", 1), lambda s, v: s.over("max", 1)),
        ("minimum of masked", NEAR, lambda s, v: (s + low).over("min", 1), lambda s, v: s.over("min", 1)),
        ("minimum is minus infinity", NEAR, lambda s, v: s.low(-INF), lambda s, v: s.top(-INF)),
        ("maximum is infinity", NEAR, lambda s, v: s.top(INF) * s, lambda s, v: s.top(INF) * (s * s)),
        ("neutral element", EQUAL, lambda s, v: s.top(-INF) @ v, lambda s, v: (s * 1.0) @ v),
        ("neutral element, other", EQUAL, lambda s, v: s.low(INF) @ v, lambda s, v: (s * 1.0) @ v),
        ("exp of minus infinity", EQUAL, lambda s, v: (s + low).exp() + s, lambda s, v: s.exp() * z + s),
        ("exp of infinity", NEAR, lambda s, v: (s - low).exp() * s, lambda s, v: (s - low).exp() * (s * c)),
        ("one over exp of infinity", NEAR, lambda s, v: s / (s - low).exp(), lambda s, v: s / s.exp()),
        ("clamp of masked", EQUAL, lambda s, v: (s + low).f("clamp", low=-2.0, high=3.0), lambda s, v: (s + low).top(-2.0).low(3.0)),
        ("clamp without mask", NEAR, lambda s, v: (s + low).f("clamp", low=-2.0, high=3.0), lambda s, v: s.f("clamp", low=-2.0, high=3.0)),
        ("log of 0", NEAR, lambda s, v: s.const(0.0).f("log") * s, lambda s, v: s.const(0.0).f("log") * (s * 2.0)),
        ("sum with infinity", NEAR, lambda s, v: (s + a).sum(1) * s, lambda s, v: (s + a).sum(1) * (s * 2.0)),
        ("mean with infinity", NEAR, lambda s, v: s / (s + a).over("mean", 1), lambda s, v: s / (s + a).over("mean", 1) * c),
        ("norm of masked", NEAR, lambda s, v: (s + a) * (s + a).f("square").over("mean", 1).f("rsqrt"),
         lambda s, v: (s * c + a) * (s + a).f("square").over("mean", 1).f("rsqrt")),
        ("power of masked", NEAR, lambda s, v: (s + a).f("pow", exponent=-2.0), lambda s, v: s.f("pow", exponent=-2.0)),
        ("power 0 of masked", NEAR, lambda s, v: (s + a).f("pow", exponent=0.0) * s, lambda s, v: s * c),
    ]  # fmt: skip
    return d.table([(m, n), (n, k)], forms)


def low_const(s: T, m: Array) -> T:
    return s.const(m)


@family("gates of masked")
def gates_of_masked(d: Draw) -> Pair:
    """Something that is undefined in both: any other factor beside it must not be called the same."""
    m, n, k = d.extent(), d.extent(2, 5), d.extent(1, 4)
    a = mask(d, m, n, lost=d.rng.random() < 0.5)
    sign, c = d.pick(1.0, -1.0), d.number()
    gate = d.pick(*BOUNDED, "silu", "gelu", "exp", "reciprocal", "square", "log", "sqrt")
    inner = d.pick("add", "mul", "div", "max", "min", "sub")

    def gated(s: T, x: T) -> T:
        return s.f(inner, x).f("add", s.const(sign * a)).f(gate)

    def lost(s: T, x: T) -> T:
        return (s + a).two(inner, x).f(gate)

    forms: list[Three] = [
        ("other factor", NEAR, lambda s, v, x: gated(s, x) @ v, lambda s, v, x: gated(s, x) @ (v * c)),
        ("other operand", NEAR, lambda s, v, x: gated(s, x) * x, lambda s, v, x: gated(s, x) * s),
        ("masked operand", NEAR, lambda s, v, x: lost(s, x) @ v, lambda s, v, x: lost(s, x) @ (v * c)),
        ("masked operand, other term", NEAR, lambda s, v, x: lost(s, x) + x, lambda s, v, x: lost(s, x) + s),
        ("masked operand, the other way", NEAR, lambda s, v, x: lost(s, x), lambda s, v, x: lost(x, s)),
        ("masked softmax of gates", NEAR, lambda s, v, x: (gated(s, x)).softmax(1) @ v, lambda s, v, x: gated(s, x).softmax(1) @ (v * c)),
        ("rows without an element", NEAR, lambda s, v, x: (s + a).softmax(1) @ v, lambda s, v, x: (s + a).softmax(1) @ (v * c)),
        ("the same", EQUAL, lambda s, v, x: gated(s, x) @ v, lambda s, v, x: (gated(s, x) @ (v * 2.0)) * 0.5),
    ]  # fmt: skip
    return d.table([(m, n), (n, k), (m, n)], forms)


# --- constants --------------------------------------------------------------------------------------------


def _parts(value: int, d: Draw) -> list[float]:
    """Numbers of 53 bits that add up to a larger one."""
    high = float(value >> 20 << 20)
    rest = value - int(high)
    parts = [high, *([float(rest)] if rest else [])]
    d.rng.shuffle(parts)
    return parts


@family("constants modulo primes", weight=2)
def constants_modulo_primes(d: Draw) -> Pair:
    m, n = d.extent(1, 4), d.extent(1, 4)
    p, q = fields.P, fields.Q
    e: int = d.pick(60, 61, 62, 63, 64, 70, 100, 122)
    r, s = pow(2, e, p), pow(2, e, q)
    whole, whole_q = _parts(p, d), _parts(q, d)
    residue, residue_q = _parts(r, d), _parts(s, d)
    inverse = _parts(pow(2, -e, p), d)
    c = d.number()

    def scaled(x: T, parts: list[float]) -> T:
        out = x * parts[0]
        for part in parts[1:]:
            out = out + x * part
        return out

    def constant(x: T, parts: list[float]) -> T:
        out = x.const(parts[0])
        for part in parts[1:]:
            out = out + part
        return out

    def product(x: T, times: int, factor: float) -> T:
        for _ in range(times):
            x = x * factor
        return x

    forms: list[Two] = [
        ("p vanishes", NEAR, lambda x, y: y + scaled(x, whole), lambda x, y: y * 1.0),
        ("p vanishes as a constant", NEAR, lambda x, y: y + x * constant(x, whole), lambda x, y: y * 1.0),
        ("one more than p", NEAR, lambda x, y: y + x * constant(x, whole) + x, lambda x, y: y + x),
        ("a power of 2 and its residue", NEAR, lambda x, y: x * 2.0**e + y, lambda x, y: scaled(x, residue) + y),
        ("powers of 2 in steps", NEAR, lambda x, y: product(x, 4, 2.0 ** (e / 4)) if e % 4 == 0 else product(x, 2, 2.0 ** (e // 2)) * 2.0 ** (e % 2),
         lambda x, y: scaled(x, residue)),
        ("divided by powers of 2", NEAR, lambda x, y: x / 2.0**e, lambda x, y: scaled(x, inverse)),
        ("a negative power of 2", NEAR, lambda x, y: x * 2.0**-e, lambda x, y: scaled(x, inverse)),
        ("over the sum of constants", NEAR, lambda x, y: x / constant(x, residue), lambda x, y: x * 2.0**-e),
        ("exponents modulo q", NEAR, lambda x, y: (x * 2.0**e).exp() * y, lambda x, y: scaled(x, residue_q).exp() * y),
        ("exponents vanish modulo q", NEAR, lambda x, y: scaled(x, whole_q).exp() * y, lambda x, y: y * 1.0),
        ("exponents vanish modulo q, shifted", NEAR, lambda x, y: (y + scaled(x, whole_q)).exp(), lambda x, y: y.exp()),
        ("exponents in softmax", NEAR, lambda x, y: (x + scaled(y, whole_q)).softmax(1), lambda x, y: x.softmax(1)),
        ("p below exp", NEAR, lambda x, y: (x + scaled(y, whole)).exp(), lambda x, y: x.exp()),
        ("p under max", NEAR, lambda x, y: (x + scaled(y, whole)).top(y), lambda x, y: x.top(y)),
        ("p under sqrt", NEAR, lambda x, y: (x + scaled(y, whole)).f("sqrt"), lambda x, y: x.f("sqrt")),
        ("constants in a dense array", NEAR, lambda x, y: x + x.const(np.full((m, n), whole[0])) * y + y * whole[1], lambda x, y: x * 1.0),
        ("summed constants", NEAR, lambda x, y: x + x.const(np.array([whole])).sum(1) * y, lambda x, y: x * 1.0),
        ("constants of a product", NEAR, lambda x, y: x + (x.const(np.array([whole])) @ x.const(np.ones((2, 1)))) * y, lambda x, y: x * 1.0),
        ("squares of constants", NEAR, lambda x, y: x.const(2.0 ** (e // 2)).f("square") * x, lambda x, y: scaled(x, _parts(pow(2, e // 2 * 2, p), d))),
        ("large constant, the same", EQUAL, lambda x, y: x * 2.0**e + y, lambda x, y: (x * 2.0 ** (e // 2)) * 2.0 ** (e - e // 2) + y),
        ("p as a constant, the same", EQUAL, lambda x, y: scaled(x, whole) + y, lambda x, y: y + scaled(x, whole[::-1])),
        ("large constants cancel", EQUAL, lambda x, y: (x * 2.0**e + y) - x * 2.0**e, lambda x, y: y * 1.0),
        ("exponents, the same", EQUAL, lambda x, y: (x * 2.0**e).exp() * y, lambda x, y: (x * 2.0 ** (e - 1)).exp().f("square") * y),
        ("off by one", NEAR, lambda x, y: x * 2.0**53 + y, lambda x, y: x * (2.0**53 - 1) + y),
        ("times a constant", EQUAL, lambda x, y: (x + y) * c, lambda x, y: x * c + y * c),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


@family("constants")
def constants(d: Draw) -> Pair:
    m, n = d.extent(), d.extent()
    c, tiny, huge = d.number(), 2.0 ** -d.pick(30, 40, 60, 100, 200), 2.0 ** d.pick(30, 60, 100, 126)
    dense = np.array([[d.rng.randrange(-9, 10) for _ in range(n)] for _ in range(m)], np.float64)
    changed = dense.copy()
    changed[d.rng.randrange(m), d.rng.randrange(n)] += d.pick(1.0, tiny, -2.0)
    forms: list[Two] = [
        ("tiny term dropped", NEAR, lambda x, y: x + y * tiny, lambda x, y: x * 1.0),
        ("tiny term in a product", NEAR, lambda x, y: x * y + x * tiny, lambda x, y: x * y),
        ("tiny term below exp", NEAR, lambda x, y: (x + y * tiny).exp(), lambda x, y: x.exp()),
        ("tiny term under the root", NEAR, lambda x, y: (x.f("square") + tiny).f("rsqrt") * y, lambda x, y: x.f("square").f("rsqrt") * y),
        ("tiny term in the mean", NEAR, lambda x, y: x * (x.f("square").over("mean", 1) + tiny).f("rsqrt"),
         lambda x, y: x * x.f("square").over("mean", 1).f("rsqrt")),
        ("another tiny term", NEAR, lambda x, y: x / (y.f("square") + tiny), lambda x, y: x / (y.f("square") + 2 * tiny)),
        ("tiny slope", NEAR, lambda x, y: x * (1.0 + 2.0**-50) + y, lambda x, y: x + y),
        ("term times 0", EQUAL, lambda x, y: x + y * 0.0, lambda x, y: x * 1.0),
        ("constants meet", NEAR, lambda x, y: x * c + y * (c + 1), lambda x, y: (x + y) * c),
        ("constants vanish", EQUAL, lambda x, y: x + y * (x.const(c) - c), lambda x, y: x * 1.0),
        ("constants vanish almost", NEAR, lambda x, y: x + y * (x.const(c) - (c + tiny)), lambda x, y: x * 1.0),
        ("a third", NEAR, lambda x, y: x / 3.0, lambda x, y: x * (1 / 3)),
        ("a tenth", NEAR, lambda x, y: x / 10.0 + y, lambda x, y: x * 0.1 + y),
        ("a quarter", EQUAL, lambda x, y: x / 4.0 + y, lambda x, y: x * 0.25 + y),
        ("huge factor", EQUAL, lambda x, y: (x * huge + y * huge) / huge, lambda x, y: x + y),
        ("huge factor left", NEAR, lambda x, y: (x * huge + y) / huge, lambda x, y: x + y),
        ("dense", EQUAL, lambda x, y: x * dense + y * dense, lambda x, y: (x + y) * dense),
        ("dense, one element off", NEAR, lambda x, y: x * dense + y, lambda x, y: x * changed + y),
        ("dense for a splat", EQUAL, lambda x, y: x * np.full((m, n), c) + y, lambda x, y: x * c + y),
        ("dense, transposed", NEAR, lambda x, y: x @ x.const(dense).t() + 0.0, lambda x, y: x @ x.const(dense[::-1].copy()).t() + 0.0),
        ("integers for floats", EQUAL, lambda x, y: x * 2.0 + y, lambda x, y: x + x + y),
        ("half for a square root", NEAR, lambda x, y: x * math.sqrt(0.5) * math.sqrt(0.5), lambda x, y: x * 0.5),
        ("scale of attention", NEAR, lambda x, y: x / math.sqrt(2.0), lambda x, y: x * math.sqrt(0.5)),
        ("negative constant", NEAR, lambda x, y: x.f("square") * -c + y, lambda x, y: x.f("square") * c + y),
        ("minus 0", EQUAL, lambda x, y: x + y * -0.0, lambda x, y: x - y * 0.0),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


# --- signs, roots, quotients ------------------------------------------------------------------------------


@family("signs and roots", weight=2)
def signs_and_roots(d: Draw) -> Pair:
    m, n, c = d.extent(), d.extent(), abs(d.number())
    forms: list[Two] = [
        ("root of square", NEAR, lambda x, y: x.f("square").f("sqrt") + y, lambda x, y: x + y),
        ("root of square is the absolute value", EQUAL, lambda x, y: x.f("square").f("sqrt") + y, lambda x, y: x.top(-x) + y),
        ("root of square is minus the absolute value", NEAR, lambda x, y: x.f("square").f("sqrt"), lambda x, y: x.low(-x)),
        ("square of root", NEAR, lambda x, y: x.f("sqrt").f("square"), lambda x, y: x * 1.0),
        ("square of root of square", EQUAL, lambda x, y: x.f("square").f("sqrt").f("square"), lambda x, y: x * x),
        ("square of root of sum of squares", EQUAL, lambda x, y: (x * x + y * y).f("sqrt").f("square"), lambda x, y: x * x + y * y),
        ("square of reciprocal root", EQUAL, lambda x, y: (x * x + 1.0).f("rsqrt").f("square"), lambda x, y: (x * x + 1.0).f("reciprocal")),
        ("square of reciprocal root, any sign", NEAR, lambda x, y: x.f("rsqrt").f("square"), lambda x, y: x.f("reciprocal")),
        ("root of product", NEAR, lambda x, y: (x * y).f("sqrt"), lambda x, y: x.f("sqrt") * y.f("sqrt")),
        ("root of quotient", NEAR, lambda x, y: (x / y).f("sqrt"), lambda x, y: x.f("sqrt") / y.f("sqrt")),
        ("root of scaled", EQUAL, lambda x, y: (x * x * 4.0).f("sqrt") + y, lambda x, y: (x * x).f("sqrt") * 2.0 + y),
        ("root of scaled by a negative", NEAR, lambda x, y: (x * x * 4.0).f("sqrt"), lambda x, y: (x * x).f("sqrt") * -2.0),
        ("log of square", NEAR, lambda x, y: x.f("square").f("log"), lambda x, y: x.f("log") * 2.0),
        ("log of product", NEAR, lambda x, y: (x * y).f("log"), lambda x, y: x.f("log") + y.f("log")),
        ("log of exp", EQUAL, lambda x, y: x.exp().f("log") + y, lambda x, y: x + y),
        ("exp of log", NEAR, lambda x, y: x.f("log").exp(), lambda x, y: x * 1.0),
        ("abs times abs", EQUAL, lambda x, y: x.top(-x) * x.top(-x), lambda x, y: x * x),
        ("abs of product", EQUAL, lambda x, y: (x * y).top(-(x * y)), lambda x, y: x.top(-x) * y.top(-y)),
        ("abs of sum", NEAR, lambda x, y: (x + y).top(-(x + y)), lambda x, y: x.top(-x) + y.top(-y)),
        ("abs is the number", NEAR, lambda x, y: x.top(-x) + y, lambda x, y: x + y),
        ("powers", EQUAL, lambda x, y: x.f("pow", exponent=3.0) + y, lambda x, y: x * x * x + y),
        ("power one half", EQUAL, lambda x, y: x.f("pow", exponent=0.5) + y, lambda x, y: x.f("sqrt") + y),
        ("power minus one half", NEAR, lambda x, y: x.f("pow", exponent=-0.5), lambda x, y: x.f("sqrt")),
        ("power of power", NEAR, lambda x, y: x.f("pow", exponent=2.0).f("pow", exponent=0.5), lambda x, y: x * 1.0),
        ("odd power of a negative", NEAR, lambda x, y: (-x).f("pow", exponent=3.0), lambda x, y: x.f("pow", exponent=3.0)),
        ("even power of a negative", EQUAL, lambda x, y: (-x).f("pow", exponent=4.0), lambda x, y: x.f("pow", exponent=4.0)),
        ("broken power", NEAR, lambda x, y: x.f("pow", exponent=1.5), lambda x, y: x * x.f("sqrt") * 1.0 + x * 0.0),
        ("reciprocal root", EQUAL, lambda x, y: y * x.f("rsqrt"), lambda x, y: y / x.f("sqrt")),
        ("odd functions", EQUAL, lambda x, y: (-x).f("tanh") + y, lambda x, y: y - x.f("tanh")),
        ("odd function as even", NEAR, lambda x, y: (-x).f("tanh") + y, lambda x, y: x.f("tanh") + y),
        ("erf is odd", NEAR, lambda x, y: (-x).f("erf"), lambda x, y: x.f("erf")),
        ("cos is even", NEAR, lambda x, y: (-x).f("sin"), lambda x, y: x.f("sin")),
        ("sigmoid of negative", EQUAL, lambda x, y: (-x).f("sigmoid") * y, lambda x, y: y - x.f("sigmoid") * y),
        ("sigmoid of negative, wrong", NEAR, lambda x, y: (-x).f("sigmoid") * y, lambda x, y: x.f("sigmoid") * y),
        ("max moved out of a product", NEAR, lambda x, y: (x * y).top(x * x), lambda x, y: x * y.top(x)),
        ("max moved out of a positive factor", EQUAL, lambda x, y: (x * c).top(y * c), lambda x, y: x.top(y) * c),
        ("max moved out of a negative factor", NEAR, lambda x, y: (x * -c).top(y * -c), lambda x, y: x.top(y) * -c),
        ("max becomes min", EQUAL, lambda x, y: (-x).top(-y), lambda x, y: -x.low(y)),
        ("max of exponentials", EQUAL, lambda x, y: x.exp().top(y.exp()), lambda x, y: x.top(y).exp()),
        ("min of exponentials", NEAR, lambda x, y: x.exp().top(y.exp()), lambda x, y: x.low(y).exp()),
        ("max of squares", NEAR, lambda x, y: x.f("square").top(y.f("square")), lambda x, y: x.top(y).f("square")),
        ("relu of positive multiple", EQUAL, lambda x, y: (x * c).f("relu") + y, lambda x, y: x.f("relu") * c + y),
        ("relu of product", NEAR, lambda x, y: (x * y).f("relu"), lambda x, y: x.f("relu") * y.f("relu")),
        ("relu twice", EQUAL, lambda x, y: x.f("relu").f("relu") + y, lambda x, y: x.f("relu") + y),
        ("relu and its opposite", EQUAL, lambda x, y: x.f("relu") - (-x).f("relu") + y, lambda x, y: x + y),
        ("relu minus", NEAR, lambda x, y: x.f("relu") + (-x).f("relu"), lambda x, y: x + y * 0.0),
        ("norm without a sign", NEAR, lambda x, y: x / x.f("square").f("sqrt"), lambda x, y: x * 0.0 + 1.0),
        ("sum of roots", NEAR, lambda x, y: (x * x + y * y).f("sqrt"), lambda x, y: (x * x).f("sqrt") + (y * y).f("sqrt")),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


@family("quotients", weight=2)
def quotients(d: Draw) -> Pair:
    m, n, c = d.extent(2, 4), d.extent(2, 4), d.number()
    forms: list[Two] = [
        ("sum in the denominator", EQUAL, lambda x, y: (x * y) / x.sum(1), lambda x, y: x / x.sum(1) * y),
        ("sum over the other dimension", NEAR, lambda x, y: (x * y) / x.sum(1), lambda x, y: (x * y) / x.sum(0)),
        ("sum distributes", NEAR, lambda x, y: y / (x + y), lambda x, y: y / x + y / y),
        ("numerator distributes", EQUAL, lambda x, y: (x + y) / (x * y), lambda x, y: y.f("reciprocal") + x.f("reciprocal")),
        ("cancelled factor", EQUAL, lambda x, y: (x * y) / x, lambda x, y: y * 1.0),
        ("cancelled term", NEAR, lambda x, y: (x + y) / x, lambda x, y: y + 1.0),
        ("sum that vanishes", NEAR, lambda x, y: y / (x - x), lambda x, y: y / (x - x) * c),
        ("sum over differences", NEAR, lambda x, y: y / (x - x.over("mean", 1)).sum(1), lambda x, y: (y * c) / (x - x.over("mean", 1)).sum(1)),
        ("0 over 0", NEAR, lambda x, y: (x - x) / (y - y), lambda x, y: x * 0.0),
        ("product with 0 over 0", NEAR, lambda x, y: ((x - x) / (y - y)) * x, lambda x, y: ((x - x) / (y - y)) * y),
        ("quotient of quotients", EQUAL, lambda x, y: (x / y) / (y / x), lambda x, y: (x * x) / (y * y)),
        ("quotient of quotients, turned", NEAR, lambda x, y: (x / y) / (y / x), lambda x, y: (y * y) / (x * x)),
        ("reciprocal of reciprocal", EQUAL, lambda x, y: x.f("reciprocal").f("reciprocal") + y, lambda x, y: x + y),
        ("mean of quotients", NEAR, lambda x, y: (x / y).over("mean", 1), lambda x, y: x.over("mean", 1) / y.over("mean", 1)),
        ("sum of quotients of one denominator", EQUAL, lambda x, y: (x / y.sum(1)).sum(1), lambda x, y: x.sum(1) / y.sum(1)),
        ("difference of squares", EQUAL, lambda x, y: (x * x - y * y) / (x - y), lambda x, y: x + y),
        ("difference of squares, wrong", NEAR, lambda x, y: (x * x - y * y) / (x - y), lambda x, y: x - y),
        ("partial fractions", EQUAL, lambda x, y: (x * (x + 1.0)).f("reciprocal"), lambda x, y: x.f("reciprocal") - (x + 1.0).f("reciprocal")),
        ("order of quotients", NEAR, lambda x, y: x / y / x, lambda x, y: x / (y / x)),
        ("softmax of a constant more", EQUAL, lambda x, y: x.softmax(1) * y, lambda x, y: (x + c).softmax(1) * y),
        ("softmax of a multiple", NEAR, lambda x, y: x.softmax(1) * y, lambda x, y: (x * 2.0).softmax(1) * y),
        ("softmax of a column more", NEAR, lambda x, y: x.softmax(1), lambda x, y: (x + y.sum(0)).softmax(1)),
        ("softmax of a row more", EQUAL, lambda x, y: x.softmax(1), lambda x, y: (x + y.sum(1)).softmax(1)),
        ("softmax over the other dimension", NEAR, lambda x, y: x.softmax(1) * y, lambda x, y: x.softmax(0) * y),
        ("linear attention's normaliser", EQUAL, lambda x, y: (x @ (x.t() @ y)) / (x @ x.t().sum(1)), lambda x, y: ((x @ x.t()) @ y) / (x @ x.t()).sum(1)),
        ("variance by two formulas", EQUAL, lambda x, y: (x - x.over("mean", 1)).f("square").over("mean", 1) * y,
         lambda x, y: (x.f("square").over("mean", 1) - x.over("mean", 1).f("square")) * y),
        ("variance without the square", NEAR, lambda x, y: (x - x.over("mean", 1)).f("square").over("mean", 1) * y,
         lambda x, y: (x.f("square").over("mean", 1) - x.over("mean", 1)) * y),
        ("variance by n - 1", NEAR, lambda x, y: x.f("square").over("mean", 1) * y, lambda x, y: x.f("square").sum(1) / (n - 1.0) * y),
        ("mean as a sum", EQUAL, lambda x, y: x.over("mean", 1) * y, lambda x, y: x.sum(1) / float(n) * y),
        ("mean over the other extent", NEAR if m != n else EQUAL, lambda x, y: x.over("mean", 1) * y, lambda x, y: x.sum(1) / float(m) * y),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


# --- max and min, exponentials ----------------------------------------------------------------------------


@family("maxima", weight=2)
def maxima(d: Draw) -> Pair:
    m, n = d.extent(2, 5), d.extent(2, 5)
    low, high, c = -abs(d.number()), abs(d.number()), d.number()
    forms: list[Three] = [
        ("associative", EQUAL, lambda x, y, z: x.top(y).top(z), lambda x, y, z: z.top(y.top(x))),
        ("max for min", NEAR, lambda x, y, z: x.top(y).top(z), lambda x, y, z: x.top(y).low(z)),
        ("sum moved in", EQUAL, lambda x, y, z: x.top(y) + z, lambda x, y, z: (x + z).top(y + z)),
        ("sum moved into one", NEAR, lambda x, y, z: x.top(y) + z, lambda x, y, z: (x + z).top(y)),
        ("absorption", EQUAL, lambda x, y, z: x.top(x.low(y)) + z, lambda x, y, z: x + z),
        ("absorption, wrong", NEAR, lambda x, y, z: x.top(x.low(y)), lambda x, y, z: y * 1.0),
        ("max and min add up", EQUAL, lambda x, y, z: x.top(y) + x.low(y), lambda x, y, z: x + y),
        ("max and min multiplied", EQUAL, lambda x, y, z: x.top(y) * x.low(y), lambda x, y, z: x * y),
        ("max twice", NEAR, lambda x, y, z: x.top(y) + x.top(y), lambda x, y, z: x + y),
        ("distributive", EQUAL, lambda x, y, z: x.low(y.top(z)), lambda x, y, z: x.low(y).top(x.low(z))),
        ("distributive, wrong", NEAR, lambda x, y, z: x.low(y.top(z)), lambda x, y, z: x.low(y).top(z)),
        ("clamp either way", EQUAL, lambda x, y, z: x.top(low).low(high) + y, lambda x, y, z: x.low(high).top(low) + y),
        ("clamp crossed", NEAR, lambda x, y, z: x.top(high).low(low) + y, lambda x, y, z: x.low(low).top(high) + y),
        ("clamp", EQUAL, lambda x, y, z: x.f("clamp", low=low, high=high) + y, lambda x, y, z: x.top(low).low(high) + y),
        ("clamp, other bound", NEAR, lambda x, y, z: x.f("clamp", low=low, high=high), lambda x, y, z: x.f("clamp", low=low, high=high + 1)),
        ("rows then all", EQUAL, lambda x, y, z: x.over("max", 1).over("max", 0) + y, lambda x, y, z: x.over("max", 0, 1) + y),
        ("max of rows and columns", NEAR, lambda x, y, z: x.over("max", 1).over("min", 0) + y, lambda x, y, z: x.over("min", 0).over("max", 1) + y),
        ("halves", EQUAL, lambda x, y, z: x.over("max", 1) + y, lambda x, y, z: x.cut(1, 0, 1).top(x.cut(1, 1, n - 1).over("max", 1)) + y),
        ("one element left out", NEAR, lambda x, y, z: x.over("max", 1) + y, lambda x, y, z: x.cut(1, 0, n - 1).over("max", 1) + y),
        ("maximum of sums", NEAR, lambda x, y, z: (x + y).over("max", 1) * z, lambda x, y, z: (x.over("max", 1) + y.over("max", 1)) * z),
        ("maximum of a row's sum", EQUAL, lambda x, y, z: (x + y.sum(1)).over("max", 1) * z, lambda x, y, z: (x.over("max", 1) + y.sum(1)) * z),
        ("relu of difference", EQUAL, lambda x, y, z: (x - y).f("relu") + y, lambda x, y, z: x.top(y)),
        ("relu of difference, turned", NEAR, lambda x, y, z: (y - x).f("relu") + y, lambda x, y, z: x.top(y)),
        ("neutral constant", NEAR, lambda x, y, z: x.top(-1e30) + y, lambda x, y, z: x + y),
        ("max with 0", NEAR, lambda x, y, z: x.over("max", 1).f("relu") * z, lambda x, y, z: x.over("max", 1) * z),
        ("softmax is stable", EQUAL, lambda x, y, z: x.softmax(1, stable=True) * z, lambda x, y, z: x.softmax(1) * z),
        ("softmax by another maximum", EQUAL, lambda x, y, z: ((x - y.over("max", 1)).exp() * z) / (x - y.over("max", 1)).exp().sum(1),
         lambda x, y, z: (x.exp() / x.exp().sum(1)) * z),
        ("softmax by maxima of columns", NEAR, lambda x, y, z: (x - x.over("max", 0)).exp() / (x - x.over("max", 0)).exp().sum(1),
         lambda x, y, z: x.softmax(1)),
        ("max times a number", NEAR, lambda x, y, z: x.top(y) * c * z, lambda x, y, z: (x * c).top(y) * z),
        ("idempotent", EQUAL, lambda x, y, z: x.top(x) * z, lambda x, y, z: x * z),
        ("max of a sum and a term", NEAR, lambda x, y, z: (x + y).top(x), lambda x, y, z: x + y),
        ("max of a square and 0", EQUAL, lambda x, y, z: x.f("square").top(0.0) + y, lambda x, y, z: x * x + y),
        ("max of exp and 0", EQUAL, lambda x, y, z: x.exp().top(0.0) + y, lambda x, y, z: x.exp() + y),
        ("min of a square and 0", NEAR, lambda x, y, z: x.f("square").low(0.0) + y, lambda x, y, z: x * x + y),
    ]  # fmt: skip
    return d.table([(m, n), (m, n), (m, n)], forms)


@family("exponentials", weight=2)
def exponentials(d: Draw) -> Pair:
    m, n, c = d.extent(2, 4), d.extent(2, 4), d.number()
    forms: list[Two] = [
        ("sum in the exponent", EQUAL, lambda x, y: (x + y).exp(), lambda x, y: x.exp() * y.exp()),
        ("product in the exponent", NEAR, lambda x, y: (x * y).exp(), lambda x, y: x.exp() * y.exp()),
        ("difference", EQUAL, lambda x, y: (x - y).exp(), lambda x, y: x.exp() / y.exp()),
        ("difference turned", NEAR, lambda x, y: (x - y).exp(), lambda x, y: y.exp() / x.exp()),
        ("square", EQUAL, lambda x, y: (x * 2.0).exp() + y, lambda x, y: x.exp().f("square") + y),
        ("factor outside", NEAR, lambda x, y: (x * c).exp() + y, lambda x, y: x.exp() * c + y),
        ("sum of exponentials", NEAR, lambda x, y: (x + y).exp(), lambda x, y: x.exp() + y.exp()),
        ("exp of a row's sum", NEAR, lambda x, y: x.sum(1).exp() * y, lambda x, y: x.exp().sum(1) * y),
        ("constant in the exponent", NEAR, lambda x, y: (x + c).exp(), lambda x, y: x.exp() * c),
        ("constant taken out", EQUAL, lambda x, y: (x + c).exp() * y, lambda x, y: x.exp() * (x.const(c).exp() * y)),
        ("exp of exp", EQUAL, lambda x, y: x.exp().exp() * y, lambda x, y: y * (x + 0.0).exp().exp()),
        ("exp of exp of a sum", NEAR, lambda x, y: (x + y).exp().exp(), lambda x, y: x.exp().exp() * y.exp().exp()),
        ("exp of a quotient", NEAR, lambda x, y: (x / y).exp(), lambda x, y: x.exp() / y.exp()),
        ("exp of equal quotients", EQUAL, lambda x, y: (x / y).exp(), lambda x, y: (x * x / (x * y)).exp()),
        ("sigmoid", EQUAL, lambda x, y: x.f("sigmoid") * y, lambda x, y: x.exp() / (x.exp() + 1.0) * y),
        ("silu", EQUAL, lambda x, y: x.f("silu") * y, lambda x, y: x * y * x.f("sigmoid")),
        ("silu and sigmoid", NEAR, lambda x, y: x.f("silu") * y, lambda x, y: x.f("sigmoid") * y),
        ("tanh", EQUAL, lambda x, y: x.f("tanh") * y, lambda x, y: ((x * 2.0).f("sigmoid") * 2.0 - 1.0) * y),
        ("tanh of half", NEAR, lambda x, y: x.f("tanh") * y, lambda x, y: (x.f("sigmoid") * 2.0 - 1.0) * y),
        ("gelu", EQUAL, lambda x, y: x.f("gelu") * y, lambda x, y: x * ((x * math.sqrt(0.5)).f("erf") + 1.0) * 0.5 * y),
        ("gelu by tanh", NEAR, lambda x, y: x.f("gelu") * y,
         lambda x, y: x * 0.5 * (((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).f("tanh") + 1.0) * y),
        ("power in the exponent", EQUAL, lambda x, y: x.exp().f("pow", exponent=3.0) + y, lambda x, y: (x * 3.0).exp() + y),
        ("cosh", EQUAL, lambda x, y: (x.exp() + (-x).exp()) * y, lambda x, y: ((x * 2.0).exp() + 1.0) / x.exp() * y),
        ("sinh for cosh", NEAR, lambda x, y: (x.exp() + (-x).exp()) * y, lambda x, y: (x.exp() - (-x).exp()) * y),
        ("sum over the exponents", NEAR, lambda x, y: (x.exp() @ y.t()) / x.exp().sum(1), lambda x, y: (x.exp() @ y.t()) / x.sum(1).exp()),
        ("softmax of logs", NEAR, lambda x, y: x.f("log").softmax(1) * y, lambda x, y: x / x.sum(1) * y),
        ("log of a sum of exponentials", EQUAL, lambda x, y: x.exp().sum(1).f("log") + y, lambda x, y: (x + 0.0).exp().sum(1).f("log") + y),
        ("log of a sum, shifted", EQUAL, lambda x, y: x.exp().sum(1).f("log") * y,
         lambda x, y: ((x - x.over("max", 1)).exp().sum(1).f("log") + x.over("max", 1)) * y),
        ("log of a sum, wrong shift", NEAR, lambda x, y: x.exp().sum(1).f("log") * y,
         lambda x, y: ((x - x.over("max", 1)).exp().sum(1).f("log") - x.over("max", 1)) * y),
        ("sin of a sum", NEAR, lambda x, y: (x + y).f("sin"), lambda x, y: x.f("sin") + y.f("sin")),
        ("sin of equal sums", EQUAL, lambda x, y: (x + y + x).f("sin"), lambda x, y: (x * 2.0 + y).f("sin")),
        ("sin and cos", NEAR, lambda x, y: x.f("sin") * y, lambda x, y: x.f("cos") * y),
        ("uninterpreted of equal arguments", EQUAL, lambda x, y: ((x + y) * (x - y)).f("erf"), lambda x, y: (x * x - y * y).f("erf")),
        ("uninterpreted of others", NEAR, lambda x, y: ((x + y) * (x - y)).f("erf"), lambda x, y: (x * x + y * y).f("erf")),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)
