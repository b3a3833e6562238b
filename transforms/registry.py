"""Every pass by its flag, Python and native alike; nothing is imported until it is needed.

Adding a pass takes one line in `_PASSES` (CONTRIBUTING.md shows it).
"""

from __future__ import annotations

from importlib import import_module

from superopt.errors import BadOption
from superopt.options import did_you_mean
from superopt.transforms.passes import Pass

# flag -> "module:class"; `superopt-opt --list-passes` prints them in this order.
_PASSES: dict[str, str] = {
    "ingest-linalg": "superopt.transforms.ingest.ingest_linalg:IngestLinalg",
    "partition": "superopt.transforms.partition.partition:Partition",
    "derive": "superopt.transforms.derivation.derive:Derive",
    "print-derivations": "superopt.transforms.derivation.derive:PrintDerivations",
    "mugraph-search": "superopt.transforms.mugraph_search.mugraph_search:MugraphSearch",
    "split-reductions": "superopt.transforms.split_reductions:SplitReductions",
    "sink-concats": "superopt.transforms.sink_concats:SinkConcats",
    "stabilize-softmax": "superopt.transforms.stabilize_softmax:StabilizeSoftmax",
    "kernel-to-tile-loops": "superopt.transforms.tile_saturation.kernel_to_tile_loops:KernelToTileLoops",
    "saturate-tiles": "superopt.transforms.tile_saturation.saturate_tiles:SaturateTiles",
    "choose-extents": "superopt.transforms.schedule.choose_extents:ChooseExtents",
    "choose-layouts": "superopt.transforms.lower.choose_layouts:ChooseLayouts",
    "join-parts": "superopt.transforms.lower.join_parts:JoinParts",
    "fuse-thread-graphs": "superopt.transforms.lower.fuse_thread_graphs:FuseThreadGraphs",
    "kernel-to-tile": "superopt.transforms.lower.kernel_to_tile:KernelToTile",
    "refine-loops": "superopt.transforms.lower.refine_loops:RefineLoops",
    "block-to-tile": "superopt.transforms.lower.block_to_tile:BlockToTile",
    "fold-moves": "superopt.transforms.lower.fold_moves:FoldMoves",
    "merge-twins": "superopt.transforms.lower.merge_twins:MergeTwins",
    "choose-splits": "superopt.transforms.schedule.choose_splits:ChooseSplits",
    "choose-tiles": "superopt.transforms.schedule.choose_tiles:ChooseTiles",
    "choose-launch": "superopt.transforms.schedule.choose_launch:ChooseLaunch",
    "superoptimize": "superopt.pipeline:Superoptimize",
    "replay-schedule": "superopt.transforms.replay_schedule:ReplaySchedule",
}

# The passes of MLIR with their own flag; a pipeline may name any pass that the bindings know.
NATIVE_PASSES: dict[str, str] = {
    "canonicalize": "Canonicalize operations",
    "cse": "Eliminate common sub-expressions",
    "inline": "Inline function calls",
    "symbol-dce": "Eliminate dead symbols",
    "sccp": "Sparse conditional constant propagation",
    "strip-debuginfo": "Strip debug info from all operations",
    "loop-invariant-code-motion": "Hoist loop-invariant instructions outside of the loop",
    "linalg-generalize-named-ops": "Turn linalg named operations into linalg.generic",
    "linalg-fuse-elementwise-ops": "Fuse elementwise operations on tensors",
    "linalg-fold-unit-extent-dims": "Remove unit-extent dimensions in linalg operations on tensors",
    "linalg-inline-scalar-operands": "Inline scalar operands into linalg.generic",
    "convert-elementwise-to-linalg": "Turn elementwise operations on tensors into linalg",
    "print-op-stats": "Print how many operations of each kind there are",
}


def _checked(passes: dict[str, str]) -> dict[str, str]:
    clash = sorted(set(passes) & set(NATIVE_PASSES))
    if clash:
        raise ImportError(f"pass '{clash[0]}' has the name of one of MLIR's passes")
    return passes


_TABLE = _checked(_PASSES)


def flags() -> tuple[str, ...]:
    """The flags of the Python passes."""
    return tuple(_TABLE)


def register(flag: str, target: str) -> None:
    """Add a pass from outside the package; `target` is "module:Class". Raises `BadOption` on a clash."""
    if (flag in _TABLE or flag in NATIVE_PASSES) and _TABLE.get(flag) != target:
        raise BadOption(f"a pass named '{flag}' is registered already")
    _TABLE[flag] = target


def load(flag: str) -> type[Pass]:
    """The class of a Python pass; raises `BadOption` for a flag nobody registered."""
    if flag not in _TABLE:
        hint = did_you_mean(flag, [*_TABLE, *NATIVE_PASSES])
        raise BadOption(f"unknown pass '{flag}'{hint}; --list-passes prints the known ones")
    module, _, name = _TABLE[flag].partition(":")
    loaded: type[Pass] = getattr(import_module(module), name)
    if loaded.flag != flag:
        raise ImportError(f"{_TABLE[flag]} calls itself '{loaded.flag}' and is registered as '{flag}'")
    return loaded
