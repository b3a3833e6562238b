"""Other expressions for band products: a dilation as more products, and blocks of rows as matrix products.

`m, w, r` stand for rows of the result, places of the band and rows of the second operand,
r = m + dilation w - low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from superopt.nests import g2bmm_nest, gbmm_nest
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import KernelGraph, Node, Value, power_of_two
from superopt.transforms.derivation.rewrite import Rewrite

# Rows of a block, which is a tile of matrix units; more where the band is wider.
_ROWS = (16, 128)


class Band:
    """A band product: its attributes, extents and a writer at its place."""

    def __init__(self, graph: KernelGraph, node: Node) -> None:
        self.node, self.write = node, Rewrite(graph, node)
        attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
        self.dilation, self.low = (int(str(attrs[name])) for name in ("dilation", "low"))
        self.a, self.b = node.operands
        self.batch, self.rows, self.read = self.a.shape[:-2], self.a.shape[-2], self.b.shape[-2]
        self.gives_band = OPERATORS[node.op].nest is g2bmm_nest
        self.width = node.result.shape[-1] if self.gives_band else self.a.shape[-1]

    def product(self, a: Value, b: Value, low: int) -> Value:
        """The same product without a dilation."""
        more = {"width": self.width} if self.gives_band else {}
        return self.write.emit(self.node.op, a, b, dilation=1, low=low, **more)

    def pad(self, x: Value, low: int, high: int, dim: int = -2) -> Value:
        """Zeros before and after a dimension."""
        at, none = dim % len(x.shape), [0] * len(x.shape)
        before, after = ([n if d == at else 0 for d in range(len(none))] for n in (low, high))
        return self.write.pad(x, before, after)

    def apart(self, x: Value, *parts: int) -> Value:
        """`x` with its rows in two dimensions."""
        return self.write.reshape(x, *x.shape[:-2], *parts, x.shape[-1])

    def swapped(self, x: Value) -> Value:
        """`x` with the third dimension from the end and the next one exchanged."""
        rank = len(x.shape)
        return self.write.transpose(x, *range(rank - 3), rank - 2, rank - 3, rank - 1)

    def cut(self, x: Value, rows: int) -> Value:
        """The first rows."""
        return self.write.slice(x, {len(x.shape) - 2: (0, rows, 1)})

    def done(self, made: Value) -> KernelGraph:
        """The graph with the first rows of `made` in place of the result."""
        count = made.type.elements // (math.prod(self.batch) * made.shape[-1])
        made = self.write.reshape(made, *self.batch, count, made.shape[-1])
        return self.write.instead({self.node.result: self.cut(made, self.rows)})


def _band(graph: KernelGraph, node: Node, *, dense: bool) -> Band | None:
    if node.op not in OPERATORS or OPERATORS[node.op].nest not in (g2bmm_nest, gbmm_nest):
        return None
    found = Band(graph, node)
    return found if (found.dilation == 1) is dense else None


def band_residues(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """A band of dilation d -> d of dilation 1: rows of one residue modulo d are one of a batch (OLLIE, Table 3).

    m = d q + s reads row d (q + w - low / d) + s; where d does not divide `low`, rows of zeros come first.
    """
    if (band := _band(graph, node, dense=False)) is None:
        return None
    step, first = band.dilation, band.low % band.dilation

    def residues(x: Value, before: int) -> Value:
        count = math.ceil((before + x.shape[-2]) / step)
        return band.swapped(band.apart(band.pad(x, before, count * step - before - x.shape[-2]), count, step))

    made = band.product(residues(band.a, 0), residues(band.b, first), band.low // step)
    return band.done(band.swapped(made))


def band_blocks(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """A band -> matrix products of blocks of rows with the rows that these read, of which a band is cut out.

    Block i has n rows from i n on and reads c of them from i n - low on; place w of row j is its column j + w, at
    (c + 1) j + w of the block, row-major: of a matrix of c + 1 columns, with the band in the first ones.
    """
    if (band := _band(graph, node, dense=True)) is None:
        return None
    write, width = band.write, band.width
    rows = min(max(power_of_two(width), _ROWS[0]), _ROWS[1])
    blocks, more = math.ceil(band.rows / rows), math.ceil((width - 1) / rows)
    columns, needed = (more + 1) * rows, (blocks + more) * rows - band.low
    b = band.cut(band.b, min(band.read, needed)) if needed > 0 else None
    if b is None:
        return None  # zeros alone are read
    b = band.apart(band.pad(b, band.low, needed - b.shape[-2]), blocks + more, rows)
    at = len(b.shape) - 3
    shifted = [write.slice(b, {at: (i, blocks, 1)}) for i in range(more + 1)]
    b = write.concat(at + 1, shifted)
    a = band.apart(band.pad(band.a, 0, blocks * rows - band.rows), blocks, rows)
    lead = (*band.batch, blocks)
    if band.gives_band:
        whole = write.emit("matmul", a, b, transpose_b=True)
        flat = write.reshape(whole, *lead, rows * columns)
        turned = write.reshape(band.pad(flat, 0, rows, -1), *lead, rows, columns + 1)
        return band.done(write.slice(turned, {len(turned.shape) - 1: (0, width, 1)}))
    flat = write.reshape(band.pad(a, 0, columns + 1 - width, -1), *lead, rows * (columns + 1))
    flat = write.slice(flat, {len(flat.shape) - 1: (0, rows * columns, 1)})
    return band.done(write.emit("matmul", write.reshape(flat, *lead, rows, columns), b))


def band_residues_side_by_side(
    source: KernelGraph, node: Node
) -> Iterator[tuple[KernelGraph, list[tuple[str, KernelGraph]]]]:
    """A band of dilation d -> one of dilation 1 of as many rows: those of one residue modulo d follow each other,
    without a gap. Wrong where a band reaches into the next residue (EinNet's own candidates, which it accepts).

    Repairs: `gap`, as many rows of zeros between residues as bands reach out.
    """
    band = _band(source, node, dense=False)
    if band is None or band.rows != band.read or band.low % band.dilation:
        return
    low, step = band.low // band.dilation, band.dilation
    count = math.ceil(band.rows / step)

    def made(gap: int) -> KernelGraph:
        band = Band(source, node)

        def turned(x: Value) -> Value:
            x = band.swapped(band.apart(band.pad(x, 0, count * step - band.rows), count, step))
            return band.write.reshape(band.pad(x, 0, gap), *band.batch, step * (count + gap), x.shape[-1])

        y = band.apart(band.product(turned(band.a), turned(band.b), low), step, count + gap)
        return band.done(band.swapped(band.cut(y, count)))

    yield made(0), [("gap", made(max(low, band.width - 1 - low)))]
