"""Mutants that are derived: expressions for a convolution that are simpler than it, and wrong at borders.

Each rule gives a program for the node alone, or None where it does not fit; `y, x, k` stand for positions of the
result, the operand and the kernel. They are those of PET (OSDI 2021, Figures 1 and 3, Table 3). Where a rule
knows what keeps its mutant right, such as zeros between what it joins, it says so too: those are repairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from superopt.program import KernelGraph, Node
from superopt.transforms.derivation.bands import band_residues_side_by_side
from superopt.transforms.derivation.rules import Convolution, is_conv

# Blocks of an image, along each dimension.
_MOST_BLOCKS = 4


@dataclass(frozen=True)
class Mutant:
    """A program that may differ from its source, of the same types, and complete repairs that its rule knows."""

    name: str
    source: KernelGraph
    graph: KernelGraph
    repaired: tuple[tuple[str, KernelGraph], ...] = ()


def alone(node: Node) -> KernelGraph:
    """The program of this node."""
    return KernelGraph("source", list(dict.fromkeys(node.operands)), [node], list(node.results))


def derived(source: KernelGraph, names: Sequence[str]) -> Iterator[Mutant]:
    """Every mutant that a rule of these names derives from a program of one node."""
    for name in names:
        for mutant, repairs in MUTANTS[name](source, source.nodes[0]):
            yield Mutant(name, source, mutant, tuple(repairs))


# A mutant, and repairs by name.
Found: TypeAlias = tuple[KernelGraph, list[tuple[str, KernelGraph]]]
MutantRule: TypeAlias = Callable[[KernelGraph, Node], Iterator[Found]]


def residues_side_by_side(source: KernelGraph, node: Node) -> Iterator[Found]:
    """conv(x, w, dilation d) -> conv(x', w, dilation 1): places of one residue modulo d are neighbours in x', and
    the residues follow each other without a gap. Wrong where a window reaches into the next residue (Figure 3).

    Repairs: `gap`, as many zeros between residues as windows reach out.
    """
    yield from band_residues_side_by_side(source, node)
    c = _same(source, node)
    if c is None or set(c.strides) != {1} or set(c.dilations) == {1}:
        return
    steps = c.dilations
    if any(a % d for a, d in zip(c.low, steps, strict=True)):
        return
    counts = [math.ceil(e / d) for e, d in zip(c.extents, steps, strict=True)]
    low = tuple(a // d for a, d in zip(c.low, steps, strict=True))
    high = tuple(b // d for b, d in zip(c.high, steps, strict=True))

    def made(gaps: Sequence[int]) -> KernelGraph:
        c = Convolution(source, node)
        write, outer = c.write, range(2, 2 + 2 * c.rank, 2)
        x = write.pad(c.x, *_after(2, [n * d - e for n, d, e in zip(counts, steps, c.extents, strict=True)]))
        x = write.reshape(x, c.batch, c.channels, *_pairs(counts, steps))
        x = write.transpose(x, 0, 1, *(i + j for i in outer for j in (1, 0)))
        x = write.pad(x, *_after(2, [n for gap in gaps for n in (0, gap)]))
        pitches = [n + gap for n, gap in zip(counts, gaps, strict=True)]
        x = write.reshape(x, c.batch, c.channels, *(d * n for d, n in zip(steps, pitches, strict=True)))
        y = c.conv(x, c.w, low=low, high=high, groups=c.groups)
        y = write.reshape(y, c.batch, y.shape[1], *_pairs(steps, pitches))
        y = write.slice(y, {i + 1: (0, n, 1) for i, n in zip(outer, counts, strict=True)})
        y = write.transpose(y, 0, 1, *(i + j for i in outer for j in (1, 0)))
        y = write.reshape(y, *y.shape[:2], *(n * d for n, d in zip(counts, steps, strict=True)))
        return c.done(write.slice(y, {2 + i: (0, e, 1) for i, e in enumerate(c.extents)}))

    reach = [max(a, b) if d > 1 else 0 for a, b, d in zip(low, high, steps, strict=True)]
    yield made([0] * c.rank), [("gap", made(reach))]


def images_side_by_side(source: KernelGraph, node: Node) -> Iterator[Found]:
    """conv(x, w) -> conv(x', w), where x' has g images of x beside each other along the last dimension; g is 2,
    and all. Wrong where a window reaches into the next image (Figure 1).

    Repairs: `gap`, as many zeros between images as windows reach out.
    """
    c = _same(source, node)
    if c is None or c.batch == 1:
        return
    placed, extent, stride, last = c.placed[-1], c.extents[-1], c.strides[-1], 1 + c.rank
    if extent != placed * stride:
        return

    def made(together: int, gap: int) -> KernelGraph:
        c = Convolution(source, node)
        write, groups = c.write, c.batch // together
        x = write.reshape(c.x, groups, together, *c.x.shape[1:])
        x = write.transpose(x, 0, *range(2, last + 1), 1, last + 1)
        x = write.pad(x, *_after(last + 1, [gap]))
        x = write.reshape(x, groups, *c.x.shape[1:-1], together * (extent + gap))
        y = c.conv(x, c.w, strides=c.strides, dilations=c.dilations, low=c.low, high=c.high, groups=c.groups)
        shape = node.result.shape
        y = write.reshape(y, groups, *shape[1:-1], together, placed + gap // stride)
        y = write.transpose(write.slice(y, {last + 1: (0, placed, 1)}), 0, last, *range(1, last), last + 1)
        return c.done(write.reshape(y, *shape))

    gap = math.ceil(max(c.low[-1], c.high[-1]) / stride) * stride
    for together in sorted({2, c.batch} if c.batch % 2 == 0 else {c.batch}):
        yield made(together, 0), [("gap", made(together, gap))]


def blocks_as_images(source: KernelGraph, node: Node) -> Iterator[Found]:
    """conv(x, w) -> conv(x', w), where the images of x' are blocks of those of x, 2 to 4 along each dimension.
    Wrong where a window reaches out of its block (Table 3). The last block is filled up with zeros.
    """
    c = _same(source, node)
    if c is None or set(c.strides) != {1}:
        return
    for count in range(2, _MOST_BLOCKS + 1):
        blocks = [math.ceil(e / count) for e in c.extents]
        if any((count - 1) * b >= e for b, e in zip(blocks, c.extents, strict=True)):
            continue
        c = Convolution(source, node)
        write, rank = c.write, c.rank
        x = write.pad(c.x, *_after(2, [count * b - e for b, e in zip(blocks, c.extents, strict=True)]))
        x = write.reshape(x, c.batch, c.channels, *_pairs([count] * rank, blocks))
        outer, inner = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
        x = write.transpose(x, 0, *outer, 1, *inner)
        x = write.reshape(x, c.batch * count**rank, c.channels, *blocks)
        y = c.conv(x, c.w, dilations=c.dilations, low=c.low, high=c.high, groups=c.groups)
        y = write.reshape(y, c.batch, *(count,) * rank, y.shape[1], *blocks)
        pairs = [d for i in range(rank) for d in (1 + i, 2 + rank + i)]
        y = write.transpose(y, 0, 1 + rank, *pairs)
        y = write.reshape(y, c.batch, y.shape[1], *(count * b for b in blocks))
        yield c.done(write.slice(y, {2 + i: (0, e, 1) for i, e in enumerate(c.extents)})), []


def without_pads(source: KernelGraph, node: Node) -> Iterator[Found]:
    """conv(x, w, low, high) -> pad(conv(x, w)): windows that reach outside are left out, and their place is zero.

    Wrong at the border, and right inside without a guard on any load.
    """
    if not is_conv(node):
        return
    c = Convolution(source, node)
    if not any([*c.low, *c.high]):
        return
    spans = [d * (k - 1) + 1 for k, d in zip(c.sizes, c.dilations, strict=True)]
    firsts = [math.ceil(a / s) for a, s in zip(c.low, c.strides, strict=True)]
    starts = [f * s - a for f, s, a in zip(firsts, c.strides, c.low, strict=True)]
    if any(e - f < n for e, f, n in zip(c.extents, starts, spans, strict=True)):
        return
    x = c.write.slice(
        c.x, {2 + i: (f, e - f, 1) for i, (f, e) in enumerate(zip(starts, c.extents, strict=True))}
    )
    y = c.conv(x, c.w, strides=c.strides, dilations=c.dilations, groups=c.groups)
    after = [n - m - f for n, m, f in zip(c.placed, y.shape[2:], firsts, strict=True)]
    if min(after) < 0:
        return
    yield c.done(c.write.pad(y, [0, 0, *firsts], [0, 0, *after])), []


MUTANTS: dict[str, MutantRule] = {
    "residues-side-by-side": residues_side_by_side,
    "images-side-by-side": images_side_by_side,
    "blocks-as-images": blocks_as_images,
    "without-pads": without_pads,
}


def _same(source: KernelGraph, node: Node) -> Convolution | None:
    """A convolution that gives as many positions as it reads, over its strides; None for others."""
    if not is_conv(node):
        return None
    c = Convolution(source, node)
    placed = zip(c.extents, c.placed, c.strides, strict=True)
    return c if all(n == math.ceil(e / s) for e, n, s in placed) else None


def _pairs(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """One of each in turn."""
    return [e for pair in zip(first, second, strict=True) for e in pair]


def _after(dims: int, high: Sequence[int]) -> tuple[list[int], list[int]]:
    """What a pad takes for `high` zeros after the dimensions from `dims` on."""
    return [0] * (dims + len(high)), [*[0] * dims, *high]
