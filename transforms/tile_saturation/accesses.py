"""What the statements of a kernel access, in program order, and which of its loops are grid dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from superopt.transforms.tile_saturation.exposed import exposed
from superopt.transforms.tile_saturation.terms import (
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermRegion,
    TermTensor,
    TermVar,
    written,
)


class Rejected(Exception):
    """The term cannot become kernels; the message is counted."""


@dataclass(frozen=True)
class Access:
    """One access in program order: a start, a load or a store, and its enclosing loops, outermost first."""

    region: TermRegion
    kind: str  # "start" | "load" | "store"
    loops: tuple[tuple[TermVar, int], ...]


def accesses(body: Sequence[StatementTerm], loops: tuple[tuple[TermVar, int], ...] = ()) -> Iterator[Access]:
    """Every access in program order; position distinguishes equal loops at two places."""
    for i, statement in enumerate(body):
        if isinstance(statement, StoreTerm):
            for region in statement.value.regions:
                yield Access(region, "load", loops)
            yield Access(statement.region, "store", loops)
        else:
            for region, _ in statement.starts:
                yield Access(region, "start", loops)
            yield from accesses(statement.body, (*loops, (statement.var, i)))


def common_loops(found: Sequence[Access]) -> set[TermVar]:
    """Variables of the loops that enclose all the accesses."""
    out: set[TermVar] = set()
    for level in zip(*(a.loops for a in found), strict=False):
        if len(set(level)) > 1:
            break
        out.add(level[0][0])
    return out


def grid(
    statement: StatementTerm, live_after: set[TermTensor]
) -> tuple[list[LoopTerm], tuple[StatementTerm, ...]]:
    """The loops of a statement that are grid dimensions, and what one block runs."""
    found: list[LoopTerm] = []
    body: tuple[StatementTerm, ...] = (statement,)
    while len(body) == 1 and len(found) < 3:
        loop = body[0]
        if not isinstance(loop, LoopTerm) or loop.starts or not _parallel(loop, live_after):
            break
        found.append(loop)
        body = loop.body
    return found, body


def _parallel(loop: LoopTerm, live_after: set[TermTensor]) -> bool:
    if loop.var.step >= loop.var.end:
        return True  # one trip
    regions: dict[TermTensor, set[TermRegion]] = {}
    for access in accesses(loop.body):
        regions.setdefault(access.region.tensor, set()).add(access.region)
    outer = exposed(loop.body)
    for tensor in written(loop.body):
        own = tensor not in live_after and tensor not in outer
        if not own and not apart(regions[tensor], tensor, loop.var):
            return False
    return True


def apart(regions: Collection[TermRegion], tensor: TermTensor, var: TermVar) -> bool:
    """Whether different iterations of `var` access disjoint parts of a tensor: along one dimension."""
    return any(
        len({r.dims[d] for r in regions}) == 1 and next(iter(regions)).dims[d].var is var
        for d in range(len(tensor.shape))
    )
