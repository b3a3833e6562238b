"""The upward exposed reads of statements: what they read before writing it.

The same analysis as the e-graph's facts (`transforms/core/egraph/egraph.cpp`), on an extracted term: there it
orders statements, here it says what a kernel needs from earlier ones. An earlier store to the tensor is not
enough, as another part of it may be loaded: the pieces of a concatenation are an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from superopt.transforms.tile_saturation.terms import (
    FULL,
    StatementTerm,
    StoreTerm,
    TermIndex,
    TermRegion,
    TermTensor,
    TermVar,
)

_Regions = tuple[TermRegion, ...]


def exposed(body: Sequence[StatementTerm]) -> set[TermTensor]:
    """Tensors with a part that the statements load before storing it."""
    reads, _ = _exposed(body)
    return {r.tensor for r in reads}


def _exposed(body: Sequence[StatementTerm]) -> tuple[_Regions, _Regions]:
    """Regions read before they are written, and regions certainly written."""
    reads: dict[TermRegion, None] = {}
    written: _Regions = ()
    for statement in body:
        if isinstance(statement, StoreTerm):
            inner, musts = statement.value.regions, (statement.region,)
        else:
            var = statement.var
            starts = _joined((), (r for r, _ in statement.starts))
            inside, stored = _exposed(statement.body)
            inner = tuple(r for r in (_over(r, var) for r in inside) if not _covered(r, starts))
            # Tiles along a diagonal do not add up to a region.
            once = (r for r in stored if sum(i.var is var for i in r.dims) <= 1)
            musts = _joined(starts, (_over(r, var) for r in once))
        reads |= dict.fromkeys(r for r in inner if not _covered(r, written))
        written = _joined(written, musts)
    return tuple(reads), written


def _over(region: TermRegion, var: TermVar) -> TermRegion:
    """All that a region covers over the iterations of `var`."""
    dims: list[TermIndex] = []
    for index, extent in zip(region.dims, region.tensor.shape, strict=True):
        if index.var is not var:
            dims.append(index)
            continue
        trips = -(-var.end // var.width)
        size = var.end if index.kind == "tile" else trips * max(index.size, 1)
        whole = not index.base and size >= extent
        dims.append(FULL if whole else TermIndex("range", None, index.base, size))
    return TermRegion(region.tensor, tuple(dims))


def _covered(region: TermRegion, written: _Regions) -> bool:
    return any(
        other.tensor is region.tensor
        and all(_inside(p, q) for p, q in zip(region.dims, other.dims, strict=True))
        for other in written
    )


def _inside(part: TermIndex, whole: TermIndex) -> bool:
    if whole.kind == "full" or part == whole:
        return True
    ranges = part.kind == whole.kind == "range"
    return ranges and whole.base <= part.base and part.base + part.size <= whole.base + whole.size


def _joined(written: _Regions, more: Iterable[TermRegion]) -> _Regions:
    """Both, with adjacent regions merged."""
    out = list(written)
    for region in more:
        while (other := next((r for r in out if _side_by_side(r, region) is not None), None)) is not None:
            out.remove(other)
            at = _side_by_side(other, region)
            assert at is not None
            p, q = other.dims[at], region.dims[at]
            low, high = min(p.base, q.base), max(p.base + p.size, q.base + q.size)
            whole = low == 0 and high == region.tensor.shape[at]
            index = FULL if whole else TermIndex("range", None, low, high - low)
            region = TermRegion(region.tensor, (*region.dims[:at], index, *region.dims[at + 1 :]))
        out.append(region)
    return tuple(out)


def _side_by_side(a: TermRegion, b: TermRegion) -> int | None:
    """The one dimension along which two regions differ, where they are ranges that touch."""
    if a.tensor is not b.tensor:
        return None
    differing = [d for d, (p, q) in enumerate(zip(a.dims, b.dims, strict=True)) if p != q]
    if len(differing) != 1:
        return None
    p, q = a.dims[differing[0]], b.dims[differing[0]]
    touch = p.kind == q.kind == "range" and p.base <= q.base + q.size and q.base <= p.base + p.size
    return differing[0] if touch else None
