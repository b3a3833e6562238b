"""Which kernels may start while the one before them still runs: programmatic dependent launch.

    parts(x, part)       part is stored ...
    join(part, out)      ... and loaded by a kernel whose blocks are there already, and wait for its end

A kernel that is launched so waits for the one before it (`griddepcontrol.wait`) before it touches memory: then
all of that kernel's stores are visible, and, as that one waited too, those of all kernels before. Only the launch
is hidden (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.operators import Move, computed_of, is_constant, move_of, splat_of
from superopt.program import Node, TileProgram

CAPABILITY = 90
"""The compute capability from which on GPUs launch kernels so, times ten."""


def early_launches(nodes: Iterable[Node]) -> set[Node]:
    """Of nodes that are launched in this order, kernels of ours that come right after one that is not `alone`.

    What a library, PyTorch or a copy of a constant to the device launches need not wait for what was before it.
    """
    found, after_ours = set[Node](), False
    for node in nodes:
        if move_of(node) is Move.RESHAPE or _is_computed(node):
            continue
        if after_ours and node.body is not None:
            found.add(node)
        after_ours = node.body is not None and not (isinstance(node.body, TileProgram) and node.body.alone)
    return found


def _is_computed(node: Node) -> bool:
    """Whether a node is a constant that kernels compute, so that nothing is launched for it."""
    return is_constant(node) and (splat_of(node) is not None or computed_of(node) is not None)
