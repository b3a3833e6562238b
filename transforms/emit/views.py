"""Loads of views: elements whose places are sums of multiples and floors of the tile's indices, under a guard.

    conv_view = tl.load(x_ptr + (i * 512 + (span_8 // 7) * 49)[:, None] + ..., mask=..., other=0.0)

Quotients of Triton round towards zero, and floors do not: what may be negative is shifted by a multiple of the
divisor first. Nothing outside of the input is read: its bounds are part of the mask, but where the ranges of the
indices say that they hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superopt.errors import UnsupportedProgram
from superopt.program import Load, TileProgram, View
from superopt.quasi_affine import Linear
from superopt.transforms.emit.memory import Memory, all_of
from superopt.transforms.emit.padding import Padding, expansion
from superopt.transforms.emit.tiles import Tiles
from superopt.transforms.emit.writer import Writer

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class _Number:
    """A number of each element as text, its range, and the dimensions of the tile that it depends on."""

    text: str
    least: int
    most: int
    dims: frozenset[int]


class Views:
    """Writes the loads of views."""

    def __init__(
        self, program: TileProgram, axes: Padding, tiles: Tiles, writer: Writer, memory: Memory
    ) -> None:
        self.program, self.axes, self.tiles, self.writer, self.memory = program, axes, tiles, writer, memory

    def load(self, statement: Load, view: View) -> str:
        """The text of what a view shows within the windows of a load; raises UnsupportedProgram where numbers are
        too large.
        """
        result, read, buffer = statement.result, view.read, statement.buffer
        dims = self.axes.live(result)
        known = {d: self._index(statement, d, dims) for d in range(read.rank)}
        for n, floor in enumerate(read.floors):
            known[read.rank + n] = self._floor(self._linear(floor.of, known), floor.divisor)
        masks = [f"({m})"] if (m := self.memory.mask(buffer, statement.windows, result)) else []
        if all(read.guard):
            cases = [
                " & ".join(f"({self._linear(c.of, known).text} {'==' if c.equal else '>='} 0)" for c in every)
                for every in read.guard
            ]
            masks.append("(" + " | ".join(f"({case})" for case in cases) + ")" if cases else "False")
        shape = self.tiles.shape(result, dims)
        if view.source < 0:
            condition = f"tl.where({all_of(masks) or 'True'}, 1.0, 0.0)"
            return f"tl.broadcast_to({condition}, {shape})" if dims else condition
        source = self.program.params[view.source]
        extents = source.type.shape
        offset = Linear()
        for d, (place, extent) in enumerate(zip(read.index, extents, strict=True)):
            number = self._linear(place, known)
            if number.least < 0:
                masks.append(f"({number.text} >= 0)")
            if number.most >= extent:
                masks.append(f"({number.text} < {extent})")
            offset = offset.plus(place, math.prod(extents[d + 1 :]))
        place = self._linear(offset, known, wide=source.type.elements > _INT32_MAX)
        pointer = f"{self.memory.pointers[source]} + {place.text}"
        if dims and place.dims != frozenset(dims):
            pointer = f"tl.broadcast_to({pointer}, {shape})"
        mask = all_of(masks)
        if mask and dims:
            mask = f"tl.broadcast_to({mask}, {shape})"
        return f"tl.load({pointer}{f', mask={mask}, other=0.0' if mask else ''})"

    def _index(self, statement: Load, d: int, dims: tuple[int, ...]) -> _Number:
        window = statement.windows[d]
        pad = self.axes.pad(statement.result, d)
        least, most = self.memory.starts(window)
        if d not in dims:
            return _Number(self.writer.start(window), least, most, frozenset())
        text = self.writer.span(window, pad) + expansion((d,), dims)
        return _Number(text, least, most + window.stride * (pad - 1), frozenset([d]))

    def _linear(self, x: Linear, known: dict[int, _Number], *, wide: bool = False) -> _Number:
        least = most = x.constant
        parts: list[str] = []
        fixed = x.constant
        for d, c in x.terms:
            number = known[d]
            if number.text.isdecimal():
                fixed, least, most = (
                    fixed + c * number.least,
                    least + c * number.least,
                    most + c * number.most,
                )
                continue
            low, high = sorted((c * number.least, c * number.most))
            least, most = least + low, most + high
            text = f"({number.text}).to(tl.int64)" if wide and number.dims else f"({number.text})"
            parts.append(text if c == 1 else f"{text} * {c}")
        if fixed or not parts:
            parts.append(str(fixed))
        if not wide and max(-least, most) > _INT32_MAX:
            raise UnsupportedProgram(f"expected indices of 32 bits, got {least} to {most}")
        dims = frozenset[int]().union(*(known[d].dims for d, _ in x.terms))
        return _Number(f"({' + '.join(parts)})" if len(parts) > 1 else parts[0], least, most, dims)

    def _floor(self, x: _Number, divisor: int) -> _Number:
        """`floor(x / divisor)`, as a name."""
        shift = max(0, -(x.least // divisor))
        text = f"({x.text} + {shift * divisor}) // {divisor} - {shift}" if shift else f"{x.text} // {divisor}"
        if x.most + shift * divisor > _INT32_MAX:
            raise UnsupportedProgram(f"expected indices of 32 bits, got {x.least} to {x.most}")
        if not x.dims and x.text.lstrip("-").isdecimal():
            return _Number(str(x.least // divisor), x.least // divisor, x.least // divisor, x.dims)
        name = self.writer.unique("floor")
        self.writer.line(f"{name} = {text}")
        return _Number(name, x.least // divisor, x.most // divisor, x.dims)
