"""Slices that kernels read in place: their loads begin where the slice does.

%s = slice(%x) offsets [0, 64]                    tiled(%x) {
tiled(%s) {                               ->        %t = load %x[0 : 16, 64 + 32 * i : +32]
  %t = load %s[0 : 16, 32 * i : +32]              }
}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.diagnostics import Diagnostics
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import (
    Buffer,
    KernelGraph,
    Load,
    Node,
    Statement,
    TileProgram,
    Value,
    Window,
    rebuild,
    rebuild_statements,
)
from superopt.spec import slices_in_place
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class FoldSlices(GraphPass):
    """Let tile programs read slices in place if nothing else reads them."""

    flag: ClassVar[str] = "fold-slices"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph without slices that only `tiled` nodes read."""
        slices = slices_in_place(graph)

        def change(node: Node) -> list[Node]:
            if isinstance(node.body, TileProgram):
                return [_folded(node, node.body, slices)]
            return [] if slices.keys() & node.results else [node]

        return rebuild(graph, change)


def _folded(node: Node, program: TileProgram, slices: Mapping[Value, Node]) -> Node:
    params = list(program.params)
    operands = list(node.operands)
    cuts: dict[Buffer, tuple[Buffer, Sequence[Window]]] = {}
    for i, value in enumerate(node.operands):
        if (cut := slices.get(value)) is None:
            continue
        (source,) = cut.operands
        operands[i] = source
        params[i] = Buffer(source.type, program.params[i].name)
        cuts[program.params[i]] = (params[i], _windows(cut))
    if not cuts:
        return node
    body = _shifted(program.body, cuts)
    return replace(node, operands=tuple(operands), body=replace(program, params=params, body=body))


def _windows(cut: Node) -> list[Window]:
    attrs = normalize_attrs(OPERATORS[cut.op], cut.attrs)
    sizes, offsets, strides = (attrs[k] for k in ("sizes", "offsets", "strides"))
    assert isinstance(sizes, tuple)
    assert isinstance(offsets, tuple)
    assert isinstance(strides, tuple)
    return [Window(n, o, (), s) for n, o, s in zip(sizes, offsets, strides, strict=True)]


def _shifted(
    body: Sequence[Statement], cuts: Mapping[Buffer, tuple[Buffer, Sequence[Window]]]
) -> list[Statement]:
    def change(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Load) or statement.buffer not in cuts:
            return [statement]
        buffer, windows = cuts[statement.buffer]
        moved = tuple(
            Window(
                w.size,
                cut.base + cut.stride * w.base,
                tuple((var, cut.stride * scale) for var, scale in w.terms),
                cut.stride * w.stride,
            )
            for w, cut in zip(statement.windows, windows, strict=True)
        )
        return [Load(statement.result, buffer, moved)]

    return rebuild_statements(body, change)
