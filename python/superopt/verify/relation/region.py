"""Where two programs differ, exactly: `difference`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from superopt.program import KernelGraph
from superopt.verify.relation.polynomials import Abstains, differing
from superopt.verify.relation.programs import Relations, obstacle

if TYPE_CHECKING:
    import islpy as isl

# Operations of isl, some 10^7 a second, after which it is left to the random tests.
OPERATIONS = 5_000_000

Box: TypeAlias = tuple[tuple[int, int, int], ...]
"""(start, stop, step) for each dimension, as of a `range`."""


@dataclass(frozen=True)
class Abstained:
    """The relation does not decide; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Region:
    """The positions at which two programs differ, for each output: exactly those."""

    outputs: tuple[isl.Set, ...]

    @property
    def empty(self) -> bool:
        """Whether the programs are equal."""
        return all(s.is_empty() for s in self.outputs)

    def first(self) -> tuple[int, tuple[int, ...]] | None:
        """A position that differs, with the number of its output."""
        for number, positions in enumerate(self.outputs):
            if not positions.is_empty():
                return number, _place(positions.sample_point())
        return None

    @property
    def counts(self) -> list[int]:
        """How many elements of each output differ."""
        return [s.count_val().to_python() for s in self.outputs]

    def points(self, output: int) -> Iterator[tuple[int, ...]]:
        """The positions in one output that differ."""
        found: list[isl.Point] = []
        self.outputs[output].foreach_point(found.append)
        return map(_place, found)

    def boxes(self, output: int) -> tuple[list[Box], bool]:
        """Boxes with steps that cover the positions in one output, and whether they hold no other position."""
        import islpy as isl

        whole = self.outputs[output]
        covered, boxes = whole.subtract(whole), list[Box]()
        for piece in whole.coalesce().make_disjoint().get_basic_sets():
            part = isl.Set.from_basic_set(piece)
            if part.is_subset(covered):
                continue
            boxes.append(_hull(part))
            covered = covered.union(_set(whole, boxes[-1]))
        return boxes, covered.is_subset(whole)


def _place(point: isl.Point) -> tuple[int, ...]:
    import islpy as isl

    rank = point.get_space().dim(isl.dim_type.set)
    return tuple(point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(rank))


def _hull(part: isl.Set) -> Box:
    """The smallest box, with the largest steps, that holds a set."""
    import islpy as isl

    box: list[tuple[int, int, int]] = []
    rank = part.dim(isl.dim_type.set)
    for d in range(rank):  # alone, as the residue of one may depend on another
        alone = part.project_out(isl.dim_type.set, d + 1, rank - d - 1).project_out(isl.dim_type.set, 0, d)
        low, high = alone.dim_min_val(0).to_python(), alone.dim_max_val(0).to_python()
        box.append((low, high + 1, alone.get_stride(0).to_python() if low < high else 1))
    return tuple(box)


def _set(like: isl.Set, box: Box) -> isl.Set:
    import islpy as isl

    names = [f"d{d}" for d in range(len(box))]
    each = [
        f"{low} <= {d} < {stop} and ({d} - {low}) mod {step} = 0"
        for d, (low, stop, step) in zip(names, box, strict=True)
    ]
    return isl.Set.read_from_str(
        like.get_ctx(), f"{{ [{', '.join(names)}] : {' and '.join(each) or 'true'} }}"
    )


def difference(
    first: KernelGraph, second: KernelGraph, *, operations: int = OPERATIONS
) -> Region | Abstained:
    """Where two programs on the same inputs differ over the reals, at which positions of their outputs.

    An element differs where it is another function of the inputs. Inputs and outputs are matched by number; their
    shapes must agree.
    """
    if reason := obstacle(first) or obstacle(second):
        return Abstained(reason)
    for x, y in zip([*first.inputs, *first.outputs], [*second.inputs, *second.outputs], strict=True):
        if x.shape != y.shape:
            raise ValueError(f"expected inputs and outputs of equal shapes, got {x.shape} and {y.shape}")
    import islpy as isl

    context = isl.Context()
    context.set_max_operations(operations)
    relations = Relations(context, first.inputs)
    try:
        left, right = relations.outputs(first), relations.outputs(second)
        found = tuple(
            differing(p, q, relations.map(v.shape, [], "false").domain())
            for p, q, v in zip(left, right, first.outputs, strict=True)
        )
    except Abstains as why:
        return Abstained(str(why))
    except isl.Error:
        if not _spent(context):
            raise
        return Abstained(f"isl took more than {operations} operations")
    context.set_max_operations(0)
    return Region(found)


def _spent(context: isl.Context) -> bool:
    """Whether the budget ended: errors do not tell, but nothing works from then on."""
    import islpy as isl

    try:
        isl.Set.read_from_str(context, "{ [i] : 0 <= i < 2 }").is_empty()
    except isl.Error:
        return True
    return False
