"""Dynamic shapes, as `torch.export` takes them: which dimension of which tensor has which bounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from superopt.errors import BadInput, BadOption, UnsupportedProgram
from superopt.pytorch.module import called, imported
from superopt.run.buckets import Buckets, check_ends, superoptimize_buckets
from superopt.run.ranged import MOST_ELEMENTS, axis
from superopt.transforms.ingest.signature import Signature
from superopt.transforms.ingest.torch_types import export_lock, torch_module
from superopt.verify.ranges import Axis, Point, representatives

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.run.outcome import Outcome
    from superopt.run.settings import Settings
    from superopt.transforms.ingest.import_torch import Imported

torch: Any = torch_module()
GROWS = "torch.compile(backend='superopt') takes caches that grow; one of static size needs no dynamic_shapes"
"""What helps where an argument of varying extents is an object."""


@dataclass(frozen=True)
class Dynamic:
    """A module's example arguments, and the axes of their tensors whose extents vary."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    over: tuple[Axis, ...]

    def inputs(self, extents: Point) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Example arguments with other extents: random numbers, zeros for integers, which may be indices."""
        taken = zip(self.over, extents, strict=True)
        sizes = {(i, d): times * n for axis, n in taken for i, d, times in axis.places}
        generator = torch.Generator().manual_seed(0)
        pytree = torch.utils._pytree
        leaves, nesting = pytree.tree_flatten((self.args, dict(self.kwargs)))
        number = -1
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            number += 1
            shape = [sizes.get((number, d), size) for d, size in enumerate(leaf.shape)]
            if shape == list(leaf.shape):
                continue
            if leaf.is_floating_point():
                made = torch.randn(shape, generator=generator, dtype=torch.float32)
            else:
                made = torch.zeros(shape)
            leaves[i] = made.to(leaf.device, leaf.dtype)
        return pytree.tree_unflatten(leaves, nesting)

    def ends(self, buckets: Any) -> Buckets:
        """The buckets that a user asks for; raises BadOption for what they cannot be."""
        if buckets is None or buckets == "auto":
            return buckets
        given = cast("object", buckets)
        if isinstance(given, tuple | list) and len(self.over) == 1:
            given = {self.over[0].name: cast("Sequence[int]", given)}
        if not isinstance(given, Mapping) or any(
            not isinstance(ends, tuple | list) for ends in cast("Mapping[str, object]", given).values()
        ):
            names = ", ".join(a.name for a in self.over)
            raise BadOption(f"expected buckets by the names of extents ({names}), or 'auto', got {buckets!r}")
        made = cast("Mapping[str, Sequence[int]]", given)
        check_ends(self.over, made)
        return made

    def optimized(
        self, buckets: Buckets, settings: Settings, diagnostics: Diagnostics
    ) -> tuple[Imported, Outcome]:
        """What the module is read as, at one extent, and its kernels; raises as `superoptimize_buckets`."""
        read: dict[Point, Imported] = {}

        def source(extents: Point) -> KernelGraph:
            read[extents] = imported(self.module, *self.inputs(extents))
            return read[extents].graph

        outcome = superoptimize_buckets(source, self.over, buckets, settings, diagnostics)
        if outcome.lacking:  # a call there is an error, or runs the original
            warnings.warn(f"superopt's {called(self.module)}: {outcome.lacking}", stacklevel=3)
        return next(iter(read.values())), outcome


def dynamic(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any) -> Dynamic:
    """What `dynamic_shapes` says of a module's arguments; `torch.export` confirms that one program has them all.

    `shapes` is a dictionary by the names of the arguments, or a sequence in their order; for each tensor a
    dictionary from dimensions to `torch.export.Dim`s or multiples of them (`2 * n`), or a sequence with one entry
    for each dimension. Raises BadInput for what cannot be that, or what PyTorch refuses.
    """
    made, marks = marked(module, args, kwargs, shapes)
    return checked(made, marks)


def marked(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> tuple[Dynamic, dict[str, Any]]:
    """The same, but for what PyTorch says of it, and the marks by the names of all arguments."""
    signature = Signature(args, kwargs, module.forward)  # numbers the tensors as the program will
    if signature.opens:
        kinds = ", ".join(kind.__name__ for kind in signature.kinds)
        raise BadInput(f"expected dynamic_shapes with arguments of tensors, got {kinds}; {GROWS}")
    args, kwargs = signature.arguments(signature.examples)
    names = [name for name, _, by_position in signature.parameters if by_position]
    given = dict(zip(names, args, strict=False)) | kwargs
    by_name = _by_name(shapes, list(given), given)
    dims: dict[str, Any] = {}
    places: dict[str, list[tuple[int, int, int]]] = {}
    number = 0
    for name, value in given.items():
        for tensor, wanted in _paired(value, by_name.get(name)):
            for d, found in _dims(tensor, wanted):
                root, times = _multiple(found)
                dims[root.__name__] = root
                places.setdefault(root.__name__, []).append((number, d, times))
            number += 1
    if not dims:
        raise BadInput("expected a dimension that is marked in dynamic_shapes, got none")
    over: list[Axis] = []
    for name, found in dims.items():
        if found.max >= MOST_ELEMENTS:  # PyTorch's infinity, too
            raise BadOption(f"expected a largest extent, as in Dim('{name}', max=512), got none")
        over.append(axis(name, max(int(found.min), 1), int(found.max), places[name]))
    return Dynamic(module, args, kwargs, tuple(over)), {name: by_name.get(name) for name in given}


def _by_name(shapes: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(shapes, Mapping):
        marked = dict(cast("Mapping[str, Any]", shapes))
    elif isinstance(shapes, tuple | list):
        marked = dict(zip(names, cast("Sequence[Any]", shapes), strict=False))
    else:
        raise BadInput(f"expected dynamic_shapes by argument, got {type(shapes).__name__}")
    for name in marked:
        if name not in given:
            raise BadInput(f"expected dynamic_shapes of {', '.join(given)}, got '{name}'")
    return marked


def _paired(value: Any, wanted: Any) -> list[tuple[Any, Any]]:
    """The tensors in an argument, in order, each with what is said of its shape."""
    if isinstance(value, torch.Tensor):
        return [(value, wanted)]
    if isinstance(value, tuple | list):
        inner = list(cast("Sequence[Any]", value))
        given = cast("Sequence[Any]", wanted) if isinstance(wanted, tuple | list) else ()
        said = list(given) or [None] * len(inner)
        return [pair for v, w in zip(inner, said, strict=True) for pair in _paired(v, w)]
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value)
        nothing: Mapping[str, Any] = {}
        by_key = cast("Mapping[str, Any]", wanted) if isinstance(wanted, Mapping) else nothing
        return [pair for k, v in held.items() for pair in _paired(v, by_key.get(k))]
    return []


def _dims(tensor: Any, wanted: Any) -> list[tuple[int, Any]]:
    if wanted is None:
        return []
    if isinstance(wanted, Mapping):
        entries = list(cast("Mapping[int, Any]", wanted).items())
    elif isinstance(wanted, tuple | list):
        entries = list(enumerate(cast("Sequence[Any]", wanted)))
    else:
        raise BadInput(f"expected dimensions and their Dims, got {wanted!r}")
    found: list[tuple[int, Any]] = []
    for d, dim in entries:
        if dim is None or isinstance(dim, int):
            continue
        if not isinstance(dim, torch.export.Dim):  # Dim.AUTO and its like neither name nor relate extents
            raise BadInput(f"expected a torch.export.Dim, as in Dim('n', max=512), got {dim!r}")
        if not -tensor.ndim <= d < tensor.ndim:
            raise BadInput(f"expected a dimension of {tuple(tensor.shape)}, got {d}")
        found.append((d % tensor.ndim, dim))
    return found


def _multiple(dim: Any) -> tuple[Any, int]:
    """The `Dim` that a dimension is a multiple of, and which; raises UnsupportedProgram for other expressions."""
    if not hasattr(dim, "root"):
        return dim, 1
    if dim.fn(0) != 0:
        raise UnsupportedProgram(f"expected a Dim or a multiple of one, got {dim.__name__}")
    return dim.root, int(dim.fn(1))


def checked(made: Dynamic, shapes: Mapping[str, Any]) -> Dynamic:
    """`made`, whose arguments are marked by `shapes`; raises BadInput where PyTorch finds that the module is
    another program at some extents."""
    searched = zip(made.over, representatives(made.over), strict=True)
    args, kwargs = made.inputs(tuple(max(a.low, min(n, a.high)) for a, n in searched))
    try:
        with export_lock(), torch.no_grad():
            torch.export.export(made.module, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # the exporter raises what it likes
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = next(
            (line for line in lines if "specializ" in line or "violated" in line), lines[0] if lines else ""
        )
        names = " and ".join(a.name for a in made.over)
        raise BadInput(f"expected a module that is one program for every {names}: {what}") from None
    return made
