"""Other tile sizes and splits of a lowered program, fastest predicted first.

    tile sizes   from the loops and windows of each tile program (`retile.py`)
    split        how many blocks share a reduction whose parts a later kernel joins (`splits.py`)

What a block cannot hold is omitted. Each program is a guess that the caller has to prove.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt import cost
from superopt.cost import Target
from superopt.errors import IllegalProgram
from superopt.program import Compute, KernelGraph, Load, Node, Statement, TileProgram
from superopt.spec import check_kernel
from superopt.transforms.schedule.choose_splits import with_splits
from superopt.transforms.schedule.launch import choose_launch
from superopt.transforms.schedule.retile import CannotRetile, Tiling
from superopt.transforms.schedule.splits import Splits

# Tilings of one kernel that are kept, to be combined with those of the others.
_KEPT = 48
# Statements, of all tilings of one kernel together, that are written to be priced; where it has more, the tilings
# nearest to its own are: some 2 CPU s.
_MOST_STATEMENTS = 40_000


@dataclass(frozen=True)
class KernelTiles:
    """Tile extents of one kernel, and their predicted seconds."""

    seconds: float
    order: float  # among equals, the distance from the original tiles
    extents: tuple[tuple[str, int], ...]
    program: TileProgram


class Tilings:
    """The tilings of one lowered program for `target`; `funnel` counts rejections, by reason."""

    def __init__(self, lowered: KernelGraph, target: Target) -> None:
        self.lowered, self.target = lowered, target
        self.funnel: Counter[str] = Counter()
        self._kernels = [i for i, n in enumerate(lowered.nodes) if isinstance(n.body, TileProgram)]
        self._variants = list(Splits(lowered).variants())

    def tilings(self, only: Collection[int] | None = None) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        """Programs with other splits and tile sizes, fastest predicted first, with their parameters.

        With `only`, kernels of other numbers keep their tiles.
        """
        streams = [self._tilings(parameters, graph, only) for parameters, graph in self._variants]
        for _, parameters, graph in heapq.merge(*streams, key=lambda found: found[0]):
            yield parameters, graph

    def _tilings(
        self, split: Mapping[str, int], graph: KernelGraph, only: Collection[int] | None
    ) -> Iterator[tuple[float, dict[str, int], KernelGraph]]:
        """The tilings of one variant, with their predicted seconds."""
        lists = [
            kernel_tiles(graph.nodes[index], self.target, self.funnel, free=only is None or number in only)
            for number, index in enumerate(self._kernels)
        ]
        if not all(lists):
            return
        for chosen in _cheapest_sums(lists):
            nodes = list(graph.nodes)
            parameters = dict(split)
            for number, (index, choice) in enumerate(zip(self._kernels, chosen, strict=True)):
                nodes[index] = dataclasses.replace(nodes[index], body=choice.program)
                prefix = prefix_of(number, len(lists))
                parameters |= {prefix + name: extent for name, extent in choice.extents}
            yield sum(c.seconds for c in chosen), parameters, with_nodes(graph, nodes)

    def at(self, parameters: Mapping[str, int]) -> KernelGraph | None:
        """The program with these parameters, named as `points` names them; None where they do not exist."""
        left = dict(parameters)
        splits = {name: left.pop(name) for name in self._variants[0][0] if name in left}
        variant = with_splits(self.lowered, splits)
        if variant is None:
            return None
        nodes = list(variant.nodes)
        try:
            for number, index in enumerate(self._kernels):
                body = nodes[index].body
                assert isinstance(body, TileProgram)
                prefix = prefix_of(number, len(self._kernels))
                tiling = Tiling(body)
                extents = {n: left.pop(prefix + n) for n in tiling.parameters if prefix + n in left}
                moved = tiling.apply(extents)
                choose_launch(moved, self.target, None, None)
                nodes[index] = dataclasses.replace(nodes[index], body=moved)
            graph = with_nodes(variant, nodes)
            check_kernel(graph)
        except (CannotRetile, IllegalProgram):
            return None
        return None if left else graph


def prefix_of(number: int, kernels: int) -> str:
    """What stands before the tile names of one of several kernels."""
    return f"k{number}." if kernels > 1 else ""


def kernel_tiles(node: Node, target: Target, funnel: Counter[str], *, free: bool = True) -> list[KernelTiles]:
    """Tile extents of one kernel, fastest predicted first; its current ones unless `free`.

    `funnel` counts rejections, by reason.
    """
    assert isinstance(node.body, TileProgram)
    tiling = Tiling(node.body)
    names = list(tiling.parameters)
    operands = list(dict.fromkeys(node.operands))  # the other kernels are unchanged
    found: list[KernelTiles] = []
    now = [tiling.parameters[n].extent for n in names]
    choices = [tiling.parameters[n].choices() for n in names] if free else [[extent] for extent in now]

    def distance(extents: Sequence[int]) -> float:
        return sum(abs(math.log2(e / n)) for e, n in zip(extents, now, strict=True))

    most = max(_MOST_STATEMENTS // sum(1 for _ in node.body.statements()), 1)
    tried = list(itertools.product(*choices))
    if len(tried) > most:
        tried = sorted(tried, key=distance)[:most]
    for extents in tried:
        funnel["tilings"] += 1
        try:
            program = tiling.apply(dict(zip(names, extents, strict=True)))
            moved = dataclasses.replace(node, body=program)
            if not _holds(program, target):
                funnel["rejected: more than a block holds"] += 1
                continue
            check_kernel(KernelGraph("kernel", operands, [moved], list(node.results)))
        except (CannotRetile, IllegalProgram):
            funnel["rejected: extents that do not fit"] += 1
            continue
        choose_launch(program, target, None, None)
        seconds = cost.kernel_cost(moved, target).seconds
        if math.isfinite(seconds):
            found.append(
                KernelTiles(seconds, distance(extents), tuple(zip(names, extents, strict=True)), program)
            )
    return sorted(found, key=lambda c: (c.seconds, c.order, c.extents))[:_KEPT]


def _holds(program: TileProgram, target: Target) -> bool:
    """Whether the tiles of one statement fit in a block's registers and shared memory."""
    most = target.shared_per_block + 4 * target.registers
    return all(_tile_bytes(s) <= most for s in program.statements())


def _tile_bytes(statement: Statement) -> int:
    if not isinstance(statement, Load | Compute):
        return 0
    return 4 * statement.result.type.padded.elements


def with_nodes(graph: KernelGraph, nodes: Sequence[Node]) -> KernelGraph:
    """`graph` with other nodes."""
    return dataclasses.replace(graph, nodes=list(nodes))


def _cheapest_sums(lists: Sequence[Sequence[KernelTiles]]) -> Iterator[tuple[KernelTiles, ...]]:
    """One of each list, in order of the sum of their seconds."""

    def at(index: tuple[int, ...]) -> tuple[KernelTiles, ...]:
        return tuple(choices[i] for choices, i in zip(lists, index, strict=True))

    first: tuple[int, ...] = (0,) * len(lists)
    heap: list[tuple[float, tuple[int, ...]]] = [(sum(c.seconds for c in at(first)), first)]
    seen: set[tuple[int, ...]] = {first}
    while heap:
        _, index = heapq.heappop(heap)
        yield at(index)
        for k in range(len(lists)):
            following = (*index[:k], index[k] + 1, *index[k + 1 :])
            if following not in seen and following[k] < len(lists[k]):
                seen.add(following)
                heapq.heappush(heap, (sum(c.seconds for c in at(following)), following))
