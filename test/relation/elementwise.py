"""Elementwise comparison of two multilinear programs, by their values at random points modulo a prime.

Each operator is written out here by its documentation, in numpy; nothing is shared with the loop nests of the table.
Elements that are different functions agree at both points with a probability of about 2^-58.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# A table of lambdas on arrays.

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.program import KernelGraph

Array = np.ndarray[Any, Any]
P = 2**31 - 1


def _residue(x: float | Fraction) -> int:
    number = Fraction(x)
    return number.numerator * pow(number.denominator, -1, P) % P


def _times(a: Array, b: Array) -> Array:
    return a * b % P


def _padded(x: Array, low: Any, high: Any, value: float = 0.0) -> Array:
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=_residue(value))


def _window(x: Array, tap: Any, a: Any, count: Any) -> Array:
    """What one kernel position reads of a padded image, for `count` positions of the result."""
    cut = tuple(
        slice(k * d, k * d + (n - 1) * s + 1, s)
        for k, d, s, n in zip(tap, a["dilations"], a["strides"], count, strict=True)
    )
    return x[(..., *cut)]


def _count(x: Array, sizes: Any, a: Any) -> list[int]:
    return [
        (e - d * (k - 1) - 1) // s + 1
        for e, k, d, s in zip(x.shape[-len(sizes) :], sizes, a["dilations"], a["strides"], strict=True)
    ]


def _product(x: Array, w: Array) -> Array:
    """(n, c, ...) by (f, c)."""
    return sum((_times(x[:, None, c], w[:, c].reshape(-1, *(1,) * (x.ndim - 2))) for c in range(w.shape[1])),
               np.zeros((x.shape[0], w.shape[0], *x.shape[2:]), dtype=np.int64)) % P  # fmt: skip


def _conv(x: Array, w: Array, a: Any) -> Array:
    rank = x.ndim - 2
    x = _padded(x, (0, 0, *a["low"]), (0, 0, *a["high"]))
    count, groups = _count(x, w.shape[2:], a), a["groups"]
    found: list[Array] = []
    for g in range(groups):
        part = x[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        columns = w[g * w.shape[0] // groups : (g + 1) * w.shape[0] // groups]
        out: Any = 0
        for tap in itertools.product(*map(range, w.shape[2:])):
            out = out + _product(_window(part, tap, a, count), columns[(..., *tap)])
        found.append(out % P)
    assert rank == len(count)
    return np.concatenate(found, 1)


def _conv_transpose(x: Array, w: Array, a: Any) -> Array:
    groups, depth = a["groups"], x.shape[1] // a["groups"]
    full = [
        (e - 1) * s + d * (k - 1) + 1 + o
        for e, s, d, k, o in zip(
            x.shape[2:], a["strides"], a["dilations"], w.shape[2:], a["extra"], strict=True
        )
    ]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *full), dtype=np.int64)
    for g, tap in itertools.product(range(groups), itertools.product(*map(range, w.shape[2:]))):
        rows = slice(g * depth, (g + 1) * depth)
        at = tuple(
            slice(k * d, k * d + (e - 1) * s + 1, s)
            for k, d, e, s in zip(tap, a["dilations"], x.shape[2:], a["strides"], strict=True)
        )
        columns = slice(g * w.shape[1], (g + 1) * w.shape[1])
        out[(slice(None), columns, *at)] += _product(x[:, rows], w[(rows, slice(None), *tap)].T)
    cut = tuple(slice(a_, n - b) for a_, b, n in zip(a["low"], a["high"], full, strict=True))
    return out[(slice(None), slice(None), *cut)] % P


def _pool_sum(x: Array, a: Any) -> Array:
    x = _padded(x, (0, 0, *a["low"]), (0, 0, *a["high"]))
    count = _count(x, a["sizes"], a)
    out: Any = sum(_window(x, tap, a, count) for tap in itertools.product(*map(range, a["sizes"])))
    return out % P


def _shifted_sum(x: Array, a: Any) -> Array:
    rank = (x.ndim - 2) // 2
    x = _padded(x, (0,) * (rank + 2) + a["low"], (0,) * (rank + 2) + a["high"])
    sizes = x.shape[1 : 1 + rank]
    count = _count(x, sizes, a)
    out: Any = 0
    for tap in itertools.product(*map(range, sizes)):
        out = out + _window(x[(slice(None), *tap)], tap, a, count)
    return out % P


def _matmul(x: Array, y: Array, a: Any) -> Array:
    x = np.swapaxes(x, -1, -2) if a.get("transpose_a") else x
    y = np.swapaxes(y, -1, -2) if a.get("transpose_b") else y
    out: Any = sum(_times(x[..., :, k, None], y[..., None, k, :]) for k in range(x.shape[-1]))
    return out % P


def _g2bmm(x: Array, y: Array, a: Any) -> Array:
    return np.stack([_times(x, r).sum(-1) for r in _rows(y, x.shape[-2], a["width"], a)], -1) % P


def _gbmm(x: Array, y: Array, a: Any) -> Array:
    found = _rows(y, x.shape[-2], x.shape[-1], a)
    out: Any = sum(_times(x[..., w, None], r) for w, r in enumerate(found))
    return out % P


def _rows(y: Array, count: int, width: int, a: Any) -> list[Array]:
    """For each place of a band, the rows of `y` there, zeros outside."""
    steps = [np.arange(count) + a["dilation"] * w - a["low"] for w in range(width)]
    rows = [np.take(y, np.clip(at, 0, y.shape[-2] - 1), -2) for at in steps]
    inside = [(at >= 0) & (at < y.shape[-2]) for at in steps]
    return [np.where(ok[:, None], r, 0) for ok, r in zip(inside, rows, strict=True)]


def _update(x: Array, y: Array, a: Any) -> Array:
    out = x.copy()
    out[(*(slice(None),) * a["dim"], slice(a["offset"], a["offset"] + y.shape[a["dim"]]))] = y
    return out


def _band(a: Any) -> Array:
    rows, columns = np.indices(a["shape"])[-2:]
    kept = (columns - rows >= a["lower"]) & (columns - rows <= a["upper"])
    return np.where(kept, _residue(a["inside"]), _residue(a["outside"]))


def _mean(x: Array, a: Any) -> Array:
    n = int(np.prod([x.shape[d] for d in a["dims"]]))
    return _times(x.sum(a["dims"], keepdims=a["keepdims"]) % P, np.array(_residue(Fraction(1, n))))


def _ramp(a: Any) -> Array:
    numbers = a["start"] + a["step"] * np.arange(a["shape"][a["along"]])
    return np.broadcast_to(numbers.reshape(-1, *[1] * (-1 - a["along"])) % P, a["shape"])


_OPS: dict[str, Any] = {
    "conv": _conv, "conv_transpose": _conv_transpose, "pool_sum": _pool_sum, "shifted_sum": _shifted_sum,
    "matmul": _matmul, "g2bmm": _g2bmm, "gbmm": _gbmm, "update_slice": _update,
    "pad": lambda x, a: _padded(x, a["low"], a["high"], a.get("value", 0.0)),
    "add": lambda x, y, a: (x + y) % P, "sub": lambda x, y, a: (x - y) % P, "mul": lambda x, y, a: _times(x, y),
    "neg": lambda x, a: -x % P, "square": lambda x, a: _times(x, x), "cast": lambda x, a: x,
    "reduce_sum": lambda x, a: x.sum(a["dims"], keepdims=a["keepdims"]) % P, "reduce_mean": _mean,
    "broadcast": lambda x, a: np.broadcast_to(x, a["shape"]), "transpose": lambda x, a: x.transpose(a["perm"]),
    "slice": lambda x, a: x[tuple(slice(o, o + (n - 1) * s + 1, s)
                                  for o, n, s in zip(a["offsets"], a["sizes"], a["strides"], strict=True))],
    "reshape": lambda x, a: x.reshape(a["shape"]),
    "repeat": lambda x, a: np.concatenate([x] * a["times"], a["dim"]),
    "concat": lambda *x: np.concatenate(x[:-1], x[-1]["dim"]),
    "constant": lambda a: np.full(a["shape"], _residue(a["value"])), "band": _band, "ramp": _ramp,
}  # fmt: skip


def values(graph: KernelGraph, arrays: list[Array]) -> list[Array]:
    """The outputs modulo P."""
    known = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        attrs: dict[str, Any] = {"groups": 1, **node.attrs}
        known[node.result] = _OPS[node.op](*(known[v] for v in node.operands), attrs)
    return [known[v] for v in graph.outputs]


def differences(first: KernelGraph, second: KernelGraph, seed: int) -> list[Array]:
    """For each output, which of its elements differ."""
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for _ in range(2):
        arrays = [rng.integers(1, P, v.shape, dtype=np.int64) for v in first.inputs]
        pairs = zip(values(first, arrays), values(second, arrays), strict=True)
        apart = [x != y for x, y in pairs]
        found = apart if not found else [a | b for a, b in zip(found, apart, strict=True)]
    return found
