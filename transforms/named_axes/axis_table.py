"""Axes during naming: unified, and split into outer and inner parts."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import SuperoptError


class Unsearchable(SuperoptError):
    """A program, or one of its nodes, cannot be expressed over named axes."""


class AxisTable:
    """Axes that can be unified, and split into outer and inner parts."""

    def __init__(self) -> None:
        self._extents: list[int] = []
        self._links: list[int] = []
        self._parts: list[tuple[int, ...]] = []

    def new(self, extent: int) -> int:
        """A fresh axis."""
        self._extents.append(extent)
        self._links.append(len(self._links))
        self._parts.append(())
        return len(self._links) - 1

    def extent(self, axis: int) -> int:
        """Extent of an axis, in elements."""
        return self._extents[axis]

    def leaves(self, axes: Sequence[int]) -> list[int]:
        """The current parts of the axes, outermost first."""
        out: list[int] = []
        for axis in axes:
            while self._links[axis] != axis:
                axis = self._links[axis]
            parts = self._parts[axis]
            out += self.leaves(parts) if parts else [axis]
        return out

    def split(self, axis: int, outer: int) -> None:
        """Make `axis` an outer axis of extent `outer` and an inner one; raises Unsearchable unless it divides."""
        if self._extents[axis] % outer:
            raise Unsearchable(f"expected {outer} to divide an axis of extent {self._extents[axis]}")
        self._parts[axis] = (self.new(outer), self.new(self._extents[axis] // outer))

    def unify(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Unify two lists of axes, splitting where their extents differ."""
        while True:
            xs, ys = self.leaves(a), self.leaves(b)
            pair = next(((x, y) for x, y in zip(xs, ys, strict=False) if x != y), None)
            if pair is None:
                if len(xs) != len(ys):
                    raise Unsearchable("expected dimensions of one extent")
                return
            x, y = pair
            if self._extents[x] == self._extents[y]:
                self._links[y] = x
            elif self._extents[x] > self._extents[y]:
                self.split(x, self._extents[y])
            else:
                self.split(y, self._extents[x])

    def regroup(self, axes: Sequence[int], shape: Sequence[int]) -> list[list[int]]:
        """The axes as the dimensions of another row-major shape."""
        out: list[list[int]] = []
        rest = self.leaves(axes)
        for extent in shape:
            dim: list[int] = []
            got = 1
            while got < extent:
                axis = rest[0]
                wanted = extent // got
                if self._extents[axis] > wanted or extent % got:
                    self.split(axis, wanted)
                    rest = [*self.leaves([axis]), *rest[1:]]
                    continue
                got *= self._extents[axis]
                dim.append(rest.pop(0))
            if got != extent:
                raise Unsearchable(f"expected a reshape that splits or merges axes, got dimension {extent}")
            out.append(dim)
        return out

    def snapshot(self) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """The state, for `restore`."""
        return list(self._extents), list(self._links), list(self._parts)

    def restore(self, state: tuple[list[int], list[int], list[tuple[int, ...]]]) -> None:
        """Return to an earlier state."""
        self._extents, self._links, self._parts = (list(part) for part in state)  # type: ignore[assignment]
