"""From the torch dialect, on value tensors with static shapes, to a kernel graph.

What depends on constants alone (masks, position indices, attributes) is computed with PyTorch while reading. An
operation without a handler in `superopt.transforms.ingest.aten`, or whose handler gives up, becomes an `extern`
that carries its overload and arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.errors import Location, UnsupportedProgram
from superopt.program import COMPUTE_DTYPES, NUMBER_DTYPES, KernelGraph, TensorType, Value
from superopt.transforms.ingest.builder import FOLD_LIMIT, GraphBuilder, NotExpressible, static_type
from superopt.transforms.ingest.locate import locate
from superopt.transforms.ingest.tensor_ops import dense_array
from superopt.transforms.ingest.torch_types import (
    DTYPE_NAMES,
    dtype_number,
    held_as,
    layout_number,
    memory_format_number,
    torch_module,
)

_ELEMENTS = {"si64": "i64", "si32": "i32", "si16": "i16", "si8": "i8", "ui8": "i8", "i1": "i1"}


class TorchReader:
    """Reads one function of the torch dialect.

    `constants` are the tensors behind some arguments, by position; `names` are the names of the others.
    """

    def __init__(
        self, function: Any, diagnostics: Diagnostics, constants: Mapping[int, Any], names: Sequence[str]
    ) -> None:
        self.function = function
        self.constants = constants
        self.names = names
        self.build = GraphBuilder(str(function.attributes["sym_name"].value), diagnostics)
        self.held: dict[Any, Any] = {}
        self.comparisons: dict[Value, tuple[str, Any, Any]] = {}
        """What comparisons compare to make truth values: kind and arguments."""
        self.truths: set[Value] = set()
        """Zeros and ones that stand for truth values."""
        self.unsigned: set[Value] = set()
        """Bytes that PyTorch counts from 0 to 255; those of the graph have signs."""
        self._floats: dict[Value, Value] = {}
        self._made_by: dict[Value, tuple[str, list[Any]]] = {}
        self.types: list[TensorType] = []
        """Types of the result tensors of the operation being read."""
        self.makes_unsigned = False
        """Whether these are bytes without a sign."""

    def read(self) -> KernelGraph:
        """The graph; raises UnsupportedProgram, located, for dynamic shapes."""
        where = locate(self.function)
        (block,) = self.function.regions[0].blocks
        self.held.update({block.arguments[i]: tensor for i, tensor in self.constants.items()})
        inputs = [a for a in block.arguments if a not in self.held]
        for argument, name in zip(inputs, self.names, strict=True):
            self.held[argument] = self.build.add_input(
                name, self.type_of(argument.type, where, f"input '{name}'")
            )
            self._note_sign(argument, self.held[argument])
        outputs: list[Value] = []
        for op in block.operations:
            operation = op.operation
            self.build.location = locate(operation)
            if operation.name == "func.return":
                outputs = [self.output(self.held[v], v) for v in operation.operands]
            else:
                self._operation(operation)
        return self.build.finish(outputs, where)

    # --- types and values ---------------------------------------------------------------------------------

    def type_of(self, mlir_type: Any, where: Location, what: str) -> TensorType:
        """The plain form of a `!torch.vtensor` type."""
        text = str(mlir_type)
        body, _, tail = text.removeprefix("!torch.vtensor<[").partition("],")
        if not text.startswith("!torch.vtensor<[") or not tail:
            raise UnsupportedProgram(f"expected {what} to be a tensor of known shape, got {text}", where)
        element = tail.removesuffix(">")
        dtype = _ELEMENTS.get(element, element)
        shape = [-1 if e == "?" else int(e) for e in body.split(",") if e]
        return static_type(shape, dtype, where, what)

    def output(self, held: Any, value: Any) -> Value:
        """A result of the function."""
        type = self.type_of(value.type, self.build.location, "a result")
        if isinstance(held, Value):
            return self.as_bool(held)
        if type.dtype not in COMPUTE_DTYPES:
            raise UnsupportedProgram(
                f"expected results that are computed or floating-point, got a constant {type}",
                self.build.location,
            )
        return self.tensor(held, type.dtype)

    def tensor(self, held: Any, dtype: str) -> Value:
        """`held`, a value of the graph, a constant tensor or a number, as a value of `dtype`."""
        if dtype not in COMPUTE_DTYPES:
            raise NotExpressible(f"tensors of element type {dtype}")
        if isinstance(held, Value):
            if held.dtype == "f64":
                raise NotExpressible(f"tensors of element type {held.dtype}")
            if held in self.truths:  # the number is not the truth value
                return self.build.emit_raw("cast", held, dtype=dtype)
            return self.build.cast(held if held.dtype in COMPUTE_DTYPES else self.as_float(held), dtype)
        if isinstance(held, bool | int | float):
            return self.build.constant(float(held), dtype, ())
        if isinstance(held, torch_module().Tensor):
            return self.build.constant(held.double().numpy(), dtype)
        raise NotExpressible("an argument that is not a tensor")

    def _note_sign(self, value: Any, held: Any) -> None:
        if isinstance(held, Value) and held.dtype == "i8" and _is_unsigned(value):
            self.unsigned.add(held)

    def as_float(self, held: Value) -> Value:
        """Integers or truth values as f32."""
        if held in self._floats:
            return self._floats[held]
        if held.dtype in NUMBER_DTYPES and held not in self.unsigned:
            moved = self._moved_number(*self._made_by[held]) if held in self._made_by else None
            self._floats[held] = self.build.cast(held, "f32") if moved is None else moved
        else:
            types = [TensorType(held.shape, "f32")]
            args = [held, 6, False, False, None]  # float32, by its number
            (self._floats[held],) = self._opaque(
                "aten.to.dtype", args, types, "kernels lack bytes without a sign"
            )
        return self._floats[held]

    def _moved_number(self, name: str, args: list[Any]) -> Value | None:
        """Integers that were moved, as numbers that are moved."""
        from superopt.transforms.ingest.aten.views import as_number

        try:
            return as_number(self, name, args)  # pyright: ignore[reportArgumentType]
        except NotExpressible:
            return None

    def as_bool(self, held: Value) -> Value:
        """Truth values as PyTorch has them."""
        if held not in self.truths:
            return held
        types = [TensorType(held.shape, "i1")]
        return self._opaque("aten.gt.Scalar", [held, 0], types, "kernels compute with floats only")[0]

    @property
    def element(self) -> str:
        """Element type of the first result of the operation being read."""
        return self.types[0].dtype if self.types else "f32"

    def filled(self, number: float) -> Any:
        """A constant tensor of the result's type."""
        (type,) = self.types
        return torch_module().full(type.shape, number, dtype=DTYPE_NAMES[type.dtype])

    def arg_extremum(self, kind: str, args: list[Any], best: Value) -> Value:
        """The index that `max.dim` and `min.dim` give; an extern, dropped unless used."""
        reason = "the operator table lacks the index of an extremum"
        index = self._extern(f"aten.arg{kind}", args[:3], self.types[1:], reason)
        return index[0]

    def pooled_index(self, args: list[Any], rank: int) -> Value:
        """The index that pooling gives beside each maximum; an extern, dropped unless used."""
        reason = "the operator table lacks the index of an extremum"
        return self._extern(f"aten.max_pool{rank}d_with_indices", args, self.types, reason)[1]

    def shape_of(self, held: Any) -> tuple[int, ...]:
        """The shape of a value of the graph, a constant tensor, or a number."""
        return tuple(held.shape) if hasattr(held, "shape") else ()

    # --- operations ---------------------------------------------------------------------------------------

    def _operation(self, operation: Any) -> None:
        name = operation.name
        if name == "torch.operator":
            name = str(operation.attributes["name"].value)
        name = name.removeprefix("torch.")
        args = [self.held.get(v) for v in operation.operands]
        if name.startswith("constant."):
            self.held[operation.results[0]] = _constant(operation)
        elif name == "vtensor.literal":
            self.held[operation.results[0]] = self._literal(operation)
        elif name in ("prim.ListConstruct", "prim.TupleConstruct"):
            self.held[operation.results[0]] = args
        elif name in ("prim.ListUnpack", "prim.TupleUnpack"):
            parts: Sequence[Any] = args[0] or ()
            for result, part in zip(operation.results, parts, strict=True):
                self.held[result] = part
                self._note_sign(result, part)
        elif len(operation.results):
            self._compute(operation, name, args)

    def _literal(self, operation: Any) -> Any:
        """A constant tensor that torch-mlir wrote into the program."""
        (result,) = operation.results
        type = self.type_of(result.type, self.build.location, "a constant")
        array = dense_array(operation.attributes["value"], type.shape, type.dtype)
        return torch_module().from_numpy(np.array(array)).to(DTYPE_NAMES[type.dtype])

    def _compute(self, operation: Any, name: str, args: list[Any]) -> None:
        results = list(operation.results)
        where = self.build.location
        what = f"the result of '{name}'"
        tensors = [r for r in results if _is_tensor(r)]
        types = [self.type_of(r.type, where, what) for r in tensors]
        self.types = types
        self.makes_unsigned = any(_is_unsigned(r) for r in tensors)
        try:
            made = self._folded(name, args, types) if _constants_only(args) else self._handled(name, args)
            self._check_types(made, types)
        except NotExpressible as reason:
            if (unpacked := _unpacked(results)) is not None:
                types = [self.type_of(r.type, where, what) for r in unpacked]
                made = (list(self._extern(name, args, types, str(reason))),)
            elif len(tensors) == len(results):
                made = self._extern(name, args, types, str(reason))
            else:
                raise UnsupportedProgram(f"'{name}' cannot be kept opaque: {reason}", where) from None
        parts = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else (made,)
        for result, part in zip(results, parts, strict=True):
            self.held[result] = part
            self._note_sign(result, part)
            if isinstance(part, Value) and part.dtype not in COMPUTE_DTYPES:
                self._made_by[part] = (name, args)

    def _handled(self, name: str, args: list[Any]) -> Any:
        from superopt.transforms.ingest.aten import HANDLERS

        if (handler := HANDLERS.get(name.removeprefix("aten."))) is None:
            raise NotExpressible("the operator table lacks this operation")
        return handler(self, args)  # pyright: ignore[reportArgumentType]

    def _folded(self, name: str, args: list[Any], types: Sequence[TensorType]) -> Any:
        if any(t.elements > FOLD_LIMIT for t in types):
            raise NotExpressible("a constant of too many elements")
        overload = find_overload(name)
        if not _deterministic(overload):
            raise NotExpressible("its result is random")
        positional, keywords = by_schema(overload, args)
        with torch_module().no_grad():
            return overload(*positional, **keywords)

    def _check_types(self, made: Any, types: Sequence[TensorType]) -> None:
        """Raise NotExpressible where values of the graph and PyTorch's results differ in type."""
        parts = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else (made,)
        for part, type in zip(parts, types, strict=False):
            if not isinstance(part, Value):
                continue
            if type.dtype == "i1" and part.dtype in COMPUTE_DTYPES and part.shape == type.shape:
                self.truths.add(part)
            elif part.type != type:
                raise NotExpressible(f"its operands make a {part.type}, its result is a {type}")

    def _extern(
        self, name: str, args: list[Any], types: Sequence[TensorType], reason: str
    ) -> tuple[Value, ...]:
        return self._opaque(name, [self._as_pytorch(a) for a in args], types, reason)

    def _as_pytorch(self, held: Any) -> Any:
        """An argument of PyTorch's own operator: truth values, in lists, too, as PyTorch has them."""
        if isinstance(held, list):
            return [self._as_pytorch(each) for each in cast("list[Any]", held)]
        return self.as_bool(held) if isinstance(held, Value) else held

    def _opaque(
        self, name: str, args: list[Any], types: Sequence[TensorType], reason: str
    ) -> tuple[Value, ...]:
        try:
            overload = find_overload(name)
        except NotExpressible as error:
            raise UnsupportedProgram(str(error), self.build.location) from None
        refuse_random(name, overload, self.build.location, args)
        operands: list[Value] = []
        packed = json.dumps([_packed(a, operands) for a in _by_name(overload, args)])
        target = str(overload)
        return self.build.extern(target, reason, operands, types, args=packed)


def _is_unsigned(value: Any) -> bool:
    return "ui8" in str(value.type)


def find_overload(name: str) -> Any:
    """The PyTorch overload that `name` of the torch dialect ("aten.add.Tensor") stands for."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch_module().ops, namespace), packet), overload or "default")
    except AttributeError:
        raise NotExpressible(f"PyTorch lacks the operator '{name}'") from None


def by_schema(overload: Any, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in the order of the schema, split into positional and keyword-only ones.

    The torch dialect numbers dtypes, layouts and memory formats; PyTorch's schemas take the numbers for
    dtypes only as objects.
    """
    pairs = list(zip(overload._schema.arguments, _by_name(overload, args), strict=False))
    positional = [value for parameter, value in pairs if not parameter.kwarg_only]
    return positional, {parameter.name: value for parameter, value in pairs if parameter.kwarg_only}


def _by_name(overload: Any, args: Sequence[Any]) -> list[Any]:
    """`args` with dtypes, layouts and memory formats in place of their numbers."""
    return [_converted(p.name, value) for p, value in zip(overload._schema.arguments, args, strict=False)]


def _converted(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or not isinstance(value, int):
        return value
    if name in ("dtype", "out_dtype"):
        return dtype_number(value)
    if name == "layout":
        return layout_number(value)
    return memory_format_number(value) if name == "memory_format" else value


def refuse_random(name: str, overload: Any, where: Location, args: Sequence[Any] = ()) -> None:
    """Raise UnsupportedProgram for an operator that draws random numbers.

    One that draws them for dropout, such as an LSTM, draws none in evaluation.
    """
    named = dict(zip((p.name for p in overload._schema.arguments), args, strict=False))
    if not _deterministic(overload) and named.get("train") is not False:
        raise UnsupportedProgram(
            f"expected equal results for equal arguments, got '{name}', whose result is random; "
            "make what it draws an input",
            where,
        )


def _deterministic(overload: Any) -> bool:
    return torch_module().Tag.nondeterministic_seeded not in overload.tags


def _constants_only(args: Sequence[Any]) -> bool:
    return not any(
        isinstance(a, Value) or (isinstance(a, list) and not _constants_only(cast("list[Any]", a)))
        for a in args
    )


def _is_tensor(value: Any) -> bool:
    return str(value.type).startswith("!torch.vtensor")


def _unpacked(results: Sequence[Any]) -> Sequence[Any] | None:
    """The tensors into which the only result, a list, is unpacked; None where the result is not a list."""
    uses = [use.owner for use in results[0].uses] if len(results) == 1 else []
    lists = [owner for owner in uses if owner.name == "torch.prim.ListUnpack"]
    return list(lists[0].results) if lists and all(map(_is_tensor, lists[0].results)) else None


def _constant(operation: Any) -> Any:
    name = operation.name
    if name == "torch.constant.none":
        return None
    value = operation.attributes["value"].value
    if name == "torch.constant.device":
        return torch_module().device("cpu")
    return bool(value) if name == "torch.constant.bool" else value


def _packed(arg: Any, operands: list[Value]) -> Any:
    """`arg` as JSON; values of the graph are appended to `operands` and written as `{"tensor": index}`.

    Dtypes and the like are written as `{"torch": name}`.
    """
    torch = torch_module()
    if isinstance(arg, Value):
        operands.append(arg)
        return {"tensor": len(operands) - 1}
    if isinstance(arg, torch.Tensor):
        return {"data": arg.tolist(), "dtype": str(arg.dtype).removeprefix("torch.")}
    if isinstance(arg, list):
        return [_packed(a, operands) for a in cast("list[Any]", arg)]
    if isinstance(arg, torch.device):
        return {"device": str(arg)}
    if isinstance(arg, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(arg).removeprefix("torch.")}
    return {"float": repr(arg)} if isinstance(arg, float) else arg


def unpacked(arg: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of `_packed`, with `tensors` as the operands."""
    torch = torch_module()
    if isinstance(arg, list):
        return [unpacked(a, tensors) for a in cast("list[Any]", arg)]
    if not isinstance(arg, dict):
        return arg
    arg = cast("dict[str, Any]", arg)
    if "tensor" in arg:
        return tensors[arg["tensor"]]
    if "float" in arg:
        return float(arg["float"])
    if "torch" in arg:
        return getattr(torch, arg["torch"])
    if "device" in arg:
        return torch.device(arg["device"])
    return torch.tensor(arg["data"], dtype=getattr(torch, arg["dtype"]))


def run_aten(node: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The results of an `extern` node that came from PyTorch, computed by PyTorch.

    Raises UnsupportedProgram where this PyTorch lacks the operator.
    """
    target = str(node.attrs["target"])
    try:
        overload = find_overload(target)
    except NotExpressible as error:
        raise UnsupportedProgram(str(error), node.location) from None
    args = unpacked(json.loads(str(node.attrs["args"])), tensors)
    positional, keywords = by_schema(overload, args)
    with torch_module().no_grad():
        result = overload(*positional, **keywords)
    made: tuple[Any, ...] = (
        tuple(cast("Sequence[Any]", result)) if isinstance(result, tuple | list) else (result,)
    )
    return tuple(
        held_as(m, r.dtype) if isinstance(m, torch_module().Tensor) else np.asarray(m)
        for m, r in zip(made, node.results, strict=True)
    )
