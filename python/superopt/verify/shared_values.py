"""Which values two programs both compute: guessed, from an evaluation of both at reduced extents, over a field.

A field has exponentials of what no exponential gave: of one softmax, not of the next layer's. So what both
compute from an exponential, and exponentiate again, becomes arbitrary in both, as it is for the pieces between.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.program import KernelGraph, Node, Value
from superopt.verify.arrangement import Arrangement, arrangement, multiset
from superopt.verify.demand import exponentiated, exponents, feeds_exponential
from superopt.verify.domains import Shape, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import ImageField
from superopt.verify.infinities import Extended, finite
from superopt.verify.primes import Primes

# The full shape of a value, its shape at reduced extents, a hash of its elements there, and its dtype where only
# values of one are the same.
_Key: TypeAlias = tuple[Shape, Shape, bytes, str]
# What values of the same elements in another order share: their numbers at both extents, a hash, and the dtype.
_Loose: TypeAlias = tuple[int, int, int, str]


@dataclass(frozen=True)
class Shared:
    """The value of the first program that holds what one of the second does; `shown` says how that arranges it,
    None where both are the same.
    """

    value: Value
    shown: Arrangement | None = None


def shared_values(
    a: KernelGraph,
    b: KernelGraph,
    reduced: tuple[KernelGraph, KernelGraph],
    seed: object,
    primes: Primes,
    *,
    rounded: bool,
) -> dict[Value, Shared]:
    """The first value of `b` for the first one of `a`, where they seem to have the same elements.

    `reduced` are both programs at smaller extents, node by node. With `rounded`, they have one dtype, too.
    Raises ZeroDivisionError where the random inputs make a denominator vanish.
    """
    field = ImageField((seed, "pieces"), lattice="order", primes=primes)
    domain = Extended(field)
    exponent = [any(c) for c in zip(*map(feeds_exponential, reduced), strict=True)]
    inputs = [
        field.random(i, v.shape, exponent=e)
        for i, (v, e) in enumerate(zip(reduced[0].inputs, exponent, strict=True))
    ]
    first, second = (
        _Side(g, small, inputs, domain, rounded=rounded) for g, small in zip((a, b), reduced, strict=True)
    )
    found: dict[Value, Shared] = {}
    all_nodes = False

    def pairs() -> Iterator[tuple[Value, Shared, Arrangement | None]]:
        """Values not found yet, of `b` and of `a`, and how that is arranged there at reduced extents."""
        # Each value of `a` once: two inputs of a piece are arbitrary tensors.
        taken = {s.value for s in found.values()}
        known: dict[_Key, Value] = {}
        loose: dict[_Loose, Value] = {}
        for value, key in first.keys.items():
            if value not in taken:
                known.setdefault(key, value)
        alone = list[Value]()
        for value, key in second.keys.items():
            if value in found:
                continue
            if partner := known.pop(key, None):
                yield value, Shared(partner), None
            else:
                alone.append(value)
        for value in known.values():
            loose.setdefault(first.loose(value), value)
        for value in alone:
            key = second.loose(value)
            if (partner := loose.get(key)) is None:
                continue
            if how := arrangement(
                (partner.shape, first.elements(partner)), (value.shape, second.elements(value))
            ):
                del loose[key]
                yield value, Shared(partner, how[0]), how[1]

    while True:
        waiting = [side.evaluate(all_nodes=all_nodes) for side in (first, second)]
        before, drawn = len(found), False
        for value, shared, small in list(pairs()):
            found[value], partner = shared, shared.value
            if first.ends(partner) or second.ends(value):
                shape = first.keys[partner][1]
                arbitrary = field.random(("shared", len(found)), shape, exponent=True)
                first.draw(partner, arbitrary)
                second.draw(value, domain.move(small, arbitrary) if small else arbitrary)
                drawn = True
        if not drawn and not any(waiting):
            return found
        all_nodes |= len(found) == before


class _Side:
    """One of the programs, and its values as far as they are known."""

    def __init__(
        self,
        graph: KernelGraph,
        small: KernelGraph,
        inputs: Sequence[Tensor],
        domain: Extended,
        *,
        rounded: bool,
    ) -> None:
        self.keys: dict[Value, _Key] = {}
        """Results of nodes. Without those that depend on no input or are not finite: the inputs of a piece are
        arbitrary finite numbers."""
        self._nodes = list(zip(graph.nodes, small.nodes, strict=True))
        self._small = {v: w for n, m in self._nodes for v, w in zip(n.results, m.results, strict=True)}
        self._known = dict(zip(small.inputs, inputs, strict=True))
        self._varying, self._drawn, self._changed = {*small.inputs}, set[Value](), set[Value]()
        self._exponents, self._domain, self._rounded = exponents(small), domain, rounded
        self._loose: dict[Value, tuple[bytes, _Loose]] = {}

    def evaluate(self, *, all_nodes: bool) -> bool:
        """Evaluate the nodes that are not yet, or whose operands have changed; gives whether some wait.

        What would take an exponential of what an exponential gave waits, unless `all_nodes` says otherwise.
        """
        waiting = False
        changed, self._changed = self._changed, set[Value]()
        for full, node in self._nodes:
            evaluated = all(v in self._known for v in node.results)
            if evaluated and changed.isdisjoint(node.operands):
                continue
            ready = all(v in self._known for v in node.operands)
            if not ready or not (all_nodes or self._interpreted(node)):
                waiting = True
                continue
            operands = list(dict.fromkeys(node.operands))
            alone = KernelGraph("node", operands, [node], list(node.results))
            results = evaluate(alone, [self._known[v] for v in operands], self._domain)
            varies = any(v in self._varying for v in node.operands)
            for value, below, result in zip(full.results, node.results, results, strict=True):
                if below in self._drawn:
                    continue
                self._known[below] = result
                changed.add(below)
                if not varies:
                    continue
                self._varying.add(below)
                if math.prod(result.shape) > 1 and finite(result):
                    elements = np.ascontiguousarray(result.planes[0])
                    digest = hashlib.blake2b(elements.tobytes(), digest_size=16).digest()
                    dtype = value.dtype if self._rounded else ""
                    self.keys[value] = value.shape, result.shape, digest, dtype
        return waiting

    def elements(self, value: Value) -> np.ndarray[Any, Any]:
        """Its elements at reduced extents."""
        return self._known[self._small[value]].planes[0]

    def loose(self, value: Value) -> _Loose:
        """What values of the same elements in another order share."""
        *_, digest, dtype = self.keys[value]
        if (kept := self._loose.get(value)) is None or kept[0] != digest:
            elements = self.elements(value)
            kept = digest, (math.prod(value.shape), elements.size, multiset(elements), dtype)
            self._loose[value] = kept
        return kept[1]

    def ends(self, value: Value) -> bool:
        """Whether an exponential gave the value, and another one is to be taken of what is computed from it."""
        small = self._small[value]
        return len(self._known[small].planes) == 1 and small in self._exponents

    def draw(self, value: Value, arbitrary: Tensor) -> None:
        """Take other numbers for a value."""
        small = self._small[value]
        self._known[small] = arbitrary
        self._drawn.add(small)
        self._changed.add(small)

    def _interpreted(self, node: Node) -> bool:
        entering = zip(node.operands, exponentiated(node), strict=True)
        return all(len(self._known[v].planes) == 2 for v, enters in entering if enters)
