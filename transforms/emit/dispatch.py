"""Calls the kernels of the bucket that the extents of tensors lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from superopt.errors import BadInput
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.program_source import ExtentPlace

if TYPE_CHECKING:
    from superopt.verify.ranges import Axis


class Dispatcher:
    """What a `Launcher` is, for kernels that are made for buckets: their bounds by axis, in order.

    `places` says where a program finds each axis. The first bucket that the extents of the tensors lie in takes
    them; its launcher checks them again.
    """

    def __init__(
        self,
        buckets: Sequence[tuple[Mapping[str, tuple[int, int]], Launcher]],
        places: Mapping[str, ExtentPlace],
    ) -> None:
        self.buckets, self.places = tuple(buckets), dict(places)

    def __call__(self, *tensors: Any) -> Any:
        """Run once; raises BadInput for tensors that no bucket takes."""
        return self.chosen(tensors)(*tensors)

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise BadInput for tensors that no bucket takes."""
        self.chosen(tensors).check(tensors)

    def check_memory(self, tensors: Sequence[Any]) -> None:
        """Raise BadInput where an argument that is overwritten shares memory with another."""
        self.chosen(tensors).check_memory(tensors)

    def chosen(self, tensors: Sequence[Any]) -> Launcher:
        """The launcher of the bucket for these tensors; raises BadInput where there is none."""
        found: dict[str, Any] = {}
        for name, place in self.places.items():
            shape = getattr(tensors[place.argument], "shape", ()) if place.argument < len(tensors) else ()
            if len(shape) <= place.dim:
                raise BadInput(f"expected argument {place.argument} with a dimension {place.dim} for {name}")
            found[name] = shape[place.dim] // place.times
        for bounds, launcher in self.buckets:
            if all(low <= found[name] <= high for name, (low, high) in bounds.items()):
                return launcher
        each = [[f"{n} from {a} to {b}" for n, (a, b) in bounds.items()] for bounds, _ in self.buckets]
        ranges = map(" and ".join, each)
        got = " and ".join(f"{name} {extent}" for name, extent in found.items())
        raise BadInput(f"expected {', or '.join(ranges)}, got {got}")

    def forget(self) -> None:
        """Make again, in the next call, what is made of weights once."""
        for _, launcher in self.buckets:
            launcher.forget()

    def on_cpu(self) -> NoReturn:
        """Raises BadInput: kernels for ranges are not compiled for the CPU."""
        raise BadInput("expected a program of fixed extents to compile for the CPU, got buckets of extents")


def places_of(axes: Sequence[Axis]) -> dict[str, ExtentPlace]:
    """Where a program finds the extents of these axes: the dimension that is the smallest multiple of each."""
    return {axis.name: ExtentPlace(*min(axis.places, key=lambda place: place[2])) for axis in axes}
