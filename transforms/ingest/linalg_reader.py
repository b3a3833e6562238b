"""The reader behind `read_linalg`: one function of linalg on tensors, operation by operation.

Only what the results need is read. A tensor value is held as one of three things: a value of the graph, an array
(element types that the kernel dialect lacks: indices, truth values, f64 constants), or unwritten memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.dialects.argument_names import name_of
from superopt.dialects.mlir import binding
from superopt.dialects.reader import read_aliases, read_weights
from superopt.errors import Location, UnsupportedProgram
from superopt.inputs.source import lowering_hint
from superopt.program import COMPUTE_DTYPES, KernelGraph, TensorType, Value
from superopt.transforms.ingest.bodies import Body, Comparison, Form, Truth
from superopt.transforms.ingest.builder import FOLD_LIMIT, GraphBuilder, NotExpressible, static_type
from superopt.transforms.ingest.extern import linalg_source
from superopt.transforms.ingest.held import Array, Held, Unwritten
from superopt.transforms.ingest.interpret import predicate, scalar_operation, to_dtype
from superopt.transforms.ingest.locate import locate
from superopt.transforms.ingest.maps import Axis, axis, extents_of, is_axis, result_dims, spread_array
from superopt.transforms.ingest.quasi_affine_maps import dims_of, read_elements, spread, sum_of_products
from superopt.transforms.ingest.space import Aligned, Space
from superopt.transforms.ingest.tensor_ops import OPERATIONS
from superopt.transforms.ingest.windows import read_windows, reads_windows

_CONTROL = ("scf", "cf", "affine", "async", "gpu", "llvm", "memref", "bufferization", "vector", "spirv")
_SCALARS = ("f64", "f32", "f16", "bf16", "index", "i1", "i8", "i16", "i32", "i64")


class LinalgReader:
    """Reads one function; see `read_linalg`."""

    def __init__(self, function: Any, diagnostics: Diagnostics, narrow_f64: bool, filename: str) -> None:
        self.function = function
        self.narrow_f64 = narrow_f64
        self.filename = filename
        self.build = GraphBuilder(str(function.attributes["sym_name"].value), diagnostics)
        self.held: dict[Any, Held] = {}
        self.resources: dict[str, Value] = {}
        self.needed: set[Any] = set()
        self.comparisons: dict[Value, tuple[str, Value, Value]] = {}
        """What comparisons compare to make truth values, at full shape."""
        self.compared: tuple[str, Value, Value] | None = None
        self.truths: dict[Value, Value] = {}
        """Truth values as zeros and ones, at full shape."""
        self.true: Value | None = None  # those of the operation being read

    def read(self) -> KernelGraph:
        """The graph."""
        where = locate(self.function, self.filename)
        blocks = list(self.function.regions[0].blocks)
        if len(blocks) != 1:
            raise UnsupportedProgram("expected one basic block, got control flow", where)
        for i, argument in enumerate(blocks[0].arguments):
            self.held[argument] = self.build.add_input(
                name_of(self.function, i), self._type(argument.type, where, "an argument")
            )
        operations = [op.operation for op in blocks[0].operations]
        returned = operations.pop()
        self.needed = _needed(operations, returned)
        for operation in operations:
            if any(r in self.needed for r in operation.results):
                self._operation(operation)
        self.build.location = locate(returned, self.filename)
        outputs = [self._output(v) for v in returned.operands]
        graph = self.build.finish(outputs, where)
        graph.aliases = read_aliases(self.function, len(outputs), where)
        resources = [i for i, v in enumerate(graph.inputs) if v in self.resources.values()]
        graph.weights = (*read_weights(self.function), *resources)
        return graph

    # --- types and values ---------------------------------------------------------------------------------

    def result_type(self, operation: Any) -> TensorType:
        """The type of the operation's only result."""
        return self._type(operation.results[0].type, self.build.location, f"the result of '{operation.name}'")

    def _type(self, mlir_type: Any, where: Location, what: str) -> TensorType:
        text = str(mlir_type)
        if text in _SCALARS:
            raise UnsupportedProgram(f"expected {what} of tensor type, got {text}", where)
        if type(mlir_type).__name__ != "RankedTensorType":
            raise UnsupportedProgram(f"expected {what} of ranked tensor type, got {text}", where)
        rank = mlir_type.rank
        shape = [-1 if mlir_type.is_dynamic_dim(d) else mlir_type.get_dim_size(d) for d in range(rank)]
        return static_type(shape, self._dtype(str(mlir_type.element_type)), where, what)

    def _dtype(self, element: str) -> str:
        return "f32" if element == "f64" and self.narrow_f64 else element

    def _float(self, element: str) -> str:
        dtype = self._dtype(element)
        if dtype not in COMPUTE_DTYPES:
            hint = " (the option narrow-f64 computes in f32)" if element == "f64" else ""
            raise NotExpressible(f"tensors of element type {element}{hint}")
        return dtype

    def _output(self, value: Any) -> Value:
        held = self.held.get(value)
        if isinstance(held, Value):
            return held
        if isinstance(held, Unwritten):
            raise UnsupportedProgram(
                "expected a computed result, got uninitialized memory", self.build.location
            )
        raise UnsupportedProgram(
            f"expected a result of floating-point tensors, got {value.type}", self.build.location
        )

    def value(self, value: Any) -> Value:
        """What a tensor or scalar holds, as a value of the graph."""
        held = self.held.get(value)
        if isinstance(held, Value):
            self._float(held.dtype)
            return held
        if isinstance(held, Unwritten):
            raise NotExpressible("it reads memory that nothing has written (tensor.empty)")
        if held is None:
            raise NotExpressible(f"an operand of type {value.type}")
        return self.build.constant(held, self._float(_element(value.type)))

    # --- operations ---------------------------------------------------------------------------------------

    def _operation(self, operation: Any) -> None:
        name = operation.name
        where = self.build.location = locate(operation, self.filename)
        for result in operation.results:
            if str(result.type) not in _SCALARS:
                self._type(result.type, where, f"the result of '{name}'")
        if name.split(".")[0] in _CONTROL or name == "func.call":
            raise UnsupportedProgram(
                f"expected tensor operations without control flow or calls, got '{name}'", where
            )
        self.compared = self.true = None
        try:
            results = self._read(operation)
            for result, held in zip(operation.results, results, strict=True):
                if held is not None and tuple(held.shape) != self._shape(result):
                    raise NotExpressible("a result that is only partly written")
        except NotExpressible as reason:
            results = self._extern(operation, str(reason))
        for result, held in zip(operation.results, results, strict=True):
            if held is not None:
                self.held[result] = held

    def _read(self, operation: Any) -> Sequence[Held | None]:
        name = operation.name
        if (special := OPERATIONS.get(name)) is not None:
            return [special(self, operation)]  # pyright: ignore[reportArgumentType]
        if name.startswith("linalg.") and len(operation.regions) == 1 and len(operation.regions[0].blocks):
            return self._structured(operation)
        if name.split(".")[0] in ("arith", "math"):
            return [self._pointwise(operation)]
        raise NotExpressible(f"the operator table lacks this operation{lowering_hint(name)}")

    def _extern(self, operation: Any, reason: str) -> Sequence[Held]:
        if any(str(r.type) in _SCALARS for r in operation.results):
            raise UnsupportedProgram(
                f"'{operation.name}' cannot be kept opaque: {reason}", self.build.location
            )
        source, captured = linalg_source(operation, self._as_array)
        operands: list[Value] = []
        for value in captured:
            held = self.held.get(value)
            if not isinstance(held, Value):
                raise UnsupportedProgram(
                    f"'{operation.name}' cannot be kept opaque ({reason}): it uses a partly written tensor",
                    self.build.location,
                )
            operands.append(held)
        types = [self._type(r.type, self.build.location, "a result") for r in operation.results]
        made = self.build.extern(operation.name, reason, operands, types, source=source)
        if self.compared is not None and len(made) == 1:
            self.comparisons[made[0]] = self.compared
        if self.true is not None and len(made) == 1:
            self.truths[made[0]] = self.true
        return made

    def truth(self, held: Value) -> Value:
        """Truth values as zeros and ones."""
        if held not in self.truths:
            self.truths[held] = self.build.cast(held, "f32")
        return self.truths[held]

    def _as_array(self, value: Any) -> Array | None:
        held = self.held.get(value)
        return held if isinstance(held, np.ndarray) else None

    def _outer(self, value: Any) -> Form:
        """The form of a scalar from outside a body."""
        held = self.held.get(value)
        if isinstance(held, np.ndarray):
            return held
        if isinstance(held, Value):
            number = self.build.scalar(held)
            return Aligned(held, ()) if number is None else np.asarray(number)
        raise NotExpressible(f"a value of type {value.type} from outside its body")

    def _body(self, extents: Sequence[int], order: Sequence[int]) -> Body:
        space = Space(self.build, tuple(extents), tuple(order))
        return Body(space, {}, self._outer, self._float, self._tensor)

    def _tensor(self, value: Any) -> Held:
        held = self.held.get(value)
        if held is None or isinstance(held, Unwritten):
            raise NotExpressible(f"it reads a tensor of type {value.type} that is not known")
        array = self.build.elements(held) if isinstance(held, Value) else None
        return array if array is not None and array.size <= FOLD_LIMIT else held

    # --- pointwise operations on scalars and whole tensors ------------------------------------------------

    def _pointwise(self, operation: Any) -> Held:
        held = [self.held.get(v) for v in operation.operands]
        element = _element(operation.results[0].type)
        if all(isinstance(h, np.ndarray) for h in held):
            arrays = [h for h in held if isinstance(h, np.ndarray)]
            if str(operation.results[0].type) in _SCALARS:
                return scalar_operation(operation, arrays)
        rank = len(self._shape(operation.results[0]))
        body = self._body(self._shape(operation.results[0]), range(rank))
        forms = [self._operand_form(v, tuple(range(rank))) for v in operation.operands]
        return self._materialized(
            body.operation_on(operation, forms), body.space, tuple(range(rank)), element
        )

    def _shape(self, value: Any) -> tuple[int, ...]:
        return () if str(value.type) in _SCALARS else tuple(value.type.shape)

    def _operand_form(self, value: Any, dims: tuple[int, ...]) -> Form:
        held = self.held.get(value)
        if isinstance(held, Value) and held.dtype == "i1":
            return Truth(Aligned(self.truth(held), dims))
        return held if isinstance(held, np.ndarray) else Aligned(self.value(value), dims)

    # --- structured operations ----------------------------------------------------------------------------

    def _structured(self, operation: Any) -> Sequence[Held | None]:
        """A linalg operation with a body: reads each used result from the body separately."""
        maps = [
            m.value if hasattr(m, "value") else m
            for m in binding("dialects.linalg").get_indexing_maps(operation)
        ]
        block = operation.regions[0].blocks[0]
        n_out = len(operation.results)
        operands = list(operation.operands)
        n_in = len(operands) - n_out
        extents = extents_of(maps, operands, self._shape)
        yielded = list(list(block.operations)[-1].operation.operands)
        if n_out == 1 and (made := self._by_maps(operation, maps, extents, yielded[0])) is not None:
            return [made]
        held: list[Held | None] = []
        for i in range(n_out):
            if operation.results[i] not in self.needed:
                held.append(None)
                continue
            out_dims = result_dims(maps[n_in + i], extents)
            order = [d for d in out_dims if d is not None]
            order += [d for d in range(len(extents)) if d not in order]
            body = self._body(extents, order)
            self._bind(body, block, operands, maps, n_in)
            held.append(self._result(body, block, yielded[i], operands, n_in, i, out_dims))
        return held

    def _by_maps(
        self, operation: Any, maps: Sequence[Any], extents: Sequence[int], yielded: Any
    ) -> Held | None:
        """A sum or maximum over windows, or a sum of products that are read at quotients and remainders, and what
        it starts from; None for any other operation.
        """
        if all(is_axis(e) for m in maps[:-1] for e in m.results):
            return None
        start, accumulator = operation.operands[-1], operation.regions[0].blocks[0].arguments[-1]
        if (combination := _combination(yielded, accumulator)) is None:
            return None
        kind, term = combination
        made: Value | None = None
        if reads_windows(maps[:-1]):
            with contextlib.suppress(NotExpressible):
                reads = operation, maps, extents, kind, term
                made = read_windows(self, *reads)  # pyright: ignore[reportArgumentType]
        result = [d for d in result_dims(maps[-1], extents) if d is not None]
        if made is None and kind == "sum" and len(result) == len(maps[-1].results):
            with contextlib.suppress(NotExpressible):
                reads = operation, maps, extents, result, term
                made = sum_of_products(self, *reads)  # pyright: ignore[reportArgumentType]
        if made is None:
            return None
        first = self.value(start)
        if self.build.scalar(first) == {"sum": 0.0, "max": -math.inf}[kind]:
            return made
        spread = self.build.defined_by(first, "broadcast")
        first = first if spread is None else spread.operands[0]
        return self.build.emit({"sum": "add"}.get(kind, kind), made, first)

    def _bind(self, body: Body, block: Any, operands: Sequence[Any], maps: Sequence[Any], n_in: int) -> None:
        """Bind the block's arguments to the operands, aligned by their maps; outputs on demand."""
        for i, argument in enumerate(block.arguments):
            if not any(True for _ in argument.uses) or (i >= n_in and self._unwritten(operands[i])):
                continue
            body.known[argument] = self._aligned_operand(operands[i], maps[i], body.space)

    def _unwritten(self, value: Any) -> bool:
        return isinstance(self.held.get(value), Unwritten)

    def _aligned_operand(self, value: Any, map: Any, space: Space) -> Form:
        held = self.held.get(value)
        if not all(is_axis(e) for e in map.results):
            return self._spread_operand(value, map, space)
        axes = [axis(e) for e in map.results]
        array = held if isinstance(held, np.ndarray) else None
        if isinstance(held, Value):
            elements = self.build.elements(held)
            array = elements if elements is not None and elements.size <= FOLD_LIMIT else None
        if array is not None and all(a.dim is not None or array.shape[i] == 1 for i, a in enumerate(axes)):
            number = self.build.scalar(held) if isinstance(held, Value) else None
            return np.asarray(number) if number is not None else spread_array(array, axes, space.extents)
        if isinstance(held, Value) and held in self.comparisons:
            kind, *sides = self.comparisons[held]
            left, right = (self._aligned_value(side, axes, space) for side in sides)
            return Comparison(kind, left, right)
        if isinstance(held, Value) and held.dtype == "i1":
            return Truth(self._aligned_value(self.truth(held), axes, space))
        return self._aligned_value(self.value(value), axes, space)

    def _spread_operand(self, value: Any, map: Any, space: Space) -> Form:
        """An operand that is read at sums, quotients or remainders of dimensions."""
        held = self.held.get(value)
        array = held if isinstance(held, np.ndarray) else None
        if isinstance(held, Value):
            array = self.build.elements(held)
        if array is not None and math.prod(space.extents[d] for d in dims_of(map)) <= FOLD_LIMIT:
            return read_elements(array, map, space.extents)
        if isinstance(held, Value) and held.dtype == "i1":
            return Truth(Aligned(*spread(self.build, self.truth(held), map, space.extents)))
        return Aligned(*spread(self.build, self.value(value), map, space.extents))

    def _aligned_value(self, source: Value, axes: Sequence[Axis], space: Space) -> Aligned:
        for i, along in enumerate(axes):
            extent = 1 if along.dim is None else space.extents[along.dim]
            if extent != source.shape[i] or along.stride != 1:
                source = self.build.slice(source, i, along.offset, extent, along.stride)
        dims = [a.dim for a in axes]
        kept = tuple(d for d in dims if d is not None)
        if len(set(kept)) != len(kept):
            raise NotExpressible("an operand is read along a diagonal")
        source = self.build.reshape(source, [space.extents[d] for d in kept])
        return Aligned(source, kept)

    def _result(
        self, body: Body, block: Any, yielded: Any, operands: Sequence[Any], n_in: int, i: int,
        out_dims: Sequence[int | None],
    ) -> Held:  # fmt: skip
        space = body.space
        element = str(yielded.type)
        kept = [d for d in out_dims if d is not None]
        reductions = [d for d in range(len(space.extents)) if d not in kept]
        accumulator = block.arguments[n_in + i]
        if self._unwritten(operands[n_in + i]) and _depends(yielded, accumulator):
            raise UnsupportedProgram(
                "expected an initial value in the output operand, got memory that nothing has written",
                self.build.location,
            )
        if all(space.extents[d] == 1 for d in reductions):
            return self._materialized(body.form(yielded), space, out_dims, element)
        if (combination := _combination(yielded, accumulator)) is None:
            raise NotExpressible("a reduction that is not a sum, maximum or minimum")
        kind, term = combination
        if yielded.owner.name not in _WITH_NAN:
            self.build.check_defined(body.aligned(term).value)
        reduced = _contraction(body, term, kind, reductions) or space.reduce(
            kind, body.aligned(term), reductions
        )
        start = body.aligned(accumulator)
        neutral = {"sum": 0.0, "max": -math.inf, "min": math.inf}[kind]
        if self.build.scalar(start.value) != neutral:
            reduced = space.apply({"sum": "add"}.get(kind, kind), reduced, start)
        return self._materialized(reduced, space, out_dims, element)

    def _materialized(self, form: Form, space: Space, out_dims: Sequence[int | None], element: str) -> Held:
        """`form` as a whole tensor of the result's shape: one axis per entry, of extent 1 for None."""
        dims = tuple(d for d in out_dims if d is not None)
        shape = tuple(1 if d is None else space.extents[d] for d in out_dims)
        if isinstance(form, np.ndarray):
            full = np.broadcast_to(form, space.extents) if form.ndim else np.broadcast_to(form, shape)
            if form.ndim:
                others = [d for d in range(len(space.extents)) if d not in dims]
                if any(space.extents[d] != 1 for d in others):
                    raise NotExpressible("a result that does not say which of several values it takes")
                full = full.transpose([*dims, *others]).reshape(shape)
            dtype = self._dtype(element)
            if dtype not in COMPUTE_DTYPES:
                return to_dtype(full, element)
            return self.build.constant(full if form.ndim else form, dtype, shape)
        if isinstance(form, Comparison):
            sides = [self._materialized(side, space, out_dims, "") for side in (form.left, form.right)]
            left, right = (side for side in sides if isinstance(side, Value))
            self.compared = (form.predicate, left, right)
            raise NotExpressible("a comparison of values that are not constant, used other than to select")
        if isinstance(form, Truth):
            true = self._materialized(form.value, space, out_dims, "")
            self.true = true if isinstance(true, Value) else None
            raise NotExpressible("truth values that leave the operation that computes them")
        if any(space.extents[d] != 1 for d in form.dims if d not in dims):
            raise NotExpressible("a result that does not say which of several values it takes")
        kept = tuple(d for d in form.dims if d in dims)
        squeezed = self.build.reshape(form.value, [space.extents[d] for d in kept])
        return self.build.reshape(space.spread(Aligned(squeezed, kept), dims), shape)


# --- reading maps and bodies ------------------------------------------------------------------------------


_COMBINERS = {"arith.addf": "sum", "arith.maximumf": "max", "arith.maxnumf": "max", "arith.minimumf": "min",
              "arith.minnumf": "min"}  # fmt: skip

_WITH_NAN = (
    "arith.addf",
    "arith.maximumf",
    "arith.minimumf",
)  # NaN where a term is; others leave such terms out


def _combination(yielded: Any, accumulator: Any) -> tuple[str, Any] | None:
    """How `yielded` joins the accumulator with another value, and that value; None where it does not."""
    operation = yielded.owner
    name = getattr(operation, "name", "")
    if name in _COMBINERS:
        left, right = operation.operands
        if (left == accumulator) != (right == accumulator):
            term = right if left == accumulator else left
            return None if _depends(term, accumulator) else (_COMBINERS[name], term)
    if name == "arith.select":
        return _selected(operation, accumulator)
    return None


def _selected(operation: Any, accumulator: Any) -> tuple[str, Any] | None:
    """select(x > accumulator, x, accumulator): a maximum; variants likewise."""
    condition, first, second = operation.operands
    test = condition.owner
    if getattr(test, "name", "") != "arith.cmpf" or set(test.operands) != {first, second}:
        return None
    kind = predicate(test)[1:]
    if accumulator not in (first, second) or kind not in ("gt", "ge", "lt", "le"):
        return None
    term = second if first == accumulator else first
    if _depends(term, accumulator):
        return None
    takes_larger = (kind[0] == "g") == (test.operands[0] == first)
    return ("max" if takes_larger else "min"), term


def _depends(value: Any, accumulator: Any) -> bool:
    if value == accumulator:
        return True
    operation = value.owner
    if not hasattr(operation, "operands") or getattr(operation, "name", "").startswith("func."):
        return False
    return any(_depends(v, accumulator) for v in operation.operands)


def _contraction(body: Body, term: Any, kind: str, reductions: Sequence[int]) -> Aligned | None:
    """A sum of products as a contraction, where both factors vary along a reduced dimension."""
    operation = term.owner
    if kind != "sum" or getattr(operation, "name", "") != "arith.mulf":
        return None
    if all(isinstance(body.form(v), np.ndarray) for v in operation.operands):
        return None
    a, b = (body.aligned(v) for v in operation.operands)
    if not any(d in a.dims and d in b.dims for d in reductions):
        return None
    return body.space.contract(a, b, reductions)


def _element(mlir_type: Any) -> str:
    return str(getattr(mlir_type, "element_type", mlir_type))


def _needed(operations: Sequence[Any], returned: Any) -> set[Any]:
    """The values that the results depend on, except dead results of structured operations."""
    needed = set(returned.operands)
    for operation in reversed(operations):
        if not any(r in needed for r in operation.results):
            continue
        needed.update(operation.operands)
        for region in operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    _add_operands(inner.operation, needed)
    return needed


def _add_operands(operation: Any, needed: set[Any]) -> None:
    needed.update(operation.operands)
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                _add_operands(inner.operation, needed)
