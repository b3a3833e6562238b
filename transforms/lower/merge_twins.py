"""Twins become one kernel: its blocks do what the blocks of each of them did, one after the other.

%k = tiled(%x, %wk) { parallel i { A } }             %k, %v = tiled(%x, %wk, %x, %wv) { parallel i {
%v = tiled(%x, %wv) { parallel i { B } }      ->       A
                                                       B
                                                     } }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.cost import target as find_target
from superopt.cost.gpus import DEFAULT_TARGET, TargetName
from superopt.cost.model import merged_twins
from superopt.diagnostics import Diagnostics
from superopt.program import (
    Bound,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TileProgram,
    Value,
    Window,
    parallel_loops,
    producers,
)
from superopt.transforms.passes import GraphPass
from superopt.twins import in_order


@dataclass(frozen=True)
class MergeTwins(GraphPass):
    """Make one kernel of tile programs that do the same to other tensors, if that is predicted to be faster."""

    flag: ClassVar[str] = "merge-twins"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model decides."""

    def __post_init__(self) -> None:
        find_target(self.target)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with fewer kernels."""
        groups = merged_twins(graph, find_target(self.target))
        return merge(graph, [[v for n in group for v in n.results] for group in groups])


def merge(graph: KernelGraph, groups: Sequence[Sequence[Value]]) -> KernelGraph:
    """`graph` with one kernel for the tile programs that make the values of each group, if their grids are equal.

    No kernel of a group may need what another one makes, nor what is made of it.
    """
    made_by = producers(graph.nodes)
    of: dict[Node, list[Node]] = {}
    for values in groups:
        nodes = list(dict.fromkeys(made_by[v] for v in values if v in made_by))
        grids = {_extents(n.body) if isinstance(n.body, TileProgram) else None for n in nodes}
        if len(nodes) > 1 and len(grids) == 1 and None not in grids:
            of.update(dict.fromkeys(nodes, nodes))
    if not of:
        return graph
    units = in_order(graph.nodes, of)
    assert units is not None, "expected kernels that do not need each other"
    return replace(graph, nodes=[side_by_side(unit) if len(unit) > 1 else unit[0] for unit in units])


def side_by_side(nodes: Sequence[Node]) -> Node:
    """One `tiled` node for these, whose grids are the same; its results are theirs, in their order."""
    programs = [node.body for node in nodes if isinstance(node.body, TileProgram)]
    first = programs[0]
    shared = parallel_loops(first.body)
    body: list[Statement] = []
    aliases: list[int] = []
    inputs = 0
    for program in programs:
        variables = {
            mine.var: theirs.var for mine, theirs in zip(parallel_loops(program.body), shared, strict=True)
        }
        body += [_with_variables(s, variables) for s in _inside(program)]
        own = program.aliases or (-1,) * (len(program.params) - program.n_inputs)
        aliases += [a if a < 0 else a + inputs for a in own]
        inputs += program.n_inputs
    for loop in reversed(shared):
        body = [replace(loop, body=body)]
    merged = replace(
        first,
        params=[
            *(b for p in programs for b in p.params[: p.n_inputs]),
            *(b for p in programs for b in p.params[p.n_inputs :]),
        ],
        n_inputs=inputs,
        locals=[b for p in programs for b in p.locals],
        body=body,
        aliases=tuple(aliases) if any(a >= 0 for a in aliases) else (),
    )
    operands = tuple(v for node in nodes for v in node.operands)
    results = tuple(v for node in nodes for v in node.results)
    return Node(nodes[0].op, operands, results, {}, nodes[-1].location, merged)


def _extents(program: TileProgram) -> tuple[tuple[int, int, int], ...]:
    return tuple((loop.start, loop.stop, loop.step) for loop in parallel_loops(program.body))


def _inside(program: TileProgram) -> list[Statement]:
    """What a block does."""
    loops = parallel_loops(program.body)
    return loops[-1].body if loops else program.body


def _with_variables(statement: Statement, variables: Mapping[LoopVar, LoopVar]) -> Statement:
    def moved(windows: Sequence[Window]) -> tuple[Window, ...]:
        return tuple(
            replace(w, terms=tuple((variables.get(var, var), scale) for var, scale in w.terms))
            for w in windows
        )

    if isinstance(statement, Loop):
        return replace(statement, body=[_with_variables(s, variables) for s in statement.body])
    if isinstance(statement, Load | Store):
        return replace(statement, windows=moved(statement.windows))
    bounds = tuple(
        Bound(b.dim, w, b.extent) for b, w in zip(statement.bounds, moved(statement.windows), strict=True)
    )
    return replace(statement, bounds=bounds)
