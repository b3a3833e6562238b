"""Values as Triton holds them: names, padding, and conversions to the form that an operation needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.errors import UnsupportedProgram
from superopt.program import Bound, Buffer, Value, Window
from superopt.transforms.emit.padding import Owner, Padding, expansion
from superopt.transforms.emit.spelling import number
from superopt.transforms.emit.writer import Writer
from superopt.transforms.lower.builder import identifier
from superopt.transforms.schedule.triton_limits import MOST_ELEMENTS

TRITON_DTYPES = {"f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32"}


@dataclass(frozen=True)
class Tile:
    """A value as Triton holds it.

    `text` names it, `dtype` is its current dtype, `dims` are its dimensions of the value (those it was broadcast
    along are omitted), `padding` the padded elements along a dimension, where known. `constant` is its number
    where it is a splat. Beyond `zero_beyond` a load put zeros. It is 0 where the condition `seen` holds, else
    minus infinity.
    """

    text: str
    dtype: str
    dims: tuple[int, ...]
    padding: dict[int, float] = field(default_factory=dict[int, float])
    constant: float | None = None
    zero_beyond: tuple[Bound, ...] = ()
    seen: str = ""


class Tiles:
    """The tiles of a kernel: `known` by value; `variables` are the names of buffers on chip.

    `named` are values that have a name before they are computed.
    """

    def __init__(self, axes: Padding, writer: Writer) -> None:
        self.axes, self.writer = axes, writer
        self.known: dict[Value, Tile] = {}
        self.variables: dict[Buffer, str] = {}
        self.named: dict[Value, str] = {}

    def assign(self, value: Value, text: str, default: str) -> str:
        """Write `name = text`; returns the name."""
        name = self.named.get(value) or self.writer.unique(identifier(value.name, default))
        self.writer.line(f"{name} = {text}")
        return name

    def shape(self, owner: Owner, dims: Sequence[int]) -> str:
        """The padded shape of some dimensions, as text."""
        pads = [self.axes.pad(owner, d) for d in dims]
        if math.prod(pads) > MOST_ELEMENTS:
            raise UnsupportedProgram(f"expected tiles of at most 2^20 elements, got {pads}")
        return "[" + ", ".join(map(str, pads)) + "]"

    def as_f32(self, tile: Tile) -> Tile:
        """The tile in f32."""
        if tile.dtype == "f32" or tile.constant is not None:
            return tile
        return Tile(f"{atom(tile.text)}.to(tl.float32)", "f32", tile.dims, tile.padding)

    def full(self, value: Value, tile: Tile, dims: Sequence[int]) -> str:
        """The tile with all of `dims`, for operations that do not broadcast."""
        if tile.constant is not None:
            return f"tl.full({self.shape(value, dims)}, {tile.text}, tl.float32)"
        if list(tile.dims) == list(dims):
            return tile.text
        return f"tl.broadcast_to({tile.text}{expansion(tile.dims, dims)}, {self.shape(value, dims)})"

    def masked(self, value: Value, tile: Tile, dims: Iterable[int], neutral: float) -> Tile:
        """The tile with `neutral` in the padding along `dims`."""
        for d in dims:
            extent, pad = value.shape[d], self.axes.pad(value, d)
            if d in tile.dims and pad > extent and tile.padding.get(d) != neutral:
                lane = self.writer.span(Window(extent), pad)
                mask = f"({lane} < {extent})" + expansion((d,), tile.dims)
                if len(tile.dims) == 1:
                    mask = mask[1:-1]
                text = f"tl.where({mask}, {tile.text}, {number(neutral)})"
                tile = Tile(text, tile.dtype, tile.dims, {**tile.padding, d: neutral})
        return tile

    def collapsed(self, value: Value, tile: Tile, keep: Sequence[int]) -> Tile:
        """The tile without its dimensions outside `keep`, which have extent 1 and were padded for a product."""
        gone = [d for d in tile.dims if d not in keep]
        if not gone:
            return tile
        tile = self.masked(value, self.as_f32(tile), gone, 0.0)
        text = tile.text
        for d in reversed(gone):
            text = f"tl.sum({text}, axis={tile.dims.index(d)})"
        dims = tuple(d for d in tile.dims if d in keep)
        return Tile(text, "f32", dims, {d: p for d, p in tile.padding.items() if d in dims})


def atom(text: str) -> str:
    """`text`, in parentheses where a method call needs them."""
    return (
        text
        if text.replace("_", "").isalnum() or (text.endswith(")") and text.startswith("tl."))
        else f"({text})"
    )
