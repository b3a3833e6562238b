"""Which elements of an output are recomputed: some of every region that one of the programs treats separately."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Index: TypeAlias = tuple[int, ...]
_MOST = 16  # elements of one output drawn in addition to those requested


def sampled(data: Sequence[Any], shape: Index, elements: int, drawn: random.Random) -> list[Index]:
    """Indices into an output of that shape: corners, random ones, and one of each region between cuts.

    A dimension is cut where a concatenation, a slice, an update or a window of either program (of canonical texts
    `data`) begins or ends in a dimension of its extent, or of a multiple or divisor of it, as reshapes produce.
    """
    corners = [tuple(0 for _ in shape), tuple(e - 1 for e in shape)]
    found = dict.fromkeys(corners)
    for _ in range(max(0, elements - 2)):
        found[tuple(drawn.randrange(e) for e in shape)] = None
    cuts = {cut for program in data for cut in _cuts(program)}
    regions = [_regions(extent, cuts) for extent in shape]
    if any(len(r) > 1 for r in regions):
        combined = (
            itertools.product(*regions) if math.prod(map(len, regions)) <= _MOST else _each(regions, drawn)
        )
        for region in combined:
            found[tuple(drawn.randrange(low, high) for low, high in region)] = None
    return list(found)


def _each(
    regions: Sequence[Sequence[tuple[int, int]]], drawn: random.Random
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every region of each dimension at least once, up to `_MOST` drawn of them, with the others random."""
    for d, own in enumerate(regions):
        for region in own if len(own) <= _MOST else drawn.sample(own, _MOST):
            yield tuple(region if i == d else drawn.choice(other) for i, other in enumerate(regions))


def _regions(extent: int, cuts: set[tuple[int, int]]) -> list[tuple[int, int]]:
    places = {0, extent}
    for whole, cut in cuts:
        if extent % whole == 0:
            places.add(cut * (extent // whole))
        elif whole % extent == 0:
            places |= {cut // (whole // extent), -(-cut // (whole // extent))}
    return list(itertools.pairwise(sorted(p for p in places if 0 <= p <= extent)))


def _cuts(region: Any) -> Iterator[tuple[int, int]]:
    """Where a kernel, block or thread graph cuts dimensions, with their extents."""
    shapes = [t[1:] for t in region["inputs"]]
    for op, operands, types, attrs, body in region["nodes"]:
        shapes += [t[1:] for t in types]
        if body is not None:
            inner = body.get("block") or body.get("thread")
            yield from _cuts(inner) if inner else _windows(body["tile"]["body"], body["tile"]["buffers"])
        elif op == "concat":
            d, sizes = attrs["dim"], [shapes[i][attrs["dim"]] for i in operands]
            yield from ((types[0][1 + d], end) for end in itertools.accumulate(sizes))
        elif op == "slice":
            for extent, first, size, stride in zip(
                shapes[operands[0]], attrs["offsets"], attrs["sizes"], attrs["strides"], strict=True
            ):
                yield from ((extent, first), (extent, first + (size - 1) * stride + 1))
        elif op == "update_slice":
            d, first = attrs["dim"], attrs["offset"]
            yield from ((types[0][1 + d], at) for at in (first, first + shapes[operands[1]][d]))


def _windows(statements: Sequence[Any], buffers: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for s in statements:
        if s[0] == "loop":
            yield from _windows(s[5], buffers)
        elif s[0] != "compute":
            for extent, (size, base, _, stride) in zip(buffers[s[1]][1:-1], s[2], strict=True):
                yield from ((extent, at) for at in (base, base + (size - 1) * stride + 1) if base > 0)
