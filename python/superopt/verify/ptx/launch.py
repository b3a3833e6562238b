"""One launch of a kernel's PTX: memory, a point of the fields, and the blocks that run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.transforms.core import _ptx
from superopt.verify.domains import Array
from superopt.verify.drawn import Drawn
from superopt.verify.fields import ImageField, key_of
from superopt.verify.ptx.budget import Budget
from superopt.verify.ptx.decode import Decoded
from superopt.verify.ptx.operands import BF16, E4M3, E5M2, F16, F32, I1, I8, I16, I32, I64
from superopt.verify.ptx.parser import SHARED_MEMORY
from superopt.verify.ttir.memory import Buffer

_ELEMENTS = {
    "f32": F32, "f16": F16, "bf16": BF16, "f8E4M3FN": E4M3, "f8E5M2": E5M2, "i1": I1, "i8": I8, "i16": I16,
    "i32": I32, "i64": I64,
}  # fmt: skip
_OPS = _ptx.ops()
# In the core's order.
_FUNCTIONS = ("sqrt", "log", "exp", "erf", "sin", "cos", "where")
MOST_SHARED = 232_448  # bytes that a block can have on any target
_POINTER_BITS, _EXTENT_BITS = 64, 32


@dataclass(frozen=True)
class Stored:
    """What a block stored in one buffer: places in order, and residues modulo p with their kinds.

    `atomics` are 0 for elements that were stored, and say by which atomic (`decode`), from one, a value is what
    the block contributes.
    """

    places: Array
    values: Array
    atomics: Array


# In place of the number of an axis that carries on, where none does.
_NO_AXIS = 1 << 16


@dataclass(frozen=True)
class Axis:
    """A coordinate of blocks: a number of the grid's `dimension`, divided by `stride`, modulo `extent`."""

    dimension: int
    stride: int
    extent: int


class Launch:
    """A decoded kernel with its arguments' memory; the blocks of `grid` run by themselves, each from the start.

    `seed` and the primes of `field` are the point; `buffers` hold contents over that field. `extents` are
    the numbers that follow them among the arguments. `repeating` contents may be shorter than
    their buffers, for what depends on addresses alone. What blocks take is spent from `budget`.
    """

    def __init__(
        self,
        decoded: Decoded,
        grid: tuple[int, int, int],
        buffers: Sequence[Buffer],
        field: ImageField,
        shared_bytes: int = MOST_SHARED,
        extents: Sequence[int] = (),
        *,
        repeating: bool = False,
        budget: Budget | None = None,
    ) -> None:
        assert repeating or all(b.contents is None or b.contents.shape == (b.size,) for b in buffers)
        self.decoded, self.grid, self.buffers = decoded, grid, buffers
        self._budget = budget or Budget()
        kernel, count = decoded.kernel, len(buffers) + len(extents)
        # Triton appends pointers to scratch, for tensor maps, and to memory for profiles, which is not there.
        if not count <= len(kernel.params) <= count + 2:
            raise IllegalProgram(
                f"kernel '{kernel.name}': expected {count} arguments, got {len(kernel.params)}"
            )
        after = len(kernel.params) - count
        wanted = [_POINTER_BITS] * len(buffers) + [_EXTENT_BITS] * len(extents) + [_POINTER_BITS] * after
        for name, bits, own in zip(kernel.params, wanted, kernel.param_widths, strict=True):
            if bits != own:
                raise IllegalProgram(
                    f"kernel '{kernel.name}': expected argument '{name}' of {bits} bits, got {own}"
                )
        self._numbers = dict(zip(kernel.params[len(buffers) : count], extents, strict=True))
        self._numbers |= dict.fromkeys(kernel.params[count + 1 :], 0)
        pointers = [*kernel.params[: len(buffers)], *kernel.params[count : count + 1]]
        given = [(b.size, _ELEMENTS[b.dtype], b.writable, *_planes(b)) for b in buffers]
        if kernel.threads % 32 or not 0 < kernel.threads <= 1024:
            raise UnsupportedProgram(
                f"kernel '{kernel.name}': expected up to 1024 threads in whole warps, got {kernel.threads}"
            )
        self._core: Any = _ptx.Launch(
            decoded.code,
            decoded.args,
            max(1, len(decoded.numbers)),
            kernel.threads,
            shared_bytes,
            field.fields[0].modulus,
            field.fields[1].modulus,
            field.root,
            key_of(field.seed, "order"),
            [_keys(field.seed, name) for name in _FUNCTIONS],
            given,
            [(decoded.numbers[p], b) for b, p in enumerate(pointers) if p in decoded.numbers],
            decoded.numbers.get(SHARED_MEMORY, -1),
            field.lattices.joins if field.lattice == "free" else [],
        )

    def run(self, block: int) -> list[Stored]:
        """What one block (x fastest) stores in each buffer.

        Raises IllegalProgram for a race, an access out of bounds, an undefined address or result,
        UnsupportedProgram for what the core does not decide, MemoryError for maxima of too many numbers.
        """
        self._guarded(lambda: self._core.run(self._preset(block)))
        return self._stored()

    def run_around(
        self, block: int, axes: Sequence[Axis], spans: Sequence[tuple[int, int, int]]
    ) -> list[Stored] | tuple[int, int, int, int]:
        """As `run`; `region` then has blocks that run the same instructions.

        `spans` are along each axis the first coordinate to think of, the block's and the last one. Returns an
        axis to split, and the extent of its inner part, where that is to be done first. With an extent of 0,
        the blocks between two coordinates along the axis, which share this block's coordinates along
        those that carry on from it, are to have other axes.
        """
        slopes = [
            (self.decoded.preset[name], [a.stride if a.dimension == d else 0 for a in axes])
            for d, name in enumerate(("%ctaid.x", "%ctaid.y", "%ctaid.z"))
            if name in self.decoded.preset
        ]
        onward = [
            next((k for k in range(i + 1, len(axes)) if axes[k].dimension == a.dimension), _NO_AXIS)
            for i, a in enumerate(axes)
        ]
        given = [(*span, a.extent, k) for span, a, k in zip(spans, axes, onward, strict=True)]
        split = self._guarded(lambda: self._core.run_region(self._preset(block), given, slopes))
        return self._stored() if split is None else split

    @property
    def region(self) -> list[tuple[int, int]]:
        """The first and last coordinate along each axis of the blocks that do what the last one did."""
        return self._core.region

    @property
    def slopes(self) -> Array:
        """By number and axis, how places move from block to block."""
        return np.asarray(self._core.slopes, np.int64).reshape(len(self._core.slopes), -1)

    @property
    def scratch_slope(self) -> Sequence[int]:
        """By how many bytes scratch moves along each axis."""
        return self._core.scratch_slope

    def reached(self, buffer: int) -> tuple[Array, Array]:
        """Places of a buffer that the last block accessed, and the number of the slope of each."""
        places, numbers = self._core.reached(buffer)
        return places.astype(np.int64), numbers.astype(np.int64)

    def _preset(self, block: int) -> list[tuple[int, list[int]]]:
        """What the kernel finds set."""
        return [(self.decoded.preset[n], v) for n, v in self._special(block).items()]

    def _guarded(self, run: Callable[[], Any]) -> Any:
        kernel = self.decoded.kernel
        where = f"kernel '{kernel.name}' for {kernel.target}, "
        self._core.left = self._budget.left
        try:
            return run()
        except _ptx.Illegal as error:
            raise IllegalProgram(where + str(error)) from None
        except _ptx.Unknown as error:
            raise UnsupportedProgram(where + f"expected what can be verified, got: {error}") from None
        finally:
            self._budget.took(self._budget.left - self._core.left, f"kernel '{kernel.name}', its PTX")

    def _stored(self) -> list[Stored]:
        found: list[Stored] = []
        for i in range(len(self.buffers)):
            places, values, atomics = self._core.stored(i)
            order = np.argsort(places)
            found.append(Stored(places[order].astype(np.int64), values[order], atomics[order]))
        return found

    def _special(self, block: int) -> Mapping[str, list[int]]:
        """The registers that the kernel finds set, for all threads or for each."""
        threads, (x, y, z) = self.decoded.kernel.threads, self.grid
        values = {
            "%tid.x": list(range(threads)),
            "%laneid": [t % 32 for t in range(threads)],
            "%ntid.x": [threads],
            **{
                f"%ctaid.{a}": [v]
                for a, v in zip("xyz", (block % x, block // x % y, block // (x * y)), strict=True)
            },
            **{f"%nctaid.{a}": [v] for a, v in zip("xyz", (x, y, z), strict=True)},
            **{name: [value] for name, value in self._numbers.items()},
        }
        return {name: values[name] for name in self.decoded.preset if name in values}

    def plant(self, mutant: Decoded) -> None:
        """Make undefined what the `mutant`, decoded with the same numbers, computes differently line by line.

        A block that stores the same all the same never reads what the mutant's faults change: they are dead.
        Raises UnsupportedProgram where the mutant branches otherwise or has other registers.
        """
        ours, theirs = self.decoded, mutant
        rows, seen = {key: i for i, key in enumerate(_numbered(theirs))}, _numbered(ours)
        control = [_OPS[name] for name in ("branch", "ret", "barrier")]
        places: list[int] = []
        code: list[Array] = []
        for place, row in enumerate(ours.code):
            other = rows.get(seen[place])
            if other is not None and _texts(ours, place) == _texts(theirs, other):
                continue
            made = theirs.code[other] if other is not None else np.zeros_like(row)
            if other is None:
                made[:] = [_OPS["nop"], 0, 0, -1, 0, 0, 0, 0, row[-1]]
            if int(row[0]) in control or int(made[0]) in control:
                raise UnsupportedProgram("expected a mutant that branches as its kernel, got another")
            places.append(place)
            code.append(made)
        if len(theirs.numbers) > len(ours.numbers) or not places:
            raise UnsupportedProgram("expected a mutant of the kernel, got another text")
        self._core.plant(places, np.asarray(code, np.int64), theirs.args)

    @property
    def differences(self) -> int:
        """How many registers and cells of memory what is planted has changed so far."""
        return self._core.differences

    @property
    def scratch(self) -> tuple[int, int]:
        """The bytes of scratch that the last block used: the first, and the one after the last."""
        return self._core.scratch

    @property
    def blocks(self) -> int:
        """How many the grid has."""
        return math.prod(self.grid)

    @property
    def counts(self) -> Mapping[str, Any]:
        """What the blocks run so far did; see `superopt.cost.counted`."""
        return self._core.counts


def _numbered(decoded: Decoded) -> list[tuple[int, int]]:
    """By instruction, its line in the file, and which of those of that line it is."""
    counts = Counter[int]()
    found: list[tuple[int, int]] = []
    for number in map(int, decoded.code[:, -1]):
        found.append((number, counts[number]))
        counts[number] += 1
    return found


def _texts(decoded: Decoded, place: int) -> object:
    line = decoded.kernel.lines[place]
    return line.predicate, line.negated, line.opcode, line.operands


def _keys(seed: object, name: str) -> list[int]:
    """For each field, the keys of a function's argument and of its result."""
    keys = [key_of(seed, "function", name, i) for i in range(2)]
    return [k for key in keys for k in (key, key_of(key, "result"))]


def _planes(buffer: Buffer) -> tuple[Array | None, Array | None, list[int]]:
    """Contents modulo both primes, or the keys that they are drawn by."""
    if buffer.contents is None:
        return None, None, []
    given: tuple[object, ...] = buffer.contents.planes
    keys = [p.key for p in given if isinstance(p, Drawn)]
    if keys:
        assert len(keys) == len(given)
        return None, None, keys
    planes = [np.ascontiguousarray(p, np.uint64) for p in buffer.contents.planes]
    return planes[0], planes[1] if len(planes) > 1 else None, []
