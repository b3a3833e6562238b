"""Inputs that programs are tried on, and the error they may have. Needs numpy alone: bundles carry this file.

A candidate, computed as it will run, and a model of the reference program's rounding are both compared with the
reference in fp64. The candidate may be off by `FACTOR` times what the model is off by (the largest error of the
output's row, the last dimension, or an eighth of the largest of all), and by as many roundings of the row's
largest number. Where the model is not finite, the candidate may give anything.

The model computes in fp32 and rounds what each operator gives to its dtype. Sums are those of fp64, off by what
fp32 may lose in them (`accumulated`), whatever the order in which a library adds: numpy, which
evaluates it before compilation, and PyTorch, which does so beside the kernels, get the same tolerance.

A candidate rounds elsewhere than the program, so one run of the model says little where a few roundings are all
that the error comes from (a sum of numbers that cancel, the difference of two large logits). Where the candidate
is out of tolerance, the model is therefore drawn again, up to `MODELS` times. The first draw rounds to nearest;
the others round stochastically (Connolly, Higham and Mary, Stochastic rounding and its probabilistic backward
error analysis, 2021, section 1), and the candidate may be off by `FACTOR_DRAWN` times the largest error of them,
if that is more. The model's numbers end at half of the largest one of their dtype, but for that one
itself, which masks are made of: what overflows by the luck of a rounding, in the program or in the candidate, is
not compared.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FACTOR = 4.0
FACTOR_DRAWN = 2.0
EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
# The numbers next to zero, of dtypes that fp32 is rounded to; and the largest ones.
LEAST = {"f16": 2.0**-24, "bf16": 2.0**-133}
OVERFLOWING = 96.0  # exp(88.8) is infinite in fp32
LARGEST = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "f32": (2 - 2.0**-23) * 2.0**127}


@dataclass(frozen=True)
class Input:
    """An input: `scale` keeps products of ordinary size, 1 / sqrt(contracted extent) for weights.

    Of integers that only become numbers it is their standard deviation, of others 1: they may be indices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0


def _ordinary(x: Array, spec: Input) -> Array:
    return x * np.float32(spec.scale)


def _large(x: Array, spec: Input) -> Array:
    """Logits in the hundreds: an exponential without its maximum subtracted overflows.

    Products reach them. An input may hold logits, too, so one number of each sign is so large that its
    exponential overflows, wherever an input has two numbers.
    """
    x = x * np.float32(spec.scale * 16)
    ends = x.reshape(-1)[:: max(1, x.size // 2)][:2]
    ends[:] = (np.abs(ends) + OVERFLOWING * spec.scale) * (1, -1)[: ends.size]
    return x


def _tiny(x: Array, spec: Input) -> Array:
    """Sums of squares near zero."""
    return x * np.float32(spec.scale * (1e-3 if spec.scale == 1 else 1))


def _offset(x: Array, spec: Input) -> Array:
    """A large mean and a tiny variance: differences of large numbers lose everything."""
    return 8 + x * np.float32(0.01) if spec.scale == 1 else x * np.float32(spec.scale)


def _cancelling(x: Array, spec: Input) -> Array:
    """Neighbours nearly cancel: of opposite sign in what is multiplied, alike in the weights."""
    x = x * np.float32(spec.scale)
    dim = len(spec.shape) - (1 if spec.scale == 1 else 2)
    if dim < 0 or spec.shape[dim] < 2:
        return x
    even = np.moveaxis(x, dim, 0)[0 : spec.shape[dim] // 2 * 2 : 2]
    odd = np.moveaxis(x, dim, 0)[1::2]
    odd[: len(even)] = even * np.float32(-1.001 if spec.scale == 1 else 1)
    return x


def _outliers(x: Array, spec: Input) -> Array:
    """One number in a hundred is fifty times as large."""
    x = x * np.float32(spec.scale)
    flat = x.reshape(-1)
    flat[::101] *= 50
    return x


DISTRIBUTIONS: dict[str, Callable[[Array, Input], Array]] = {
    "ordinary": _ordinary,
    "large": _large,
    "tiny": _tiny,
    "offset": _offset,
    "cancelling": _cancelling,
    "outliers": _outliers,
}


MILDER = 6
"""Degrees of mildness: numbers as drawn, their absolute values, a 16th of the one and the other, a 256th."""


def make_inputs(specs: Sequence[Input], distribution: str, seed: int = 0, mildness: int = 0) -> list[Array]:
    """One array per input, the same for the same seed: float32, not yet rounded to the inputs' dtypes; for
    integers and truth values, what `_whole` gives.
    """
    out: list[Array] = []
    for i, spec in enumerate(specs):
        key = zlib.crc32(f"{distribution} {i}".encode())
        rng = np.random.Generator(np.random.SFC64([seed, key]))
        # Large inputs repeat a block of a prime length: drawing them would take longer than checking.
        count = math.prod(spec.shape)
        block = rng.standard_normal(min(count, 1_000_003), np.float32)
        numbers = np.resize(block, count).reshape(spec.shape)
        made = DISTRIBUTIONS[distribution] if spec.dtype in EPSILON else _whole
        array = made(numbers, spec)
        if mildness and spec.dtype in EPSILON:
            array = (np.abs(array) if mildness % 2 else array) * np.float32(16.0 ** -(mildness // 2))
        out.append(array)
    return out


def _whole(x: Array, spec: Input) -> Array:
    """Truth values; quantized weights for i8; integers of a scale; else 0 and 1, which are indices into every
    table of two rows.
    """
    if spec.dtype == "i8":
        return np.clip(np.rint(x * 32), -127, 127).astype(np.int8)
    if spec.dtype != "i1" and spec.scale != 1.0:
        return np.rint(x * spec.scale).astype(f"int{spec.dtype[1:]}")
    return x > 0


# How often the model of a program's rounding is drawn at most; how often, where the candidate is off by so much
# more than its tolerance that further draws cannot help.
MODELS = 64
FEW_MODELS, HOPELESS = 4, 16.0


def farthest(reference: Array, first: Array, second: Array) -> Array:
    """Of a draw of the model and another one the number that allows more, element by element.

    The other one counts less, by `FACTOR_DRAWN`; where it is not finite, nothing is asked.
    """
    first, second = (np.asarray(m, np.float64) for m in (first, second))
    with np.errstate(all="ignore"):
        second = reference + (second - reference) * (FACTOR_DRAWN / FACTOR)
        farther = ~np.isfinite(second) | (np.abs(second - reference) > np.abs(first - reference))
        return np.where(farther & np.isfinite(first), second, first)


def drawn(
    judge: Callable[[Sequence[Array]], list[Comparison]],
    references: Sequence[Array],
    model: Callable[[int], Sequence[Array]],
) -> list[Comparison]:
    """What `judge` says of the arrays of a model, drawn (by `model`, from 0) until the candidate passes.

    More draws only allow more, so the verdict is that of all draws. `references` are the arrays in fp64.
    """
    arrays = list(model(0))
    rows = judge(arrays)
    for draw in range(1, MODELS):
        worst = max((row.ratio for row in rows), default=0.0)
        if worst <= 1 or (draw >= FEW_MODELS and worst > HOPELESS):
            break
        pairs = zip(references, arrays, model(draw), strict=True)
        arrays = [farthest(*each) for each in pairs]
        rows = judge(arrays)
    return rows


def lost(shape: tuple[int, ...], draw: int, operation: int) -> Array:
    """Numbers of random sign between a half and one, in no order that a program could share; at first 1 or -1.

    Those of a draw of the model and an operation in it.
    """
    count = math.prod(shape)
    block = np.random.Generator(np.random.SFC64([draw, operation])).uniform(-1, 1, min(count, 99_991))
    block = (np.sign(block) + block) / 2 if draw else np.sign(block)
    return np.resize(block, count).reshape(shape)


def other_neighbour(x: Any, nearest: Any, dtype: str, where: Callable[..., Any]) -> Any:
    """What rounds to the number of `dtype` on the other side of `x` than `nearest`, which `x` rounds to.

    `nearest` itself where they are equal. For arrays and for tensors, `where` being theirs.
    """
    step = 0.75 * (EPSILON[dtype] * abs(nearest) + LEAST[dtype])
    return where(x > nearest, nearest + step, where(x < nearest, nearest - step, nearest))


def stochastic(x: Any, nearest: Any, other: Any, share: Any, where: Callable[..., Any]) -> Any:
    """One of the two neighbours of `x`, each the more often the nearer it is. `share` is from `lost`."""
    return where((2 * abs(share) - 1) * abs(other - nearest) < abs(x - nearest), other, nearest)


def overflowing(x: Any, dtype: str) -> Any:
    """Which numbers are too near to the largest one of `dtype`. For arrays and for tensors."""
    return (abs(x) > LARGEST[dtype] / 2) & (abs(x) != LARGEST[dtype])


def accumulated(total: Any, magnitude: Any, share: Any) -> Any:
    """A sum as fp32 may have it: off by a unit of the last place of the sum of its terms' absolute values.

    Added in pairs, n terms are off by at most log2(n) halves of that (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2). `share` is from `lost`: but in the first draw, a sum that loses all of its digits is
    zero. For arrays and for tensors.
    """
    left = ~((abs(share) < 1) & (abs(total) < EPSILON["f32"] * magnitude))
    return left * (total + EPSILON["f32"] * share * magnitude)


@dataclass(frozen=True)
class Comparison:
    """One output under one distribution.

    `error` is the largest deviation from fp64, `tolerance` what is allowed there (both absolute, at the element
    where their ratio is largest), `ratio` that ratio. `compared` counts the elements that were compared, `exempt`
    those where the model of the reference program is not finite.
    """

    distribution: str
    output: str
    error: float
    tolerance: float
    ratio: float
    compared: int
    exempt: int

    @property
    def passed(self) -> bool:
        """Whether elements were compared, and every one is within its tolerance."""
        return self.ratio <= 1 and self.compared > 0


def compared(
    specs: Sequence[Input], distribution: str, seed: int, judge: Callable[[list[Array]], list[Comparison]]
) -> list[Comparison]:
    """What `judge` says of inputs of a distribution, and for outputs that are nowhere finite, of milder ones."""
    rows: list[Comparison] = []
    for mildness in range(MILDER):
        found = judge(make_inputs(specs, distribution, seed, mildness))
        rows = [max(r, f, key=_weight) for r, f in zip(rows, found, strict=True)] if rows else found
        if all(row.compared for row in rows):
            break
    return rows


def _weight(row: Comparison) -> tuple[bool, float]:
    return row.compared > 0, row.ratio


def compare(
    distribution: str,
    output: str,
    dtype: str,
    candidate: Array,
    reference: Array,
    model: Array,
    computed: Array | None = None,
) -> Comparison:
    """Judge a candidate's output by the reference in fp64 and the model of its rounding, all of one shape.

    `computed` says which elements the candidate has, all of them by default. Integers and truth values must be
    equal, except where the two references differ.
    """
    candidate, model = (np.asarray(x, np.float64) for x in (candidate, model))
    with np.errstate(all="ignore"):
        asked = np.isfinite(model) & np.isfinite(reference)
        off = np.where(asked, np.abs(model - reference), 0.0)
        size = np.where(asked, np.abs(reference), 0.0)
        if off.ndim:
            row_off, row_size = off.max(axis=-1, keepdims=True), size.max(axis=-1, keepdims=True)
        else:
            row_off, row_size = off, size
        allowed = np.maximum(row_off, off.max(initial=0.0) / 8) + EPSILON.get(dtype, 0.0) * row_size
        allowed = np.broadcast_to(FACTOR * allowed + np.finfo(np.float32).tiny, reference.shape)
        error = np.abs(candidate - reference)
        done = asked if computed is None else asked & computed
        ratio = np.where(done, np.where(np.isfinite(error), error / allowed, np.inf), 0.0)
    count = int(done.sum())
    exempt = int(asked.size - asked.sum())
    if not count:
        return Comparison(distribution, output, 0.0, 0.0, 0.0, 0, exempt)
    worst = np.unravel_index(int(np.where(done, ratio, -1.0).argmax()), ratio.shape)
    figures = (float(error[worst]), float(allowed[worst]), float(ratio[worst]))
    return Comparison(distribution, output, *figures, count, exempt)


def table(rows: Sequence[Comparison]) -> str:
    """The comparisons as aligned text, one a line."""
    lines = [("output", "distribution", "error", "tolerance", "of it", "elements", "")]
    for row in rows:
        share = f"{row.ratio:.2f}" if math.isfinite(row.ratio) else "not finite"
        note = "" if row.passed else "FAILED" if row.compared else "NOTHING COMPARED"
        if row.exempt:
            are = "element is" if row.exempt == 1 else "elements are"
            note = f"{note} ({row.exempt} {are} not finite in the reference)".strip()
        figures = (f"{row.error:.3e}", f"{row.tolerance:.3e}", share, str(row.compared))
        lines.append((row.output, row.distribution, *figures, note))
    widths = [max(len(line[i]) for line in lines) for i in range(7)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )
