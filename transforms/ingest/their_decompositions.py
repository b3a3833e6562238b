"""PyTorch's own decompositions of operators that no handler reads, where they leave fewer opaque operations.

Ours (`superopt.transforms.ingest.decompositions`) come first. Theirs are tried together, then one operator after
the other, as some open an operator into others that cannot be read either, or into hundreds of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from copy import copy
from functools import cache
from operator import getitem
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from superopt.program import KernelGraph
from superopt.transforms.ingest.aten import HANDLERS
from superopt.transforms.ingest.decompositions import Table
from superopt.transforms.ingest.extern import targets

# Nodes that may stand for one opaque operation: more of them is an unrolled loop, such as an LSTM over its steps.
MOST_NODES = 64
# What an export writes with a table of indices, which is read.
BY_INDICES = "aten.as_strided.default"
# How often what a decomposition makes is decomposed itself.
DEPTH = 4


def decomposed(
    exported: Any, ours: Table, read: Callable[[Any], KernelGraph], kept: Container[str] = ()
) -> Any:
    """The exported program with `ours` applied, and those of PyTorch's that help; `read` reads a program.

    Operators that are `kept` stay as they are.
    """
    program = exported.run_decompositions(dict(ours))
    known = _operators(program)
    unread = [
        op
        for op in known
        if not _is_read(op)
        and str(op) not in kept
        and any(opens(n, ours) for n in program.graph.nodes if n.target == op)
    ]
    if not unread or (graph := _read(program, read)) is None:
        return program
    table, attempts = ours, [unread]
    if len(unread) > 1:  # together first, as each attempt decomposes and reads the whole
        attempts += [[op] for op in unread]
    for ops in attempts:
        more, opened = _opened(exported, table, ops, known)
        if opened is None or (made := _read(opened, read)) is None:
            continue
        before, after = targets(graph), targets(made)
        gone = len(before) - len(after) if {*after} <= {*before} else 0
        if gone > 0 and len(made.nodes) <= len(graph.nodes) + MOST_NODES * gone:
            program, graph, table = opened, made, more
            if ops is unread:
                break
    return program


def opens(node: Any, ours: Table) -> bool:
    """Whether PyTorch's decomposition of a node makes at most `MOST_NODES` others, all of what is read.

    Traced alone, on the shapes of its arguments, for the results that are used: decomposing a whole program takes
    half a second.
    """
    if (their := theirs(node.target)) is None:
        return False
    given = tree_map_only(torch.fx.Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
    leaves, form = tree_flatten(given)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not places:  # a constant
        return False

    def run(*tensors: Any) -> Any:
        held = dict(zip(places, tensors, strict=True))
        args, kwargs = tree_unflatten([held.get(i, leaf) for i, leaf in enumerate(leaves)], form)
        made = their(*args, **kwargs)
        return made if not used else [part for i, part in enumerate(made) if i in used]

    used = {user.args[1] for user in node.users if user.target is getitem}
    try:
        with leaves[places[0]].fake_mode:
            made = make_fx(run, {**_unread_theirs(), **ours})(*(leaves[i] for i in places)).graph
    except Exception:  # they raise what they like, for shapes and dtypes that they lack
        return False
    made.eliminate_dead_code()
    computed = set[Any]()
    for n in made.nodes:
        if n.op == "placeholder" or not computed.isdisjoint(n.all_input_nodes):
            computed.add(n)
    nodes = [n for n in computed if isinstance(n.target, OpOverload)]
    return len(nodes) <= MOST_NODES and all(_is_read(n.target) or str(n.target) == BY_INDICES for n in nodes)


@cache
def _unread_theirs() -> Table:
    found = {**global_decomposition_table["post_autograd"], **_default()}
    return {op: their for op, their in found.items() if not _is_read(op)}


def theirs(op: Any) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an operator."""
    table = _default()
    return table[op] if op in table else global_decomposition_table["post_autograd"].get(op)


@cache
def _default() -> Any:
    """What `run_decompositions` applies by default; it takes a second to make."""
    return torch.export.default_decompositions()


def _read(program: Any, read: Callable[[Any], KernelGraph]) -> KernelGraph | None:
    """The graph of a program, which stays as it is; None where it cannot be read, as its reading proper says."""
    signature = program.graph_signature
    held = [list(signature.input_specs), list(signature.output_specs)]
    signature.input_specs, signature.output_specs = ([copy(s) for s in specs] for specs in held)
    try:
        return read(program)
    except Exception:
        return None
    finally:
        signature.input_specs, signature.output_specs = held


def _opened(exported: Any, table: Table, ops: Sequence[Any], known: Sequence[Any]) -> tuple[Table, Any]:
    """The table with PyTorch's decompositions of some operators and of what these make, and the program.

    What is `known` without them stays as it is. The program is None where PyTorch does not decompose it so.
    """
    table, program = dict(table), None
    found = {op: theirs(op) for op in ops}
    for _ in range(DEPTH):
        table |= found
        try:
            program = exported.run_decompositions(dict(table))
        except Exception:  # as in `opens`
            return table, None
        made = [op for op in _operators(program) if op not in known and op not in table and not _is_read(op)]
        found = {op: their for op in made if (their := theirs(op)) is not None}
        if not found:
            break
    return table, program


def _operators(program: Any) -> Sequence[Any]:
    targets = (n.target for n in program.graph.nodes)
    return list(dict.fromkeys(t for t in targets if isinstance(t, OpOverload)))


def _is_read(op: Any) -> bool:
    return str(op).removeprefix("aten.").removesuffix(".default") in HANDLERS
