"""PyTorch's own decompositions of operators that no handler reads, where they leave fewer opaque operations.

Ours (`superopt.transforms.ingest.decompositions`) come first. Theirs are tried together, then one operator after
the other, as some open an operator into others that cannot be read either, or into hundreds of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any

from torch._decomp import global_decomposition_table

from superopt.program import KernelGraph
from superopt.transforms.ingest.aten import HANDLERS
from superopt.transforms.ingest.decompositions import Table
from superopt.transforms.ingest.torch_types import torch_module

# Nodes that may stand for one opaque operation: more of them is an unrolled loop, such as an LSTM over its steps.
MOST_NODES = 64
# How often what a decomposition makes is decomposed itself.
DEPTH = 4


def decomposed(exported: Any, ours: Table, read: Callable[[Any], KernelGraph]) -> Any:
    """The exported program with `ours` applied, and those of PyTorch's that help; `read` reads a program."""
    program = exported.run_decompositions(dict(ours))
    known = _operators(program)
    if all(map(_is_read, known)) or (graph := _read(program, read)) is None:
        return program
    kept = opaque(graph)  # others are constants
    unread = [op for op in known if str(op) in kept and theirs(op) is not None]
    table, attempts = ours, [unread] if unread else []
    if len(unread) > 1:
        attempts += [[op] for op in unread]
    for ops in attempts:
        more, opened = _opened(exported, table, ops, known)
        if opened is None or (made := _read(opened, read)) is None:
            continue
        before, after = opaque(graph), opaque(made)
        gone = len(before) - len(after) if {*after} <= {*before} else 0
        if gone > 0 and len(made.nodes) <= len(graph.nodes) + MOST_NODES * gone:
            program, graph, table = opened, made, more
            if ops is unread:
                break
    return program


def theirs(op: Any) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an operator."""
    table = _default()
    return table[op] if op in table else global_decomposition_table["post_autograd"].get(op)


@cache
def _default() -> Any:
    """What `run_decompositions` applies by default; it takes a second to make."""
    return torch_module().export.default_decompositions()


def opaque(graph: KernelGraph) -> list[str]:
    """The operators that are kept as they are."""
    return [str(n.attrs["target"]) for n in graph.nodes if n.op == "extern"]


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
        except (
            Exception
        ):  # they raise what they like, for shapes and dtypes that they lack: then nothing is opened
            return table, None
        made = [op for op in _operators(program) if op not in known and op not in table and not _is_read(op)]
        found = {op: their for op in made if (their := theirs(op)) is not None}
        if not found:
            break
    return table, program


def _operators(program: Any) -> Sequence[Any]:
    overload = torch_module()._ops.OpOverload
    return list(dict.fromkeys(n.target for n in program.graph.nodes if isinstance(n.target, overload)))


def _is_read(op: Any) -> bool:
    return str(op).removeprefix("aten.").removesuffix(".default") in HANDLERS
