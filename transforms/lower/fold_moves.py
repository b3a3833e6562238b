"""Slices and transpositions that kernels read in place: their loads begin at the slice, or turn what they load.

%s = slice(%x) offsets [0, 64]                    tiled(%x) {
tiled(%s) {                               ->        %t = load %x[0 : 16, 64 + 32 * i : +32]
  %t = load %s[0 : 16, 32 * i : +32]              }
}

%s = transpose(%x) perm [1, 0]                    tiled(%x) {
tiled(%s) {                               ->        %r = load %x[32 * i : +32, 0 : 16]
  %t = load %s[0 : 16, 32 * i : +32]                %t = transpose(%r) perm [1, 0]
}                                                 }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from superopt.diagnostics import Diagnostics
from superopt.moves import moves_in_place
from superopt.operators import OPERATORS, Move, move_of, normalize_attrs
from superopt.program import (
    Attr,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Node,
    Statement,
    TensorType,
    TileProgram,
    Value,
    Window,
    rebuild,
    rebuild_statements,
)
from superopt.transforms.passes import GraphPass

# The statements that load from a source what a load from the moved tensor gave.
_Reads: TypeAlias = "Callable[[Load, Buffer], list[Statement]]"


@dataclass(frozen=True)
class FoldMoves(GraphPass):
    """Let tile programs read slices and transpositions in place if nothing else reads them."""

    flag: ClassVar[str] = "fold-moves"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph without slices and transpositions that only `tiled` nodes read."""
        moves = moves_in_place(graph)
        for node in graph.nodes:
            if not isinstance(node.body, TileProgram):  # an operator that a library runs
                for value in node.operands:
                    moves.pop(value, None)

        def change(node: Node) -> list[Node]:
            if isinstance(node.body, TileProgram):
                return [_folded(node, node.body, moves)]
            return [] if moves.keys() & node.results else [node]

        return rebuild(graph, change)


def _folded(node: Node, program: TileProgram, moves: Mapping[Value, Node]) -> Node:
    params = list(program.params)
    operands = list(node.operands)
    sources: dict[Buffer, tuple[Buffer, _Reads]] = {}
    for i, value in enumerate(node.operands):
        if (move := moves.get(value)) is None:
            continue
        (source,) = move.operands
        operands[i] = source
        params[i] = Buffer(source.type, program.params[i].name)
        sources[program.params[i]] = (params[i], _reads(move))
    if not sources:
        return node

    def change(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Load) or statement.buffer not in sources:
            return [statement]
        buffer, reads = sources[statement.buffer]
        return reads(statement, buffer)

    body = rebuild_statements(program.body, change)
    return replace(node, operands=tuple(operands), body=replace(program, params=params, body=body))


def _reads(move: Node) -> _Reads:
    attrs = normalize_attrs(OPERATORS[move.op], move.attrs)
    if move_of(move) is Move.TRANSPOSE:
        perm = _ints(attrs, "perm")
        return lambda load, buffer: _turned(load, buffer, perm)
    sizes, offsets, strides = (_ints(attrs, key) for key in ("sizes", "offsets", "strides"))
    cut = [Window(n, o, (), s) for n, o, s in zip(sizes, offsets, strides, strict=True)]
    return lambda load, buffer: [_shifted(load, buffer, cut)]


def _ints(attrs: Mapping[str, Attr], key: str) -> tuple[int, ...]:
    value = attrs[key]
    assert isinstance(value, tuple)
    return value


def _shifted(load: Load, buffer: Buffer, cut: Sequence[Window]) -> Load:
    windows = tuple(
        Window(
            w.size,
            c.base + c.stride * w.base,
            tuple((var, c.stride * scale) for var, scale in w.terms),
            c.stride * w.stride,
        )
        for w, c in zip(load.windows, cut, strict=True)
    )
    return Load(load.result, buffer, windows)


def _turned(load: Load, buffer: Buffer, perm: Sequence[int]) -> list[Statement]:
    windows = dict(zip(perm, load.windows, strict=True))
    ordered = tuple(windows[dim] for dim in range(len(perm)))
    tile = Value(TensorType(tuple(w.size for w in ordered), buffer.type.dtype), load.result.name)
    return [
        Load(tile, buffer, ordered),
        Compute("transpose", (tile,), load.result, {"perm": tuple(perm)}),
    ]
