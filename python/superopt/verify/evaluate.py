"""Evaluates kernel, block and thread graphs over any domain; tile programs are in `evaluate_tile`.

Nothing here knows an operator by name (`evaluate_operator`). A block graph runs
as written: the trips of every loop one after the other, all blocks of the grid side by side as leading
dimensions of the arrays (extent 1 where a value is the same in every block).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from superopt import spec
from superopt.errors import IllegalProgram
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    nest_of,
    normalize_attrs,
)
from superopt.program import BlockGraph, KernelGraph, Node, ThreadGraph, TileProgram, Value, opaque_key
from superopt.verify.domains import Array, Domain, Tensor
from superopt.verify.evaluate_operator import evaluate_operator

Env = MutableMapping[Value, Tensor]


class Shared:
    """Results of library operators, kept from the first program for `others` at the same inputs.

    Where they apply an operator to the same values, the result is the same. What only the others compute is not
    kept: a domain counts its assumptions, and these must be those of one of them and the first program.
    """

    def __init__(self, *others: KernelGraph) -> None:
        self.numbers: dict[str, int] = {}
        self.results: dict[int, Tensor] = {}
        self.filled = False
        self.wanted = {number for graph in others for number in self.of_nodes(graph).values()}

    def of_nodes(self, graph: KernelGraph) -> dict[Node, int]:
        """A number for each library operator on inputs and on results of such; equal results share one."""
        known = {v: f"input {i}" for i, v in enumerate(graph.inputs)}
        found: dict[Node, int] = {}
        for node in graph.nodes:
            if (
                node.body is not None
                or node.op not in OPERATORS
                or not all(v in known for v in node.operands)
            ):
                continue
            if any(isinstance(a, np.ndarray) for a in node.attrs.values()):
                continue
            attrs = sorted(normalize_attrs(OPERATORS[node.op], node.attrs).items())
            types = [v.type for v in (*node.operands, *node.results)]
            key = f"{node.op} {attrs!r} {types!r} {[known[v] for v in node.operands]}"
            number = found[node] = self.numbers.setdefault(key, len(self.numbers))
            known[node.result] = f"node {number}"
        return found


def evaluate(
    graph: KernelGraph, inputs: Sequence[Tensor], domain: Domain, shared: Shared | None = None
) -> list[Tensor]:
    """The outputs of `graph` for `inputs`, one tensor of the domain for each input.

    `shared` holds what earlier programs computed from the same inputs in the same domain. Raises IllegalProgram
    where a program reads what it never wrote or writes an element twice, and ZeroDivisionError where a finite
    field meets a zero denominator.
    """
    env: dict[Value, Tensor] = dict(zip(graph.inputs, inputs, strict=True))
    last = {v: i for i, n in enumerate(graph.nodes) for v in n.operands}
    kept = {*graph.outputs}
    used = {*graph.outputs}
    for node in reversed(graph.nodes):
        if not used.isdisjoint(node.results):
            used.update(node.operands)
    shared = shared or Shared()
    numbers = shared.of_nodes(graph)
    for i, node in enumerate(graph.nodes):
        operands = [env[v] for v in node.operands]
        number = numbers.get(node, -1)
        if number in shared.results and shared.filled:
            env[node.result] = shared.results[number]
        else:
            needed = not used.isdisjoint(node.results)
            with nullcontext() if needed else domain.aside():
                results = _kernel_node(node, operands, domain)
            for value, result in zip(node.results, results, strict=True):
                env[value] = domain.stored(result, value.dtype)
            if number in shared.wanted and needed and not shared.filled:
                shared.results[number] = env[node.result]
        for v in node.operands:
            if last[v] == i and v not in kept:
                env.pop(v, None)
    shared.filled = True
    return [env[v] for v in graph.outputs]


def _kernel_node(node: Node, operands: list[Tensor], domain: Domain) -> list[Tensor]:
    if isinstance(node.body, BlockGraph):
        return evaluate_block(node.body, operands, domain)
    if isinstance(node.body, TileProgram):
        from superopt.verify.evaluate_tile import evaluate_tile

        return evaluate_tile(node.body, operands, domain)
    if node.op == "extern":
        return domain.opaque(opaque_key(node), operands, [v.shape for v in node.results])
    return [evaluate_operator(node.op, node.attrs, operands, [v.dtype for v in node.operands], domain, 0)]


# --- block and thread graphs ------------------------------------------------------------------------------


def evaluate_block(graph: BlockGraph, operands: Sequence[Tensor], domain: Domain) -> list[Tensor]:
    """The kernel results of a block graph: what its output savers leave in device memory."""
    run = _BlockRun(graph, operands, domain)
    env: Env = {}
    run.run(env, {})
    return [run.saved(node, env[node.operands[0]]) for node in graph.savers]


class _BlockRun:
    """One execution. `ctx` gives the trip of each loop around the values being computed."""

    def __init__(self, graph: BlockGraph, operands: Sequence[Tensor], domain: Domain) -> None:
        self.graph, self.domain, self.lead = graph, domain, len(graph.grid)
        self.stages = spec.stages(graph)
        self.reach = spec.reaches(graph)
        self.ragged = any(map(any, self.reach.values()))
        arguments = dict(zip(graph.inputs, operands, strict=True))
        self.tiles = {
            n.result: domain.move(self._tiling(n), self._covered(n, arguments[n.operands[0]]))
            for n in graph.nodes
            if n.op == "iterator"
        }
        self.nodes = [n for n in graph.nodes if n.op != "save"]

    def run(self, env: Env, ctx: dict[int, int], state: dict[Node, Tensor] | None = None) -> None:
        """Compute every value of this context: those that neither vary over other loops nor follow one."""
        here = [n for n in self.nodes if n.results[0] not in env and self._belongs(n, ctx)]
        while here:
            waiting = [n for n in here if not self._step(n, env, ctx, state)]
            ended = next((n for n in waiting if n.op == "accumulate"), None)
            if ended is None:
                return
            self._sweep(int_attr(ended, "loop"), waiting, env, ctx)
            if ended.result not in env:
                raise IllegalProgram("'accumulate' expected operands computed in its loop", ended.location)
            here = [n for n in waiting if n.results[0] not in env]

    def _belongs(self, node: Node, ctx: dict[int, int]) -> bool:
        stage = self.stages[node.results[0]]
        return stage.varies <= ctx.keys() and not stage.after & ctx.keys()

    def _step(self, node: Node, env: Env, ctx: dict[int, int], state: dict[Node, Tensor] | None) -> bool:
        """Compute a node if its operands are there; accumulators wait for their loop."""
        if node.op == "accumulate" or (node.op != "iterator" and any(v not in env for v in node.operands)):
            return False
        if node.op == "iterator":
            fmap = node.attrs["fmap"]
            assert isinstance(fmap, tuple)
            trip = tuple(ctx[loop] for loop, dim in enumerate(fmap) if dim >= 0)
            env[node.result] = self.domain.move(lambda x: x[trip], self.tiles[node.result])
        elif node.op == "running_max":
            assert state is not None
            (source,) = node.operands
            value = self._joined(env[source], source, int_attr(node, "loop"), -math.inf, ctx)
            if node in state:
                value = self.domain.apply("max", state[node], value)
            state[node] = env[node.result] = value
        elif isinstance(node.body, ThreadGraph):
            operands = [env[v] for v in node.operands]
            inner: Env = dict(zip(node.body.inputs, operands, strict=True))
            for step in node.body.nodes:
                inner[step.result] = self._operator(step, inner, ctx)
            env.update(zip(node.results, (inner[v] for v in node.body.outputs), strict=True))
        else:
            env[node.result] = self._operator(node, env, ctx)
        return True

    def _operator(self, node: Node, env: Mapping[Value, Tensor], ctx: Mapping[int, int]) -> Tensor:
        """An operator of the table; what it reduces is what exists."""
        operands = [env[v] for v in node.operands]
        nest, entry = (nest_of(node) if self.ragged else None), OPERATORS[node.op]
        if nest is not None and entry.combiner is not None:
            for i, (value, maps) in enumerate(zip(node.operands, nest.operands, strict=True)):
                dims = [d for d, index in enumerate(maps) if index.dim in nest.reductions]
                operands[i] = self._existing(operands[i], value, dims, NEUTRAL[entry.combiner], ctx)
        dtypes = [v.dtype for v in node.operands]
        return evaluate_operator(node.op, node.attrs, operands, dtypes, self.domain, self.lead)

    def _existing(
        self, tensor: Tensor, value: Value, dims: Iterable[int], neutral: float, ctx: Mapping[int, int]
    ) -> Tensor:
        """`tensor`, with `neutral` in place of elements that do not exist along `dims`."""
        rank = self.lead + len(value.shape)
        for d in dims:
            if (reach := self.reach[value][d]) is None:
                continue
            places = np.arange(value.shape[d]).reshape([-1 if i == self.lead + d else 1 for i in range(rank)])
            for kind, number, stride in reach.terms:
                if kind == "loop":
                    places = places + stride * ctx[number]
                else:
                    blocks = np.arange(self.graph.grid[number]) * stride
                    places = places + blocks.reshape([-1 if i == number else 1 for i in range(rank)])
            exists = places < reach.extent
            tensor = self.domain.move(
                lambda x, y, m=exists: np.where(m, x, y), tensor, self.domain.constant(neutral)
            )
        return tensor

    def _sweep(self, loop: int, waiting: Sequence[Node], env: Env, ctx: dict[int, int]) -> None:
        """Run all trips of `loop`, with every accumulator that ends it here."""
        ending = [n for n in waiting if n.op == "accumulate" and int_attr(n, "loop") == loop]
        totals: dict[Node, Any] = {}
        state: dict[Node, Tensor] = {}
        for trip in range(self.graph.loops[loop]):
            inner: Env = ChainMap({}, env)  # type: ignore[arg-type]
            self.run(inner, {**ctx, loop: trip}, state)
            for node in ending:
                if all(v in inner for v in node.operands):
                    operands = [inner[v] for v in node.operands]
                    neutral = -math.inf if node.attrs["kind"] == "max" else 0.0
                    if node.attrs["kind"] != "concat":
                        at = {**ctx, loop: trip}
                        operands[0] = self._joined(operands[0], node.operands[0], loop, neutral, at)
                    self._accumulate(node, operands, totals)
        for node, total in totals.items():
            if node.attrs["kind"] == "concat":
                axis = self.lead + int_attr(node, "dim")
                total = self.domain.move(partial(_concatenate, axis), *total)
            elif node.attrs["kind"] == "rescaled":
                total = total[0]
            env[node.result] = total

    def _joined(
        self, tensor: Tensor, value: Value, loop: int, neutral: float, ctx: Mapping[int, int]
    ) -> Tensor:
        """What one trip of a loop adds: `neutral` where it has fewer elements than others."""
        moving = [
            d for d, r in enumerate(self.reach[value]) if r and any(t[:2] == ("loop", loop) for t in r.terms)
        ]
        return self._existing(tensor, value, moving, neutral, ctx)

    def _accumulate(self, node: Node, operands: list[Tensor], totals: dict[Node, Any]) -> None:
        kind, domain = node.attrs["kind"], self.domain
        if kind == "concat":
            totals.setdefault(node, []).append(operands[0])
        elif node not in totals:
            totals[node] = tuple(operands) if kind == "rescaled" else operands[0]
        elif kind == "rescaled":
            total, old = totals[node]
            scale = domain.apply("exp", domain.apply("sub", old, operands[1]))
            totals[node] = domain.apply("add", domain.apply("mul", total, scale), operands[0]), operands[1]
        else:
            primitive = {"sum": "add", "max": "max"}[str(kind)]
            totals[node] = domain.apply(primitive, totals[node], operands[0])

    def _covered(self, node: Node, tensor: Tensor) -> Tensor:
        """A whole tensor, with unknowns up to where the last tiles end."""
        if not any(self.reach[node.result]):
            return tensor
        shape = list(node.result.shape)
        for key, extents in (("imap", self.graph.grid), ("fmap", self.graph.loops)):
            maps = node.attrs[key]
            assert isinstance(maps, tuple)
            for d, extent in zip(maps, extents, strict=True):
                if d >= 0:
                    shape[d] *= extent
        beyond = self.domain.unknown(("beyond", self.graph.nodes.index(node)), tuple(shape))

        def place(x: Array, y: Array) -> Array:
            out = np.array(y, np.result_type(x, y))
            out[tuple(map(slice, x.shape))] = x
            return out

        return self.domain.move(place, tensor, beyond)

    def _tiling(self, node: Node) -> Callable[[Array], Array]:
        """Reorder a whole tensor to (loop trips..., grid..., tile...), a grid extent being 1 where unmapped."""
        imap, fmap = node.attrs["imap"], node.attrs["fmap"]
        assert isinstance(imap, tuple)
        assert isinstance(fmap, tuple)
        tile = node.result.shape

        def arrange(x: Array) -> Array:
            shape: list[int] = []
            grid_axis: dict[int, int] = {}
            loop_axis: dict[int, int] = {}
            tile_axes: list[int] = []
            for d, extent in enumerate(tile):
                for g, dim in enumerate(imap):
                    if dim == d:
                        grid_axis[g] = len(shape)
                        shape.append(self.graph.grid[g])
                for loop, dim in enumerate(fmap):
                    if dim == d:
                        loop_axis[loop] = len(shape)
                        shape.append(self.graph.loops[loop])
                tile_axes.append(len(shape))
                shape.append(extent)
            loops = [loop_axis[loop] for loop in sorted(loop_axis)]
            grids = [grid_axis[g] for g in sorted(grid_axis)]
            x = x.reshape(shape).transpose(*loops, *grids, *tile_axes)
            at = len(loops)
            for g in range(len(imap)):
                if g not in grid_axis:
                    x = np.expand_dims(x, at + g)
            return x

        return arrange

    def saved(self, node: Node, value: Tensor) -> Tensor:
        """The device tensor that a saver writes: each block's tile at its place."""
        omap, lead, reach = node.attrs["omap"], self.lead, self.reach[node.operands[0]]
        assert isinstance(omap, tuple)

        def arrange(x: Array) -> Array:
            x = np.broadcast_to(x, (*self.graph.grid, *x.shape[lead:]))
            order: list[int] = [g for g, dim in enumerate(omap) if dim < 0]
            shape: list[int] = []
            for d in range(x.ndim - lead):
                axes = [g for g, dim in enumerate(omap) if dim == d]
                order += [*axes, lead + d]
                shape.append(math.prod(x.shape[a] for a in [*axes, lead + d]))
            replicated = sum(dim < 0 for dim in omap)
            x = x.transpose(order)[(0,) * replicated].reshape(shape)
            return np.asarray(x[tuple(slice(r and r.extent) for r in reach)], order="C")

        return self.domain.move(arrange, value)


def _concatenate(axis: int, *parts: Array) -> Array:
    common = np.broadcast_shapes(*(x.shape[:axis] for x in parts))
    return np.concatenate([np.broadcast_to(x, (*common, *x.shape[axis:])) for x in parts], axis=axis)


def int_attr(node: Node, key: str) -> int:
    """Attribute `key` of a node, an integer."""
    value = node.attrs.get(key)
    if not isinstance(value, int):
        raise IllegalProgram(
            f"'{node.op}' expected attribute '{key}' (an integer), got {value}", node.location
        )
    return value
