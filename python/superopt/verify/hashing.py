"""A canonical text of a program, independent of names and source locations, and its hash.

The text is JSON that `parse` reads back, so that a certificate can hold its programs and be replayed without
MLIR and without the files they came from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.aliasing import pairs
from superopt.errors import BadInput
from superopt.operators import OPERATORS
from superopt.program import (
    LAUNCH_FLAGS,
    Attr,
    BlockGraph,
    Bound,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    View,
    Window,
)
from superopt.quasi_affine import parse as parse_read


def program_hash(graph: KernelGraph) -> str:
    """sha256 (hexadecimal) of the canonical text."""
    return hashlib.sha256(canonical_text(graph).encode()).hexdigest()


def canonical_text(graph: KernelGraph) -> str:
    """One line of JSON; equal for programs that differ only in names and locations."""
    data = _region(graph.inputs, graph.nodes, graph.outputs)
    if pairs(graph.aliases):
        data["aliases"] = list(graph.aliases)
    if graph.weights:
        data["weights"] = list(graph.weights)
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def parse(text: str) -> KernelGraph:
    """The program of a canonical text; raises BadInput for any other text."""
    try:
        data = json.loads(text, parse_float=_no_number, parse_constant=_no_number)
        inputs, nodes, outputs = _parse_region(data)
        aliases = tuple(int(j) for j in data.get("aliases", ()))
        weights = tuple(int(j) for j in data.get("weights", ()))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"expected the canonical text of a program, got something else ({error})") from None
    return KernelGraph("main", inputs, nodes, outputs, aliases=aliases, weights=weights)


# --- writing ----------------------------------------------------------------------------------------------


def _type(t: TensorType) -> list[Any]:
    return [t.dtype, *t.shape]


def _attr(value: Attr) -> Any:
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [int(v) for v in value]
    if isinstance(value, np.ndarray):
        array = np.asarray(value, order="C")
        data = base64.b64encode(array.tobytes()).decode()
        return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}
    return value


def _attrs(op: str, attrs: Mapping[str, Attr]) -> dict[str, Any]:
    # The reason an operation is opaque does not affect its result; a default means the same spelled out or not.
    kept = {k: v for k, v in attrs.items() if k != "reason"}
    for spec in OPERATORS[op].attrs if op in OPERATORS else ():
        if spec.default is not None and kept.get(spec.name) is spec.default:
            del kept[spec.name]
    return {k: _attr(v) for k, v in kept.items()}


def _region(inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]) -> dict[str, Any]:
    number = {v: i for i, v in enumerate(inputs)}
    written: list[Any] = []
    for node in nodes:
        operands = [number[v] for v in node.operands]
        for v in node.results:
            number[v] = len(number)
        body = None if node.body is None else _body(node.body)
        written.append(
            [node.op, operands, [_type(v.type) for v in node.results], _attrs(node.op, node.attrs), body]
        )
    return {
        "inputs": [_type(v.type) for v in inputs],
        "nodes": written,
        "outputs": [number[v] for v in outputs],
    }


def _body(body: BlockGraph | ThreadGraph | TileProgram) -> dict[str, Any]:
    if isinstance(body, BlockGraph):
        region = _region(body.inputs, body.nodes, [])
        return {"block": region, "grid": list(body.grid), "loops": list(body.loops)}
    if isinstance(body, ThreadGraph):
        return {"thread": _region(body.inputs, body.nodes, body.outputs)}
    return {"tile": _tile(body)}


def _tile(program: TileProgram) -> dict[str, Any]:
    buffers = {b: i for i, b in enumerate([*program.params, *program.locals])}
    values: dict[Value, int] = {}
    loops: dict[LoopVar, int] = {}

    def windows(ws: Sequence[Window]) -> list[Any]:
        return [[w.size, w.base, [[loops[v], scale] for v, scale in w.terms], w.stride] for w in ws]

    def statement(s: Statement) -> list[Any]:
        if isinstance(s, Loop):
            loops[s.var] = len(loops)
            return ["loop", s.start, s.stop, s.step, s.parallel, [statement(x) for x in s.body]]
        if isinstance(s, Load):
            values[s.result] = len(values)
            return ["load", buffers[s.buffer], windows(s.windows), _type(s.result.type)]
        if isinstance(s, Store):
            return ["store", buffers[s.buffer], windows(s.windows), values[s.value]]
        operands = [values[v] for v in s.operands]
        values[s.result] = len(values)
        bounds = [[[b.dim, b.extent, *windows([b.window])] for b in s.bounds]] if s.bounds else []
        return ["compute", s.op, operands, _type(s.result.type), _attrs(s.op, s.attrs), *bounds]

    aliases = {"aliases": list(program.aliases)} if pairs(program.aliases) else {}
    views = {
        str(i): [b.view.source, b.view.read.place_text, b.view.read.guard_text]
        for b, i in buffers.items()
        if b.view is not None
    }
    return {
        **aliases,
        **({"views": views} if views else {}),
        "buffers": [[*_type(b.type), b.placement] for b in buffers],
        "params": len(program.params),
        "inputs": program.n_inputs,
        "launch": [
            program.num_warps,
            program.num_stages,
            *(flag for flag in LAUNCH_FLAGS if getattr(program, flag)),
        ],
        "body": [statement(s) for s in program.body],
    }


# --- reading ----------------------------------------------------------------------------------------------


def _no_number(text: str) -> int:
    raise ValueError(f"expected integers, got {text}")


def _pick(values: Sequence[Value], numbers: Any) -> tuple[Value, ...]:
    return tuple(values[int(n)] for n in numbers)


def _parse_type(data: Sequence[Any]) -> TensorType:
    dtype, *shape = data
    return TensorType(tuple(int(e) for e in shape), str(dtype))


def _parse_attr(data: Any) -> Attr:
    if isinstance(data, list):
        return tuple(int(v) for v in data)  # type: ignore[reportUnknownVariableType]
    if isinstance(data, dict):
        if "float" in data:
            return float.fromhex(str(data["float"]))  # type: ignore[reportUnknownArgumentType]
        raw = base64.b64decode(data["data"])  # type: ignore[reportUnknownArgumentType]
        return np.frombuffer(raw, np.dtype(data["dtype"])).reshape(data["shape"])  # type: ignore[reportUnknownArgumentType]
    return data


def _parse_attrs(data: Mapping[str, Any]) -> dict[str, Attr]:
    return {k: _parse_attr(v) for k, v in data.items()}


def _parse_region(data: Mapping[str, Any]) -> tuple[list[Value], list[Node], list[Value]]:
    inputs = [Value(_parse_type(t)) for t in data["inputs"]]
    values = list(inputs)
    nodes: list[Node] = []
    for op, operands, types, attrs, body in data["nodes"]:
        results = tuple(Value(_parse_type(t)) for t in types)
        parsed = _parse_attrs(attrs)
        if op == "extern":
            parsed.setdefault("reason", "")
        region = None if body is None else _parse_body(body)
        nodes.append(Node(str(op), _pick(values, operands), results, parsed, body=region))
        values.extend(results)
    return inputs, nodes, [values[i] for i in data["outputs"]]


def _parse_body(data: Mapping[str, Any]) -> BlockGraph | ThreadGraph | TileProgram:
    if "block" in data:
        inputs, nodes, _ = _parse_region(data["block"])
        grid, loops = (tuple(map(operator.index, data[name])) for name in ("grid", "loops"))
        return BlockGraph(grid, loops, inputs, nodes)
    if "thread" in data:
        return ThreadGraph(*_parse_region(data["thread"]))
    return _parse_tile(data["tile"])


def _parse_tile(data: Mapping[str, Any]) -> TileProgram:
    buffers = [Buffer(_parse_type(b[:-1]), f"b{i}", b[-1]) for i, b in enumerate(data["buffers"])]
    for i, (source, places, guard) in data.get("views", {}).items():
        buffer = buffers[int(i)]
        read = parse_read(len(buffer.type.shape), str(places), str(guard))
        buffer.view = View(int(source), read)
    values: list[Value] = []
    loops: list[LoopVar] = []

    def windows(ws: Sequence[Any]) -> tuple[Window, ...]:
        return tuple(
            Window(n, base, tuple((loops[int(v)], int(scale)) for v, scale in terms), stride)
            for n, base, terms, stride in ws
        )

    def new_value(t: Sequence[Any]) -> Value:
        values.append(Value(_parse_type(t)))
        return values[-1]

    def statement(s: Sequence[Any]) -> Statement:
        kind, *rest = s
        if kind == "loop":
            start, stop, step, parallel, body = rest
            var = LoopVar(f"i{len(loops)}")
            loops.append(var)
            return Loop(var, start, stop, step, parallel, [statement(x) for x in body])
        if kind == "load":
            return Load(new_value(rest[2]), buffers[int(rest[0])], windows(rest[1]))
        if kind == "store":
            return Store(buffers[int(rest[0])], windows(rest[1]), values[int(rest[2])])
        op, operands, type_, attrs, *bounds = rest
        made = Compute(op, _pick(values, operands), new_value(type_), _parse_attrs(attrs))
        for dim, extent, window in bounds[0] if bounds else ():
            made.bounds += (Bound(int(dim), windows([window])[0], int(extent)),)
        return made

    n = data["params"]
    body = [statement(s) for s in data["body"]]
    warps, stages, *flags = data["launch"]
    program = TileProgram("main", buffers[:n], data["inputs"], buffers[n:], body, warps, stages)
    aliases = tuple(int(j) for j in data.get("aliases", ()))
    return replace(program, **{f: f in flags for f in LAUNCH_FLAGS}, aliases=aliases)
