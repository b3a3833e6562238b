"""Merges adjacent statements of one form into one statement over bundles of tensors.

    for n: Q[:, n] = X @ WQ[:, n]
    for n: K[:, n] = X @ WK[:, n]     ->    for n: (Q,K,V)[:, n] = X @ (WQ,WK,WV)[:, n]
    for n: V[:, n] = X @ WV[:, n]

Independent chains multiply in the e-graph; a bundle is rewritten once for all its lanes (Trinity's Q1,K1,V1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.transforms.tile_saturation.terms import (
    LibraryOperator,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermProgram,
    TermRegion,
    TermTensor,
    ValueTerm,
    loaded,
    rebuilt,
    written,
)


def bundled(program: TermProgram) -> TermProgram:
    """`program` with statements of one form merged where they may be adjacent."""
    body: list[StatementTerm] = []
    bundles: dict[tuple[TermTensor, ...], TermTensor] = {}
    library: dict[StatementTerm, tuple[LibraryOperator, ...]] = {}
    taken: set[int] = set()
    for i, first in enumerate(program.body):
        if i in taken:
            continue
        lanes = [first]
        for j in range(i + 1, len(program.body)):
            other = program.body[j]
            if j in taken or not _movable(program.body, i, j, taken):
                continue
            if _pairs(first, other) is not None:
                lanes.append(other)
                taken.add(j)
        body.append(first if len(lanes) == 1 else _bundle(lanes, bundles))
        if all(lane in program.library for lane in lanes):
            library[body[-1]] = tuple(p for lane in lanes for p in program.library[lane])
    tensors = [*program.tensors, *bundles.values()]
    return replace(program, body=tuple(body), tensors=tensors, library=library)


def _movable(body: Sequence[StatementTerm], i: int, j: int, taken: set[int]) -> bool:
    """Whether statement j may move up to statement i."""
    r, w = loaded((body[j],)), written((body[j],))
    between = [body[k] for k in range(i, j) if k not in taken or k == i]
    # Statements bundled with i run where i does.
    between += [body[k] for k in taken if i < k < j]
    return all(not written((s,)) & (r | w) and not loaded((s,)) & w for s in between)


def _pairs(a: StatementTerm, b: StatementTerm) -> dict[TermTensor, TermTensor] | None:
    """The tensors of `a` with the corresponding ones of `b`, or None for other forms."""
    pairs: dict[TermTensor, TermTensor] = {}

    def tensors(x: TermTensor, y: TermTensor) -> bool:
        alike = (
            x.shape == y.shape and x.dtype == y.dtype and (x.kind == y.kind) and not x.lanes and not y.lanes
        )
        return alike and pairs.setdefault(x, y) is y

    def regions(x: TermRegion, y: TermRegion) -> bool:
        return x.dims == y.dims and tensors(x.tensor, y.tensor)

    def exprs(x: ValueTerm, y: ValueTerm) -> bool:
        if x.op != y.op or x.attrs != y.attrs or len(x.args) != len(y.args):
            return False
        if x.region is not None and y.region is not None:
            return regions(x.region, y.region)
        return all(exprs(p, q) for p, q in zip(x.args, y.args, strict=True))

    def statements(x: StatementTerm, y: StatementTerm) -> bool:
        if isinstance(x, StoreTerm) and isinstance(y, StoreTerm):
            return regions(x.region, y.region) and exprs(x.value, y.value)
        if (
            not isinstance(x, LoopTerm)
            or not isinstance(y, LoopTerm)
            or x.var is not y.var
            or len(x.body) != len(y.body)
        ):
            return False
        starts = len(x.starts) == len(y.starts) and all(
            p[1] == q[1] and regions(p[0], q[0]) for p, q in zip(x.starts, y.starts, strict=True)
        )
        return starts and all(statements(p, q) for p, q in zip(x.body, y.body, strict=True))

    if not statements(a, b):
        return None
    # A tensor is its own partner, or its partner does not occur in the first: lanes must not cross.
    crossed = any(x is not y and y in pairs for x, y in pairs.items())
    return None if crossed else pairs


def _bundle(
    lanes: Sequence[StatementTerm], bundles: dict[tuple[TermTensor, ...], TermTensor]
) -> StatementTerm:
    columns: dict[TermTensor, tuple[TermTensor, ...]] = {}
    for other in lanes[1:]:
        pairs = _pairs(lanes[0], other)
        assert pairs is not None
        for x, y in pairs.items():
            columns[x] = (*columns.get(x, (x,)), y)

    def tensor(x: TermTensor) -> TermTensor:
        members = columns[x]
        if len(set(members)) == 1:
            return x
        if members not in bundles:
            name = ",".join(t.name for t in members)
            bundles[members] = TermTensor(f"({name})", x.shape, x.dtype, x.kind, members)
        return bundles[members]

    return rebuilt(lanes[0], lambda r: TermRegion(tensor(r.tensor), r.dims))
