"""Copies of a linalg function with smaller extents, for sources that are too large to execute.

An extent shrinks wherever it occurs, or keeps its size where something else than a tensor's shape depends on it:
an index, the elements of a constant, a slice, a window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.dialects.mlir import binding, ir
from superopt.program import Attr, KernelGraph, Value

# Distinct extents stay distinct and in their order; primes, so that none divides another.
_EXTENTS = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def smaller_sources(function: Any, resources: Sequence[str]) -> Iterator[tuple[Any, dict[int, int]]]:
    """Modules that hold a copy of `function`, and what they replace its extents by.

    Constants named by `resources` become arguments after the function's own. First only extents that nothing
    reduces shrink, so that sums are as long as they are; then all. A number that is such an extent or its
    reciprocal (what a mean divides by) follows it. MLIR has verified the copies; whether the reader takes the
    same decisions for them is for `same_reading` to say.
    """
    seen: list[dict[int, int]] = []
    for reduced in (False, True):
        module = _copy(function)
        copied = module.body.operations[0].operation
        _resources_as_arguments(copied, resources)
        extents = _Extents(copied).smaller(reduced=reduced)
        if extents in seen or not (extents or resources):
            continue
        seen.append(extents)
        try:
            _resize(copied, extents)
            module.operation.verify()
        except (ir.MLIRError, ValueError):
            continue
        yield module, extents


def _copy(function: Any) -> Any:
    with function.context, ir.Location.unknown():
        module = ir.Module.create()
        module.body.append(function.clone())
    return module


def _operations(function: Any) -> list[Any]:
    return [op.operation for op in function.regions[0].blocks[0].operations]


def _resources_as_arguments(function: Any, keys: Sequence[str]) -> None:
    block = function.regions[0].blocks[0]
    arguments: dict[str, Any] = {}
    held = [
        (op, resource_key(op.attributes["value"]))
        for op in _operations(function)
        if op.name == "arith.constant"
    ]
    for key in keys:
        for op, name in held:
            if name == key:
                if key not in arguments:
                    arguments[key] = block.add_argument(op.results[0].type, op.location)
                op.results[0].replace_all_uses_with(arguments[key])
                op.erase()
    if "arg_attrs" in function.attributes and arguments:
        del function.attributes["arg_attrs"]


def resource_key(attribute: Any) -> str:
    """The key of a `dense_resource`; empty for other attributes."""
    found = re.match(r"dense_resource<([^>]*)>", str(attribute)[:500])
    return found[1].strip('"') if found else ""


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else ()


def _tensors(function: Any) -> list[Any]:
    values = [
        *function.regions[0].blocks[0].arguments,
        *(r for op in _operations(function) for r in op.results),
    ]
    return [v for v in values if _shape(v)]


def _region(op: Any) -> list[Any]:
    return [inner.operation for r in op.regions for b in r.blocks for inner in b.operations]


class _Extents:
    """The extents of a function's tensors: which are kept, reduced, or products of others."""

    def __init__(self, function: Any) -> None:
        self.all = {n for v in _tensors(function) for n in _shape(v)}
        self.kept: set[int] = set()
        self.reduced: set[int] = set()
        self.products: dict[int, tuple[int, ...]] = {}
        for op in _operations(function):
            self._operation(op)

    def _operation(self, op: Any) -> None:
        name, values = op.name, [*op.operands, *op.results]
        maps = [getattr(m, "value", m) for m in binding("dialects.linalg").get_indexing_maps(op) or ()]
        if maps:
            self._structured(op, maps)
        elif name == "linalg.softmax":
            self.reduced.add(_shape(op.results[0])[int(op.attributes["dimension"].value)])
        elif name == "arith.constant":
            value = op.attributes["value"]
            if not (isinstance(value, ir.DenseElementsAttr) and value.is_splat):
                self.kept.update(_shape(op.results[0]))
        elif name in ("tensor.expand_shape", "tensor.collapse_shape"):
            self._reshape(op)
        elif name in ("tensor.pad", "tensor.concat", "tensor.extract_slice", "tensor.insert_slice"):
            self._whole_axes([_shape(v) for v in values if _shape(v)])
        elif name not in ("tensor.empty", "func.return") and (
            name.split(".")[0] not in ("arith", "math") or op.regions
        ):
            self.kept.update(n for v in values for n in _shape(v))

    def _structured(self, op: Any, maps: Sequence[Any]) -> None:
        extents: dict[int, int] = {}
        kept: set[int] = set()
        for value, map in zip(op.operands, maps, strict=True):
            for index, extent in zip(map.results, _shape(value), strict=True):
                if type(index).__name__ == "AffineDimExpr":
                    extents[index.position] = extent
                else:
                    self.kept.add(extent)
                    kept |= _dims(index)
        for inner in _region(op):
            if inner.name == "linalg.index":
                kept.add(int(inner.attributes["dim"].value))
            elif inner.name == "tensor.extract":
                self.kept.update(_shape(inner.operands[0]))
        written = {d for map in maps[-len(op.results) :] for index in map.results for d in _dims(index)}
        self.kept.update(extents[d] for d in kept if d in extents)
        self.reduced.update(n for d, n in extents.items() if d not in written)

    def _reshape(self, op: Any) -> None:
        expands = op.name == "tensor.expand_shape"
        wide, flat = (op.results[0], op.operands[0]) if expands else (op.operands[0], op.results[0])
        for extent, group in zip(_shape(flat), op.attributes["reassociation"], strict=True):
            factors = tuple(sorted(n for n in (_shape(wide)[int(a.value)] for a in group) if n != 1))
            if len(factors) > 1 and self.products.setdefault(extent, factors) != factors:
                self.kept.add(extent)

    def _whole_axes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Operations that leave dimensions as they are where all tensors have one extent."""
        if len({len(s) for s in shapes}) > 1:
            self.kept.update(n for s in shapes for n in s)
            return
        for axis in zip(*shapes, strict=True):
            if len(set(axis)) > 1:
                self.kept.update(axis)

    def smaller(self, *, reduced: bool) -> dict[int, int]:
        """What becomes of each extent that shrinks."""
        kept = self.kept if reduced else self.kept | self.reduced
        products = dict(self.products)
        while more := {n for whole in kept & products.keys() for n in products.pop(whole)}:
            kept = kept | more  # the factors of what is kept
        out: dict[int, int] = {}
        free = [n for n in _EXTENTS if n not in self.all]
        for n in sorted(self.all - kept - products.keys()):
            if free and free[0] < n:
                out[n] = free.pop(0)
        for whole in sorted(products):  # factors are smaller than what they make
            out[whole] = math.prod(out.get(n, n) for n in products[whole])
        return {n: small for n, small in out.items() if small != n}


def _dims(index: Any) -> set[int]:
    """The iteration dimensions in an affine expression."""
    return {int(n) for n in re.findall(r"d(\d+)", str(index))}


def _resize(function: Any, extents: Mapping[int, int]) -> None:
    """Replace extents in types and attributes, and numbers that are such an extent or its reciprocal."""
    numbers = _numbers(extents)
    with function.context, ir.Location.unknown():
        for value in _tensors(function):
            small = [extents.get(n, n) for n in _shape(value)]
            value.set_type(ir.RankedTensorType.get(small, value.type.element_type, value.type.encoding))
        for top in _operations(function):
            for name in ("static_output_shape", "static_sizes"):
                if name in top.attributes:
                    small = [extents.get(int(n), int(n)) for n in top.attributes[name]]
                    top.attributes[name] = ir.DenseI64ArrayAttr.get(small)
            for op in (top, *_region(top)):
                if op.name == "arith.constant":
                    op.attributes["value"] = _renamed(op.attributes["value"], op.results[0].type, numbers)
        kinds = [a.type for a in function.regions[0].blocks[0].arguments]
        returned = [v.type for v in _operations(function)[-1].operands]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, returned))


def _renamed(value: Any, kind: Any, numbers: Mapping[float, float]) -> Any:
    """A constant of type `kind` with another number, where `numbers` replaces it."""
    if isinstance(value, ir.DenseElementsAttr):
        if not value.is_splat:
            return value
        return ir.DenseElementsAttr.get_splat(
            kind, _renamed(value.get_splat_value(), kind.element_type, numbers)
        )
    if isinstance(value, ir.FloatAttr):
        return ir.FloatAttr.get(kind, _other(value.value, numbers))
    if isinstance(value, ir.IntegerAttr) and value.value in numbers:
        return ir.IntegerAttr.get(kind, int(numbers[value.value]))
    return value


def _numbers(extents: Mapping[int, int]) -> dict[float, float]:
    return {float(n): float(m) for n, m in extents.items()} | {1 / n: 1 / m for n, m in extents.items()}


def _other(number: float, numbers: Mapping[float, float]) -> float:
    """What replaces a number, which the source may have rounded to bf16."""
    return next((m for n, m in numbers.items() if abs(number - n) <= 2**-8 * n), number)


# --- whether the reader takes the same decisions ----------------------------------------------------------


def same_reading(large: KernelGraph, small: KernelGraph, extents: Mapping[int, int]) -> bool:
    """Whether the graphs are the same operators on the same operands, with the same attributes but for extents.

    Then what is true of one holds for the other: operators treat all indices of a dimension alike, and whatever
    depends on an index or an extent is an attribute.
    """
    if [len(large.nodes), len(large.outputs)] != [len(small.nodes), len(small.outputs)]:
        return False
    if [_kind(v) for v in large.inputs] != [_kind(v) for v in small.inputs]:
        return False
    made = dict(zip(large.inputs, small.inputs, strict=True))
    for a, b in zip(large.nodes, small.nodes, strict=True):
        alike = a.op == b.op and [made[v] for v in a.operands] == list(b.operands)
        alike = alike and [_kind(v) for v in a.results] == [_kind(v) for v in b.results]
        if not alike or a.attrs.keys() != b.attrs.keys():
            return False
        if not all(_same_attribute(name, a.attrs[name], b.attrs[name], extents) for name in a.attrs):
            return False
        made.update(zip(a.results, b.results, strict=True))
    return [made[v] for v in large.outputs] == small.outputs and large.aliases == small.aliases


def _kind(value: Value) -> tuple[int, str]:
    return len(value.shape), value.dtype


def _same_attribute(name: str, a: Attr, b: Attr, extents: Mapping[int, int]) -> bool:
    if name in ("shape", "sizes") and isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b)
    if name == "source" and isinstance(a, str) and isinstance(b, str):  # of an opaque operation
        return re.sub(r"\d+x", "", a) == re.sub(r"\d+x", "", b)
    if isinstance(a, float) and isinstance(b, float) and a != b:
        small = _other(a, _numbers(extents))
        return abs(b - small) <= 2**-8 * abs(small)
    return type(a) is type(b) and np.array_equal(np.asarray(a), np.asarray(b))
