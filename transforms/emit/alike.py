"""Which kernels are one: equal but for names, as those of equal layers are.

def a_0(x_ptr, out_ptr):              def a_3(y_ptr, out_ptr):
    x = tl.load(x_ptr + span)             y = tl.load(y_ptr + span)
    tl.store(out_ptr + span, x)           tl.store(out_ptr + span, y)
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TypeAlias

from superopt.transforms.emit.triton_source import TritonKernel

_Facts: TypeAlias = "tuple[object, ...]"


class Alike:
    """Kernels of one program; the first of those that are one stands for the others."""

    def __init__(self) -> None:
        self._first: dict[_Facts, list[TritonKernel]] = {}
        self._plain: dict[TritonKernel, str] = {}

    def known(self, kernel: TritonKernel) -> TritonKernel | None:
        """The kernel before it that it is but for names; where there is none, it stands for those to come."""
        facts = kernel.source.count("\n"), *_facts(kernel)
        for other in self._first.setdefault(facts, []):
            if self._text(other) == self._text(kernel):
                return other
        self._first[facts].append(kernel)
        return None

    def _text(self, kernel: TritonKernel) -> str:
        if kernel not in self._plain:
            self._plain[kernel] = nameless(kernel.source)
        return self._plain[kernel]


def _facts(kernel: TritonKernel) -> _Facts:
    """How it is launched, and on what."""
    parameters = tuple((p.type, p.role) for p in kernel.parameters)
    return replace(kernel, name="", source="", parameters=()), parameters


def nameless(source: str) -> str:
    """A function's text, its own name and its variables' by number; any other text as it is."""
    tree = ast.parse(source)
    if len(tree.body) != 1 or not isinstance(function := tree.body[0], ast.FunctionDef):
        return source
    order = [function.name, *(a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg))]
    order += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    numbers = {name: f"_{i}" for i, name in enumerate(dict.fromkeys(order))}
    function.name = numbers[function.name]
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = numbers.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = numbers[node.arg]
    return ast.unparse(tree)
