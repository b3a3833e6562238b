"""The names within a program, taken out and put back: they belong to its text, not to its meaning.

A program that was read from MLIR or from a canonical text has lost them; kernels emitted from it then differ
from the first ones in the names of variables. Schedules and the store keep the names beside the program.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence

from superopt.program import (
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    TileProgram,
    Value,
    walk,
)

MOST_CHARACTERS = 200
GENERATED = frozenset((
    *keyword.kwlist,
    *("apart", "call", "constant", "extern", "externs", "isinstance", "json", "kernels", "list", "made", "np"),
    *("EARLY", "Path", "device", "early", "overwritten", "prepare", "prepared", "run", "scratch", "tl", "torch"),
    *("triton", "tuple"),
))  # fmt: skip
"""Names that kernels or what launches them use, which no tensor or extent may have there."""
_VALUE = re.compile(r"[\w.:/ -]*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def names_of(graph: KernelGraph) -> list[str]:
    """The name of everything that has one, in the order of the text."""
    return [named.name for named in _named(graph)]


def give_names(graph: KernelGraph, names: Sequence[str]) -> None:
    """Name everything in `graph` as `names_of` lists it; a list of another program's length changes nothing.

    Names may come from a file that somebody else wrote: an invalid one is ignored, and the old name stays.
    """
    found = list(_named(graph))
    if len(found) != len(names):
        return
    for named, name in zip(found, names, strict=True):
        if is_value_name(name) if isinstance(named, Value) else _is_identifier(name):
            named.name = name


def is_value_name(name: str) -> bool:
    """Whether a value may be called `name`: short, of letters, digits and a few signs, or empty."""
    return len(name) <= MOST_CHARACTERS and _VALUE.fullmatch(name) is not None


def _is_identifier(name: str) -> bool:
    return len(name) <= MOST_CHARACTERS and _IDENTIFIER.fullmatch(name) is not None


def _named(graph: KernelGraph) -> Iterator[Value | Buffer | LoopVar | TileProgram]:
    yield from graph.inputs
    for item in walk(graph):
        if isinstance(item, Node):
            yield from item.results
            yield from _parameters(item)
        elif isinstance(item, Loop):
            yield item.var
        elif isinstance(item, Load | Compute):
            yield item.result


def _parameters(node: Node) -> Iterator[Value | Buffer | TileProgram]:
    """What is named in front of a node's region."""
    if isinstance(node.body, TileProgram):
        yield node.body
        yield from node.body.params
        yield from node.body.locals
    elif node.body is not None:
        yield from node.body.inputs
