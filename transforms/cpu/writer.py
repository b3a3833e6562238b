"""The text of a kernel: its lines, names, loops over elements, and the memory that its tiles share."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from superopt.program import COMPUTE_DTYPES

# Elements of a vector: those of AVX-512 in f32. LLVM splits them where registers are shorter.
LANES = 16
VECTOR = f"vector<{LANES}xf32>"


def memory_type(elements: int, dtype: str) -> str:
    """The type of memory; bf16 as integers, as LLVM moves such numbers by functions that we lack on most CPUs,
    and truth values as bytes.
    """
    held = {"bf16": "i16", "i1": "i8"}.get(dtype, dtype)
    return f"memref<{elements}x{held}>"


@dataclass(eq=False)
class Memory:
    """Scratch memory of `size` f32 elements, in use from statement `born` to statement `last`."""

    name: str
    size: int
    born: int
    last: int

    @property
    def type(self) -> str:
        """Its type, as MLIR spells it."""
        return f"memref<{self.size}xf32, strided<[1]>>"


@dataclass(frozen=True)
class Tile:
    """f32 numbers in memory, row-major with `strides`."""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, indices: Sequence[str]) -> str:
        """The place of an element, as text of an affine expression."""
        return linear(indices, self.strides)

    @property
    def packed(self) -> bool:
        """Whether elements lie one after the other."""
        return self.strides == row_major(self.shape)

    def reshaped(self, shape: tuple[int, ...]) -> Tile:
        """The same memory, if `packed`, under another shape."""
        return Tile(self.memory, shape, row_major(shape))


def row_major(shape: Sequence[int], last: int | None = None) -> tuple[int, ...]:
    """Strides of a tensor whose rows have `last` elements, by default the last extent."""
    extents = [*shape[1:-1], shape[-1] if last is None else last] if len(shape) > 1 else []
    return (*(math.prod(extents[i:]) for i in range(len(extents))), 1) if shape else ()


def linear(indices: Sequence[str], strides: Sequence[int]) -> str:
    """The sum of indices times strides."""
    terms = [
        i if s == 1 else f"({i}) * {s}" for i, s in zip(indices, strides, strict=True) if i != "0" and s != 0
    ]
    return " + ".join(terms) or "0"


@dataclass
class Writer:
    """Lines of a function; `now` is the number of the statement that they are written for."""

    lines: list[str] = field(default_factory=list[str])
    memories: list[Memory] = field(default_factory=list[Memory])
    now: int = 0
    _names: int = 0
    _depth: int = 1

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append("  " * self._depth + text)

    def name(self) -> str:
        """A new name."""
        self._names += 1
        return f"%x{self._names}"

    def widened(self, number: str, dtype: str) -> str:
        """What was loaded from memory of a dtype, as f32."""
        if dtype not in COMPUTE_DTYPES:
            return self.let(f"arith.sitofp {number} : {'i8' if dtype == 'i1' else dtype} to f32")
        if dtype == "bf16":
            number = self.let(f"arith.bitcast {number} : i16 to bf16")
        return number if dtype == "f32" else self.let(f"arith.extf {number} : {dtype} to f32")

    def narrowed(self, number: str, dtype: str) -> str:
        """An f32 as memory of a dtype holds it."""
        if dtype != "f32":
            number = self.let(f"arith.truncf {number} : f32 to {dtype}")
        return self.let(f"arith.bitcast {number} : bf16 to i16") if dtype == "bf16" else number

    def let(self, text: str) -> str:
        """Write `name = text`; returns the name."""
        name = self.name()
        self.line(f"{name} = {text}")
        return name

    def number(self, value: float) -> str:
        """A constant of f32: infinities have no decimal text."""
        bits = struct.unpack("<I", struct.pack("<f", _in_f32(value)))[0]
        return self.let(f"arith.constant 0x{bits:08X} : f32")

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """Lines between braces."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    # --- loops over elements

    def nest(self, bounds: Sequence[int | tuple[str, str]], body: Callable[[list[str]], None]) -> None:
        """Loops from 0 to each bound, or between a pair of them; `body` writes what is inside."""
        self._nest(list(bounds), [], body)

    def _nest(
        self, bounds: list[int | tuple[str, str]], indices: list[str], body: Callable[[list[str]], None]
    ) -> None:
        if not bounds:
            body(indices)
            return
        first, rest = bounds[0], bounds[1:]
        if first == 1:
            self._nest(rest, [*indices, "0"], body)
            return
        low, high = first if isinstance(first, tuple) else ("0", str(first))
        index = self.name()
        with self.block(f"affine.for {index} = {low} to {high}"):
            self._nest(rest, [*indices, index], body)

    def fold(self, extents: Sequence[int], start: str, step: Callable[[list[str], str], str]) -> str:
        """What is left of f32 number `start` after `step(indices, number)` at each point, in order."""
        return self._fold(list(extents), [], start, step)

    def _fold(
        self, extents: list[int], indices: list[str], start: str, step: Callable[[list[str], str], str]
    ) -> str:
        if not extents:
            return step(indices, start)
        if extents[0] == 1:
            return self._fold(extents[1:], [*indices, "0"], start, step)
        made, index, carried = self.name(), self.name(), self.name()
        head = f"{made} = affine.for {index} = 0 to {extents[0]} iter_args({carried} = {start}) -> (f32)"
        with self.block(head):
            left = self._fold(extents[1:], [*indices, index], carried, step)
            self.line(f"affine.yield {left} : f32")
        return made

    # --- memory

    def tile(self, shape: Sequence[int], *, row: int | None = None) -> Tile:
        """Memory for a tile, whose rows are `row` elements apart."""
        strides = row_major(shape, row)
        size = shape[0] * strides[0] if len(shape) > 1 else row or math.prod(shape)
        self.memories.append(Memory(f"%t{len(self.memories)}", size, self.now, self.now))
        return Tile(self.memories[-1], tuple(shape), strides)

    def load(self, tile: Tile, place: str, *, vector: bool = False) -> str:
        """The element at a place of a tile, or the `LANES` elements from there on."""
        tile.memory.last = self.now
        op, kind = ("vector_load", f", {VECTOR}") if vector else ("load", "")
        return self.let(f"affine.{op} {tile.memory.name}[{place}] : {tile.memory.type}{kind}")

    def store(self, value: str, tile: Tile, place: str, *, vector: bool = False) -> None:
        """Write an element, or `LANES` of them."""
        tile.memory.last = self.now
        op, kind = ("vector_store", f", {VECTOR}") if vector else ("store", "")
        self.line(f"affine.{op} {value}, {tile.memory.name}[{place}] : {tile.memory.type}{kind}")

    def slots(self) -> tuple[list[int], list[str]]:
        """Blocks of memory, by their elements, that tiles share which are not needed at once; and the lines that
        name tiles as parts of them.
        """
        sizes: list[int] = []
        ends: list[int] = []
        places: list[int] = []
        for memory in self.memories:  # in the order in which they are born
            fits = [i for i, end in enumerate(ends) if end < memory.born]
            if not fits:
                fits = [len(sizes)]
                sizes.append(memory.size)
                ends.append(0)
            slot = min(fits, key=lambda i: (sizes[i] < memory.size, abs(sizes[i] - memory.size)))
            sizes[slot], ends[slot] = max(sizes[slot], memory.size), memory.last
            places.append(slot)
        return sizes, [
            f"  {m.name} = memref.reinterpret_cast %s{slot} to offset: [0], sizes: [{m.size}], strides: [1]"
            f" : memref<{sizes[slot]}xf32> to {m.type}"
            for m, slot in zip(self.memories, places, strict=True)
        ]


def _in_f32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
