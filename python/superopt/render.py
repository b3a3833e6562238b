"""A program as text for people: `--emit=text`.

The notation is that of the muGraph figures (Mirage, Figures 3 and 4): shapes on the edges; for a custom kernel
its grid {x, y, z} and for-loops {i, j, ...}; at each iterator the maps `imap {x ↔ dimension}` and
`fmap {i ↔ dimension}`, φ for "every block, or trip, gets all of it"; at each saver `omap`. What is inside a
loop is indented below it. Tile programs read as loops over windows `buffer[from : to]`.

    f(arg0: f16[16, 4096], arg1: f16[4096, 6144])
      t0 = custom0(arg0, arg1)    f16[16, 6144]
      return t0

    custom0: grid {x: 96}, loops {i: 64}, 30976 bytes of shared memory
      for i in 0..64:
        t0 = iterator(in0)    f16[16, 64]    imap {x ↔ φ}, fmap {i ↔ 1}

Scalar constants appear where they are used; dimensions are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.operators import splat_of
from superopt.program import (
    Attr,
    BlockGraph,
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
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
)
from superopt.spec import block_bytes, stages

_GRID = "xyz"
_LOOPS = "ijklmn"
_OWN_ATTRS = {
    "iterator": ("imap", "fmap"),
    "save": ("omap",),
    "accumulate": ("kind", "loop"),
    "running_max": ("loop",),
}


def text(graph: KernelGraph) -> str:
    """`graph` with everything in it, kernel level first; ends in a newline."""
    names = _Names()
    parameters = ", ".join(f"{names.of(v)}: {type_text(v.type)}" for v in graph.inputs)
    bodies: list[tuple[str, Node]] = []
    lines = _Lines()
    for node in graph.nodes:
        if names.inlined(node):
            continue
        title = node.op
        if isinstance(node.body, BlockGraph | TileProgram):
            title = f"{node.op}{sum(1 for t, _ in bodies if t.startswith(node.op))}"
            bodies.append((title, node))
        lines.add(1, _call(title, node, names), _results(node), _attrs(node))
    lines.add(1, f"return {', '.join(map(names.of, graph.outputs))}")
    parts = [f"{graph.name}({parameters})\n{lines}"]
    parts += [_body(title, node) for title, node in bodies]
    return "\n\n".join(parts) + "\n"


def _body(title: str, node: Node) -> str:
    if isinstance(node.body, TileProgram):
        return _tile_program(title, node.body)
    assert isinstance(node.body, BlockGraph)
    return _block_graph(title, node.body)


# --- block level ------------------------------------------------------------------------------------------


def _block_graph(title: str, graph: BlockGraph) -> str:
    head = [*axes_text(graph), f"{block_bytes(graph)} bytes of shared memory"]
    names = _Names()
    for i, value in enumerate(graph.inputs):
        names.give(value, value.name or f"in{i}")
    lines = _Lines()
    _loop_nest(graph, graph.nodes, 0, names, lines)
    return f"{title}: {', '.join(head)}\n{lines}"


def _loop_nest(graph: BlockGraph, nodes: Sequence[Node], depth: int, names: _Names, lines: _Lines) -> None:
    """The nodes within the first `depth` loops: those before the next loop, the loop, those after it."""
    stage = stages(graph)

    def level(node: Node) -> int:
        loops = [lp for v in (*node.operands, *node.results) for lp in stage[v].varies]
        if isinstance(ends := node.attrs.get("loop"), int):
            loops.append(ends)
        return max(loops, default=-1) + 1

    def after(node: Node) -> bool:
        return any(depth in stage[v].after for v in node.operands)

    own = [n for n in nodes if level(n) == depth]
    for node in own:
        if not after(node):
            _block_node(node, depth + 1, names, lines)
    if depth < len(graph.loops):
        lines.add(depth + 1, f"for {_LOOPS[depth]} in 0..{graph.loops[depth]}:")
        _loop_nest(graph, [n for n in nodes if level(n) > depth], depth + 1, names, lines)
    for node in own:
        if after(node):
            _block_node(node, depth + 1, names, lines)


def _block_node(node: Node, indent: int, names: _Names, lines: _Lines) -> None:
    if names.inlined(node):
        return
    lines.add(indent, _call(node.op, node, names), _results(node), block_attributes(node))
    if isinstance(node.body, ThreadGraph):
        _thread_graph(node.body, node.operands, indent + 1, names, lines)


def block_attributes(node: Node) -> str:
    """The maps of an iterator or saver, and what else a block's node has: `imap {x ↔ φ}, fmap {i ↔ 1}`."""
    if node.op == NodeKind.ITERATOR:
        return f"imap {_map(_GRID, node.attrs['imap'])}, fmap {_map(_LOOPS, node.attrs['fmap'])}"
    if node.op == NodeKind.SAVE:
        return f"omap {_map(_GRID, node.attrs['omap'])}"
    if isinstance(loop := node.attrs.get("loop"), int):
        kind = f"{node.attrs['kind']} " if "kind" in node.attrs else ""
        return ", ".join(filter(None, [f"{kind}over {_LOOPS[loop]}", _attrs(node)]))
    return _attrs(node)


def _thread_graph(
    graph: ThreadGraph, operands: Sequence[Value], indent: int, names: _Names, lines: _Lines
) -> None:
    """The chain in registers; its inputs go by the names of what is passed to them."""
    for inner, outer in zip(graph.inputs, operands, strict=True):
        names.give(inner, names.of(outer), shared=True)
    for node in graph.nodes:
        if not names.inlined(node):
            lines.add(indent, _call(node.op, node, names), _results(node), _attrs(node))
    lines.add(indent, f"yield {', '.join(map(names.of, graph.outputs))}")


# --- tile level -------------------------------------------------------------------------------------------


def _tile_program(title: str, program: TileProgram) -> str:
    names = _Names()
    params = ", ".join(f"{names.of(b)}: {type_text(b.type)}" for b in program.params)
    head = f"{title}: {program.name}({params}), {program.num_warps} warps, {program.num_stages} stages"
    lines = _Lines()
    for buffer in program.locals:
        lines.add(1, f"{names.of(buffer)} = buffer", type_text(buffer.type), f"placement {buffer.placement}")
    _statements(program.body, 1, names, lines)
    return f"{head}\n{lines}"


def _statements(body: Iterable[Statement], indent: int, names: _Names, lines: _Lines) -> None:
    for statement in body:
        match statement:
            case Loop():
                lines.add(indent, f"{_loop(statement, names)}:")
                _statements(statement.body, indent + 1, names, lines)
            case Load():
                place = _access(statement.buffer, statement.windows, names)
                lines.add(indent, f"{names.of(statement.result)} = {place}", type_text(statement.result.type))
            case Store():
                place = _access(statement.buffer, statement.windows, names)
                lines.add(indent, f"{place} = {names.of(statement.value)}", type_text(statement.value.type))
            case Compute():
                node = Node(statement.op, statement.operands, (statement.result,), statement.attrs)
                if not names.inlined(node):
                    bounds = ", ".join(
                        f"{_window(b.window, names)} in [0, {b.extent}) along {b.dim}"
                        for b in statement.bounds
                    )
                    attrs = ", ".join(filter(None, (_attrs(node), bounds)))
                    lines.add(indent, _call(node.op, node, names), _results(node), attrs)


def _loop(loop: Loop, names: _Names) -> str:
    kind = "parallel" if loop.parallel else "for"
    step = f" step {loop.step}" if loop.step != 1 else ""
    return f"{kind} {names.of(loop.var)} in {loop.start}..{loop.stop}{step}"


def loops_text(program: TileProgram) -> list[str]:
    """Each loop of a tile program, from outside to inside and in order: `parallel p in 0..6144 step 32`."""
    names = _Names()

    def loops(body: Iterable[Statement]) -> Iterator[str]:
        for loop in (s for s in body if isinstance(s, Loop)):
            yield _loop(loop, names)
            yield from loops(loop.body)

    return list(loops(program.body))


def _access(buffer: Buffer, windows: Sequence[Window], names: _Names) -> str:
    return f"{names.of(buffer)}[{', '.join(_window(w, names) for w in windows)}]"


def _window(window: Window, names: _Names) -> str:
    terms = [f"{scale}*{names.of(var)}" if scale != 1 else names.of(var) for var, scale in window.terms]
    if window.base or not terms:
        terms.append(str(window.base))
    end = (
        f"+{window.size * window.stride}" if window.terms else str(window.base + window.size * window.stride)
    )
    step = f" : {window.stride}" if window.stride != 1 else ""
    return f"{' + '.join(terms)} : {end}{step}"


# --- pieces -----------------------------------------------------------------------------------------------


@dataclass
class _Names:
    """A name for every value: its own where that is free, else one of t0, t1, ..."""

    given: dict[int, str] = field(default_factory=dict[int, str])
    taken: set[str] = field(default_factory=set[str])
    named: list[object] = field(default_factory=list[object])  # names go by identity: keep the objects alive
    count: int = 0

    def of(self, thing: Value | Buffer | LoopVar) -> str:
        if id(thing) not in self.given:
            self.give(thing, thing.name)
        return self.given[id(thing)]

    def inlined(self, node: Node) -> bool:
        """Whether `node` is a scalar constant, whose value then stands wherever it is used."""
        value = splat_of(node)
        if value is None or node.result.shape:
            return False
        self.give(node.result, _attr(float(value)), shared=True)
        return True

    def give(self, thing: Value | Buffer | LoopVar, name: str, *, shared: bool = False) -> None:
        while not name or (name in self.taken and not shared):
            name, self.count = f"t{self.count}", self.count + 1
        self.given[id(thing)] = name
        self.taken.add(name)
        self.named.append(thing)


@dataclass
class _Lines:
    """Lines of up to three columns: what is done, the type, the attributes; columns are aligned."""

    rows: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def add(self, indent: int, what: str, type_: str = "", attrs: str = "") -> None:
        self.rows.append(("  " * indent + what, type_, attrs))

    def __str__(self) -> str:
        typed = [row for row in self.rows if row[1] or row[2]]
        first = max((len(what) for what, _, _ in typed), default=0)
        second = max((len(type_) for _, type_, _ in typed), default=0)
        return "\n".join(f"{a:<{first}}    {b:<{second}}    {c}".rstrip() for a, b, c in self.rows)


def _call(title: str, node: Node, names: _Names) -> str:
    operands = ", ".join(map(names.of, node.operands))
    results = ", ".join(map(names.of, node.results))
    return f"{results} = {title}({operands})" if results else f"{title}({operands})"


def _results(node: Node) -> str:
    return ", ".join(type_text(v.type) for v in node.results)


def type_text(type_: TensorType) -> str:
    """`f16[16, 64]`."""
    return f"{type_.dtype}[{', '.join(map(str, type_.shape))}]"


def _attrs(node: Node) -> str:
    hidden = _OWN_ATTRS.get(node.op, ())
    return ", ".join(f"{k}={_attr(v)}" for k, v in node.attrs.items() if k not in hidden and v is not False)


def _attr(value: Attr) -> str:
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def axes_text(graph: BlockGraph) -> list[str]:
    """`grid {x: 4}` and, if it has any, `loops {i: 16}`."""
    loops = [f"loops {_axes(_LOOPS, graph.loops)}"] if graph.loops else []
    return [f"grid {_axes(_GRID, graph.grid)}", *loops]


def _axes(letters: str, extents: Sequence[int]) -> str:
    return "{" + ", ".join(f"{a}: {n}" for a, n in zip(letters, extents, strict=False)) + "}"


def _map(letters: str, dims: Attr) -> str:
    assert isinstance(dims, tuple)
    pairs = (f"{a} ↔ {'φ' if d < 0 else d}" for a, d in zip(letters, dims, strict=False))
    return "{" + ", ".join(pairs) + "}"
