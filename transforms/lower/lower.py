"""Lowers a whole program to tile programs: the last step before emission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.computed import mark_computed
from superopt.cost.gpus import DEFAULT_TARGET, Target
from superopt.cost.gpus import target as find_target
from superopt.cost.model import merged_twins, program_seconds
from superopt.diagnostics import Diagnostics
from superopt.errors import UnsupportedProgram
from superopt.operators import is_contraction
from superopt.program import KernelGraph, Node, TileProgram
from superopt.spec import check_kernel
from superopt.transforms.lower.block_to_tile import BlockToTile
from superopt.transforms.lower.fold_moves import FoldMoves
from superopt.transforms.lower.fuse_thread_graphs import FuseThreadGraphs
from superopt.transforms.lower.kernel_to_tile import KernelToTile
from superopt.transforms.lower.merge_twins import merge
from superopt.transforms.lower.refine_loops import RefineLoops


def lower(
    graph: KernelGraph,
    target: str | Target = DEFAULT_TARGET,
    diagnostics: Diagnostics | None = None,
    *,
    library: Sequence[int] = (),
) -> KernelGraph:
    """`graph` with tile programs for all that runs; only views, dense constants and externs remain besides.

    So do the nodes at the places `library`, matrix products, which a library runs (`cost.left_to_library`).
    `target` is (the name of) the GPU that default schedules are made for. Raises BadOption for an unknown one,
    UnsupportedProgram for a program that cannot be lowered.
    """
    diagnostics = diagnostics if diagnostics is not None else Diagnostics()
    name = target if isinstance(target, str) else target.name
    together = [[v for n in group for v in n.results] for group in merged_twins(graph, find_target(name))]
    lowered = RefineLoops().apply(graph, diagnostics)
    lowered = FuseThreadGraphs().apply(lowered, diagnostics)
    lowered = BlockToTile(target=name).apply(lowered, diagnostics)
    left = frozenset(_product(graph, i).result for i in library)
    lowered = KernelToTile(target=name, keep_moves=True).apart_from(left, lowered)
    lowered = FoldMoves().apply(lowered, diagnostics)
    lowered = KernelToTile(target=name).apart_from(left, lowered)  # moves that no kernel does after all
    lowered = merge(lowered, together)
    mark_computed(lowered)
    for node in lowered.nodes:
        if isinstance(node.body, TileProgram):
            _separate_masks(node.body, find_target(name))
    check_kernel(lowered)
    return lowered


def _separate_masks(program: TileProgram, target: Target) -> None:
    """Have trips that a band leaves whole run without it, in a loop of their own, where that takes less time."""
    if any(buffer.band is not None for buffer in program.params):
        apart = replace(program, separate_masks=True)
        program.separate_masks = program_seconds(apart, target) < program_seconds(program, target)


def _product(graph: KernelGraph, place: int) -> Node:
    if not 0 <= place < len(graph.nodes) or not is_contraction(graph.nodes[place]):
        raise UnsupportedProgram(
            f"expected the place of a matrix product for a library, got {place}", graph.location
        )
    return graph.nodes[place]
