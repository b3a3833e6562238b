"""`--choose-extents`: grid and loop extents of block graphs, as decisions that can be searched.

    grid 64, loops 8: tiles of 64 x 512      ->      grid 32, loops 16: tiles of 128 x 256

The searches size a kernel by itself. Other sizes may suit what comes behind: a transposed layout, say, needs
tiles that are wide enough in both dimensions. A choice gives all extents of a kernel, grid and loops together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.computed import computed_values
from superopt.cost import kernel_cost
from superopt.cost.gpus import DEFAULT_TARGET, Target, TargetName
from superopt.cost.gpus import target as find_target
from superopt.errors import SuperoptError
from superopt.program import Attr, BlockGraph, Computed, KernelGraph, Node, NodeKind, Value, rebuild
from superopt.spec import check_kernel
from superopt.transforms.fingerprints import fingerprints, kernel_fingerprint
from superopt.transforms.schedule.resize import CannotResize, resized
from superopt.transforms.tunable import Pick, Site, Tunable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

# Extents of one kernel that are looked at, the nearest to its own first, and that are choices; and those that are
# looked at for a mask.
_LOOKED, _KEPT, _NEAR = 512, 32, 128


@dataclass(frozen=True)
class ChooseExtents(Tunable):
    """Give block graphs the grid and loop extents of `config`.

    By itself it changes nothing: the search has chosen. Other extents are guesses that have to be proved: a mean
    within a tile, for instance, changes its meaning in a smaller one.
    """

    flag: ClassVar[str] = "choose-extents"
    level: ClassVar[Literal["graph", "kernel"]] = "graph"
    hops: ClassVar[int] = 1

    target: TargetName = DEFAULT_TARGET
    """The GPU whose shared memory bounds the choices, and whose cost model orders them."""

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """grid (64), loops (8)  ->  grid (32), loops (16)"""
        target = find_target(self.target)
        kernels = any(isinstance(n.body, BlockGraph) for n in graph.nodes)
        at = fingerprints(graph, self.hops) if kernels else {}
        masks = computed_values(graph)

        def chosen(node: Node) -> Node:
            if not isinstance(node.body, BlockGraph):
                return node
            default = _said(node.body.grid, node.body.loops)
            taken = pick(Site(at[node], default, lambda: _others(node, target, masks), node.location))
            return node if taken == default else resized(node, *_read(taken))

        return rebuild(graph, chosen)


def suited_to_masks(graph: KernelGraph, target: Target) -> KernelGraph:
    """`graph`, whose kernels that read masks have the extents that are predicted to be fastest nearby.

    The native search prices loops whole that masks cut short.
    """
    masks = computed_values(graph)

    def chosen(node: Node) -> Node:
        if not isinstance(node.body, BlockGraph) or masks.keys().isdisjoint(node.operands):
            return node
        others = _priced(node, target, masks, _NEAR)
        best = min(others, default=None, key=lambda other: other[0])
        return best[1] if best and best[0] < kernel_cost(node, target, masks).seconds else node

    return rebuild(graph, chosen) if masks else graph


# By the fingerprint of the kernel and its masks; equal kernels of many candidates are looked at once.
_KNOWN: dict[tuple[object, ...], tuple[str, ...]] = {}


def _others(node: Node, target: Target, masks: Mapping[Value, Computed]) -> tuple[str, ...]:
    """The legal extents, fewest predicted seconds first."""
    key = kernel_fingerprint(node), tuple(masks.get(v) for v in node.operands), target.name
    if key not in _KNOWN:
        found = sorted(
            (seconds, number, said)
            for number, (seconds, _, said) in enumerate(_priced(node, target, masks, _LOOKED))
        )
        _KNOWN[key] = tuple(said for _, _, said in found[:_KEPT])
    return _KNOWN[key]


def _priced(
    node: Node, target: Target, masks: Mapping[Value, Computed], most: int
) -> Iterator[tuple[float, Node, str]]:
    """The predicted seconds of a kernel with other legal extents, of the `most` that are nearest to its own."""
    for grid, loops in itertools.islice(_nearest(node), most):
        try:
            made = resized(node, grid, loops)
            operands = list(dict.fromkeys(node.operands))
            check_kernel(KernelGraph("kernel", operands, [made], list(node.results)), target.shared_per_block)
        except (CannotResize, SuperoptError):
            continue
        seconds = kernel_cost(made, target, masks).seconds
        if math.isfinite(seconds):
            yield seconds, made, _said(grid, loops)


def _nearest(node: Node) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All combinations of grid and loop extents whose tiles are powers of two, the nearest to now first."""
    block = node.body
    assert isinstance(block, BlockGraph)
    now = (*block.grid, *block.loops)
    cut = len(block.grid)
    options = [
        sorted({now[i], *_counts(max(extents, default=0))}) for i, extents in enumerate(_covered(node, block))
    ]

    def distance(extents: Sequence[int]) -> float:
        return sum(abs(math.log2(e / n)) for e, n in zip(extents, now, strict=True))

    for extents in sorted(itertools.product(*options), key=distance):
        if extents != now:
            yield extents[:cut], extents[cut:]


def _counts(extent: int) -> list[int]:
    """How many tiles of each power of two cover an extent."""
    return [-(-extent // (1 << k)) for k in range(extent.bit_length())]


def _covered(node: Node, block: BlockGraph) -> list[list[int]]:
    """For each grid dimension, then each loop: the extents of the dimensions of tensors that it cuts."""
    found: list[list[int]] = [[] for _ in (*block.grid, *block.loops)]

    def add(maps: Attr, shape: Sequence[int], first: int) -> None:
        assert isinstance(maps, tuple)
        for i, d in enumerate(maps):
            if d >= 0:
                found[first + i].append(shape[d])

    for inner in block.nodes:
        if inner.op == NodeKind.ITERATOR:
            add(inner.attrs["imap"], inner.operands[0].shape, 0)
            add(inner.attrs["fmap"], inner.operands[0].shape, len(block.grid))
    for saver, result in zip(block.savers, node.results, strict=True):
        add(saver.attrs["omap"], result.shape, 0)
    return found


def _said(grid: Sequence[int], loops: Sequence[int]) -> str:
    return f"grid={'x'.join(map(str, grid))} loops={'x'.join(map(str, loops))}"


def _read(choice: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    grid, loops = (
        tuple(int(e) for e in part.partition("=")[2].split("x") if e) for part in choice.split(" ")
    )
    return grid, loops
