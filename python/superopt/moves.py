"""Which operators that only arrange elements need no kernel, as those that read them do it.

Lowering and prices ask the same question, so that what is priced is what is lowered.
"""

from __future__ import annotations

from collections.abc import Container

from superopt.aliasing import pairs
from superopt.operators import Move, is_contraction, is_windowed, move_of, nest_of
from superopt.program import DTYPE_BYTES, KernelGraph, Load, Node, NodeKind, TileProgram, Value

# Bytes that device memory gives at once.
SECTOR_BYTES = 32


def moves_in_place(graph: KernelGraph) -> dict[Value, Node]:
    """The `slice` and `transpose` nodes, by their results, that only kernels read: their loads begin where the
    slice does, or turn what they load (`lower/fold_moves.py`), so nothing is moved.

    Of transpositions these are the ones whose readers have whole sectors of what is turned in their tiles.
    `choose-layouts` knows those that block graphs read.
    """
    found = {n.result: n for n in graph.nodes if move_of(n) in (Move.SLICE, Move.TRANSPOSE)}
    overwritten = {graph.inputs[i] for i in pairs(graph.aliases).values()}
    for node in graph.nodes if found else ():
        for value in node.operands:
            if value in found and not _reads_in_place(node, found[value], overwritten):
                del found[value]
    for value in graph.outputs:
        found.pop(value, None)
    return found


def _reads_in_place(node: Node, move: Node, overwritten: Container[Value]) -> bool:
    """Whether the kernel of `node` can read what `move` moves where it is: not what a kernel may overwrite."""
    if node.op == NodeKind.EXTERN or move_of(node) in (Move.RESHAPE, Move.SLICE, Move.TRANSPOSE):
        return False
    if isinstance(node.body, TileProgram) and any(b.view is not None for b in node.body.locals):
        return False
    if is_windowed(node) and (nest := nest_of(node)) is not None and nest.reads:
        return False
    return move_of(move) is Move.SLICE or (move.operands[0] not in overwritten and _reads_rows(node, move))


def _reads_rows(node: Node, move: Node) -> bool:
    """Whether the tiles that `node` reads of what `move` turns hold whole sectors: those of products do."""
    perm = move.attrs["perm"]
    assert isinstance(perm, tuple)
    last = perm.index(len(perm) - 1)
    if isinstance(node.body, TileProgram):
        read = [b for b, v in zip(node.body.params, node.operands, strict=False) if v is move.result]
        loads = [s for s in node.body.statements() if isinstance(s, Load) and s.buffer in read]
        row = min(SECTOR_BYTES // DTYPE_BYTES[move.result.dtype], move.result.shape[last])
        # The last trip of a loop may have less.
        return max((load.windows[last].size for load in loads), default=row) >= row
    swapped = perm[:-2] == tuple(range(len(perm) - 2))  # the product's own attribute says so
    return is_contraction(node) and not is_windowed(node) and last >= len(perm) - 2 and not swapped
