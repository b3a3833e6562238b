"""Where two programs differ, exactly: `difference`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from superopt.nests import Shape
from superopt.program import KernelGraph
from superopt.verify.relation.polynomials import Abstains, differing
from superopt.verify.relation.programs import Relations, obstacle
from superopt.verify.relation.sizes import Affine, Sizes

if TYPE_CHECKING:
    import islpy as isl

# Operations of isl, after which it is left to the random tests: about 0.1 s, or 2 s where products of many
# factors have relations of dozens of dimensions. Single layers and their rewrites need less.
OPERATIONS = 1_000_000

Box: TypeAlias = tuple[tuple[int, int, int], ...]
"""(start, stop, step) for each dimension, as of a `range`."""


@dataclass(frozen=True)
class Abstained:
    """The relation does not decide; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Region:
    """The positions at which two programs differ, for each output: exactly those. `empty`: they are equal.

    `shapes` are those of the outputs, at the actual sizes.
    """

    outputs: tuple[isl.Set, ...]
    empty: bool
    shapes: tuple[Shape, ...]

    def first(self) -> tuple[int, tuple[int, ...]] | None:
        """A position that differs, with the number of its output."""
        for number, positions in enumerate(self.outputs):
            if not positions.is_empty():
                return number, _place(positions.sample_point())
        return None

    @property
    def counts(self) -> list[int]:
        """How many elements of each output differ."""
        return [int(self.mask(n).sum()) for n in range(len(self.outputs))]

    def mask(self, output: int) -> npt.NDArray[np.bool_]:
        """Which elements of one output differ."""
        return members(self.outputs[output], self.shapes[output])

    def boxes(self, output: int) -> tuple[list[Box], bool]:
        """Boxes with steps that cover the positions in one output; whether they are known to hold no other."""
        import islpy as isl

        whole = self.outputs[output]
        boxes: list[Box] = []
        context = whole.get_ctx()
        context.reset_operations()
        context.set_max_operations(OPERATIONS)
        try:
            for piece in whole.coalesce().get_basic_sets():
                part = isl.Set.from_basic_set(piece)
                if not part.is_empty() and (box := _hull(part)) not in boxes:
                    boxes.append(box)
            return boxes, all(_set(whole, box).is_subset(whole) for box in boxes)
        except isl.Error:
            if not spent(context):
                raise
            return [tuple((0, e, 1) for e in self.shapes[output])], False
        finally:
            context.set_max_operations(0)


def _place(point: isl.Point) -> tuple[int, ...]:
    import islpy as isl

    rank = point.get_space().dim(isl.dim_type.set)
    return tuple(point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(rank))


def members(positions: isl.Set, shape: Shape) -> npt.NDArray[np.bool_]:
    """Which positions of a shape are in a set that lacks parameters.

    Constraints are evaluated at all positions at once. isl's own ways to count and list points first make pieces
    disjoint, which may take minutes.
    """
    found = np.zeros(shape, dtype=np.bool_)
    for piece in positions.compute_divs().get_basic_sets():
        found |= _holds(piece, shape)
    return found


def _holds(piece: isl.BasicSet, shape: Shape) -> npt.NDArray[np.bool_]:
    """The same of one piece, whose existential variables are floors."""
    import islpy as isl

    rank, space, kind = len(shape), piece.get_local_space(), isl.dim_type
    # Positions, then floors, which may depend on other floors before them.
    values: list[Any] = list(np.ogrid[tuple(slice(e) for e in shape)])
    for n in range(piece.dim(kind.div)):
        floor = space.get_div(n)
        q = floor.get_denominator_val()
        total = _whole(floor.get_constant_val() * q)
        for d, x in enumerate(values):
            c = floor.get_coefficient_val(*((kind.in_, d) if d < rank else (kind.div, d - rank)))
            total = total + _whole(c * q) * x
        values.append(total // _whole(q))
    found = np.ones(shape, dtype=np.bool_)
    for constraint in piece.get_constraints():
        total = _whole(constraint.get_constant_val())
        for d, x in enumerate(values):
            c = constraint.get_coefficient_val(*((kind.set, d) if d < rank else (kind.div, d - rank)))
            total = total + _whole(c) * x
        found &= total == 0 if constraint.is_equality() else total >= 0
    return found


def _whole(number: isl.Val) -> Any:
    """A number that is an integer; Any, as it is added to arrays."""
    return int(number.to_python())


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
    found = _difference(first, second, Sizes(first.inputs), operations)
    if isinstance(found, Region) and found.outputs:
        found.outputs[0].get_ctx().set_max_operations(0)
    return found


def equal_sizes(first: KernelGraph, second: KernelGraph, *, operations: int = OPERATIONS) -> list[str]:
    """The dimensions of inputs for all sizes of which two programs are equal that are so at their own; see
    `Sizes.free`. Sizes at which a program is illegal do not count: empty extents, negative paddings.

    Tried is first that all ends of paddings and slices follow the sizes, then under which equations between sizes
    programs are equal that are not so at all, then that ends stay.
    """
    import islpy as isl

    for borders in (True, False):
        equations: list[Affine] = []
        for _ in range(2):
            sizes = Sizes(first.inputs, symbolic=True, borders=borders)
            found = _difference(first, second, sizes, operations, equations)
            if not isinstance(found, Region):
                break
            context = found.outputs[0].get_ctx()
            try:
                legal = isl.Set.read_from_str(context, sizes.legal())
                if found.empty:
                    free = sizes.free()
                    return list(free.values()) if all(_unbounded(legal, sizes.text(x)) for x in free) else []
                equations = _equations(found, legal)
            except isl.Error:
                if not spent(context):
                    raise
                break
    return []


def _unbounded(legal: isl.Set, size: str) -> bool:
    """Whether arbitrarily large numbers are among the values of an expression."""
    import islpy as isl

    count = legal.dim(isl.dim_type.param)
    names = ", ".join(str(legal.get_dim_name(isl.dim_type.param, n)) for n in range(count))
    values = isl.Set.read_from_str(legal.get_ctx(), f"[{names}] -> {{ [x] : x = {size} }}")
    values = values.intersect_params(legal)
    return not values.project_out(isl.dim_type.param, 0, values.dim(isl.dim_type.param)).is_bounded()


def _equations(region: Region, legal: isl.Set) -> list[Affine]:
    """What holds of all parameters at which nothing differs."""
    import islpy as isl

    for positions in region.outputs:
        legal = legal.subtract(positions.params())
    found: list[Affine] = []
    for c in legal.affine_hull().get_constraints():
        if c.is_equality():
            count = c.get_space().dim(isl.dim_type.param)
            names = [str(c.get_dim_name(isl.dim_type.param, n)) for n in range(count)]
            values = [c.get_coefficient_val(isl.dim_type.param, n).to_python() for n in range(count)]
            terms = tuple((int(name[1:]), v) for name, v in zip(names, values, strict=True) if v)
            found.append(Affine(c.get_constant_val().to_python(), terms))
    return found


def _difference(
    first: KernelGraph,
    second: KernelGraph,
    sizes: Sizes,
    operations: int,
    equations: Sequence[Affine] = (),
) -> Region | Abstained:
    import islpy as isl

    context = isl.Context()
    context.set_max_operations(operations)
    try:
        (left, right), nowhere = Relations(context, sizes).outputs([first, second], equations)
        legal = isl.Set.read_from_str(context, sizes.legal())
        found = tuple(
            differing(p, q, none).intersect_params(legal)
            for p, q, none in zip(left, right, nowhere, strict=True)
        )
        empty = all(s.is_empty() for s in found)
    except Abstains as why:
        return Abstained(str(why))
    except isl.Error:
        if not spent(context):
            raise
        return Abstained(f"isl took more than {operations} operations")
    return Region(found, empty, tuple(v.shape for v in first.outputs))


def spent(context: isl.Context) -> bool:
    """Whether the budget ended: errors do not tell, but nothing works from then on."""
    import islpy as isl

    try:
        isl.Set.read_from_str(context, "{ [i] : 0 <= i < 2 }").is_empty()
    except isl.Error:
        return True
    return False
