"""Operators are told apart by what the table says of them: comparisons with their names, counted, only become fewer."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("python/superopt", "dialects", "transforms", "tools")
# Where names remain, and how many; ARCHITECTURE.md says why.
MOST = {"transforms/ingest": 2, "python/superopt/verify": 14, "transforms/mugraph_search/steps.py": 1}
# What is compared there is a primitive of the scalar bodies, how a reduction or an accumulator joins, or the name that
# an e-graph or a search gives to its own, the symbol of a foreign function, an opcode of PTX, or a mode of PyTorch's
# pads: several are spelled like operators.
OTHERS = frozenset(
    ("head", "primitive", "primitives", "primitive_of", "combiner", "reduction", "reduction_of", "kind", "how", "leaf",
     "symbol", "opcode", "mode")
)  # fmt: skip


def literals(node: ast.AST) -> Iterator[str]:
    """The strings that an expression is, or holds."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.Set | ast.List):
        for element in node.elts:
            yield from literals(element)


def asked(node: ast.expr) -> str:
    """What an expression asks for: its last name."""
    match node:
        case (
            ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
        case ast.Call(func=function, args=arguments):
            last = asked(function)
            first = arguments[0] if arguments else None
            return str(first.value) if last == "get" and isinstance(first, ast.Constant) else last
        case ast.BoolOp(values=[*_, value]) | ast.BinOp(left=value):
            return asked(value)
        case _:
            return ""


def names_compared(text: str) -> int:
    """Comparisons of something with names of operators, and matches of a `case`."""
    found = 0
    tree = ast.parse(text)
    others = [n for n in ast.walk(tree) if isinstance(n, ast.Match) and asked(n.subject) in OTHERS]
    left_out = {id(p) for n in others for case in n.cases for p in ast.walk(case.pattern)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(name in OPERATORS for side in sides for name in literals(side))
            found += named and not any(asked(side) in OTHERS for side in sides)
        elif isinstance(node, ast.MatchValue) and id(node) not in left_out:
            found += any(name in OPERATORS for name in literals(node.value))
    return found


def place(path: str) -> str:
    return next((known for known in MOST if path == known or path.startswith(f"{known}/")), path)


def test_no_more_operators_are_compared_by_name() -> None:
    counts: Counter[str] = Counter()
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            counts[place(path.relative_to(ROOT).as_posix())] += names_compared(path.read_text())
    more = {where: n for where, n in counts.items() if n > MOST.get(where, 0)}
    assert not more, (
        "ask the operator table (move_of, reduction_of, primitive_of, ...) instead of comparing names"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('node.op == "matmul"', 1),
        ('op not in ("exp", "nothing")', 1),
        ('"cast" != statement.op', 1),
        ('match op:\n    case "reshape": pass', 1),
        ('entry.combiner == "add"', 0),
        ('primitive_of(node) != "exp"', 0),
        ('node.attrs["kind"] == "concat"', 0),
        ('node.op == "something else"', 0),
    ],
)
def test_comparisons_are_found(text: str, count: int) -> None:
    assert names_compared(text) == count
