"""Device memory as a launch of Triton programs sees it; checks bounds, initialisation, races and barriers.

A buffer is flat; a tensor of the domain holds its elements. Program instances of one launch run in any order
and share no clock, so within a launch only one instance may write an element, and no other may touch it.
Threads of one instance see each other's stores only after a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.domains import Array, Domain, Tensor

# Who touched an element: nobody, several instances, or an instance by its number plus one. What was never touched
# is 0, so that a large buffer takes only the memory that a launch touches.
_NOBODY, _SEVERAL = 0, -1

# Elements of an output: each takes 25 bytes while a launch runs.
MOST_STORED = 1 << 29


def _none() -> Array:
    return np.zeros(0, np.int32)


@dataclass(eq=False)
class _Watch:
    """Which instance of the launch that is running wrote and read each element, and in which epoch."""

    size: int
    written: Array = field(default_factory=_none)
    reader: Array = field(default_factory=_none)
    read: Array = field(default_factory=_none)
    scratch: Array = field(default_factory=_none)

    def __post_init__(self) -> None:
        self.written, self.reader, self.read, self.scratch = (np.zeros(self.size, np.int32) for _ in range(4))


@dataclass(eq=False)
class Buffer:
    """`size` elements of `dtype`; `writable` is false for the inputs of a program."""

    name: str
    size: int
    dtype: str
    writable: bool
    contents: Tensor | None = None
    initialised: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    _writer: Array = field(default_factory=_none)
    _watch: _Watch | None = None

    def fill(self, tensor: Tensor) -> None:
        """Fill the whole buffer, outside any launch."""
        if tensor.shape != (self.size,):
            raise IllegalProgram(f"expected {self.size} elements for '{self.name}', got shape {tensor.shape}")
        self.contents = tensor
        if self.writable:  # of others, nobody asks
            self.initialised = np.ones(self.size, np.bool_)

    @property
    def stored(self) -> Array:
        """Which elements the last launch stored."""
        return self._writer != _NOBODY

    def writers(self, places: Array) -> Array:
        """The instance that stored each of these elements in the last launch, or a negative number."""
        return self._writer[places] - 1

    def places_of(self, instance: int) -> Array:
        """The elements that an instance stored in the last launch, in order."""
        return np.flatnonzero(self._writer == instance + 1)

    def begin_launch(self) -> None:
        """Forget which instance touched what: launches run one after the other."""
        if not self.writable:
            return
        if self.size > MOST_STORED:
            raise UnsupportedProgram(
                f"'{self.name}': expected an output of at most {MOST_STORED} elements, whose stores can be "
                f"followed, got {self.size}"
            )
        if not self.initialised.size:
            self.initialised = np.zeros(self.size, np.bool_)
        self._writer = np.zeros(self.size, np.int32)
        self._watch = _Watch(self.size)

    def end_launch(self) -> None:
        """Keep only who stored what."""
        self._watch = None

    def load(self, offsets: Array, programs: Array, epoch: int, where: str) -> None:
        """Check a load of the flat `offsets` by the program instances `programs` (one for each)."""
        self._bounds("load", offsets, programs, where)
        if not self.writable:
            return
        if not self.initialised[offsets].all():
            at = int(offsets[np.argmin(self.initialised[offsets])])
            raise IllegalProgram(
                f"{where}: expected a load of what was stored, got element {at} of '{self.name}'"
            )
        watch, me = self._watched(), programs + 1
        writer = self._writer[offsets]
        foreign = (writer != _NOBODY) & (writer != me)
        if foreign.any():
            at = int(np.argmax(foreign))
            raise IllegalProgram(
                f"{where}: race: instance {programs[at]} loads element {offsets[at]} of '{self.name}', which "
                f"instance {writer[at] - 1} stores in the same launch"
            )
        own = (writer == me) & (watch.written[offsets] == epoch)
        if own.any():
            at = int(offsets[np.argmax(own)])
            raise IllegalProgram(
                f"{where}: expected a barrier between the store and the load of element {at} of '{self.name}'"
            )
        reader = watch.reader[offsets]
        watch.reader[offsets] = np.where((reader == _NOBODY) | (reader == me), me, _SEVERAL)
        # Two instances in one batch reading one element: the assignment above kept only the last.
        clash = watch.reader[offsets] != me
        watch.reader[offsets[clash]] = _SEVERAL
        watch.read[offsets] = epoch

    def store(
        self, offsets: Array, values: Tensor, programs: Array, epoch: int, where: str, domain: Domain
    ) -> None:
        """Check and perform a store of `values` (one for each offset)."""
        self._bounds("store", offsets, programs, where)
        if not self.writable:
            raise IllegalProgram(
                f"{where}: expected stores to outputs or scratch, got one to input '{self.name}'"
            )
        watch, me = self._watched(), programs + 1
        order = np.arange(offsets.size)
        watch.scratch[offsets] = order
        twice = watch.scratch[offsets] != order
        writer = self._writer[offsets]
        foreign = (writer != _NOBODY) & (writer != me)
        if twice.any() or foreign.any():
            at = int(np.argmax(twice | foreign))
            raise IllegalProgram(
                f"{where}: expected one store of element {offsets[at]} of '{self.name}', got several"
            )
        again = (writer == me) & (watch.written[offsets] == epoch)
        reader = watch.reader[offsets]
        read = (reader == me) & (watch.read[offsets] == epoch)
        others = (reader != _NOBODY) & (reader != me)
        if others.any():
            at = int(np.argmax(others))
            raise IllegalProgram(
                f"{where}: race: instance {programs[at]} stores element {offsets[at]} of '{self.name}', which "
                "another instance loads in the same launch"
            )
        if again.any() or read.any():
            at = int(offsets[np.argmax(again | read)])
            raise IllegalProgram(
                f"{where}: expected a barrier before element {at} of '{self.name}' is stored again"
            )
        self._writer[offsets] = me
        watch.written[offsets] = epoch
        self.initialised[offsets] = True
        self._assign(offsets, domain.stored(values, self.dtype))

    def _watched(self) -> _Watch:
        assert self._watch is not None, "no launch is running"
        return self._watch

    def _assign(self, offsets: Array, values: Tensor) -> None:
        if self.contents is None:
            planes = tuple(np.zeros(self.size, x.dtype) for x in values.planes)
            self.contents = Tensor(planes, values.degree)
        # What is stored without its second component lacks it from then on.
        kept = min(len(self.contents.planes), len(values.planes))
        for held, new in zip(self.contents.planes, values.planes, strict=False):
            held[offsets] = new
        degree = self.contents.degree.either(values.degree)
        self.contents = Tensor(self.contents.planes[:kept], degree)

    def _bounds(self, what: str, offsets: Array, programs: Array, where: str) -> None:
        if offsets.size and (offsets.min() < 0 or offsets.max() >= self.size):
            outside = (offsets < 0) | (offsets >= self.size)
            at = int(np.argmax(outside))
            raise IllegalProgram(
                f"{where}: out of bounds: instance {programs[at]} does a {what} of element {offsets[at]} of "
                f"'{self.name}', which has {self.size}"
            )
