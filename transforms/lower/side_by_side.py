"""Kernels that do the same to other tensors become one: its blocks do what each of them did, one after the other.

tiled(%k) { parallel i { A } }             tiled(%k, %v) { parallel i {
tiled(%v) { parallel i { B } }      ->       A
                                             B
                                           } }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.program import Bound, Load, Loop, LoopVar, Node, Statement, Store, TileProgram, Window


def side_by_side(nodes: Sequence[Node], name: str) -> Node:
    """One `tiled` node for these, whose grids are the same and none of which reads what another makes.

    Its results are theirs, in their order. Raises ValueError where grids differ.
    """
    programs = [node.body for node in nodes if isinstance(node.body, TileProgram)]
    first = programs[0]
    shared = _grid(first)
    operands = [v for node in nodes for v in node.operands]
    inputs = [b for p in programs for b in p.params[: p.n_inputs]]
    outputs = [b for p in programs for b in p.params[p.n_inputs :]]
    body: list[Statement] = []
    for program in programs:
        own = _grid(program)
        if [(n.start, n.stop, n.step) for n in own] != [(n.start, n.stop, n.step) for n in shared]:
            raise ValueError("expected kernels of the same grid")
        variables = {mine.var: theirs.var for mine, theirs in zip(own, shared, strict=True)}
        body += [_with_variables(s, variables) for s in _inside(program)]
    for loop in reversed(shared):
        body = [replace(loop, body=body)]
    aliases: list[int] = []
    before = 0
    for program in programs:
        own_outputs = len(program.params) - program.n_inputs
        aliases += [a if a < 0 else a + before for a in program.aliases or (-1,) * own_outputs]
        before += program.n_inputs
    made = replace(
        first,
        name=name,
        params=[*inputs, *outputs],
        n_inputs=len(inputs),
        locals=[b for p in programs for b in p.locals],
        body=body,
        aliases=tuple(aliases) if any(a >= 0 for a in aliases) else (),
    )
    results = tuple(v for node in nodes for v in node.results)
    return Node(nodes[0].op, tuple(operands), results, {}, nodes[-1].location, made)


def _grid(program: TileProgram) -> list[Loop]:
    """The parallel loops, outermost first."""
    found: list[Loop] = []
    body = program.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        found.append(body[0])
        body = body[0].body
    return found


def _inside(program: TileProgram) -> list[Statement]:
    """What a block does."""
    loops = _grid(program)
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
