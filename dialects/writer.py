"""From the in-memory program to MLIR, in the generic form that the bindings parse and print."""

from __future__ import annotations

import re
from typing import Any

from superopt.aliasing import pairs
from superopt.dialects import argument_names, base
from superopt.dialects.attributes import explicit_attrs, write_attr
from superopt.dialects.define import mlir_name
from superopt.dialects.mlir import ir
from superopt.dialects.reader import ALIASING, WEIGHT
from superopt.errors import UNKNOWN, Location
from superopt.operators import OPERATORS
from superopt.program import (
    LAUNCH_FLAGS,
    Attr,
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
)


def to_text(graph: KernelGraph, *, locations: bool = False) -> str:
    """MLIR text of a module with `graph` as its only function; values keep their names.

    With `locations`, every operation carries its source location.
    """
    return _Writer(locations).module(graph)


def to_module(graph: KernelGraph, context: Any = None) -> Any:
    """`graph` as a verified module of the bindings, in `context` or a fresh one; locations are kept."""
    text = to_text(graph, locations=True)
    return argument_names.parse(text, context if context is not None else base.context())


def replace(module: Any, graph: KernelGraph) -> None:
    """Make `graph` all that `module` holds, in place and verified."""
    with module.context, ir.Location.unknown():
        written = to_module(graph, module.context)
        for operation in list(module.body.operations):
            operation.operation.erase()
        for operation in list(written.body.operations):
            module.body.append(operation.operation.clone())


class _Writer:
    """Text of one module. Names are unique in the whole module, which is more than MLIR asks."""

    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []
        # Names are given by identity: keep what has one alive.
        self.named: list[Value | Buffer | LoopVar] = []

    def module(self, graph: KernelGraph) -> str:
        held = {j: f" {{{ALIASING} = {i} : i64}}" for i, j in pairs(graph.aliases).items()}
        held |= dict.fromkeys(graph.weights, f" {{{WEIGHT}}}")
        inputs = ", ".join(f"{self.name(v)}: {v.type}{held.get(i, '')}" for i, v in enumerate(graph.inputs))
        results = ", ".join(str(v.type) for v in graph.outputs)
        arrow = f" -> {results if len(graph.outputs) == 1 else f'({results})'}" if graph.outputs else ""
        self.lines.append(f"func.func @{_symbol(graph.name)}({inputs}){arrow} {{")
        for node in graph.nodes:
            self.node(node, "kernel", "  ")
        outputs = ", ".join(map(self.name, graph.outputs))
        self.lines.append(f"  return {outputs} : {results}" if graph.outputs else "  return")
        self.lines.append("}" + self.location(graph.location))
        return "\n".join(self.lines) + "\n"

    def name(self, value: Value | Buffer | LoopVar) -> str:
        if id(value) not in self.names:
            stem = re.sub(r"[^A-Za-z0-9_]", "_", value.name)
            if not stem or stem[0].isdigit():
                stem = f"v{stem}" if stem else "v"
            name, n = stem, 0
            while name in self.taken:
                n += 1
                name = f"{stem}_{n}"
            self.taken.add(name)
            self.names[id(value)] = name
            self.named.append(value)
        return f"%{self.names[id(value)]}"

    def location(self, place: Location) -> str:
        if not self.locations:
            return ""
        if place == UNKNOWN:
            return " loc(unknown)"
        file = place.file.replace("\\", "\\\\").replace('"', '\\"')
        return f' loc("{file}":{place.line}:{place.column})'

    def node(self, node: Node, level: str, indent: str) -> None:
        operands = ", ".join(map(self.name, node.operands))
        types = ", ".join(str(v.type) for v in node.operands)
        results = ", ".join(str(v.type) for v in node.results)
        names = ", ".join(map(self.name, node.results))
        result_types = results if len(node.results) == 1 else f"({results})"
        head = f'{indent}{names}{" = " if names else ""}"{mlir_name(level, node.op)}"({operands})'
        tail = f" : ({types}) -> {result_types}{self.location(node.location)}"
        attrs = explicit_attrs(OPERATORS.get(node.op), node.attrs)
        dtype = node.results[0].dtype if node.results else "f32"
        if node.body is None:
            self.lines.append(f"{head}{_attributes(attrs, dtype)}{tail}")
            return
        self.lines.append(f"{head} ({{")
        if isinstance(node.body, BlockGraph):
            attrs = {"grid": node.body.grid, "loops": node.body.loops, **attrs}
            self.arguments(node.body.inputs, indent)
            for inner in node.body.nodes:
                self.node(inner, "block", indent + "  ")
        elif isinstance(node.body, ThreadGraph):
            self.thread_graph(node.body, indent)
        else:
            own: dict[str, Attr] = {
                "name": node.body.name,
                "num_warps": node.body.num_warps,
                "num_stages": node.body.num_stages,
            }
            own |= {flag: True for flag in LAUNCH_FLAGS if getattr(node.body, flag)}
            if pairs(node.body.aliases):
                own["aliases"] = node.body.aliases
            attrs = {**own, **attrs}
            self.tile_program(node.body, indent)
        self.lines.append(f"{indent}}}){_attributes(attrs, dtype)}{tail}")

    def arguments(self, inputs: list[Value], indent: str) -> None:
        self.lines.append(f"{indent}^bb0({', '.join(f'{self.name(v)}: {v.type}' for v in inputs)}):")

    def thread_graph(self, graph: ThreadGraph, indent: str) -> None:
        self.arguments(graph.inputs, indent)
        for inner in graph.nodes:
            self.node(inner, "thread", indent + "  ")
        outputs = ", ".join(map(self.name, graph.outputs))
        types = ", ".join(str(v.type) for v in graph.outputs)
        self.lines.append(f'{indent}  "{mlir_name("thread", "yield")}"({outputs}) : ({types}) -> ()')

    def tile_program(self, program: TileProgram, indent: str) -> None:
        params = ", ".join(f"{self.name(b)}: {_memref(b.type)}" for b in program.params)
        self.lines.append(f"{indent}^bb0({params}):")
        for buffer in program.locals:
            held: dict[str, Attr] = {"placement": buffer.placement}
            if (view := buffer.view) is not None:
                held |= {"of": view.source, "map": view.read.place_text, "guard": view.read.guard_text}
            attrs = _attributes(held, "")
            self.lines.append(
                f'{indent}  {self.name(buffer)} = "tile.alloc"(){attrs} : () -> {_memref(buffer.type)}'
            )
        for statement in program.body:
            self.statement(statement, indent + "  ")

    def statement(self, statement: Statement, indent: str) -> None:
        if isinstance(statement, Loop):
            kind = "parallel" if statement.parallel else "for"
            self.lines.append(f'{indent}"tile.{kind}"() ({{')
            self.lines.append(f"{indent}^bb0({self.name(statement.var)}: index):")
            for inner in statement.body:
                self.statement(inner, indent + "  ")
            bounds: dict[str, Attr] = {
                "start": statement.start,
                "stop": statement.stop,
                "step": statement.step,
            }
            self.lines.append(f"{indent}}}){_attributes(bounds, '')} : () -> ()")
        elif isinstance(statement, Compute) and statement.bounds:
            variables, types, attrs = self.windows(statement.windows)
            attrs["bounded"] = tuple(b.dim for b in statement.bounds)
            attrs["extents"] = tuple(b.extent for b in statement.bounds)
            (source,), result = statement.operands, statement.result
            text = _attributes({**statement.attrs, **attrs}, result.dtype)
            operands = ", ".join([self.name(source), *variables])
            kinds = ", ".join([str(source.type), *types])
            self.lines.append(
                f'{indent}{self.name(result)} = "tile.mask"({operands}){text} : ({kinds}) -> {result.type}'
            )
        elif isinstance(statement, Compute):
            self.node(
                Node(statement.op, statement.operands, (statement.result,), statement.attrs), "tile", indent
            )
        elif isinstance(statement, Load):
            operands, types, attrs = self.access(statement.buffer, statement.windows)
            result = statement.result
            self.lines.append(
                f'{indent}{self.name(result)} = "tile.load"({operands}){attrs} : ({types}) -> {result.type}'
            )
        else:
            operands, types, attrs = self.access(statement.buffer, statement.windows)
            value = statement.value
            self.lines.append(
                f'{indent}"tile.store"({self.name(value)}, {operands}){attrs} : ({value.type}, {types}) -> ()'
            )

    def access(self, buffer: Buffer, windows: tuple[Window, ...]) -> tuple[str, str, str]:
        variables, kinds, attrs = self.windows(windows)
        operands = ", ".join([self.name(buffer), *variables])
        return operands, ", ".join([_memref(buffer.type), *kinds]), _attributes(attrs, "")

    def windows(self, windows: tuple[Window, ...]) -> tuple[list[str], list[str], dict[str, Attr]]:
        """The names and types of the variables that move windows, and their attributes."""
        terms = [(d, var, scale) for d, w in enumerate(windows) for var, scale in w.terms]
        attrs: dict[str, Attr] = {
            "sizes": tuple(w.size for w in windows),
            "base": tuple(w.base for w in windows),
            "dims": tuple(d for d, _, _ in terms),
            "scale": tuple(scale for _, _, scale in terms),
        }
        if any(w.stride != 1 for w in windows):
            attrs["stride"] = tuple(w.stride for w in windows)
        return [self.name(var) for _, var, _ in terms], ["index"] * len(terms), attrs


def _memref(type_: TensorType) -> str:
    return f"memref<{'x'.join([*map(str, type_.shape), type_.dtype])}>"


def _attributes(attrs: dict[str, Attr], dtype: str) -> str:
    if not attrs:
        return ""
    return " {" + ", ".join(f"{k} = {write_attr(v, dtype)}" for k, v in sorted(attrs.items())) + "}"


def _symbol(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$.]*", name) else '"' + name.replace('"', "") + '"'
