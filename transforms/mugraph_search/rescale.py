"""Maxima for the exponentials that the search takes as plain: online softmax and its partial results.

`exponentials.py` shows that values of degree 1 in exp(-m) may be computed with any m. Here m is chosen kernel by
kernel and accompanies every value whose degree is not 0:

    e = exp(x)                        m = running maximum of x's maxima;  e = exp(x - m)
    accumulate(e)            ->       accumulate(e) rescaled by m: what is summed so far, times exp(m_old - m_new)
    save(sum)                         save(sum), save(m)
    s = sum over the parts            M = max of the parts' m;  s = sum of part * exp(m - M)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.program import Node, NodeKind, Value
from superopt.transforms.mugraph_search.axis_builder import Builder, Named, NotBuildable, Piece
from superopt.transforms.stabilize_softmax import LOWEST

Layout = tuple[tuple[Piece | None, ...], str]


@dataclass(eq=False)
class Shift:
    """The maximum m that values of one degree are relative to; two are equal only as one object."""

    value: Named | None
    """m where the values are computed; None for one known only after a loop and not requested yet."""
    loop: int | None = None
    """The loop that m is a running maximum of."""
    source: Named | None = None
    """The values whose running maximum m is."""
    after: Shift | None = None
    """m after the loop."""
    inside: Shift | None = None
    """The running maximum whose last value this is."""
    reduced: dict[tuple[Piece, ...], Shift] = field(default_factory=dict[tuple[Piece, ...], "Shift"])
    layouts: dict[Layout, Value] = field(default_factory=dict["Layout", Value])


Shifts = dict[int, Shift]
"""For a value: by the exponential's function, the maximum it is relative to."""


class Rescaler:
    """The maxima of one kernel. Methods take and return values of the kernel and append nodes to its builder.

    `looped` are the pieces that the kernel loops over, `cut` those of which a block sees only one part at a time.
    """

    def __init__(self, builder: Builder, looped: set[Piece], cut: set[Piece]) -> None:
        self.builder = builder
        self.looped, self.cut = looped, cut
        self.loaded: Shifts = {}
        self._scales: dict[tuple[int, int], Named] = {}

    # --- where values begin ---

    def load(self, x: Named, degrees: dict[int, int], maxima: Shifts) -> tuple[Named, Shifts]:
        """A stored value of these degrees, relative to `maxima`; the kernel's own maxima are settled first."""
        for function, power in degrees.items():
            if maxima[function] is not self.loaded[function]:
                x = self._scaled(x, maxima[function], self.loaded[function], power)
        return x, {f: self.loaded[f] for f in degrees}

    def settle(self, function: int, maxima: Sequence[Shift]) -> None:
        """Choose the maximum for values of one degree that several kernels stored: the largest, taken over the
        parts of an axis that only some of them have."""
        first, *rest = maxima
        if not rest:
            self.loaded[function] = first
            return
        named = [self.named(m) for m in maxima]
        common = set(named[0].pieces).intersection(*(m.pieces for m in named))
        apart = {p for m in named for p in m.pieces if p not in common}
        if apart & self.cut:
            raise NotBuildable("expected a block to see all the parts that a maximum was taken of")
        top, *others = (self.builder.reduce("reduce_max", m, list(apart)) for m in named)
        for m in others:
            top = self.builder.elementwise("max", (top, m), "top")
        self.loaded[function] = Shift(top)

    def exponential(
        self, x: Named, function: int, over: Sequence[Piece], loop: int | None
    ) -> tuple[Named, Shifts]:
        """exp(x - m), m the maximum over the pieces `over`, and over a loop if x varies in it."""
        shift = self.loaded.get(function)
        if shift is None:
            top = self.builder.reduce("reduce_max", x, over)
            lowest = self.builder.scalar(LOWEST[x.value.dtype], x.value.dtype)
            top = self.builder.elementwise("max", (top, lowest), "top")
            shift = Shift(top) if loop is None else self._running(top, loop)
        e = self.builder.elementwise("exp", (self.builder.elementwise("sub", (x, self.named(shift))),), "exp")
        return e, {function: shift}

    def _running(self, top: Named, loop: int) -> Shift:
        shift = Shift(None, loop, top)
        shift.value = Named(self._layout(shift, top.dims, top.value.dtype), top.dims)
        shift.after = Shift(None, inside=shift)
        return shift

    def _layout(self, shift: Shift, dims: tuple[Piece | None, ...], dtype: str) -> Value:
        """The running maximum with these dimensions, each of them m's or of extent 1."""
        key = (dims, dtype)
        if key not in shift.layouts:
            assert shift.source is not None
            assert shift.loop is not None
            source = self.builder.arrange(shift.source, [d for d in dims if d is not None])
            source = self.builder.cast(self.builder.reshape(source, dims), dtype)
            result = Value(source.value.type, "running_max")
            self.builder.nodes.append(
                Node(NodeKind.RUNNING_MAX, (source.value,), (result,), {"loop": shift.loop})
            )
            shift.layouts[key] = result
        return shift.layouts[key]

    # --- what becomes of them ---

    def named(self, shift: Shift) -> Named:
        """m itself; after a loop it is accumulated on the first request."""
        if shift.value is None:
            assert shift.inside is not None
            source = shift.inside.source
            assert source is not None
            result = Value(source.value.type, "max_total")
            attrs = {"kind": "max", "loop": shift.inside.loop or 0}
            self.builder.nodes.append(Node(NodeKind.ACCUMULATE, (source.value,), (result,), dict(attrs)))
            shift.value = Named(result, source.dims)
        return shift.value

    def aligned(
        self, operands: Sequence[Named], shifts: Sequence[Shifts], degrees: Sequence[dict[int, int]]
    ) -> tuple[list[Named], list[Shifts]]:
        """Two operands relative to the same maxima: the one that varies along fewer axes is the later one."""
        values, found = list(operands), [dict(s) for s in shifts]
        for function in sorted(found[0].keys() & found[1].keys()):
            old, new = found[0][function], found[1][function]
            if old is new:
                continue
            if old.loop is not None or new.loop is not None:
                raise NotBuildable("expected values relative to one running maximum")
            at = 0
            if len(self.named(old).pieces) < len(self.named(new).pieces):
                at, old, new = 1, new, old
            if not set(self.named(new).pieces) < set(self.named(old).pieces):
                raise NotBuildable("expected one maximum to be part of the other")
            values[at] = self._scaled(values[at], old, new, degrees[at][function])
            found[at][function] = new
        return values, found

    def joined(self, operands: Sequence[Shifts], degrees: dict[int, int]) -> Shifts:
        """The maxima of an elementwise result of these degrees, from those of its operands."""
        found: Shifts = {}
        for shifts in operands:
            for function, shift in shifts.items():
                if found.setdefault(function, shift) is not shift:
                    raise NotBuildable("expected values relative to one maximum")
        return {f: found[f] for f in degrees}

    def before_sum(
        self, x: Named, shifts: Shifts, degrees: dict[int, int], over: Sequence[Piece]
    ) -> tuple[Named, Shifts]:
        """`x` and its maxima, once m does not vary over the pieces that a sum is about to reduce."""
        out = dict(shifts)
        for function, shift in shifts.items():
            source = shift.inside.source if shift.inside else shift.value
            if source is None or function not in degrees:
                continue
            pieces = tuple(p for p in source.pieces if p in over)
            if not pieces:
                continue
            if shift.loop is not None:
                raise NotBuildable("expected no parts inside a loop over their elements")
            if pieces not in shift.reduced:
                top = self.builder.reduce("reduce_max", self.named(shift), pieces)
                shift.reduced[pieces] = Shift(top)
            out[function] = shift.reduced[pieces]
            x = self._scaled(x, shift, out[function], degrees[function])
        return x, out

    def _scaled(self, x: Named, old: Shift, new: Shift, power: int) -> Named:
        """x * exp(power (old - new))"""
        if power != 1:
            raise NotBuildable("expected sums of exponentials, got a sum of their inverses")
        key = (id(old), id(new))
        if key not in self._scales:
            difference = self.builder.elementwise("sub", (self.named(old), self.named(new)))
            self._scales[key] = self.builder.elementwise("exp", (difference,), "scale")
        return self.builder.elementwise("mul", (x, self._scales[key]), "rescaled")

    def accumulated(
        self, x: Named, shifts: Shifts, degrees: dict[int, int], loop: int
    ) -> tuple[Named, Shifts]:
        """The sum of `x` over the trips of a loop."""
        running = [f for f, shift in shifts.items() if shift.loop == loop]
        hint = f"{x.value.name}_total" if x.value.name else "total"
        result = Value(x.value.type, hint)
        out = dict(shifts)
        if not running:
            if any(s.value is not None and set(s.value.pieces) & self.looped for s in shifts.values()):
                raise NotBuildable("expected a maximum that the loop does not change")
            attrs: dict[str, int | str] = {"kind": "sum", "loop": loop}
            self.builder.nodes.append(Node(NodeKind.ACCUMULATE, (x.value,), (result,), dict(attrs)))
            return Named(result, x.dims), out
        (function, *more) = running
        if more or degrees[function] != 1:
            raise NotBuildable("expected one sum of exponentials in an accumulator")
        shift = shifts[function]
        assert shift.source is not None
        assert shift.after is not None
        if not set(shift.source.pieces) <= set(x.pieces):
            raise NotBuildable("expected a sum that varies where its maximum does")
        dims = tuple(d if d in shift.source.pieces else None for d in x.dims)
        scale = self._layout(shift, dims, x.value.dtype)
        attrs = {"kind": "rescaled", "loop": loop}
        self.builder.nodes.append(Node(NodeKind.ACCUMULATE, (x.value, scale), (result,), dict(attrs)))
        out[function] = shift.after
        return Named(result, x.dims), out
