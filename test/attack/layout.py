"""Pairs about where elements are: cuts, slices, transposes, broadcasts, operands, dtypes, memory, large extents."""

from __future__ import annotations

import numpy as np
from pairs import EQUAL, NEAR, Draw, Four, Pair, T, Three, Two, family


@family("unrelated cuts", weight=3, large=True)
def unrelated_cuts(d: Draw) -> Pair:
    """One dimension cut at several places, in products and reductions."""
    s = 700 if d.large else 1
    u, v = d.extent(1, 5) * s, d.extent(1, 5) * s
    m, n = d.extent(1, 3, 2000), u + v
    first = min(u, v)
    same = EQUAL if u == v else NEAR

    def rows(x: T, cut: int) -> tuple[T, T]:
        return x.cut(1, 0, cut), x.cut(1, cut, n - cut)

    forms: list[Four] = [
        ("product of concatenations", NEAR if u != v else EQUAL,
         lambda a, b, c, e: a.cat(1, b) * c.cat(1, e),
         lambda a, b, c, e: (a * c.cut(1, 0, u) if v >= u else (a.cut(1, 0, v) * c)).cat(1, *_rest(a, b, c, e, u, v))),
        ("concatenation of products", EQUAL, lambda a, b, c, e: a.cat(1, b) * e.cat(1, c), lambda a, b, c, e: (a * e).cat(1, b * c)),
        ("sum of concatenations", same, lambda a, b, c, e: a.cat(1, b) + e.cat(1, c), lambda a, b, c, e: b.cat(1, a) + c.cat(1, e)),
        ("turned round", NEAR, lambda a, b, c, e: a.cat(1, b).sum(1) * (c.cat(1, e) * a.cat(1, b)).sum(1),
         lambda a, b, c, e: b.cat(1, a).sum(1) * (e.cat(1, c) * a.cat(1, b)).sum(1)),
        ("sum is blind to order", EQUAL, lambda a, b, c, e: a.cat(1, b).sum(1) + c.sum(1), lambda a, b, c, e: b.cat(1, a).sum(1) + c.sum(1)),
        ("product summed", EQUAL, lambda a, b, c, e: a.cat(1, b) @ e.cat(1, c).t(), lambda a, b, c, e: a @ e.t() + b @ c.t()),
        ("product summed, other cut", NEAR, lambda a, b, c, e: a.cat(1, b) @ c.cat(1, e).t(),
         lambda a, b, c, e: a.cat(1, b).cut(1, 0, v) @ c.t() + a.cat(1, b).cut(1, v, u) @ e.t() + _little(a, b)),
        ("product summed, its own cuts", EQUAL, lambda a, b, c, e: a.cat(1, b) @ c.cat(1, e).t(),
         lambda a, b, c, e: a.cat(1, b).cut(1, 0, v) @ c.t() + a.cat(1, b).cut(1, v, u) @ e.t()),
        ("product summed, turned", NEAR, lambda a, b, c, e: a.cat(1, b) @ c.cat(1, e).t(), lambda a, b, c, e: b.cat(1, a) @ e.cat(1, c).t() + _little(a, b)),
        ("cut and joined", EQUAL, lambda a, b, c, e: (a.cat(1, b) * c.cat(1, e)).cat(0, b.cat(1, a)),
         lambda a, b, c, e: _joined(a.cat(1, b) * c.cat(1, e), first).cat(0, b.cat(1, a))),
        ("cut and joined the other way", NEAR, lambda a, b, c, e: a.cat(1, b) * c.cat(1, e),
         lambda a, b, c, e: _turned(a.cat(1, b) * c.cat(1, e), u)),
        ("two cuts", NEAR if u != v else EQUAL, lambda a, b, c, e: a.cat(1, b).cut(1, u, v) + c, lambda a, b, c, e: a.cat(1, b).cut(1, v, u).sum(1) * 0.0 + a.cat(1, b).cut(1, 0, v) + c),
        ("maxima of parts", EQUAL, lambda a, b, c, e: a.cat(1, b).over("max", 1) + c.cat(1, e).over("max", 1),
         lambda a, b, c, e: a.over("max", 1).top(b.over("max", 1)) + c.over("max", 1).top(e.over("max", 1))),
        ("softmax over joined", EQUAL, lambda a, b, c, e: a.cat(1, b).softmax(1) @ e.cat(1, c).t(),
         lambda a, b, c, e: (a.exp() @ e.t() + b.exp() @ c.t()) / (a.exp().sum(1) + b.exp().sum(1))),
        ("softmax over joined, other cut", NEAR, lambda a, b, c, e: a.cat(1, b).softmax(1) @ c.cat(1, e).t(),
         lambda a, b, c, e: (b.cat(1, a).exp() @ e.cat(1, c).t() + _little(a, b)) / (a.exp().sum(1) + b.exp().sum(1))),
        ("sums of parts", EQUAL, lambda a, b, c, e: sum_of(rows(a.cat(1, b) * c.cat(1, e), v)), lambda a, b, c, e: (a.cat(1, b) * c.cat(1, e)).sum(1)),
        ("sums of parts, twice one", NEAR, lambda a, b, c, e: sum_of(rows(a.cat(1, b) * c.cat(1, e), v)),
         lambda a, b, c, e: sum_of((*rows(a.cat(1, b), u), c * 0.0))),
    ]  # fmt: skip
    return d.table([(m, u), (m, v), (m, v), (m, u)], forms)


def _rest(a: T, b: T, c: T, e: T, u: int, v: int) -> list[T]:
    """What makes a concatenation of as many elements, each times some other."""
    if u == v:
        return [b * e]
    low, high = min(u, v), abs(u - v)
    if v >= u:
        return [
            b.cut(1, 0, high) * c.cut(1, 0, high) if high <= v else b,
            b.cut(1, 0, low) * e.cut(1, 0, low),
        ][:2]
    return [a.cut(1, 0, high) * e.cut(1, 0, high), b * e.cut(1, high, low)]


def _little(a: T, b: T) -> T:
    return a.sum(1) * b.sum(1) * 0.0


def _joined(x: T, at: int) -> T:
    return x.cut(1, 0, at).cat(1, x.cut(1, at, x.shape[1] - at))


def _turned(x: T, at: int) -> T:
    return x.cut(1, at, x.shape[1] - at).cat(1, x.cut(1, 0, at))


def sum_of(parts: tuple[T, ...]) -> T:
    total = parts[0].sum(1)
    for part in parts[1:]:
        total = total + part.sum(1)
    return total


@family("cuts of spread rows", weight=3, large=True)
def cuts_of_spread_rows(d: Draw) -> Pair:
    """Concatenations of broadcast columns and constants: their cuts meet no slice, only other cuts."""
    s = 1000 if d.large else 1
    u, v = d.rng.sample(range(1, 7), 2)
    u, v = u * s, v * s
    if d.rng.random() < 0.1:
        v = u
    m, n, c, e = d.extent(1, 3, 3000), u + v, d.number(), d.number() + 1.0
    same = EQUAL if u == v else NEAR

    def wide(x: T, size: int) -> T:
        return x.to(m, size)

    def joined(x: T, y: T, first: int) -> T:
        return wide(x, first).cat(1, wide(y, n - first))

    def mask(x: T, low: float, high: float, first: int) -> T:
        return x.const(low, m, first).cat(1, x.const(high, m, n - first))

    forms: list[Four] = [
        ("product of cuts", same, lambda a, b, p, q: a.cat(1, b) * joined(p, q, v), lambda a, b, p, q: (a * p).cat(1, b * q)),
        ("product of the same cuts", EQUAL, lambda a, b, p, q: a.cat(1, b) * joined(p, q, u), lambda a, b, p, q: (a * p).cat(1, b * q)),
        ("two cuts", same, lambda a, b, p, q: a.cat(1, b) * joined(p, q, v), lambda a, b, p, q: a.cat(1, b) * joined(p, q, u)),
        ("two cuts that commute", EQUAL, lambda a, b, p, q: a.cat(1, b) * joined(p, q, v) * joined(q, p, u), lambda a, b, p, q: a.cat(1, b) * joined(q, p, u) * joined(p, q, v)),
        ("two cuts exchanged", same, lambda a, b, p, q: a.cat(1, b) * joined(p, q, v) * joined(q, p, u), lambda a, b, p, q: a.cat(1, b) * joined(p, q, u) * joined(q, p, v)),
        ("sum of a product of cuts", same, lambda a, b, p, q: (a.cat(1, b) * joined(p, q, v)).sum(1), lambda a, b, p, q: a.sum(1) * p + b.sum(1) * q),
        ("sum of a product of the same cuts", EQUAL, lambda a, b, p, q: (a.cat(1, b) * joined(p, q, u)).sum(1), lambda a, b, p, q: a.sum(1) * p + b.sum(1) * q),
        ("matrix product of cuts", same, lambda a, b, p, q: a.cat(1, b) @ joined(p, q, v).t(), lambda a, b, p, q: a @ wide(p, u).t() + b @ wide(q, v).t()),
        ("matrix product of the same cuts", EQUAL, lambda a, b, p, q: a.cat(1, b) @ joined(p, q, u).t(), lambda a, b, p, q: a @ wide(p, u).t() + b @ wide(q, v).t()),
        ("constants of another cut", same, lambda a, b, p, q: a.cat(1, b) * mask(a, c, e, v), lambda a, b, p, q: (a * c).cat(1, b * e)),
        ("constants of the same cut", EQUAL, lambda a, b, p, q: a.cat(1, b) * mask(a, c, e, u), lambda a, b, p, q: (a * c).cat(1, b * e)),
        ("zeros of another cut", same, lambda a, b, p, q: a.cat(1, b) * mask(a, 1.0, 0.0, v), lambda a, b, p, q: a.cat(1, b.const(0.0, m, v))),
        ("zeros of the same cut", EQUAL, lambda a, b, p, q: a.cat(1, b) * mask(a, 1.0, 0.0, u), lambda a, b, p, q: a.cat(1, b.const(0.0, m, v))),
        ("mask of another cut", same, lambda a, b, p, q: (a.cat(1, b) + mask(a, 0.0, -np.inf, v)).softmax(1), lambda a, b, p, q: a.softmax(1).cat(1, b.const(0.0, m, v))),
        ("mask of the same cut", EQUAL, lambda a, b, p, q: (a.cat(1, b) + mask(a, 0.0, -np.inf, u)).softmax(1), lambda a, b, p, q: a.softmax(1).cat(1, b.const(0.0, m, v))),
        ("maximum of another cut", same, lambda a, b, p, q: (a.cat(1, b) + mask(a, 0.0, -np.inf, v)).over("max", 1) * p, lambda a, b, p, q: a.over("max", 1) * p),
        ("maximum of the same cut", EQUAL, lambda a, b, p, q: (a.cat(1, b) + mask(a, 0.0, -np.inf, u)).over("max", 1) * p, lambda a, b, p, q: a.over("max", 1) * p),
        ("constants cut twice", same, lambda a, b, p, q: mask(a, c, e, v) * p + mask(a, e, c, u) * q, lambda a, b, p, q: mask(a, c, e, u) * p + mask(a, e, c, v) * q),
        ("sums of constants cut", EQUAL, lambda a, b, p, q: mask(a, c, e, v).sum(1) * p + q, lambda a, b, p, q: p * (c * v + e * u) + q),
        ("sums of constants, other cut", same, lambda a, b, p, q: mask(a, c, e, v).sum(1) * p + q, lambda a, b, p, q: p * (c * u + e * v) + q),
        ("turned", NEAR, lambda a, b, p, q: a.cat(1, b) * joined(p, q, v), lambda a, b, p, q: a.cat(1, b) * joined(q, p, u)),
        ("rows spread", NEAR, lambda a, b, p, q: b.cat(1, a) * joined(p, q, u), lambda a, b, p, q: (b * p).cat(1, a * q)) if u != v else
        ("rows spread", EQUAL, lambda a, b, p, q: b.cat(1, a) * joined(p, q, u), lambda a, b, p, q: (b * p).cat(1, a * q)),
    ]  # fmt: skip
    return d.table([(m, u), (m, v), (m, 1), (m, 1)], forms)


@family("three spread parts", weight=2, large=True)
def three_spread_parts(d: Draw) -> Pair:
    """Three parts in one factor, two or three in the other; all cuts are drawn."""
    s = 1000 if d.large else 1
    total = d.rng.randint(4, 9)
    one, two = (sorted(d.rng.sample(range(1, total), 2)) for _ in range(2))
    m, n = d.extent(1, 3, 2500), total * s
    ends = [(*(s * k for k in cuts), n) for cuts in (one, two)]

    def spread(ps: tuple[T, ...], cuts: tuple[int, ...]) -> T:
        sizes = [b - a for a, b in zip((0, *cuts[:-1]), cuts, strict=True)]
        parts = [p.to(m, size) for p, size in zip(ps, sizes, strict=True)]
        return parts[0].cat(1, *parts[1:])

    claim = EQUAL if one == two else NEAR
    shifted = NEAR if one != two or one[0] != one[1] - one[0] or n - ends[0][1] != ends[0][0] else EQUAL
    forms: list[Four] = [
        ("cuts elsewhere", claim, lambda x, p, q, r: x * spread((p, q, r), ends[0]), lambda x, p, q, r: x * spread((p, q, r), ends[1])),
        ("cuts exchanged", claim, lambda x, p, q, r: spread((p, q, r), ends[0]) + spread((q, r, p), ends[1]) * x, lambda x, p, q, r: spread((p, q, r), ends[1]) + spread((q, r, p), ends[0]) * x),
        ("cuts in either order", EQUAL, lambda x, p, q, r: x * spread((p, q, r), ends[0]) * spread((q, r, p), ends[1]), lambda x, p, q, r: spread((q, r, p), ends[1]) * spread((p, q, r), ends[0]) * x),
        ("sum of products", claim, lambda x, p, q, r: (spread((p, q, r), ends[0]) * spread((q, r, p), ends[1])).sum(1), lambda x, p, q, r: (spread((p, q, r), ends[0]) * spread((q, r, p), ends[0])).sum(1)),
        ("matrix product", claim, lambda x, p, q, r: x @ spread((p, q, r), ends[0]).t(), lambda x, p, q, r: x @ spread((p, q, r), ends[1]).t()),
        ("parts turned", shifted, lambda x, p, q, r: x * spread((p, q, r), ends[0]), lambda x, p, q, r: x * spread((q, r, p), ends[1])),
        ("maxima", claim, lambda x, p, q, r: (x * spread((p, q, r), ends[0])).over("max", 1), lambda x, p, q, r: (x * spread((p, q, r), ends[1])).over("max", 1)),
        ("softmax", claim, lambda x, p, q, r: (x + spread((p, q, r), ends[0])).softmax(1), lambda x, p, q, r: (x + spread((p, q, r), ends[1])).softmax(1)),
        ("parts of a cut", EQUAL, lambda x, p, q, r: x * spread((p, p, q), ends[0]), lambda x, p, q, r: x * spread((p, q), ends[0][1:])),
        ("parts of another cut", claim, lambda x, p, q, r: x * spread((p, p, q), ends[0]), lambda x, p, q, r: x * spread((p, q), ends[1][1:])),
    ]  # fmt: skip
    return d.table([(m, n), (m, 1), (m, 1), (m, 1)], forms)


@family("several cuts", weight=2, large=True)
def several_cuts(d: Draw) -> Pair:
    """A dimension cut in three or four, elsewhere in other places; blocks exchanged, moved, repeated."""
    s = 500 if d.large else 1
    sizes = [d.extent(1, 3) * s for _ in range(d.pick(3, 4))]
    order = list(range(len(sizes)))
    d.rng.shuffle(order)
    m, n = d.extent(1, 3, 2000), sum(sizes)
    i, j = d.rng.sample(range(len(sizes)), 2)
    starts = np.cumsum([0, *sizes]).tolist()
    moved = [d.rng.randrange(0, n - size + 1) // s * s for size in sizes]

    def parts(x: T) -> list[T]:
        return [x.cut(1, a, size) for a, size in zip(starts, sizes, strict=False)]

    def elsewhere(x: T) -> list[T]:
        return [x.cut(1, a, size) for a, size in zip(moved, sizes, strict=True)]

    def joined(xs: list[T]) -> T:
        return xs[0].cat(1, *xs[1:])

    def exchanged(xs: list[T]) -> list[T]:
        ys = list(xs)
        ys[i], ys[j] = ys[j], ys[i]
        return ys

    def padded(x: T, y: T, at: int) -> T:
        """x with zeros in place of one block."""
        zero = x.const(0.0, m, sizes[at])
        return joined([zero if b == at else p for b, p in enumerate(parts(x))]) * y

    forms: list[Two] = [
        ("blocks in order", EQUAL, lambda x, y: joined(parts(x)) * y, lambda x, y: x * y),
        ("blocks exchanged", NEAR, lambda x, y: joined(exchanged(parts(x))) * y, lambda x, y: x * y),
        ("blocks exchanged in both", NEAR, lambda x, y: joined(exchanged(parts(x))) * joined(exchanged(parts(y))), lambda x, y: x * y),
        ("blocks exchanged in a product", EQUAL, lambda x, y: joined(exchanged(parts(x))) @ joined(exchanged(parts(y))).t(), lambda x, y: x @ y.t()),
        ("blocks exchanged in one factor", NEAR, lambda x, y: joined(exchanged(parts(x))) @ y.t(), lambda x, y: x @ y.t()),
        ("blocks from elsewhere", NEAR if moved != starts[:-1] else EQUAL, lambda x, y: joined(elsewhere(x)) * y, lambda x, y: x * y),
        ("blocks from elsewhere, summed", NEAR if moved != starts[:-1] else EQUAL, lambda x, y: joined(elsewhere(x)) @ y.t(), lambda x, y: x @ y.t()),
        ("sum of blocks", EQUAL, lambda x, y: sum_of(tuple(parts(x * y))), lambda x, y: (x * y).sum(1)),
        ("sum of other blocks", NEAR if moved != starts[:-1] else EQUAL, lambda x, y: sum_of(tuple(elsewhere(x * y))), lambda x, y: (x * y).sum(1)),
        ("zeros in a block", NEAR, lambda x, y: padded(x, y, i), lambda x, y: padded(x, y, j)),
        ("zeros in a block of a product", NEAR, lambda x, y: padded(x, y, i).sum(1), lambda x, y: padded(y, x, j).sum(1)),
        ("zeros in either factor", EQUAL, lambda x, y: padded(x, y, i), lambda x, y: padded(y, x, i)),
        ("zeros in both", EQUAL, lambda x, y: padded(x, padded(y, x, i), i), lambda x, y: padded(x, y * x, i)),
        ("written in", EQUAL, lambda x, y: x.f("update_slice", y.cut(1, starts[i], sizes[i]), dim=1, offset=starts[i]) * y,
         lambda x, y: joined([q if b == i else p for b, (p, q) in enumerate(zip(parts(x), parts(y), strict=True))]) * y),
        ("written elsewhere", NEAR if moved[i] != starts[i] else EQUAL, lambda x, y: x.f("update_slice", y.cut(1, starts[i], sizes[i]), dim=1, offset=starts[i]),
         lambda x, y: x.f("update_slice", y.cut(1, starts[i], sizes[i]), dim=1, offset=moved[i])),
        ("read from elsewhere", NEAR if moved[i] != starts[i] else EQUAL, lambda x, y: x.cut(1, starts[i], sizes[i]) * y.cut(1, starts[i], sizes[i]),
         lambda x, y: x.cut(1, starts[i], sizes[i]) * y.cut(1, moved[i], sizes[i])),
        ("maxima of other blocks", NEAR if moved != starts[:-1] else EQUAL, lambda x, y: joined(elsewhere(x)).over("max", 1) * y, lambda x, y: x.over("max", 1) * y),
        ("permuted and back", EQUAL, lambda x, y: joined([joined([parts(x)[b] for b in order]).cut(1, sum(sizes[c] for c in order[: order.index(b)]), sizes[b])
         for b in range(len(sizes))]) * y, lambda x, y: x * y),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


@family("slices and pads", weight=2, large=True)
def slices_and_pads(d: Draw) -> Pair:
    s = 600 if d.large else 1
    m, n = d.extent(2, 4, 1500), 2 * d.extent(2, 4) * s
    size = d.rng.randint(1, n // s - 1) * s
    at = d.rng.randint(0, n // s - size // s) * s
    off = 1 if at + size < n else -1
    wide = d.rng.randint(1, 3)

    def padded(x: T, before: int, after: int, value: float = 0.0) -> T:
        parts = [x.const(value, m, before)] if before else []
        parts.append(x)
        parts += [x.const(value, m, after)] if after else []
        return parts[0].cat(1, *parts[1:]) if len(parts) > 1 else x

    forms: list[Two] = [
        ("off by one", NEAR, lambda x, y: x.cut(1, at, size) * 2.0, lambda x, y: x.cut(1, at + off, size) * 2.0),
        ("off by one in a sum", NEAR, lambda x, y: x.cut(1, at, size).sum(1) * y, lambda x, y: x.cut(1, at + off, size).sum(1) * y),
        ("off by one in a product", NEAR, lambda x, y: x.cut(1, at, size) @ y.cut(1, at, size).t(), lambda x, y: x.cut(1, at, size) @ y.cut(1, at + off, size).t()),
        ("one element fewer", NEAR, lambda x, y: x.sum(1) * y, lambda x, y: x.cut(1, 0, n - 1).sum(1) * y),
        ("slice of a sum", EQUAL, lambda x, y: (x + y).cut(1, at, size), lambda x, y: x.cut(1, at, size) + y.cut(1, at, size)),
        ("slice of a product", EQUAL, lambda x, y: (x @ y.t()).cut(0, 0, 1), lambda x, y: x.cut(0, 0, 1) @ y.t()),
        ("slice of a slice", EQUAL, lambda x, y: x.cut(1, 1, n - 1).cut(1, 1, n - 2) * 3.0, lambda x, y: x.cut(1, 2, n - 2) * 3.0),
        ("slice of a slice, off", NEAR, lambda x, y: x.cut(1, 1, n - 1).cut(1, 0, n - 2) * 3.0, lambda x, y: x.cut(1, 2, n - 2) * 3.0),
        ("stride", NEAR, lambda x, y: x.cut(1, 0, n // 2, 2) * 2.0, lambda x, y: x.cut(1, 0, n // 2, 1) * 2.0),
        ("stride, other start", NEAR, lambda x, y: x.cut(1, 0, n // 2, 2) * 2.0, lambda x, y: x.cut(1, 1, n // 2, 2) * 2.0),
        ("odd and even sum", EQUAL, lambda x, y: x.sum(1) * y, lambda x, y: (x.cut(1, 0, n // 2, 2).sum(1) + x.cut(1, 1, n // 2, 2).sum(1)) * y),
        ("pad and cut", EQUAL, lambda x, y: padded(x, wide, 2).cut(1, wide, n) * y, lambda x, y: x * y),
        ("pad and cut, off", NEAR, lambda x, y: padded(x, wide, 2).cut(1, wide + 1, n) * y, lambda x, y: x * y),
        ("pads on the other side", NEAR, lambda x, y: padded(x, wide, 0) * 2.0, lambda x, y: padded(x, 0, wide) * 2.0),
        ("pad before a function", EQUAL, lambda x, y: padded(x, wide, 1).f("relu"), lambda x, y: padded(x.f("relu"), wide, 1)),
        ("pad before exp", NEAR, lambda x, y: padded(x, wide, 1).exp(), lambda x, y: padded(x.exp(), wide, 1)),
        ("pad of exp is exp of minus infinity", EQUAL, lambda x, y: padded(x, wide, 1, -np.inf).exp() * 2.0, lambda x, y: padded(x.exp(), wide, 1) * 2.0),
        ("pad with 1", NEAR, lambda x, y: padded(x, 1, 1, 1.0) * 2.0, lambda x, y: padded(x, 1, 1, 0.0) * 2.0),
        ("padded sum", EQUAL, lambda x, y: padded(x, wide, 1).sum(1) * y, lambda x, y: x.sum(1) * y),
        ("padded maximum", NEAR, lambda x, y: padded(x, wide, 1).over("max", 1) * y, lambda x, y: x.over("max", 1) * y),
        ("padded maximum, masked", EQUAL, lambda x, y: padded(x, wide, 1, -np.inf).over("max", 1) * y, lambda x, y: x.over("max", 1) * y),
        ("padded mean", NEAR, lambda x, y: padded(x, wide, 1).over("mean", 1) * y, lambda x, y: x.over("mean", 1) * y),
        ("padded product", EQUAL, lambda x, y: padded(x, wide, 1) @ padded(y, wide, 1).t(), lambda x, y: x @ y.t()),
        ("padded product, shifted", NEAR, lambda x, y: padded(x, wide, 1) @ padded(y, 0, wide + 1).t(), lambda x, y: x @ y.t()),
        ("shift of differences", NEAR, lambda x, y: x.cut(1, 1, n - 1) - x.cut(1, 0, n - 1), lambda x, y: x.cut(1, 0, n - 1) - x.cut(1, 1, n - 1)),
        ("telescope", EQUAL, lambda x, y: (x.cut(1, 1, n - 1) - x.cut(1, 0, n - 1)).sum(1) * y, lambda x, y: (x.cut(1, n - 1, 1) - x.cut(1, 0, 1)) * y),
        ("telescope, turned", NEAR, lambda x, y: (x.cut(1, 1, n - 1) - x.cut(1, 0, n - 1)).sum(1) * y, lambda x, y: (x.cut(1, 0, 1) - x.cut(1, n - 1, 1)) * y),
        ("window of three", NEAR, lambda x, y: x.cut(1, 0, n - 2) + x.cut(1, 1, n - 2) + x.cut(1, 2, n - 2), lambda x, y: x.cut(1, 0, n - 2) + x.cut(1, 1, n - 2) * 2.0),
        ("written at an offset", NEAR, lambda x, y: x.f("update_slice", y.cut(1, 0, size), dim=1, offset=at), lambda x, y: x.f("update_slice", y.cut(1, 0, size), dim=1, offset=at + off)),
        ("written over", EQUAL, lambda x, y: x.f("update_slice", y, dim=1, offset=0) * 2.0, lambda x, y: y * 2.0),
        ("repeated", NEAR, lambda x, y: x.f("repeat", dim=1, times=2) * 2.0, lambda x, y: x.cat(1, y) * 2.0),
        ("repeated is concatenated", EQUAL, lambda x, y: x.f("repeat", dim=1, times=3), lambda x, y: x.cat(1, x, x)),
    ]  # fmt: skip
    return d.table([(m, n), (m, n)], forms)


@family("squares and transposes", weight=2, large=True)
def squares_and_transposes(d: Draw) -> Pair:
    n = d.extent(2, 5, 600)
    forms: list[Two] = [
        ("transposed square", NEAR, lambda x, y: x.t() + y, lambda x, y: x + y),
        ("transposed product", EQUAL, lambda x, y: (x @ y).t(), lambda x, y: y.t() @ x.t()),
        ("transposed product, order kept", NEAR, lambda x, y: (x @ y).t(), lambda x, y: x.t() @ y.t()),
        ("operands swapped", NEAR, lambda x, y: x @ y, lambda x, y: y @ x),
        ("Gram matrices", NEAR, lambda x, y: x @ x.t() + y, lambda x, y: x.t() @ x + y),
        ("Gram matrix is symmetric", EQUAL, lambda x, y: x @ x.t() + y, lambda x, y: (x @ x.t()).t() + y),
        ("flags", EQUAL, lambda x, y: x.f("matmul", y, transpose_b=True), lambda x, y: x @ y.t()),
        ("flag on the other operand", NEAR, lambda x, y: x.f("matmul", y, transpose_b=True), lambda x, y: x.f("matmul", y, transpose_a=True)),
        ("both flags", EQUAL, lambda x, y: x.f("matmul", y, transpose_a=True, transpose_b=True), lambda x, y: (y @ x).t()),
        ("both flags, not swapped", NEAR, lambda x, y: x.f("matmul", y, transpose_a=True, transpose_b=True), lambda x, y: (x @ y).t()),
        ("flag missing", NEAR, lambda x, y: x.f("matmul", y, transpose_a=True), lambda x, y: x @ y),
        ("sum over rows or columns", NEAR, lambda x, y: x.sum(1, keep=False) * y, lambda x, y: x.sum(0, keep=False) * y),
        ("row or column broadcast", NEAR, lambda x, y: x.sum(1) * y, lambda x, y: x.sum(1).t() * y),
        ("sum of transposed", EQUAL, lambda x, y: x.t().sum(0) * y, lambda x, y: x.sum(1).t() * y),
        ("broadcast against the wrong axis", NEAR, lambda x, y: y + x.sum(1, keep=False), lambda x, y: y + x.sum(1, keep=False).reshape(n, 1)),
        ("twice transposed", EQUAL, lambda x, y: x.t().t() + y, lambda x, y: x + y),
        ("reshape for transpose", NEAR, lambda x, y: x.t().reshape(n * n), lambda x, y: x.reshape(n * n)),
        ("trace is blind to order", EQUAL, lambda x, y: (x * y.t()).sum(0, 1) * x, lambda x, y: (x.t() * y).sum(0, 1) * x),
        ("sum of products", NEAR, lambda x, y: (x @ y).sum(0, 1) * x, lambda x, y: (y @ x).sum(0, 1) * x),
        ("sum of a product by sums", EQUAL, lambda x, y: (x @ y).sum(0, 1) * x, lambda x, y: (x.sum(0) @ y.sum(1)) * x),
        ("softmax over rows or columns", NEAR, lambda x, y: x.softmax(1) @ y, lambda x, y: x.softmax(0) @ y),
        ("softmax of transposed", EQUAL, lambda x, y: x.t().softmax(0) * y, lambda x, y: x.softmax(1).t() * y),
        ("attention without transpose", NEAR, lambda x, y: (x @ y.t()).softmax(1) @ y, lambda x, y: (x @ y).softmax(1) @ y),
        ("scores transposed", NEAR, lambda x, y: (x @ y.t()).softmax(1), lambda x, y: (y @ x.t()).softmax(1)),
        ("associative", EQUAL, lambda x, y: (x @ y) @ x, lambda x, y: x @ (y @ x)),
        ("commuted in a chain", NEAR, lambda x, y: (x @ y) @ x, lambda x, y: (y @ x) @ x),
        ("symmetric part", EQUAL, lambda x, y: (x + x.t()) * y + 0.0, lambda x, y: (x.t() + x) * y),
        ("product with symmetric", EQUAL, lambda x, y: y @ (x + x.t()), lambda x, y: ((x + x.t()) @ y.t()).t()),
        ("product with symmetric, order", NEAR, lambda x, y: y @ (x + x.t()), lambda x, y: (x + x.t()) @ y),
        ("antisymmetric", NEAR, lambda x, y: x - x.t() + y, lambda x, y: x.t() - x + y),
    ]  # fmt: skip
    return d.table([(n, n), (n, n)], forms)


@family("equal extents", weight=2, large=True)
def equal_extents(d: Draw) -> Pair:
    """Several dimensions of one extent: maps that confuse them change no type."""
    n = d.extent(2, 3, 40)
    p = d.pick((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))
    i, j = d.rng.sample(range(3), 2)
    back = tuple(p.index(k) for k in range(3))
    forms: list[Two] = [
        ("permuted", NEAR, lambda x, y: x.t(*p) * y, lambda x, y: x * y),
        ("permuted and back", EQUAL, lambda x, y: x.t(*p).t(*back) * y, lambda x, y: x * y),
        ("permuted twice", NEAR if p in ((1, 2, 0), (2, 0, 1)) else EQUAL, lambda x, y: x.t(*p).t(*p) * y, lambda x, y: x * y),
        ("summed over another", NEAR, lambda x, y: x.sum(i, keep=False) + y.sum(j, keep=False), lambda x, y: x.sum(j, keep=False) + y.sum(i, keep=False)),
        ("kept or not", NEAR, lambda x, y: x.sum(i) * y, lambda x, y: x.sum(j) * y),
        ("broadcast", NEAR, lambda x, y: x.sum(i, keep=False) * y, lambda x, y: x.sum(i) * y) if i else
        ("broadcast", EQUAL, lambda x, y: x.sum(i, keep=False) * y, lambda x, y: x.sum(i) * y),
        ("batched product", NEAR, lambda x, y: x @ y, lambda x, y: (x.t(1, 0, 2) @ y.t(1, 0, 2)).t(1, 0, 2)),
        ("batched product, batch moved", EQUAL, lambda x, y: (x @ y).t(1, 0, 2), lambda x, y: (x @ y).t(2, 0, 1).t(2, 1, 0)),
        ("batch reversed", NEAR, lambda x, y: x @ y, lambda x, y: x @ y.cut(0, 1, n - 1).cat(0, y.cut(0, 0, 1))),
        ("softmax along another", NEAR, lambda x, y: x.softmax(i) * y, lambda x, y: x.softmax(j) * y),
        ("reduced in steps", EQUAL, lambda x, y: x.sum(i, j) * y, lambda x, y: x.sum(i).sum(j) * y),
        ("reduced together", NEAR, lambda x, y: x.sum(0, 1) * y, lambda x, y: x.sum(1, 2) * y),
        ("reshaped", EQUAL, lambda x, y: x.reshape(n * n, n).sum(0) * y, lambda x, y: x.sum(0, 1) * y),
        ("reshaped the other way", NEAR, lambda x, y: x.reshape(n * n, n).sum(1, keep=False).reshape(n, n) * y, lambda x, y: x.reshape(n, n * n).sum(0, keep=False).reshape(n, n) * y),
        ("heads", NEAR, lambda x, y: x.t(1, 0, 2).reshape(n, n * n), lambda x, y: x.reshape(n, n * n)),
        ("heads and back", EQUAL, lambda x, y: x.t(1, 0, 2).reshape(n, n * n).reshape(n, n, n).t(1, 0, 2) * y, lambda x, y: x * y),
        ("heads confused", NEAR, lambda x, y: (x.reshape(n, n * n) * 2.0).reshape(n, n, n).t(1, 0, 2) * y, lambda x, y: (x * 2.0) * y),
        ("tile for repeat", NEAR, lambda x, y: x.f("repeat", dim=0, times=2), lambda x, y: x.reshape(n, 1, n, n).to(n, 2, n, n).reshape(2 * n, n, n)),
        ("repeat as broadcast", EQUAL, lambda x, y: x.f("repeat", dim=0, times=2), lambda x, y: x.reshape(1, n, n, n).to(2, n, n, n).reshape(2 * n, n, n)),
        ("bias along another", NEAR, lambda x, y: x + y.sum(0, 1, keep=False), lambda x, y: x + y.sum(0, 1, keep=False).reshape(n, 1)),
    ]  # fmt: skip
    d.plain = True
    return d.table([(n, n, n), (n, n, n)], forms)


@family("operands", weight=2, large=True)
def operands(d: Draw) -> Pair:
    """Inputs that are exchanged, duplicated, unused; outputs in another order."""
    m, n, c = d.extent(2, 4, 1500), d.extent(2, 4, 600), d.number()
    d.plain = True
    forms: list[Three] = [
        ("exchanged", NEAR, lambda x, y, z: x - y, lambda x, y, z: y - x),
        ("exchanged in a sum", EQUAL, lambda x, y, z: x + y + z, lambda x, y, z: z + y + x),
        ("duplicated", NEAR, lambda x, y, z: x * x, lambda x, y, z: x * y),
        ("duplicated, twice", NEAR, lambda x, y, z: x + x + y, lambda x, y, z: x + y + y),
        ("unused", EQUAL, lambda x, y, z: x * 2.0, lambda x, y, z: x + x),
        ("another unused", NEAR, lambda x, y, z: x * z, lambda x, y, z: y * z),
        ("unused, then multiplied by 0", EQUAL, lambda x, y, z: x * 2.0, lambda x, y, z: x + x + y * 0.0),
        ("unused, then cancelled", EQUAL, lambda x, y, z: x + y, lambda x, y, z: x + z + y - z),
        ("outputs", EQUAL, lambda x, y, z: (x + y, y * z), lambda x, y, z: (y + x, z * y)),
        ("outputs exchanged", NEAR, lambda x, y, z: (x + y, y * z), lambda x, y, z: (y * z, x + y)),
        ("an output twice", NEAR, lambda x, y, z: (x + y, x + y), lambda x, y, z: (x + y, x + z)),
        ("an output twice, the same", EQUAL, lambda x, y, z: (x + y, x + y), lambda x, y, z: (x + y, y + x)),
        ("an input handed back", EQUAL, lambda x, y, z: (x, y * z), lambda x, y, z: (x, z * y)),
        ("another input handed back", NEAR, lambda x, y, z: (x, y * z), lambda x, y, z: (y, y * z)),
        ("an input times 1", EQUAL, lambda x, y, z: (x * 1.0, y), lambda x, y, z: (x, y)),
        ("one of two outputs wrong", NEAR, lambda x, y, z: (x * c, x * y + z), lambda x, y, z: (x * c, x * z + y)),
        ("dead code", EQUAL, lambda x, y, z: dead(x * y, y.exp()), lambda x, y, z: y * x),
        ("dead code that is undefined", EQUAL, lambda x, y, z: dead(x * y, y / (z * 2.0)), lambda x, y, z: y * x),
        ("a sum of all", NEAR, lambda x, y, z: x * y + y * z + z * x, lambda x, y, z: x * y + y * z + z * z),
        ("distributed", EQUAL, lambda x, y, z: x * (y + z), lambda x, y, z: x * y + x * z),
        ("distributed into one", NEAR, lambda x, y, z: x * (y + z), lambda x, y, z: x * y + z),
        ("products", EQUAL, lambda x, y, z: x @ y.t() + x @ z.t(), lambda x, y, z: x @ (y + z).t()),
        ("product with one", NEAR, lambda x, y, z: x @ y.t() + x @ z.t(), lambda x, y, z: x @ y.t() + y @ z.t()),
        ("term dropped", NEAR, lambda x, y, z: x @ y.t() + z @ z.t() * c, lambda x, y, z: x @ y.t()),
        ("mean and sum", NEAR, lambda x, y, z: x.over("mean", 1) * y, lambda x, y, z: x.sum(1) * y),
        ("mean of means", EQUAL, lambda x, y, z: x.over("mean", 1).over("mean", 0) * y, lambda x, y, z: x.over("mean", 0, 1) * y),
        ("mean as a sum", EQUAL, lambda x, y, z: x.over("mean", 1) * y, lambda x, y, z: x.sum(1) / float(n) * y),
        ("mean as a sum, wrong extent", NEAR, lambda x, y, z: x.over("mean", 1) * y, lambda x, y, z: x.sum(1) / float(n + 1) * y),
        ("means of two dimensions", NEAR if m != n else EQUAL, lambda x, y, z: x.over("mean", 1) * y + z.over("mean", 0), lambda x, y, z: x.sum(1) / float(n) * y + z.sum(0) / float(n)),
        ("number that is an extent", NEAR, lambda x, y, z: x.over("mean", 1) * y * float(n), lambda x, y, z: x.sum(1) * y * float(n)),
    ]  # fmt: skip
    return d.table([(m, n), (m, n), (m, n)], forms)


def dead(x: T, _: T) -> T:
    return x


@family("casts")
def casts(d: Draw) -> Pair:
    m, n = d.extent(), d.extent()
    wide, narrow = d.pick(("f32", "f16"), ("f32", "bf16"), ("f16", "bf16"), ("f16", "f32"))
    forms: list[Two] = [
        ("there and back", EQUAL, lambda x, y: x.cast(narrow).cast(wide) * y, lambda x, y: x * y),
        ("sum in another dtype", EQUAL, lambda x, y: (x + y).cast(narrow), lambda x, y: x.cast(narrow) + y.cast(narrow)),
        ("another operand cast", NEAR, lambda x, y: x.cast(narrow) + y.cast(narrow), lambda x, y: x.cast(narrow) + x.cast(narrow)),
        ("result of another dtype", NEAR, lambda x, y: x * y, lambda x, y: (x * y).cast(narrow)),
        ("product", EQUAL, lambda x, y: (x.cast(narrow) @ y.cast(narrow).t()).cast(wide), lambda x, y: x @ y.t()),
        ("product turned", NEAR, lambda x, y: (x.cast(narrow) @ y.cast(narrow).t()).cast(wide), lambda x, y: y @ x.t()),
        ("cast of exp", EQUAL, lambda x, y: (x + y).exp().cast(narrow), lambda x, y: x.cast(narrow).exp() * y.cast(narrow).exp()),
        ("cast and a term lost", NEAR, lambda x, y: (x + y * 2.0**-40).cast(narrow), lambda x, y: x.cast(narrow)),
        ("cast of a constant", EQUAL, lambda x, y: x * x.const(2.0).cast(narrow).cast(wide) + y, lambda x, y: x + x + y),
        ("cast of a third", NEAR, lambda x, y: x * x.const(1 / 3).cast(narrow).cast(wide) + y, lambda x, y: x / 3.0 + y),
        ("cast of infinity", NEAR, lambda x, y: (x.const(-np.inf).cast(narrow).cast(wide) * 0.0) * x, lambda x, y: (x.const(-np.inf).cast(narrow).cast(wide) * 0.0) * y),
    ]  # fmt: skip
    name, claim, first, second = d.rng.choice(forms)
    return d.pair(name, claim, [(m, n), (m, n)], first, second, dtypes=(wide, wide))


@family("integers")
def integers(d: Draw) -> Pair:
    """Opaque operations with integer operands: equal operands of equal types give equal results."""
    m, n, axis = d.extent(2, 3), d.extent(2, 3), d.pick(0, 1)
    kind = d.pick("i32", "i64", "i8", "i1")

    def gather(x: T, i: T, **attrs: int) -> T:
        return x.extern("gather", i, shape=x.shape, dim=attrs.get("dim", axis))

    forms: list[Four] = [
        ("gather, then scaled", EQUAL, lambda x, y, i, j: gather(x, i) * 2.0, lambda x, y, i, j: gather(x, i) + gather(x, i)),
        ("other indices", NEAR, lambda x, y, i, j: gather(x, i) * 2.0, lambda x, y, i, j: gather(x, j) * 2.0),
        ("other table", NEAR, lambda x, y, i, j: gather(x, i) * y, lambda x, y, i, j: gather(y, i) * x),
        ("other dimension", NEAR, lambda x, y, i, j: gather(x, i, dim=0) + y, lambda x, y, i, j: gather(x, i, dim=1) + y),
        ("operands equal", EQUAL, lambda x, y, i, j: gather(x + y, i) * 1.0, lambda x, y, i, j: gather(y + x, i)),
        ("operands not equal", NEAR, lambda x, y, i, j: gather(x + y, i), lambda x, y, i, j: gather(y - x, i)),
        ("additive", NEAR, lambda x, y, i, j: gather(x + y, i), lambda x, y, i, j: gather(x, i) + gather(y, i)),
        ("another operation", NEAR, lambda x, y, i, j: gather(x, i), lambda x, y, i, j: x.extern("take", i, dim=axis)),
        ("integers handed back", NEAR, lambda x, y, i, j: (x * y, i), lambda x, y, i, j: (x * y, j)),
        ("integers handed back, the same", EQUAL, lambda x, y, i, j: (x * y, i), lambda x, y, i, j: (y * x, i)),
        ("integers compared", EQUAL, lambda x, y, i, j: x * i.extern("compare", j, dtype="f32"), lambda x, y, i, j: i.extern("compare", j, dtype="f32") * x),
        ("integers compared, turned", NEAR, lambda x, y, i, j: x * i.extern("compare", j, dtype="f32"), lambda x, y, i, j: x * j.extern("compare", i, dtype="f32")),
        ("nested", NEAR, lambda x, y, i, j: gather(gather(x, i), j), lambda x, y, i, j: gather(gather(x, j), i)),
        ("nested, the same", EQUAL, lambda x, y, i, j: gather(gather(x, i), j) + y, lambda x, y, i, j: y + gather(gather(x, i), j)),
    ]  # fmt: skip
    name, claim, first, second = d.rng.choice(forms)
    return d.pair(
        name, claim, [(m, n), (m, n), (m, n), (m, n)], first, second, dtypes=("f32", "f32", kind, kind)
    )


@family("in-place outputs")
def in_place(d: Draw) -> Pair:
    m, n = d.extent(2, 4), d.extent(2, 5)
    off = d.rng.randrange(0, n)
    a, b = (0, -1), (-1, 0)

    def put(cache: T, row: T, offset: int = -1) -> T:
        return cache.f("update_slice", row, dim=1, offset=off if offset < 0 else offset)

    forms: list[tuple[Three, tuple[int, ...], tuple[int, ...]]] = [
        (("the same memory", EQUAL, lambda c, r, x: (put(c, r), x * 2.0), lambda c, r, x: (put(c, r), x + x)), a, a),
        (("not stated", NEAR, lambda c, r, x: (put(c, r), x * 2.0), lambda c, r, x: (put(c, r), x + x)), a, ()),
        (("another argument", NEAR, lambda c, r, x: (put(c, r), x * 2.0), lambda c, r, x: (put(c, r), x + x)), a, (2, -1)),
        (("another output", NEAR, lambda c, r, x: (put(c, r), put(c, r)), lambda c, r, x: (put(c, r), put(c, r))), a, b),
        (("another offset", NEAR, lambda c, r, x: (put(c, r, 0), x * 2.0), lambda c, r, x: (put(c, r, n - 1), x + x)), a, a),
        (("other contents", NEAR, lambda c, r, x: (put(c, r), x * 2.0), lambda c, r, x: (put(c, r * 2.0), x + x)), a, a),
        (("the old contents read", NEAR, lambda c, r, x: (put(c, r), c * x), lambda c, r, x: (put(c, r), put(c, r) * x)), a, a),
        (("the old contents read, the same", EQUAL, lambda c, r, x: (put(c, r), c * x), lambda c, r, x: (put(c, r), x * c)), a, a),
        (("the new contents read", EQUAL, lambda c, r, x: (put(c, r), put(c, r) * x), lambda c, r, x: newest(put(c, r), x)), a, a),
        (("whole cache", EQUAL, lambda c, r, x: (c + x, x * 2.0), lambda c, r, x: (x + c, x + x)), a, a),
        (("cache handed back", EQUAL, lambda c, r, x: (c, x * 2.0), lambda c, r, x: (c, x + x)), a, a),
        (("cache handed back, changed", NEAR, lambda c, r, x: (c, x * 2.0), lambda c, r, x: (c * 2.0, x + x)), a, a),
    ]  # fmt: skip
    (name, claim, first, second), one, two = d.rng.choice(forms)
    shapes = [(m, n), (m, 1), (m, n)]
    return d.pair(name, claim, shapes, first, second, dtypes=("f32",) * 3, aliases=(one, two))


def newest(cache: T, x: T) -> tuple[T, T]:
    return cache, x * cache
