"""Executing a linalg program as MLIR itself lowers it to LLVM IR: the independent execution that readings are
compared with.

Nothing of the reader is used. The program runs in a process of its own, as what reads a tensor out of bounds or
divides by zero takes the process with it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.dialects.mlir import binding, ir, passmanager
from superopt.errors import UnsupportedProgram
from superopt.numerics.checking import EPSILON

Array: TypeAlias = "np.ndarray[Any, Any]"

# Patterns first (softmax, named operations), then buffers, loops, LLVM.
_DECOMPOSE = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%root: !transform.any_op {transform.readonly}) {
    %s = transform.structured.match ops{["linalg.softmax"]} in %root : (!transform.any_op) -> !transform.any_op
    %d = transform.structured.decompose_interface %s : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}"""
_PIPELINE = (
    "builtin.module(func.func(linalg-generalize-named-ops,convert-elementwise-to-linalg),"
    "empty-tensor-to-alloc-tensor,one-shot-bufferize{bufferize-function-boundaries "
    "function-boundary-type-conversion=identity-layout-map},"
    "buffer-results-to-out-params{modify-public-functions=true},func.func(refback-munge-memref-copy),"
    "convert-linalg-to-loops,expand-strided-metadata,lower-affine,convert-scf-to-cf,"
    # Few CPUs have instructions for bf16, and LLVM's own functions for it are in no library of ours.
    "func.func(math-extend-to-supported-types{extra-types=f16 target-type=f32}),"
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32},arith-expand{include-bf16=true},"
    "math-expand-ops,"
    "convert-math-to-llvm{approximate-log1p=0},convert-math-to-libm,convert-arith-to-llvm,"
    "finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
# How elements lie in memory; numpy lacks bf16, whose bits are passed.
_STORAGE: dict[str, Any] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64,
}  # fmt: skip
_NARROW = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Tensor:
    """Shape and element type of an argument or result, as MLIR spells it."""

    shape: tuple[int, ...]
    element: str


def execute(
    bytecode: bytes,
    name: str,
    results: Sequence[Tensor],
    arguments: Sequence[Tensor],
    runs: Sequence[Sequence[Array]],
    *,
    seconds: float,
    draw: int = 0,
) -> list[tuple[list[Array], list[Array]]]:
    """For each of `runs` (numbers for all arguments): the results in f64 throughout, and in the program's types.

    With a `draw` above 0, the latter are computed in f64, each result off by a drawn part of a unit of the last
    place of its type (Parker, Monte Carlo Arithmetic, 1997, section 3). All numbers are float64 or integers.
    Raises UnsupportedProgram where MLIR does not lower the program, where it crashes, and where it takes more
    than `seconds`.
    """
    wide = [Tensor(t.shape, "f64" if t.element in _NARROW else t.element) for t in results]
    results = wide if draw else results
    blocks = [_block(t) for _ in runs for t in (*wide, *results)]
    memory = mmap.mmap(-1, max(1, sum(blocks)))
    places = _views(memory, [t for _ in runs for t in (*wide, *results)])
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        _child(sending, bytecode, name, arguments, runs, places, len(results), draw)
    os.close(sending)
    said = _wait(child, receiving, seconds)
    if said:
        raise UnsupportedProgram(said)
    made: list[tuple[list[Array], list[Array]]] = []
    for i in range(len(runs)):
        outputs = places[2 * len(results) * i : 2 * len(results) * (i + 1)]
        numbers = [_numbers(a, t.element) for a, t in zip(outputs, (*wide, *results), strict=True)]
        made.append((numbers[: len(results)], numbers[len(results) :]))
    return made


def _block(tensor: Tensor) -> int:
    """Bytes of a tensor, up to a multiple of 64."""
    size = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(_STORAGE[tensor.element]).itemsize
    return -(-size // 64) * 64


def _views(memory: mmap.mmap, tensors: Sequence[Tensor]) -> list[Array]:
    views: list[Array] = []
    offset = 0
    for tensor in tensors:
        views.append(np.ndarray(tensor.shape, _STORAGE[tensor.element], memory, offset))
        offset += _block(tensor)
    return views


def _wait(child: int, receiving: int, seconds: float) -> str:
    """What went wrong in the child, empty where nothing did."""
    deadline = time.monotonic() + seconds
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    if status[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(receiving, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    if status[0] == 0:
        return f"it takes more than {seconds:g} s"
    if os.WIFSIGNALED(status[1]):
        return f"it ends with {signal.Signals(os.WTERMSIG(status[1])).name}"
    return said


def _child(
    sending: int,
    bytecode: bytes,
    name: str,
    arguments: Sequence[Tensor],
    runs: Sequence[Sequence[Array]],
    places: Sequence[Array],
    count: int,
    draw: int,
) -> None:
    """Run the program in f64 and as it is, write the results to `places`, and end this process."""
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # LLVM writes there what is raised, too
        for narrow in (False, True):
            widened = not narrow or draw > 0
            engine = _compiled(bytecode, name, widened=widened, draw=draw if narrow else 0)
            for i, numbers in enumerate(runs):
                elements = ["f64" if widened and t.element in _NARROW else t.element for t in arguments]
                given = [_stored(x, e) for x, e in zip(numbers, elements, strict=True)]
                first = 2 * count * i + narrow * count
                _invoke(engine, name, [*given, *places[first : first + count]])
    except BaseException as error:  # the parent raises it
        os.write(
            sending,
            f"MLIR does not lower it: {str(error).splitlines()[0] if str(error) else error!r}".encode(),
        )
    finally:
        os._exit(0)


def _compiled(bytecode: bytes, name: str, *, widened: bool, draw: int) -> Any:
    binding("_mlir_libs._torchMlir")  # registers the pass that makes copies loops
    context = ir.Context()
    context.enable_multithreading(False)
    module = ir.Module.parse(bytecode, context)
    with context, ir.Location.unknown():
        for op in module.body.operations:
            for attribute in ("arg_attrs", "res_attrs"):
                if attribute in op.attributes:
                    del op.attributes[attribute]
            op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        if any(op.name == "linalg.softmax" for op in _walk(module.operation)):
            patterns = ir.Module.parse(_DECOMPOSE, context)
            interpreter = binding("dialects.transform.interpreter")
            interpreter.apply_named_sequence(
                module.operation, patterns.body.operations[0].operation, patterns.operation
            )
        if draw:  # bodies that can be changed
            text = "builtin.module(func.func(linalg-generalize-named-ops))"
            passmanager.PassManager.parse(text, context).run(module.operation)
        if widened:
            _widen(module, draw)
    passmanager.PassManager.parse(_PIPELINE, context).run(module.operation)
    return binding("execution_engine").ExecutionEngine(module, opt_level=2, shared_libs=[])


def _invoke(engine: Any, name: str, arrays: Sequence[Array]) -> None:
    describe = binding("runtime").get_ranked_memref_descriptor
    engine.invoke(name, *(ctypes.pointer(ctypes.pointer(describe(a))) for a in arrays))


# --- f64 throughout ---------------------------------------------------------------------------------------


def _walk(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for op in list(block.operations):
                yield from _walk(op.operation)


def _widen(module: Any, draw: int) -> None:
    """Make every floating-point number of `module` an f64; conversions between such types vanish.

    With a `draw` above 0, the results of operations are off by as much as their types would round them.
    """
    operations = list(_walk(module.operation))
    rounding = [(op, EPSILON[e]) for op in operations if draw and (e := _rounded_to(op))]
    for op in operations:
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_type(_wide_type(argument.type))
        for result in op.results:
            result.set_type(_wide_type(result.type))
        if op.name == "func.func":
            kind = op.attributes["function_type"].value
            inputs, outputs = ([_wide_type(t) for t in types] for types in (kind.inputs, kind.results))
            op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))
        if op.name == "arith.constant":
            op.attributes["value"] = _wide_attribute(op.attributes["value"], op.results[0].type)
    for op, epsilon in rounding:
        _perturb(op, epsilon, draw)
    for op in operations:
        if op.name in ("arith.extf", "arith.truncf"):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


_EXACT = (
    "constant",
    "extf",
    "negf",
    "select",
    "maximumf",
    "minimumf",
    "maxnumf",
    "minnumf",
    "absf",
    "bitcast",
)


def _rounded_to(op: Any) -> str:
    """The type that an operation rounds its result to; empty where it rounds nothing."""
    dialect, _, name = op.name.partition(".")
    if dialect not in ("arith", "math") or name in _EXACT or len(op.results) != 1:
        return ""
    element = str(getattr(op.results[0].type, "element_type", op.results[0].type))
    return element if element in _NARROW else ""


def _perturb(op: Any, epsilon: float, draw: int) -> None:
    """Multiply the result of `op` by 1 + epsilon u; u, in -1 to 1, is a hash of its bits and the draw."""
    result, kind = op.results[0], op.results[0].type
    shaped = isinstance(kind, ir.RankedTensorType)
    bits = ir.IntegerType.get_signless(64)
    whole = ir.RankedTensorType.get(kind.shape, bits) if shaped else bits

    def constant(attribute: Any, type: Any) -> Any:
        value = ir.DenseElementsAttr.get_splat(type, attribute) if shaped else attribute
        return ir.Operation.create("arith.constant", results=[type], attributes={"value": value}).results[0]

    def made(name: str, type: Any, *operands: Any) -> Any:
        return ir.Operation.create(name, results=[type], operands=list(operands)).results[0]

    block = list(op.operation.block.operations)
    after = block[[o.operation for o in block].index(op.operation) + 1]
    with ir.InsertionPoint(after):
        seed = constant(ir.IntegerAttr.get(bits, 0x2545F4914F6CDD1D + (draw << 32) + 2 * draw), whole)
        scale = constant(ir.FloatAttr.get(ir.F64Type.get(), epsilon * 2.0**-63), kind)
        number = made("arith.bitcast", whole, result)
        share = made("arith.sitofp", kind, made("arith.muli", whole, number, seed))
        factor = made("arith.mulf", kind, share, scale)
        off = made("arith.mulf", kind, result, factor)
        total = made("arith.addf", kind, result, off)
    own = [v.owner.operation for v in (number, off, total)]
    result.replace_all_uses_except(total, own)


def _wide_type(kind: Any) -> Any:
    if str(kind) in _NARROW:
        return ir.F64Type.get()
    if isinstance(kind, ir.RankedTensorType) and str(kind.element_type) in _NARROW:
        return ir.RankedTensorType.get(kind.shape, ir.F64Type.get())
    return kind


def _wide_attribute(attribute: Any, kind: Any) -> Any:
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr.get(ir.F64Type.get(), attribute.value)
    if not isinstance(attribute, ir.DenseFPElementsAttr):
        if str(attribute)[:15] == "dense_resource<":
            raise UnsupportedProgram("a constant that is a dense_resource")
        return attribute
    if attribute.is_splat:
        number = ir.FloatAttr.get(ir.F64Type.get(), attribute.get_splat_value().value)
        return ir.DenseElementsAttr.get_splat(kind, number)
    numbers = np.array([attribute[i] for i in range(len(attribute))], np.float64)
    return ir.DenseElementsAttr.get(numbers.reshape(kind.shape), type=kind)


# --- numbers in memory ------------------------------------------------------------------------------------


def _stored(numbers: Array, element: str) -> Array:
    if element == "bf16":
        return np.ascontiguousarray((np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16))
    return np.ascontiguousarray(np.asarray(numbers).astype(_STORAGE[element]))


def _numbers(stored: Array, element: str) -> Array:
    if element == "bf16":
        return np.array((stored.astype(np.uint32) << 16).view(np.float32), np.float64)
    return np.array(stored, np.float64 if element.startswith("f") else stored.dtype)
