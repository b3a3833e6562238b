"""Where a lowered program loses bits: candidates that are alike in this are unsafe alike, whatever their tiles.

Numbers are rounded as operands of products and where they are stored between kernels; sums cancel. What happens
there is told by what it happens to: the inputs and the operators that a number is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from superopt.operators import OPERATORS, is_contraction, reduction_of
from superopt.program import Buffer, Compute, KernelGraph, Load, Store, TileProgram, Value

# Inputs, by number, and the names of operators.
Parts: TypeAlias = "frozenset[int | str]"


@dataclass
class _Found:
    multiplied: set[frozenset[Parts]] = field(default_factory=set[frozenset[Parts]])
    summed: set[Parts] = field(default_factory=set[Parts])
    stored: set[tuple[str, Parts]] = field(default_factory=set[tuple[str, Parts]])


def lost_bits(lowered: KernelGraph) -> object:
    """Equal for lowered programs of the same inputs whose products, sums and stored values are made of the same.

    What products alone read is rounded there, whichever kernel makes it; so is what is returned.
    Moves are no part.
    """
    behind: dict[Value, Parts] = {v: frozenset([i]) for i, v in enumerate(lowered.inputs)}
    found = _Found()
    for node in lowered.nodes:
        given = [behind.get(v, frozenset()) for v in node.operands]
        if isinstance(node.body, TileProgram):
            made = _of_kernel(node.body, given, found)
        else:
            made = [_applied(node.op).union(*given)] * len(node.results)
            if is_contraction(node):
                found.multiplied.add(frozenset(given))
            elif reduction_of(node) == "add":
                found.summed.update(given)
        behind.update(zip(node.results, made, strict=True))
        found.stored |= {(v.dtype, behind[v]) for v in node.results}
    operands = frozenset[Parts]().union(*found.multiplied)
    rounded = {(v.dtype, behind[v]) for v in lowered.outputs}
    stored = {s for s in found.stored - rounded if s[1] not in operands and _computed(s[1])}
    return frozenset(found.multiplied), frozenset(found.summed), frozenset(stored)


def _of_kernel(program: TileProgram, given: Sequence[Parts], found: _Found) -> list[Parts]:
    """What the outputs of a kernel are made of; `given` is what its inputs are."""
    made: dict[object, list[object]] = {}
    for s in program.statements():
        if isinstance(s, Compute):
            made[s.result] = [*_applied(s.op), *s.operands]
        elif isinstance(s, Load):
            made[s.result] = [s.buffer]
        elif isinstance(s, Store):
            made.setdefault(s.buffer, []).append(s.value)
    known = dict(zip(program.params[: program.n_inputs], given, strict=True))
    for s in program.statements():
        if isinstance(s, Compute) and OPERATORS[s.op].contraction:
            found.multiplied.add(frozenset(_parts(v, made, known) for v in s.operands))
        elif isinstance(s, Compute) and OPERATORS[s.op].reduction == "add":
            found.summed.add(_parts(s.operands[0], made, known))
    return [_parts(b, made, known) for b in program.params[program.n_inputs :]]


def _applied(op: str) -> frozenset[str]:
    """An operator as a part of what it makes; nothing for what moves elements."""
    entry = OPERATORS.get(op)
    return frozenset([op] if entry is None or entry.move is None else [])


def _computed(parts: Parts) -> bool:
    return any(isinstance(part, str) for part in parts)


def _parts(value: object, made: Mapping[object, Sequence[object]], known: Mapping[Buffer, Parts]) -> Parts:
    """What is behind a value or a buffer of a tile program; what is behind its inputs is `known`."""
    seen, waiting, found = set[object](), [value], set[int | str]()
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        if isinstance(part, str):
            found.add(part)
            continue
        if isinstance(part, Buffer):
            found |= known.get(part, frozenset())
        waiting += made.get(part, ())
    return frozenset(found)
