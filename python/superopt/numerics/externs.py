"""Opaque operations in the numeric gate: computed once, by PyTorch, for the program and for its candidates.

The reference program's run computes each opaque operation in fp64; where PyTorch cannot, random numbers stand for
its results. The other runs get the same results back, and what they pass in is compared as outputs are: an
operation that is not continuous (a sort, an index of a maximum) then does not amplify a rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.numerics.checking import Input, make_inputs
from superopt.program import COMPUTE_DTYPES, KernelGraph, Node
from superopt.transforms.ingest.extern import run_extern
from superopt.verify.domains import Array, Shape


@dataclass(frozen=True)
class Call:
    """One opaque operation of the reference program: its node, operands and results."""

    node: Node
    operands: list[Array]
    results: list[Array]
    stood_in: bool


class Recorder:
    """The `extern` of the reference run: computes, and remembers."""

    def __init__(self, graph: KernelGraph, distribution: str, seed: int) -> None:
        self._nodes = [n for n in graph.nodes if n.op == "extern"]
        self._distribution, self._seed = distribution, seed
        self.calls: dict[str, list[Call]] = {}
        self.order: list[Call] = []

    def __call__(self, key: str, operands: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        """The results of the next opaque operation."""
        node = self._nodes[len(self.order)]
        results = _computed(node, operands)
        stood_in = results is None
        if results is None:
            specs = [Input("", v.shape, v.dtype) for v in node.results]
            made = make_inputs(specs, self._distribution, self._seed + 1 + len(self.order))
            results = [np.asarray(x) for x in made]
        call = Call(node, [np.asarray(x, np.float64) for x in operands], results, stood_in)
        self.order.append(call)
        self.calls.setdefault(key, []).append(call)
        return results


class Player:
    """The `extern` of another run: gives the recorded results, and keeps what it was called with."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._given: dict[int, list[Array]] = {}

    def __call__(self, key: str, operands: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        """The results that were recorded of this operation; NaN where there were none."""
        # Equal operations may come in another order: take the one whose operands are nearest. Lookups in two
        # tables are equal operations, too, of other extents.
        extents = [np.shape(x) for x in operands]
        calls = self._recorder.calls.get(key, [])
        left = [c for c in calls if id(c) not in self._given and [x.shape for x in c.operands] == extents]
        if not left:
            return [np.full(s, np.nan) for s in shapes]
        call = min(left, key=lambda c: _distance(c.operands, operands))
        self._given[id(call)] = [np.asarray(x) for x in operands]
        return call.results

    def operands(self, call: Call) -> list[Array]:
        """What the operation was given in this run; of one that was left out, what it should have been given."""
        return self._given.get(id(call), call.operands)


def _distance(first: Sequence[Array], second: Sequence[Array]) -> float:
    with np.errstate(all="ignore"):
        return sum(float(np.nan_to_num(np.abs(a - b)).sum()) for a, b in zip(first, second, strict=True))


def _computed(node: Node, operands: Sequence[Array]) -> list[Array] | None:
    """The results in fp64; None if PyTorch is missing or cannot compute them."""
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError:
        return None
    from superopt.transforms.emit.program_source import TORCH_DTYPES

    def tensor(x: Array, dtype: str) -> Any:
        kind = "torch.float64" if dtype in COMPUTE_DTYPES else TORCH_DTYPES[dtype]
        return torch.from_numpy(np.array(x)).to(getattr(torch, kind.removeprefix("torch.")))

    try:
        given = [tensor(x, v.dtype) for x, v in zip(operands, node.operands, strict=True)]
        made = [
            np.asarray((t.double() if t.is_floating_point() else t).numpy()) for t in run_extern(node, given)
        ]
    except Exception:  # whatever PyTorch says of it: random numbers stand for its results
        return None
    shapes = [v.shape for v in node.results]
    return made[: len(shapes)] if [m.shape for m in made[: len(shapes)]] == shapes else None
