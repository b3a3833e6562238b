"""Device memory: pointers and masks of tiles, pointers that move with a loop, and barriers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Sequence

from superopt.program import Bound, Buffer, Load, Loop, TileProgram, Value, Window, executions, parallel_loops
from superopt.transforms.emit.descriptors import described_loads
from superopt.transforms.emit.padding import Padding, expansion
from superopt.transforms.emit.writer import Writer

_INT32_MAX = 2**31 - 1


def in_memory(buffer: Buffer) -> bool:
    """Whether a buffer is in device memory: neither on chip nor computed."""
    return buffer.in_memory


class Memory:
    """The buffers of a program in device memory.

    `pointers` are the arguments that point to them, `views` scratch buffers that share another's memory, `moved`
    the pointers of loaded tiles that move with a loop.
    """

    def __init__(
        self, program: TileProgram, views: dict[Buffer, Buffer], axes: Padding, writer: Writer
    ) -> None:
        self.program, self.views, self.axes, self.writer = program, views, axes, writer
        self.pointers: dict[Buffer, str] = {}
        self.moved: dict[Value, str] = {}
        self.descriptors = described_loads(program, axes)
        self._made: dict[str, str] = {}  # descriptors by their text
        self._dirty: set[Buffer] = set()
        self._read: set[Buffer] = set()
        self._ends = {
            s.var: (s.start, s.start + (s.trips - 1) * s.step)
            for s in program.statements()
            if isinstance(s, Loop)
        }

    @contextlib.contextmanager
    def at_most(self, loop: Loop, trips: int) -> Generator[None]:
        """Within it, only the first so many trips of `loop` run."""
        whole = self._ends[loop.var]
        self._ends[loop.var] = (loop.start, loop.start + (trips - 1) * loop.step)
        yield
        self._ends[loop.var] = whole

    def shared(self, buffer: Buffer) -> Buffer:
        """The buffer whose memory this one is."""
        return self.views.get(buffer, buffer)

    def loads(self, buffer: Buffer) -> None:
        """A load follows: it must wait for earlier stores."""
        if self.shared(buffer) in self._dirty:
            self._barrier()
        self._read.add(self.shared(buffer))

    def stores(self, buffer: Buffer) -> None:
        """A store follows: it must wait for earlier loads of the old contents."""
        memory = self.shared(buffer)
        if memory in self._read or (memory in self._dirty and memory in self.program.locals):
            self._barrier()
        self._dirty.add(memory)

    def before_loop(self, loaded: set[Buffer]) -> None:
        """A loop that only loads these follows: one barrier before it serves all trips."""
        if loaded & self._dirty:
            self._barrier()

    def carried(self, buffers: set[Buffer]) -> None:
        """A loop follows whose trips load what earlier ones stored."""
        self._dirty |= buffers
        self._read |= buffers

    def _barrier(self) -> None:
        self.writer.line("tl.debug_barrier()")
        self._dirty.clear()
        self._read.clear()

    def moving_pointers(self, loop: Loop, begin: Window) -> dict[str, int]:
        """Pointers to the tiles that each trip reads, set before the loop, and how far a trip moves them.

        Their offsets are then added once, not in every trip. `begin` is the first value of the loop's variable.
        """
        steps: dict[str, int] = {}
        names: dict[str, str] = {}
        for s in loop.body:
            if not isinstance(s, Load) or not in_memory(s.buffer) or s in self.descriptors:
                continue
            shape = s.buffer.type.shape
            scales = [sum(scale for var, scale in w.terms if var is loop.var) for w in s.windows]
            strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            step = sum(a * b for a, b in zip(scales, strides, strict=True)) * loop.step
            if not step:
                continue
            first = [
                Window(
                    w.size,
                    w.base + scale * begin.base,
                    tuple(t for t in w.terms if t[0] is not loop.var)
                    + tuple((var, scale * n) for var, n in begin.terms if scale),
                    w.stride,
                )
                for w, scale in zip(s.windows, scales, strict=True)
            ]
            text = self.pointer(s.buffer, first, s.result)
            if text not in names:
                names[text] = self.writer.unique(f"{s.buffer.name}_ptrs")
                self.writer.line(f"{names[text]} = {text}")
                steps[names[text]] = step
            self.moved[s.result] = names[text]
        return steps

    def pointer(self, buffer: Buffer, windows: Sequence[Window], value: Value) -> str:
        """Pointers to the elements that `windows` cut out."""
        dims = self.axes.live(value)
        shape = buffer.type.shape
        wide = buffer.type.elements > _INT32_MAX or (
            buffer in self.program.locals and self._scratch_elements(buffer) > _INT32_MAX
        )
        offsets: list[str] = []
        if buffer in self.program.locals:
            block = f"{self.writer.block}.to(tl.int64)" if wide else self.writer.block
            offsets.append(f"{block} * {buffer.type.elements}")
        for d, window in enumerate(windows):
            stride = math.prod(shape[d + 1 :])
            if d not in dims:
                text = self.writer.start(window, wide=wide)
                if text != "0":
                    offsets.append(_product(text, stride))
                continue
            span = self.writer.span(window, self.axes.pad(value, d))
            index = f"{span}.to(tl.int64)" if wide else span
            offsets.append(_product(index + expansion((d,), dims), stride))
        return " + ".join([self.pointers[buffer], *offsets])

    def described(self, load: Load) -> str | None:
        """The text of a load by a tensor descriptor, made before all loops; None for other loads."""
        made = self.descriptors.get(load)
        if made is None:
            return None
        extents = load.buffer.type.shape
        wide = load.buffer.type.elements > _INT32_MAX
        base = [self.pointers[load.buffer]]
        for d, window in made.base:
            start = self.writer.start(window, wide=wide)
            if start != "0":
                base.append(_product(start, math.prod(extents[d + 1 :])))
        lists = ", ".join(str(list(x)) for x in (made.shape, made.strides, made.box))
        text = f"tl.make_tensor_descriptor({' + '.join(base)}, {lists})"
        if text not in self._made:
            self._made[text] = self.writer.unique(f"{load.buffer.name}_desc")
            self.writer.header.append(f"    {self._made[text]} = {text}")
        return f"{self._made[text]}.load([{', '.join(self.writer.start(w) for w in made.coordinates)}])"

    def mask(self, buffer: Buffer, windows: Sequence[Window], value: Value) -> str:
        """Which of the elements that `windows` cut out exist; empty where all do."""
        dims = self.axes.live(value)
        masks: list[str] = []
        for d, (window, extent) in enumerate(zip(windows, buffer.type.shape, strict=True)):
            if d not in dims:
                masks += self._single(window, extent)
                continue
            pad = self.axes.pad(value, d)
            end = self._end(window) + (window.size - 1) * window.stride
            bounds: list[str] = []
            if pad > window.size and (end < extent or window.terms):
                bounds.append(f"({self.writer.span(Window(window.size), pad)} < {window.size})")
            if end >= extent:
                bounds.append(f"({self.writer.span(window, pad)} < {extent})")
            if self._start(window) < 0:
                bounds.append(f"({self.writer.span(window, pad)} >= 0)")
            masks += [b + expansion((d,), dims) for b in bounds]
        return all_of(masks)

    def within(self, bounds: Sequence[Bound], value: Value) -> tuple[str, tuple[int, ...]]:
        """Which elements of a value the bounds say exist, and the dimensions of that mask; empty where all do."""
        dims = tuple(b.dim for b in bounds if b.dim in self.axes.live(value) and self._cuts(b))
        masks: list[str] = []
        for bound in bounds:
            d, window = bound.dim, bound.window
            if d not in dims:
                masks += self._single(window, bound.extent)
                continue
            span = self.writer.span(window, self.axes.pad(value, d))
            if self._end(window) + (window.size - 1) * window.stride >= bound.extent:
                masks.append(f"({span} < {bound.extent})" + expansion((d,), dims))
            if self._start(window) < 0:
                masks.append(f"({span} >= 0)" + expansion((d,), dims))
        return all_of(masks), dims

    def _cuts(self, bound: Bound) -> bool:
        """Whether some element lies beyond a bound."""
        window = bound.window
        end = self._end(window) + (window.size - 1) * window.stride
        return end >= bound.extent or self._start(window) < 0

    def _single(self, window: Window, extent: int) -> list[str]:
        """Whether the one element of a window exists, where it may not."""
        start = self.writer.start(window)
        masks = [f"({start} < {extent})"] if self._end(window) >= extent else []
        return masks + ([f"({start} >= 0)"] if self._start(window) < 0 else [])

    def starts(self, window: Window) -> tuple[int, int]:
        """The least and the largest start that a window takes."""
        return self._start(window), self._end(window)

    def _scratch_elements(self, buffer: Buffer) -> int:
        return buffer.type.elements * executions(parallel_loops(self.program.body))

    def _end(self, window: Window) -> int:
        """The largest start that a window takes."""
        return window.base + sum(max(scale * n for n in self._ends[var]) for var, scale in window.terms)

    def _start(self, window: Window) -> int:
        """The least start that a window takes."""
        return window.base + sum(min(scale * n for n in self._ends[var]) for var, scale in window.terms)


def all_of(masks: Sequence[str]) -> str:
    """The condition that all of them hold; empty where there are none."""
    text = " & ".join(masks)
    return text[1:-1] if len(masks) == 1 and text.endswith(")") else text


def _product(text: str, stride: int) -> str:
    if stride == 1:
        return text
    return f"({text}) * {stride}" if " " in text and "[" not in text else f"{text} * {stride}"
