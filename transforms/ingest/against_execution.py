"""Every reading of linalg is compared with an execution of the same file by MLIR's own lowering to LLVM IR."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.dialects.mlir import ir
from superopt.errors import Location, UnsupportedProgram
from superopt.numerics.checking import make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.program import KernelGraph, Value
from superopt.transforms.ingest.against_source import DRAWS, first_difference, graph_values, judge
from superopt.transforms.ingest.linalg_reader import LinalgReader
from superopt.transforms.ingest.locate import locate
from superopt.transforms.ingest.run_in_llvm import Tensor, execute
from superopt.transforms.ingest.smaller_source import same_reading, smaller_sources
from superopt.verify.domains import round_to
from superopt.verify.reduce import elements, work

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_WORK = 1 << 24
"""Scalar operations of a program beyond which it is not executed: untiled loops take 1 s for 10^8."""
MOST_ELEMENTS = 1 << 22
SECONDS = 20.0

_SOURCE = "the linalg program"


def check_reading(reading: LinalgReader, graph: KernelGraph, diagnostics: Diagnostics) -> None:
    """Raise UnsupportedProgram, at the first operation read wrongly, where `graph` and the function that
    `reading` read it from compute different numbers.

    What is too large to execute is compared at smaller extents, where the reader gives the same graph for them.
    A remark says so, and where nothing was compared, why.
    """
    where = locate(reading.function, reading.filename)
    if not (reason := _too_much(reading.function, graph)):
        reason = _compared(reading, graph)
    elif isinstance(small := _smaller(reading, graph), str):
        reason += small
    elif other := _compared(small.reading, small.graph):
        reason += f"; at smaller extents, {other}"
    else:
        diagnostics.remark(
            f"the reading is compared with an execution of the source {small}: {reason}", where
        )
        return
    if reason:
        diagnostics.remark(f"the reading is not compared with an execution of the source: {reason}", where)


@dataclass(frozen=True)
class Smaller:
    """A reading of a source at smaller extents, and its graph; `module` holds the source."""

    module: Any
    reading: LinalgReader
    graph: KernelGraph
    extents: Mapping[int, int]

    def __str__(self) -> str:
        told = ", ".join(f"{m} for {n}" for n, m in sorted(self.extents.items()))
        return f"at smaller extents ({told})" if told else "with arguments for its constants"


def _smaller(reading: LinalgReader, graph: KernelGraph) -> Smaller | str:
    """The same decisions of the reader at smaller extents; or a clause that says why not."""
    why = ""
    for module, extents in smaller_sources(reading.function, list(reading.resources)):
        function = module.body.operations[0].operation
        again = LinalgReader(function, Diagnostics(), reading.narrow_f64, reading.filename)
        try:
            small = again.read()
        except UnsupportedProgram:
            small = None
        if small is None or not same_reading(graph, small, extents):
            why = "; at smaller extents, it is read as other operators"
        elif not _too_much(function, small):
            return Smaller(module, again, small, extents)
    return why


def _too_much(function: Any, graph: KernelGraph) -> str:
    if (extra := len(graph.inputs) - len(function.regions[0].blocks[0].arguments)) > 0:
        return f"{extra} of its constants are too large"
    if (count := work(graph)) > MOST_WORK:
        return f"it takes {count:.1e} operations, of at most {MOST_WORK:.1e}"
    if (count := elements(graph)) > MOST_ELEMENTS:
        return f"it holds {count:.1e} elements, of at most {MOST_ELEMENTS:.1e}"
    return ""


def _compared(reading: LinalgReader, graph: KernelGraph) -> str:
    """Why nothing was compared, empty where something was; raises where something differs."""
    function, held, filename = reading.function, reading.held, reading.filename
    where = locate(function, filename)
    arguments = [
        Tensor(v.shape, _element(a)) for v, a in zip(graph.inputs, _arguments(function), strict=True)
    ]
    runs = {name: _inputs(graph, name) for name in ("ordinary", "positive")}
    results = [Tensor(v.shape, _element(a)) for v, a in zip(graph.outputs, _returned(function), strict=True)]
    name = str(function.attributes["sym_name"].value)
    bytecode = _bytecode(function)
    try:
        try:
            made = execute(bytecode, name, results, arguments, list(runs.values()), seconds=SECONDS)
        except UnsupportedProgram:  # such as an assertion that a number is not zero
            del runs["ordinary"]
            made = execute(bytecode, name, results, arguments, list(runs.values()), seconds=SECONDS)
        compared = 0
        for (distribution, inputs), (wide, narrow) in zip(runs.items(), made, strict=True):
            again = partial(_rounded_again, bytecode, name, results, arguments, inputs)
            narrow_too = (None, None) if reading.narrow_f64 else (narrow, again)
            found = first_difference(graph, inputs, distribution, wide, *narrow_too)
            if found is not None:
                place = _place(function, graph, held, arguments, inputs, filename)
                raise Differs(found.error(_SOURCE, place or where))
            compared += sum(int(np.isfinite(x).sum()) for x in wide)
    except Differs as difference:
        raise difference.error from None
    except UnsupportedProgram as error:
        return error.message
    return (
        "" if compared or not graph.outputs else "none of its results is a finite number on the inputs tried"
    )


def _rounded_again(
    bytecode: bytes,
    name: str,
    results: Sequence[Tensor],
    arguments: Sequence[Tensor],
    inputs: Sequence[Array],
) -> list[list[Array]]:
    """The source's results under draws of its roundings; none where they cannot be executed."""
    draws = range(1, DRAWS + 1)
    try:
        return [
            execute(bytecode, name, results, arguments, [inputs], seconds=SECONDS, draw=d)[0][1]
            for d in draws
        ]
    except UnsupportedProgram:
        return []


class Differs(Exception):
    """Carries the error past the handler for programs that could not be executed."""

    def __init__(self, error: UnsupportedProgram) -> None:
        self.error = error


def _inputs(graph: KernelGraph, distribution: str) -> list[Array]:
    """Numbers of the inputs' dtypes; integers and truth values are 0 and 1."""
    specs = input_specs(graph)
    made = make_inputs(specs, "ordinary")
    if distribution == "positive":
        made = [np.abs(x) + np.float32(0.1) if x.dtype == np.float32 else x for x in made]
    return [
        round_to(x, s.dtype) if x.dtype == np.float32 else _whole(x, s.dtype)
        for x, s in zip(made, specs, strict=True)
    ]


def _whole(x: Array, dtype: str) -> Array:
    return x.astype({"i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}[dtype])


def _arguments(function: Any) -> Sequence[Any]:
    return list(function.regions[0].blocks[0].arguments)


def _operations(function: Any) -> list[Any]:
    return [op.operation for op in function.regions[0].blocks[0].operations]


def _returned(function: Any) -> Sequence[Any]:
    return list(_operations(function)[-1].operands)


def _element(value: Any) -> str:
    return str(value.type.element_type)


def _bytecode(function: Any) -> bytes:
    """A module that holds only `function`."""
    with function.context, ir.Location.unknown():
        module = ir.Module.create()
        module.body.append(function.clone())
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _place(
    function: Any,
    graph: KernelGraph,
    held: Mapping[Any, Any],
    arguments: Sequence[Tensor],
    inputs: Sequence[Array],
    filename: str,
) -> Location | None:
    """The location of the first operation whose result differs in the graph; None where it is unknown."""
    inside = {v for n in graph.nodes for v in n.results}
    values = [
        r for op in _operations(function) for r in op.results
        if isinstance(held.get(r), Value) and held[r] in inside
    ]  # fmt: skip
    copy = ir.Module.parse(_bytecode(function), function.context)
    same = copy.body.operations[0].operation
    results = dict(zip(_results(function), _results(same), strict=True))
    with function.context, ir.Location.unknown():
        terminator = _operations(same)[-1]
        with ir.InsertionPoint(terminator):
            ir.Operation.create("func.return", operands=[results[v] for v in values])
        terminator.erase()
        kind = ir.FunctionType.get([a.type for a in _arguments(same)], [v.type for v in values])
        same.attributes["function_type"] = ir.TypeAttr.get(kind)
    types = [Tensor(tuple(v.type.shape), _element(v)) for v in values]
    name = str(function.attributes["sym_name"].value)
    try:
        (made,) = execute(_bytecode(same), name, types, arguments, [inputs], seconds=SECONDS)
    except UnsupportedProgram:
        return None
    for faithful in (False, True):
        numbers = graph_values(graph, inputs, faithful=faithful)
        for value, wide, narrow in zip(values, *made, strict=True):
            if judge(held[value], numbers[held[value]], "", wide, narrow).ratio > 1:
                return locate(value.owner, filename)
    return None


def _results(function: Any) -> list[Any]:
    return [r for op in _operations(function) for r in op.results]
