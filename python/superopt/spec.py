"""What is legal at each level; checked at every boundary between passes.

The operator table defines what an operator accepts (`operators.infer_type`); this module defines the rest:
values are defined before use, maps are in range, tiles cover their tensors, loop stages do not mix, every
output element is written by exactly one block, and a block's values fit its shared memory. Each check raises
IllegalProgram at the node's location, with what was expected and what was got.

The rules of kernel graphs are here, those of block graphs and tile programs in `superopt.levels`; all are
imported from here.
"""

from __future__ import annotations

from superopt.aliasing import check_aliases
from superopt.errors import IllegalProgram, Location, UnsupportedProgram
from superopt.levels.block import (
    Stage,
    block_bytes,
    check_block,
    check_custom,
    iterator_type,
    saved_type,
    stages,
)
from superopt.levels.common import check_defined, check_table, define, expect
from superopt.levels.ragged import Reach, Reaches, reaches
from superopt.levels.tile import WARPS, check_tile, check_tiled
from superopt.program import DTYPE_BYTES, KernelGraph, NodeKind, Value
from superopt.weights import check_weights

__all__ = [
    "WARPS",
    "Reach",
    "Reaches",
    "Stage",
    "block_bytes",
    "check_block",
    "check_kernel",
    "check_tile",
    "check_types",
    "iterator_type",
    "reaches",
    "saved_type",
    "stages",
]

# Indices along one dimension are 32 bits wide in kernels and in the searches.
MAX_EXTENT = 2**31 - 1


def check_kernel(graph: KernelGraph, shared_bytes: int | None = None) -> None:
    """Check a kernel graph and everything in it; `shared_bytes` is the target's limit for one block.

    By default it is the largest of any target.
    """
    check_types(graph)
    defined = set(graph.inputs)
    for node in graph.nodes:
        check_defined(node, defined)
        if node.op == NodeKind.CUSTOM:
            check_custom(node, shared_bytes)
        elif node.op == NodeKind.TILED:
            check_tiled(node)
        elif node.op == NodeKind.EXTERN:
            for key in ("target", "reason"):
                expect(
                    isinstance(node.attrs.get(key), str),
                    f"attribute '{key}' (a string)",
                    node.attrs.get(key),
                    node,
                )
        else:
            check_table(node, "kernel")
        define(node, defined)
    for value in graph.outputs:
        if value not in defined:
            raise IllegalProgram("expected every output to be computed, got one that is not", graph.location)
    check_aliases(graph)
    check_weights(graph)


def check_types(graph: KernelGraph) -> None:
    """Raise UnsupportedProgram where an input or a node's result has an unknown dtype or an impossible extent."""
    for value in graph.inputs:
        _check_type(value, f"input '{value.name}'" if value.name else "an input", graph.location)
    for node in graph.nodes:
        for value in node.results:
            what = str(node.attrs.get("target", node.op)) if node.op == NodeKind.EXTERN else node.op
            _check_type(value, f"the result of '{what}'", node.location)


def _check_type(value: Value, what: str, location: Location) -> None:
    if value.dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise UnsupportedProgram(f"expected {what} to have elements of {known}, got {value.dtype}", location)
    if not all(1 <= extent <= MAX_EXTENT for extent in value.shape):
        raise UnsupportedProgram(
            f"expected {what} to have extents of 1 to {MAX_EXTENT}, got {value.type}", location
        )
