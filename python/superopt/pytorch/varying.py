"""How the arguments of a model's modules vary with those of the model, found by calling it at other extents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from superopt.errors import BadInput, UnsupportedProgram
from superopt.pytorch.dynamic import GROWS, Dynamic, checked
from superopt.run.ranged import axis
from superopt.transforms.ingest.signature import Signature
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify.ranges import Axis

torch: Any = torch_module()
Call: TypeAlias = tuple[Any, Mapping[str, Any]]
"""What a module is called with, by position and by name."""
Calls: TypeAlias = Callable[[Any, Mapping[str, Any]], dict[str, Call]]
"""What each module is called with when the model is called with these arguments."""


class Varying:
    """The calls of modules at the extents of the example, and at another one of each axis of the `model`."""

    def __init__(self, model: Dynamic, calls: Calls) -> None:
        self.over = model.over
        leaves = torch.utils._pytree.tree_leaves((model.args, dict(model.kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        first = [axis.places[0] for axis in self.over]
        self.here = tuple(tensors[i].shape[d] // k for i, d, k in first)
        self.calls = calls(model.args, model.kwargs)
        self.others: list[tuple[int, dict[str, Call]]] = []
        for number, a in enumerate(self.over):
            if not a.low <= self.here[number] <= a.high:
                raise BadInput(f"expected inputs with {a}, got {self.here[number]}")
            other = next(n for n in (self.here[number] + 1, self.here[number] - 1) if a.low <= n <= a.high)
            extents = tuple(other if i == number else n for i, n in enumerate(self.here))
            self.others.append((other, calls(*model.inputs(extents))))

    def of(self, name: str, module: Any) -> Dynamic | None:
        """The module called `name`, with the axes that its arguments have; None where they have none.

        Raises UnsupportedProgram where an extent is no multiple of one of the model's, or another program's.
        """
        call = _ordered(module, self.calls[name])
        places: dict[str, list[tuple[int, int, int]]] = {a.name: [] for a in self.over}
        taken = set[tuple[int, int]]()
        shapes = _shapes(call)
        for a, here, (other, calls) in zip(self.over, self.here, self.others, strict=True):
            if name not in calls or len(moved := _shapes(_ordered(module, calls[name]))) != len(shapes):
                raise UnsupportedProgram(f"expected a call with the same arguments at every {a.name}")
            for before, after in zip(_rest(call), _rest(_ordered(module, calls[name])), strict=True):
                if before != after:
                    got = f"{before!r} at {here} and {after!r} at {other}"
                    raise UnsupportedProgram(f"expected the same argument at every {a.name}, got {got}")
            for i, (before, after) in enumerate(zip(shapes, moved, strict=True)):
                if len(before) != len(after):
                    raise UnsupportedProgram(f"expected tensors of the same dimensions at every {a.name}")
                for d, (size, then) in enumerate(zip(before, after, strict=True)):
                    if size == then:
                        continue
                    times, rest = divmod(then - size, other - here)
                    if rest or times < 1 or size != times * here or (i, d) in taken:
                        got = f"{size} at {here} and {then} at {other}"
                        raise UnsupportedProgram(
                            f"expected extents that are multiples of {a.name}, got {got}"
                        )
                    taken.add((i, d))
                    places[a.name].append((i, d, times))
        over = [axis(a.name, a.low, a.high, places[a.name]) for a in self.over if places[a.name]]
        return checked(Dynamic(module, *call, tuple(over)), _marks(module, call, over)) if over else None


def _ordered(module: Any, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the order in which the module's program has them."""
    signature = Signature(*call, module.forward)
    if signature.opens:
        kinds = ", ".join(kind.__name__ for kind in signature.kinds)
        raise UnsupportedProgram(f"expected arguments of tensors where extents vary, got {kinds}; {GROWS}")
    return signature.arguments(signature.examples)


def _shapes(call: Call) -> list[Sequence[int]]:
    leaves = torch.utils._pytree.tree_leaves((call[0], dict(call[1])))
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _rest(call: Call) -> list[Any]:
    """The arguments that are no tensors, with None for those that are."""
    leaves = torch.utils._pytree.tree_leaves((call[0], dict(call[1])))
    return [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _marks(module: Any, call: Call, over: Sequence[Axis]) -> dict[str, Any]:
    """`dynamic_shapes` of the module's arguments, by their names, as `torch.export` takes them."""
    dims = {a.name: torch.export.Dim(a.name, min=a.low, max=a.high) for a in over}
    marked: dict[int, dict[int, Any]] = {}
    for a in over:
        for i, d, times in a.places:
            marked.setdefault(i, {})[d] = dims[a.name] if times == 1 else times * dims[a.name]
    number = -1

    def mark(leaf: Any) -> Any:
        nonlocal number
        if not isinstance(leaf, torch.Tensor):
            return None
        number += 1
        return marked.get(number)

    args, kwargs = torch.utils._pytree.tree_map(mark, (call[0], dict(call[1])))
    names = [name for name, _, by_position in Signature(*call, module.forward).parameters if by_position]
    return dict(zip(names, args, strict=False)) | kwargs
