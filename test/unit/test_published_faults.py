"""Candidates that published optimizers accept and that are wrong at a few elements: each is refused here, and its mended
form accepted. (Faults of a published verifier are in test_certify.)"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_programs import Builder, value

from superopt.program import KernelGraph, Value
from superopt.verify import certify
from superopt.verify.hashing import program_hash
from superopt.verify.symbolic import prove

Build = Callable[[Builder, list[Value]], Value]


def program(shapes: list[tuple[int, ...]], build: Build) -> KernelGraph:
    inputs, b = [value(*s) for s in shapes], Builder()
    output = build(b, inputs)
    return KernelGraph("main", inputs, b.nodes, [output])


def cut(b: Builder, x: Value, dim: int, start: int, size: int, stride: int = 1) -> Value:
    """`size` elements of one dimension from `start` on."""
    rank = len(x.shape)
    offsets, sizes, strides = [0] * rank, list(x.shape), [1] * rank
    offsets[dim], sizes[dim], strides[dim] = start, size, stride
    return b("slice", x, offsets=tuple(offsets), sizes=tuple(sizes), strides=tuple(strides))


def padded(b: Builder, x: Value, dim: int, before: int, after: int) -> Value:
    """Zeros before and after `x` in one dimension."""
    parts: list[Value] = []
    for count in (before, after):
        shape = tuple(count if i == dim else e for i, e in enumerate(x.shape))
        parts.append(b.constant(0.0, shape))
    return b("concat", parts[0], x, parts[1], dim=dim)


# --- a convolution of rows laid end to end (a transformation that needs a correction at their seams) -------


def taps(b: Builder, x: Value, w: Value, dim: int, count: int, kernel: tuple[int, ...] = (0, 1, 2)) -> Value:
    """`count` outputs of a convolution of three taps along `dim` of an input that is padded already."""
    total: Value | None = None
    for place, tap in enumerate(kernel):
        weight = b("reshape", cut(b, w, 0, tap, 1), shape=(1,) * len(x.shape))
        term = b("mul", cut(b, x, dim, place, count), weight)
        total = term if total is None else b("add", total, term)
    assert total is not None
    return total


ROWS, LENGTH = 3, 8


def rows_apart(b: Builder, inputs: list[Value]) -> Value:
    x, w = inputs
    return taps(b, padded(b, x, 1, 1, 1), w, 1, LENGTH)


def rows_joined(b: Builder, inputs: list[Value]) -> Value:
    """One long row: at four of 24 places an output sees its neighbour's row instead of zeros."""
    x, w = inputs
    flat = b("reshape", x, shape=(ROWS * LENGTH,))
    return b("reshape", taps(b, padded(b, flat, 0, 1, 1), w, 0, ROWS * LENGTH), shape=(ROWS, LENGTH))


def rows_joined_with_gaps(b: Builder, inputs: list[Value]) -> Value:
    """The correction: a zero between rows, and the outputs there left out."""
    x, w = inputs
    gapped = b("reshape", padded(b, x, 1, 0, 1), shape=(ROWS * (LENGTH + 1),))
    found = taps(b, padded(b, gapped, 0, 1, 1), w, 0, ROWS * (LENGTH + 1))
    return cut(b, b("reshape", found, shape=(ROWS, LENGTH + 1)), 1, 0, LENGTH)


def test_a_convolution_across_rows_needs_its_correction():
    shapes = [(ROWS, LENGTH), (3,)]
    first = program(shapes, rows_apart)
    verdict = certify(first, program(shapes, rows_joined))
    assert not verdict.equivalent
    assert verdict.counterexample is not None
    assert verdict.counterexample.position is not None
    assert verdict.counterexample.position[1] in (0, LENGTH - 1), "at a seam"
    assert certify(first, program(shapes, rows_joined_with_gaps)).equivalent


@pytest.mark.parametrize(
    "kernel", [(2, 1, 0), (0, 2, 1), (0, 0, 2)], ids=["turned", "swapped", "a tap twice"]
)
def test_a_convolution_with_another_kernel_is_another(kernel: tuple[int, ...]):
    """Fingerprints of 32 bits have been seen to take a kernel for its transpose."""
    shapes = [(ROWS, LENGTH), (3,)]

    def other(b: Builder, inputs: list[Value]) -> Value:
        x, w = inputs
        return taps(b, padded(b, x, 1, 1, 1), w, 1, LENGTH, kernel)

    graphs = program(shapes, rows_apart), program(shapes, other)
    assert program_hash(graphs[0]) != program_hash(graphs[1])
    assert not certify(*graphs).equivalent


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2)])
def test_padding_elsewhere_is_another_program(before: int, after: int):
    shapes = [(ROWS, LENGTH), (3,)]

    def other(b: Builder, inputs: list[Value]) -> Value:
        x, w = inputs
        return taps(b, padded(b, x, 1, before, after), w, 1, LENGTH)

    graphs = program(shapes, rows_apart), program(shapes, other)
    assert program_hash(graphs[0]) != program_hash(graphs[1])
    assert not certify(*graphs).equivalent


def test_a_reduced_dimension_more_is_another_program():
    shapes = [(4, 6, 5)]
    one = program(shapes, lambda b, x: b("reduce_sum", cut(b, x[0], 2, 0, 1), dims=(1, 2)))
    both = program(shapes, lambda b, x: b("reduce_sum", x[0], dims=(1, 2)))
    assert program_hash(one) != program_hash(both)
    assert not certify(one, both).equivalent
    assert prove(one, both) is None


# --- a banded product, dilated, turned into one that is not -------------------------------------------------

M, K, D, W = 8, 3, 2, 1  # rows, depth, dilation, half the width of the band


def banded(b: Builder, a: Value, c: Value, dilation: int) -> Value:
    """out[m, w] = sum over k of a[m, k] c[m + (w - W) dilation, k], zeros outside of c."""
    rows = a.shape[0]
    wide = padded(b, c, 0, W * dilation, W * dilation)
    columns = [
        b("reduce_sum", b("mul", a, cut(b, wide, 0, w * dilation, rows)), dims=(1,), keepdims=True)
        for w in range(2 * W + 1)
    ]
    return b("concat", *columns, dim=1)


def by_residue(b: Builder, x: Value) -> list[Value]:
    return [cut(b, x, 0, r, M // D, D) for r in range(D)]


def back(b: Builder, groups: list[Value]) -> Value:
    """Rows of the groups in turn."""
    width = groups[0].shape[1]
    stacked = b("concat", *(b("reshape", g, shape=(M // D, 1, width)) for g in groups), dim=1)
    return b("reshape", stacked, shape=(M, width))


def dilated(b: Builder, inputs: list[Value]) -> Value:
    return banded(b, inputs[0], inputs[1], D)


def groups_joined(b: Builder, inputs: list[Value]) -> Value:
    """All residue groups as one long band: wrong where one group ends and the next begins."""
    a, c = (b("concat", *by_residue(b, x), dim=0) for x in inputs)
    found = banded(b, a, c, 1)
    return back(b, [cut(b, found, 0, r * (M // D), M // D) for r in range(D)])


def groups_apart(b: Builder, inputs: list[Value]) -> Value:
    return back(b, [banded(b, a, c, 1) for a, c in zip(*(by_residue(b, x) for x in inputs), strict=True)])


def test_a_dilated_band_by_residues_is_right_only_with_each_group_apart():
    shapes = [(M, K), (M, K)]
    first = program(shapes, dilated)
    verdict = certify(first, program(shapes, groups_joined))
    assert not verdict.equivalent
    assert certify(first, program(shapes, groups_apart)).equivalent


# --- wrong at one element of many ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 17, 255])
def test_one_wrong_element_of_many_is_seen(wrong: int):
    """Agreement at most elements, or at those inside, is no equality."""
    shapes = [(256,)]

    def patched(b: Builder, x: list[Value]) -> Value:
        parts = [cut(b, x[0], 0, 0, wrong)] if wrong else []
        parts.append(b("neg", cut(b, x[0], 0, wrong, 1)))
        parts += [cut(b, x[0], 0, wrong + 1, 255 - wrong)] if wrong < 255 else []
        return b("square", b("concat", *parts, dim=0))

    square = program(shapes, lambda b, x: b("square", x[0]))
    assert certify(square, program(shapes, patched)).equivalent, "the square of a negated element is the same"
    cube = program(shapes, lambda b, x: b("mul", b("square", x[0]), x[0]))
    other = program(
        shapes, lambda b, x: b("mul", patched(b, x), b("concat", *_negated(b, x[0], wrong), dim=0))
    )
    verdict = certify(cube, other)
    assert not verdict.equivalent
    assert verdict.counterexample is not None
    assert verdict.counterexample.position == (wrong,)


def _negated(b: Builder, x: Value, wrong: int) -> list[Value]:
    pieces = [cut(b, x, 0, 0, wrong)] if wrong else []
    pieces.append(b("neg", cut(b, x, 0, wrong, 1)))
    return [*pieces, cut(b, x, 0, wrong + 1, 255 - wrong)] if wrong < 255 else pieces
