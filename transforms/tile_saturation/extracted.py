"""Prepares an extracted term for placement: opens bundles, removes stores that nobody reads.

Deadness is a property of the whole program, so it is decided here, after extraction, never inside the e-graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from superopt.transforms.tile_saturation.terms import (
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermRegion,
    TermTensor,
    loaded,
    rebuilt,
    render,
    stores,
    written,
)


def opened(body: Sequence[StatementTerm]) -> tuple[StatementTerm, ...]:
    """Statements over bundles as statements over their lanes, one after the other."""
    out: list[StatementTerm] = []
    for statement in body:
        if isinstance(statement, StoreTerm):
            for lane in range(len(statement.region.tensor.members)):
                out.append(rebuilt(statement, functools.partial(_lane, lane=lane)))
        else:
            starts = [(_lane(r, i), v) for r, v in statement.starts for i in range(len(r.tensor.members))]
            out.append(LoopTerm(statement.var, tuple(starts), opened(statement.body)))
    return tuple(out)


def _lane(region: TermRegion, lane: int) -> TermRegion:
    members = region.tensor.members
    return TermRegion(members[lane if len(members) > 1 else 0], region.dims)


def without_dead(body: Sequence[StatementTerm], outputs: Iterable[TermTensor]) -> tuple[StatementTerm, ...]:
    """The program without stores to tensors that are neither outputs nor needed by another tensor's value."""
    kept = set(outputs)
    while True:
        live = set(kept)
        for store in stores(body):
            if store.region.tensor in kept:
                live |= {r.tensor for r in store.value.regions}
        if live == kept:
            return _only(body, kept)
        kept = live


def _only(body: Sequence[StatementTerm], kept: set[TermTensor]) -> tuple[StatementTerm, ...]:
    out: list[StatementTerm] = []
    for statement in body:
        if isinstance(statement, StoreTerm):
            if statement.region.tensor in kept:
                out.append(statement)
        elif inner := _only(statement.body, kept):
            starts = tuple(s for s in statement.starts if s[0].tensor in kept)
            out.append(LoopTerm(statement.var, starts, inner))
    return tuple(out)


def canonical(body: Sequence[StatementTerm]) -> tuple[StatementTerm, ...]:
    """The least order of the statements that dependences allow: equal for programs that differ only in order."""
    items = [LoopTerm(s.var, s.starts, canonical(s.body)) if isinstance(s, LoopTerm) else s for s in body]
    texts = [render((s,)) for s in items]
    reads = [loaded((s,)) for s in items]
    writes = [written((s,)) for s in items]
    waits = [
        {j for j in range(i) if writes[j] & (reads[i] | writes[i]) or reads[j] & writes[i]}
        for i in range(len(items))
    ]
    out: list[StatementTerm] = []
    left = set(range(len(items)))
    while left:
        i = min((i for i in left if not waits[i] & left), key=lambda i: (texts[i], i))
        left.remove(i)
        out.append(items[i])
    return tuple(out)
