"""From MLIR to the in-memory program, with every node's location."""

from __future__ import annotations

from functools import partial
from typing import Any

from superopt.computed import mark_computed
from superopt.dialects.argument_names import name_of, parse
from superopt.dialects.attributes import read_attrs, tensor_type
from superopt.dialects.define import MASK, VARIADIC_NAMESPACE, mlir_name
from superopt.dialects.mlir import ir
from superopt.errors import BadInput, IllegalProgram, Location, SuperoptError
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
    NodeKind,
    Statement,
    Store,
    ThreadGraph,
    TileProgram,
    Value,
    View,
    Window,
)
from superopt.quasi_affine import parse as parse_read

_YIELD = mlir_name("thread", "yield")
# Attribute of a function's argument: the output that is returned in its memory.
ALIASING = "superopt.aliasing_output"
# Attribute of a function's argument that stays as it is from call to call.
WEIGHT = "superopt.weight"
_OURS = ("kernel", VARIADIC_NAMESPACE)
# The attributes of a `tiled` node: the fields of its program, their types, and these in words.
_TILED: tuple[tuple[str, type, str], ...] = (
    ("name", str, "a string"),
    ("num_warps", int, "an integer"),
    ("num_stages", int, "an integer"),
    *((flag, bool, "true or false") for flag in LAUNCH_FLAGS),
)


def functions(module: Any) -> list[Any]:
    """The `func.func` operations of a module, in order."""
    root = getattr(module, "operation", module)
    return [op.operation for op in root.regions[0].blocks[0] if op.operation.name == "func.func"]


def is_kernel_function(function: Any) -> bool:
    """Whether the body holds an operation of one of superopt's dialects."""
    if not function.regions[0].blocks:
        return False
    return any(op.operation.name.split(".")[0] in _OURS for op in function.regions[0].blocks[0])


def read(source: Any, filename: str = "") -> KernelGraph:
    """The only function of `source`, MLIR text or a module, as a kernel graph.

    Raises BadInput for text that does not parse or a module without exactly one function, IllegalProgram for
    a program that breaks a rule of its level.
    """
    from superopt.dialects import base

    if isinstance(source, str):
        context = base.context()
        try:
            module = parse(source, context)
        except ir.MLIRError as error:
            raise parse_error(error, filename) from None
        base.verify(module, filename=filename)
        # The graph keeps nothing of the module, which may be freed.
        return read(module, filename)
    found = functions(source)
    if len(found) != 1:
        raise BadInput(f"expected a module with one function, got {len(found)}", Location(filename))
    return read_function(found[0], filename)


def parse_error(error: Any, filename: str = "") -> BadInput:
    """The first diagnostic of a failed parse as a located error."""
    from superopt.dialects.base import to_location

    for diagnostic in error.error_diagnostics:
        return BadInput(diagnostic.message.replace("\0", ""), to_location(diagnostic.location, filename))
    return BadInput("expected MLIR, got text that does not parse", Location(filename))


def read_function(function: Any, filename: str = "") -> KernelGraph:
    """One `func.func` whose body is in the kernel dialect."""
    return _Reader(filename).function(function)


def read_aliases(function: Any, outputs: int, place: Location) -> tuple[int, ...]:
    """For each output the argument that is declared to hold it, or -1; empty if none is.

    Raises IllegalProgram where the attribute of an argument is not the number of an output.
    """
    aliases = [-1] * outputs
    if "arg_attrs" not in function.attributes:
        return ()
    for i, found in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])):
        attributes = ir.DictAttr(found)
        if ALIASING not in attributes:
            continue
        try:
            output = ir.IntegerAttr(attributes[ALIASING]).value
        except ValueError:
            output = -1
        if not 0 <= output < outputs or aliases[output] >= 0:
            raise IllegalProgram(
                f"expected '{ALIASING}' of argument {i} to be the number of an output (0 to {outputs - 1}) that "
                f"no other argument has, got {attributes[ALIASING]}",
                place,
            )
        aliases[output] = i
    return tuple(aliases) if max(aliases, default=-1) >= 0 else ()


def read_weights(function: Any) -> tuple[int, ...]:
    """The numbers of the arguments that are declared to be weights."""
    if "arg_attrs" not in function.attributes:
        return ()
    declared = enumerate(ir.ArrayAttr(function.attributes["arg_attrs"]))
    return tuple(i for i, found in declared if WEIGHT in ir.DictAttr(found))


class _Reader:
    """Reads one function; `values` maps MLIR values, and loop variables and buffers, to ours."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.values: dict[Any, Value] = {}
        self.buffers: dict[Any, Buffer] = {}
        self.variables: dict[Any, LoopVar] = {}

    def function(self, function: Any) -> KernelGraph:
        place = self.place(function)
        if not function.regions[0].blocks:
            raise BadInput("expected a function with a body, got a declaration", place)
        block = function.regions[0].blocks[0]
        inputs = [self.argument(a, name_of(function, i), place) for i, a in enumerate(block.arguments)]
        nodes: list[Node] = []
        outputs: list[Value] = []
        for op in block:
            operation = op.operation
            if operation.name == "func.return":
                outputs = [self.value(v, operation) for v in operation.operands]
            else:
                nodes.append(self.node(operation, "kernel"))
        name = ir.StringAttr(function.attributes["sym_name"]).value
        aliases = read_aliases(function, len(outputs), place)
        graph = KernelGraph(name, inputs, nodes, outputs, place, aliases, read_weights(function))
        mark_computed(graph)
        return graph

    def place(self, operation: Any) -> Location:
        from superopt.dialects.base import location_of

        return location_of(operation, self.filename)

    def argument(self, argument: Any, name: str, place: Location) -> Value:
        value = Value(_located(tensor_type, argument.type, place), name)
        self.values[argument] = value
        return value

    def value(self, value: Any, operation: Any) -> Value:
        if value not in self.values:
            raise IllegalProgram(
                "expected a value of this region, got one from outside", self.place(operation)
            )
        return self.values[value]

    def node(self, operation: Any, level: str) -> Node:
        place = self.place(operation)
        name = operation.name.partition(".")[2]
        if operation.name != mlir_name(level, name):
            hint = "; --ingest-linalg turns linalg into it" if level == "kernel" else ""
            raise IllegalProgram(
                f"expected an operation of the {level} dialect, got '{operation.name}'{hint}", place
            )
        operands = tuple(self.value(v, operation) for v in operation.operands)
        results = tuple(Value(_located(tensor_type, r.type, place), "") for r in operation.results)
        single = results[0].type if len(results) == 1 else None
        attrs = _located(partial(read_attrs, result=single), operation, place)
        body = self.body(operation, name, operands, place)
        if isinstance(body, BlockGraph):
            for key in ("grid", "loops"):
                attrs.pop(key, None)
        if isinstance(body, TileProgram):
            for key in (*(name for name, _, _ in _TILED), "aliases"):
                attrs.pop(key, None)
        self.values.update(zip(operation.results, results, strict=True))
        return Node(name, operands, results, attrs, place, body)

    def body(
        self, operation: Any, name: str, operands: tuple[Value, ...], place: Location
    ) -> BlockGraph | ThreadGraph | TileProgram | None:
        if name not in (NodeKind.CUSTOM, NodeKind.FUSED, NodeKind.TILED):
            if len(operation.regions):
                raise IllegalProgram(f"expected no region, got one on '{operation.name}'", place)
            return None
        if len(operation.regions) != 1 or len(operation.regions[0].blocks) != 1:
            raise IllegalProgram(f"expected one region of one block on '{operation.name}'", place)
        block = operation.regions[0].blocks[0]
        # The region sees nothing from above: a reader of its own makes a capture an error.
        inner = _Reader(self.filename)
        if name == NodeKind.CUSTOM:
            return inner.block_graph(operation, block, place)
        if name == NodeKind.FUSED:
            return inner.thread_graph(block, place)
        return inner.tile_program(operation, block, len(operands), place)

    def block_graph(self, operation: Any, block: Any, place: Location) -> BlockGraph:
        attrs = _located(read_attrs, operation, place)
        grid, loops = (_extents(attrs, key, place) for key in ("grid", "loops"))
        inputs = [self.argument(a, f"in{i}", place) for i, a in enumerate(block.arguments)]
        return BlockGraph(grid, loops, inputs, [self.node(op.operation, "block") for op in block])

    def thread_graph(self, block: Any, place: Location) -> ThreadGraph:
        inputs = [self.argument(a, f"in{i}", place) for i, a in enumerate(block.arguments)]
        operations = [op.operation for op in block]
        if not operations or operations[-1].name != _YIELD:
            raise IllegalProgram(f"expected the region to end with '{_YIELD}'", place)
        nodes = [self.node(op, "thread") for op in operations[:-1]]
        return ThreadGraph(inputs, nodes, [self.value(v, operations[-1]) for v in operations[-1].operands])

    def tile_program(self, operation: Any, block: Any, n_inputs: int, place: Location) -> TileProgram:
        attrs = _located(read_attrs, operation, place)
        params: list[Buffer] = []
        for i, argument in enumerate(block.arguments):
            name = f"in{i}" if i < n_inputs else f"out{i - n_inputs}"
            params.append(Buffer(_located(tensor_type, argument.type, place), name))
            self.buffers[argument] = params[-1]
        program = TileProgram("kernel", params, n_inputs, [], [])
        for key, kind, what in _TILED:
            value = attrs.get(key)
            if value is not None and type(value) is not kind:
                raise IllegalProgram(f"'tiled' expected attribute '{key}' ({what}), got {value}", place)
            if value is not None:
                setattr(program, key, value)
        if "aliases" in attrs:
            program.aliases = _extents(attrs, "aliases", place)
        program.body = self.statements(block, program)
        return program

    def statements(self, block: Any, program: TileProgram) -> list[Statement]:
        found = (self.statement(op.operation, program) for op in block)
        return [s for s in found if s is not None]

    def statement(self, operation: Any, program: TileProgram) -> Statement | None:
        place = self.place(operation)
        name = operation.name.partition(".")[2]
        if operation.name != mlir_name("tile", name):
            raise IllegalProgram(f"expected an operation of the tile dialect, got '{operation.name}'", place)
        if name == "alloc":
            attrs = _located(read_attrs, operation, place)
            kind = str(attrs.get("placement", "open"))
            result = operation.results[0]
            buffer = Buffer(_located(tensor_type, result.type, place), f"buf{len(program.locals)}", kind)
            if kind == "view":
                buffer.view = _located(partial(_view, attrs), len(buffer.type.shape), place)
            self.buffers[result] = buffer
            program.locals.append(buffer)
            return None
        if name in ("parallel", "for"):
            return self.loop(operation, name == "parallel", program, place)
        if name == "load":
            buffer, windows = self.access(operation, 0, place)
            result = Value(_located(tensor_type, operation.results[0].type, place))
            self.values[operation.results[0]] = result
            return Load(result, buffer, windows)
        if name == "store":
            buffer, windows = self.access(operation, 1, place)
            return Store(buffer, windows, self.value(operation.operands[0], operation))
        if name == MASK:
            return self.mask(operation, place)
        node = self.node(operation, "tile")
        if node.op not in OPERATORS:
            raise IllegalProgram(f"expected an operator of the table, got '{operation.name}'", place)
        return Compute(node.op, node.operands, node.result, node.attrs)

    def loop(self, operation: Any, parallel: bool, program: TileProgram, place: Location) -> Loop:
        attrs = _located(read_attrs, operation, place)
        bounds = [attrs.get(key) for key in ("start", "stop", "step")]
        block = operation.regions[0].blocks[0] if operation.regions[0].blocks else None
        if block is None or len(block.arguments) != 1:
            raise IllegalProgram("expected a region with one argument, the loop variable", place)
        start, stop, step = (b if isinstance(b, int) else None for b in bounds)
        if start is None or stop is None or step is None:
            raise IllegalProgram(f"expected integer 'start', 'stop' and 'step', got {bounds}", place)
        variable = LoopVar(f"i{len(self.variables)}")
        self.variables[block.arguments[0]] = variable
        return Loop(variable, start, stop, step, parallel, self.statements(block, program))

    def mask(self, operation: Any, place: Location) -> Compute:
        attrs = _located(read_attrs, operation, place)
        source = self.value(operation.operands[0], operation)
        dims, extents = (_extents(attrs, key, place) for key in ("bounded", "extents"))
        if len(dims) != len(extents):
            raise IllegalProgram(
                f"expected as many 'extents' as 'bounded' dimensions, got {extents} and {dims}", place
            )
        windows = self.windows(operation, 0, len(dims), place)
        fill = attrs.get("fill")
        if isinstance(fill, bool) or not isinstance(fill, int | float):
            raise IllegalProgram(f"expected attribute 'fill' (a float), got {fill}", place)
        result = Value(_located(tensor_type, operation.results[0].type, place))
        self.values[operation.results[0]] = result
        bounds = tuple(Bound(d, w, e) for d, w, e in zip(dims, windows, extents, strict=True))
        return Compute(MASK, (source,), result, {"fill": float(fill)}, bounds)

    def access(self, operation: Any, position: int, place: Location) -> tuple[Buffer, tuple[Window, ...]]:
        buffer = self.buffers.get(operation.operands[position])
        if buffer is None:
            raise IllegalProgram("expected a buffer of this kernel", place)
        return buffer, self.windows(operation, position, len(buffer.type.shape), place)

    def windows(self, operation: Any, position: int, rank: int, place: Location) -> tuple[Window, ...]:
        """The `rank` windows of an operation whose operands after `position` are their variables."""
        attrs = _located(read_attrs, operation, place)
        attrs.setdefault("stride", (1,) * rank)
        lists = [_extents(attrs, key, place) for key in ("sizes", "base", "stride")]
        if any(len(x) != rank for x in lists):
            raise IllegalProgram(
                f"expected {rank} entries in each of 'sizes', 'base' and 'stride', got {lists}", place
            )
        dims, scales = (_extents(attrs, key, place) for key in ("dims", "scale"))
        variables = list(operation.operands)[position + 1 :]
        if not len(dims) == len(scales) == len(variables):
            raise IllegalProgram(
                f"expected {len(variables)} entries in each of 'dims' and 'scale', got {dims} and {scales}",
                place,
            )
        terms: list[list[tuple[LoopVar, int]]] = [[] for _ in range(rank)]
        for dim, scale, variable in zip(dims, scales, variables, strict=True):
            if not 0 <= dim < rank or variable not in self.variables:
                raise IllegalProgram(f"expected loop variables with 'dims' in [0, {rank}), got {dim}", place)
            terms[dim].append((self.variables[variable], scale))
        windows = [
            Window(n, b, tuple(t), s) for (n, b, s), t in zip(zip(*lists, strict=True), terms, strict=True)
        ]
        return tuple(windows)


def _view(attrs: dict[str, Attr], rank: int) -> View:
    source, places, guard = attrs.get("of"), attrs.get("map"), attrs.get("guard", "true")
    if not isinstance(source, int) or not isinstance(places, str) or not isinstance(guard, str):
        raise IllegalProgram(f"expected 'of' (an integer), 'map' and 'guard' (strings), got {attrs}")
    return View(source, parse_read(rank, places, guard))


def _extents(attrs: dict[str, Attr], key: str, place: Location) -> tuple[int, ...]:
    extents = attrs.get(key)
    if not isinstance(extents, tuple):
        raise IllegalProgram(f"expected attribute '{key}' (array of i64), got {extents}", place)
    return extents


def _located(function: Any, subject: Any, place: Location) -> Any:
    """`function(subject)`, with `place` given to an error that has none."""
    try:
        return function(subject)
    except SuperoptError as error:
        raise type(error)(error.message, place) from None
