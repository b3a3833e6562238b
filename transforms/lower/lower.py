"""Lowers a whole program to tile programs: the last step before emission."""

from __future__ import annotations

from superopt.cost.gpus import DEFAULT_TARGET, Target
from superopt.diagnostics import Diagnostics
from superopt.program import KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.lower.block_to_tile import BlockToTile
from superopt.transforms.lower.fold_slices import FoldSlices
from superopt.transforms.lower.fuse_thread_graphs import FuseThreadGraphs
from superopt.transforms.lower.kernel_to_tile import KernelToTile
from superopt.transforms.lower.refine_loops import RefineLoops


def lower(
    graph: KernelGraph, target: str | Target = DEFAULT_TARGET, diagnostics: Diagnostics | None = None
) -> KernelGraph:
    """`graph` with tile programs for all that runs; only views, dense constants and externs remain besides.

    `target` is (the name of) the GPU that default schedules are made for. Raises BadOption for an unknown one,
    UnsupportedProgram for a program that cannot be lowered.
    """
    diagnostics = diagnostics if diagnostics is not None else Diagnostics()
    name = target if isinstance(target, str) else target.name
    lowered = RefineLoops().apply(graph, diagnostics)
    lowered = FuseThreadGraphs().apply(lowered, diagnostics)
    lowered = BlockToTile(target=name).apply(lowered, diagnostics)
    lowered = KernelToTile(target=name, keep_slices=True).apply(lowered, diagnostics)
    lowered = FoldSlices().apply(lowered, diagnostics)
    check_kernel(lowered)
    return lowered
