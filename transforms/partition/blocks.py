"""What it costs that the blocks of one kernel compute what two kernels would: in bytes of device memory.

Two products in one kernel: every block computes what its rows need of the first, so that blocks with other
columns compute it again; and fewer blocks work than for a product alone.

A norm behind a product needs whole rows before it gives one element, so a block would hold rows from end to
end: fewer blocks than a product in tiles has, each of which loads the whole weight. A softmax whose elements are
summed with the values is no such case: nothing that leaves the kernel has the axis, and a loop runs along it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence

from superopt.axes import Classes, Dim, reshape_groups, walked_together
from superopt.cost.traffic import LIBRARY_TILE, ceil_div
from superopt.operators import Move, is_contraction, move_of, nest_of, reduction_of
from superopt.program import Node, Value

# Blocks that compute, and that load, at the speed of the device, together.
MULTIPROCESSORS, LOADING = 128, 64
# Rows, and columns, of a block of a product that is small; the fewest rows, and the most columns, that one takes.
ROWS, FEWEST_ROWS, MOST_COLUMNS = 64, 16, 256
# What matrix units do while a byte is loaded: about 600 TFLOP/s at about 3 TB/s.
FLOPS_PER_BYTE = 200
# Bytes from L2 count half.
L2_SHARE = 0.5


def computed_again(first: Sequence[Node], second: Node, operand: int) -> float:
    """Bytes that products cost more in the kernel of `second` than in their own; infinite where both need a loop.

    The product `second` takes what they give as the operand of that number.
    """
    if not first:
        return 0.0
    if min(max(map(_depth, first)), _depth(second)) > LIBRARY_TILE:
        return math.inf  # blocks have one loop: inside, the first would be computed again in every trip
    work, own = sum(map(_flops, first)), _flops(second)
    batch, rows, columns, _ = _product(second)
    if operand == 1:
        rows, columns = columns, rows
    blocks = batch * ceil_div(rows, ROWS)
    fewest, most = ceil_div(columns, MOST_COLUMNS), ceil_div(columns, ROWS)
    together = min((work * c + own) / _filled(blocks * c) for c in {fewest, (fewest + most) // 2, most})
    apart = sum(_flops(n) / _filled(_tiles(n)) for n in (*first, second))
    loads = sum(_waiting(n, blocks * most) for n in first)
    return max(max(together - apart, 0.0) / FLOPS_PER_BYTE, loads)


def whole_rows(first: Sequence[Node], second: Sequence[Node], leaving: Container[Value]) -> float:
    """Bytes of device memory that the loads of the products in `first` cost more, if blocks hold rows whole.

    `second` reads what `first` computes; `leaving` are the values that whoever is outside of both reads.
    """
    products = [n for n in first if is_contraction(n)]
    reductions = [n for n in second if reduction_of(n) is not None and not is_contraction(n)]
    if not products or not reductions:
        return 0.0
    axes = Classes[Dim]()
    for node in (*first, *second):
        for a, b in _together(node):
            axes.join(a, b)
    given = {
        axes.find((v, d)) for n in (*first, *second) for v in n.results if v in leaving for d in _dims(v)
    }
    reduced = {axes.find(dim) for n in reductions for dim in _reduced(n)}
    held = given & reduced
    lost = 0.0
    for node in products:
        rows = [d for d in _dims(node.result) if axes.find((node.result, d)) in held]
        if rows:
            lost += _lost(node, math.prod(node.result.shape[d] for d in rows), axes, held)
    return lost


def _lost(node: Node, whole: int, axes: Classes[Dim], held: Container[Dim]) -> float:
    """The same for one product whose blocks hold `whole` elements along the axes that are `held`."""
    batch, *_ = _product(node)
    others = max(node.result.type.elements // (whole * batch), 1)
    held_at_once = min(LIBRARY_TILE, max(1, LIBRARY_TILE**2 // whole))
    blocks, rows = ceil_div(others, held_at_once), ceil_div(others, LIBRARY_TILE)
    along = [v for v in node.operands if any(axes.find((v, d)) in held for d in _dims(v))]
    again = sum(v.type.bytes for v in along) * (blocks - rows) * L2_SHARE
    return again + _waiting(node, batch * ceil_div(others, FEWEST_ROWS))


def _waiting(product: Node, blocks: int) -> float:
    """Bytes that a device loads while so many blocks load the operands of a product, beyond those of its own."""
    slower = min(_tiles(product), LOADING) / min(blocks, LOADING) - 1
    return sum(v.type.bytes for v in product.operands) * max(slower, 0.0)


def _together(node: Node) -> Iterator[tuple[Dim, Dim]]:
    if move_of(node) is Move.RESHAPE:
        before = node.operands[0]
        for left, right in reshape_groups(before.shape, node.result.shape):
            if len(left) == len(right) == 1:
                yield (before, left[0]), (node.result, right[0])
    else:
        yield from walked_together(node)


def _reduced(node: Node) -> Iterator[Dim]:
    """The dimensions of its operand that a reduction runs along."""
    nest = nest_of(node)
    assert nest is not None
    for d, index in enumerate(nest.operands[0]):
        if index.dim in nest.reductions:
            yield node.operands[0], d


def _dims(value: Value) -> range:
    return range(len(value.shape))


def shares_sums(product: Node) -> bool:
    """Whether a product has so few tiles, each so deep, that blocks had better share their sums.

    With few rows its tiles are narrow instead: it waits for its weights.
    """
    _, rows, _, depth = _product(product)
    return rows >= ROWS and depth >= 4 * LIBRARY_TILE and _filled(_tiles(product)) <= 0.5


def free_extent(product: Node, operand: int) -> int:
    """Elements of one row of the result that come from the other operand."""
    _, rows, columns, _ = _product(product)
    return columns if operand == 0 else rows


def _product(node: Node) -> tuple[int, int, int, int]:
    nest = nest_of(node)
    assert nest is not None
    return nest.product


def _flops(product: Node) -> int:
    return 2 * math.prod(_product(product))


def _depth(product: Node) -> int:
    return _product(product)[3]


def _tiles(product: Node) -> int:
    batch, rows, columns, _ = _product(product)
    return batch * ceil_div(rows, ROWS) * ceil_div(columns, ROWS)


def _filled(blocks: int) -> float:
    """The share of the device on which so many blocks run."""
    return min(1.0, blocks / MULTIPROCESSORS)
