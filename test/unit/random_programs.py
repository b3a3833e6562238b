"""Random programs, rewrites that keep their meaning, and mutations that may not: pairs to try the verifier on.

Whether a mutation changed the meaning is decided by evaluating both programs in fp64, not by the verifier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from superopt.errors import SuperoptError
from superopt.operators import OPERATORS, infer_type
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, ThreadGraph, Value
from superopt.spec import check_kernel
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, parse

N = 4  # all matrices are N x N, so that every operand fits everywhere


class Builder:
    """Collects nodes; calling it adds an operator of the table."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, op: str, *operands: Value, **attrs: Any) -> Value:
        result = infer_type(op, [v.type for v in operands], attrs)
        return self.raw(op, operands, result.shape, result.dtype, **attrs)

    def raw(
        self,
        op: str,
        operands: tuple[Value, ...] | list[Value],
        shape: tuple[int, ...],
        dtype: str = "f32",
        /,
        **attrs: Any,
    ) -> Value:
        node = Node(op, tuple(operands), (Value(TensorType(shape, dtype)),), attrs)
        self.nodes.append(node)
        return node.result

    def constant(self, value: float, shape: tuple[int, ...] = (1, 1), dtype: str = "f32") -> Value:
        return self("constant", value=value, shape=shape, dtype=dtype)

    def save(self, value: Value, *omap: int) -> None:
        self.nodes.append(Node("save", (value,), (), {"omap": omap}))

    def custom(
        self, grid: tuple[int, ...], loops: tuple[int, ...], operands: list[Value], shape: tuple[int, ...],
        build: Callable[..., None],
    ) -> Value:  # fmt: skip
        """A custom kernel with one result; `build(inner builder, arguments)` writes its region."""
        inner, arguments = Builder(), [Value(v.type) for v in operands]
        build(inner, *arguments)
        body = BlockGraph(grid, loops, arguments, inner.nodes)
        node = Node("custom", tuple(operands), (Value(TensorType(shape, operands[0].dtype)),), {}, body=body)
        self.nodes.append(node)
        return node.result


def value(*shape: int, dtype: str = "f32") -> Value:
    return Value(TensorType(shape, dtype))


# --- random kernel graphs ---------------------------------------------------------------------------------

_BINARY = ("add", "sub", "mul", "div", "matmul", "max")
_UNARY = ("neg", "square", "exp", "sqrt", "relu", "sigmoid", "transpose", "reduce_sum", "reduce_max", "halve")


def random_kernel(rng: random.Random) -> KernelGraph:
    """Four to seven operators on two or three square matrices, at most one `exp` on a path."""
    inputs = [value(N, N) for _ in range(rng.choice((2, 3)))]
    build, pool, exponentials = Builder(), list(inputs), dict.fromkeys(inputs, False)
    for _ in range(rng.randint(4, 7)):
        a, b = rng.choice(pool[-3:]), rng.choice(pool)
        op = rng.choice(_BINARY if rng.random() < 0.6 else _UNARY)
        if op in ("exp", "sigmoid", "max", "relu", "reduce_max", "sqrt") and (
            exponentials[a] or exponentials[b]
        ):
            op = "add"
        if op in _BINARY:
            b = rng.choice([v for v in pool if op != "matmul" or v.shape == (N, N)])
            if op == "matmul" and a.shape != (N, N):
                a = inputs[0]
            result, used = build(op, a, b), (a, b)
        else:
            a = a if a.shape == (N, N) else inputs[1]
            result, used = _unary(build, op, a), (a,)
        exponentials[result] = op in ("exp", "sigmoid") or any(exponentials[v] for v in used)
        pool.append(result)
    return KernelGraph("main", inputs, build.nodes, [pool[-1]])


def _unary(build: Builder, op: str, a: Value) -> Value:
    if op == "transpose":
        return build("transpose", a, perm=(1, 0))
    if op.startswith("reduce"):
        return build(op, a, dims=(1,), keepdims=True)
    if op == "halve":
        return build("mul", a, build.constant(0.5))
    return build(op, a)


# --- rewrites that keep the meaning -----------------------------------------------------------------------


def rewritten(graph: KernelGraph, rng: random.Random) -> KernelGraph:
    """The same function by other operators: every node has a chance, one at least is rewritten."""
    chosen = {i for i in range(len(graph.nodes)) if rng.random() < 0.7} or {rng.randrange(len(graph.nodes))}
    inputs = [Value(v.type) for v in graph.inputs]
    env = dict(zip(graph.inputs, inputs, strict=True))
    made = {n.result: n for n in graph.nodes}
    build = Builder()
    for i, node in enumerate(graph.nodes):
        operands = [env[v] for v in node.operands]
        choices = list(_rewrites(build, node, operands, made, env)) if i in chosen else []
        env[node.result] = rng.choice(choices)(rng) if choices else build(node.op, *operands, **node.attrs)
    return KernelGraph("main", inputs, build.nodes, [env[v] for v in graph.outputs])


def _rewrites(
    build: Builder, node: Node, ops: list[Value], made: dict[Value, Node], env: dict[Value, Value]
) -> Iterator[Callable[[random.Random], Value]]:
    op, below = node.op, [made.get(v) for v in node.operands]
    if op in ("add", "mul", "max"):
        yield lambda _: build(op, ops[1], ops[0])
    if op in ("add", "mul", "max") and (inner := below[0]) is not None and inner.op == op:
        a, b = (env[v] for v in inner.operands)
        yield lambda _, a=a, b=b: build(op, a, build(op, b, ops[1]))
    if op == "sub":
        yield lambda _: build("add", build("neg", ops[1]), ops[0])
    if op == "div":
        yield lambda _: build("mul", ops[0], build("reciprocal", ops[1]))
    if op == "square":
        yield lambda _: build("mul", ops[0], ops[0])
    if op == "relu":
        yield lambda _: build("max", build.constant(0.0), ops[0])
    if op == "sigmoid":
        yield lambda _: build(
            "div", build("exp", ops[0]), build("add", build("exp", ops[0]), build.constant(1.0))
        )
    if op in ("mul", "matmul") and (inner := below[1]) is not None and inner.op in ("add", "sub"):
        a, b = (env[v] for v in inner.operands)
        if op == "mul" or a.shape == b.shape == (N, N):
            yield lambda _, f=inner.op, a=a, b=b: build(f, build(op, ops[0], a), build(op, ops[0], b))
    if op == "exp" and (inner := below[0]) is not None and inner.op in ("add", "sub"):
        a, b = (env[v] for v in inner.operands)
        f = "mul" if inner.op == "add" else "div"
        yield lambda _, f=f, a=a, b=b: build(f, build("exp", a), build("exp", b))
    if op == "exp":  # e^x = (e^(x/2))^2
        yield lambda _: build("square", build("exp", build("mul", ops[0], build.constant(0.5))))
    if op == "matmul":
        yield lambda _: _turned(build, *ops)
        yield lambda _: _split(build, *ops)
        yield lambda rng: block_matmul(build, ops[0], ops[1], rng)
        yield lambda _: build(
            "mul", build("matmul", build("mul", ops[0], build.constant(4.0)), ops[1]), build.constant(0.25)
        )
        if (inner := below[0]) is not None and inner.op == "matmul":
            a, b = (env[v] for v in inner.operands)
            yield lambda _, a=a, b=b: build("matmul", a, build("matmul", b, ops[1]))
    if op in ("reduce_sum", "reduce_max"):
        yield lambda rng: block_reduction(build, op, ops[0], rng)
    if OPERATORS[op].elementwise and all(v.shape == (N, N) for v in ops):
        yield lambda rng: block_pointwise(build, op, ops, rng)


def _turned(build: Builder, a: Value, b: Value) -> Value:
    left, right = (build("transpose", v, perm=(1, 0)) for v in (b, a))
    return build("transpose", build("matmul", left, right), perm=(1, 0))


def _split(build: Builder, a: Value, b: Value) -> Value:
    half, parts = N // 2, list[Value]()
    for start in (0, half):
        left = build("slice", a, offsets=(0, start), sizes=(N, half), strides=(1, 1))
        right = build("slice", b, offsets=(start, 0), sizes=(half, N), strides=(1, 1))
        parts.append(build("matmul", left, right))
    return build("add", *parts)


def block_matmul(build: Builder, a: Value, b: Value, rng: random.Random) -> Value:
    """Rows and columns over the grid, the contracted dimension over a loop."""
    rows, trips = rng.choice((2, 4)), rng.choice((2, 4))
    cols = rng.choice((rows, rows, 2, 4))

    def region(inner: Builder, x: Value, y: Value) -> None:
        left = inner.raw("iterator", [x], (N // rows, N // trips), imap=(0, -1), fmap=(1,))
        right = inner.raw("iterator", [y], (N // trips, N // cols), imap=(-1, 1), fmap=(0,))
        part = inner("matmul", left, right)
        inner.save(inner.raw("accumulate", [part], part.shape, kind="sum", loop=0), 0, 1)

    return build.custom((rows, cols), (trips,), [a, b], (N, N), region)


def block_reduction(build: Builder, op: str, a: Value, rng: random.Random) -> Value:
    """Rows over the grid, the reduced dimension over a loop."""
    rows, trips = rng.choice((2, 4)), rng.choice((2, 4))

    def region(inner: Builder, x: Value) -> None:
        tile = inner.raw("iterator", [x], (N // rows, N // trips), imap=(0,), fmap=(1,))
        part = inner(op, tile, dims=(1,), keepdims=True)
        kind = op.removeprefix("reduce_")
        inner.save(inner.raw("accumulate", [part], part.shape, kind=kind, loop=0), 0)

    return build.custom((rows,), (trips,), [a], (N, 1), region)


def block_pointwise(build: Builder, op: str, operands: list[Value], rng: random.Random) -> Value:
    """Both dimensions over the grid, or one of them over a loop and concatenated."""
    dim, fused, both = rng.choice((0, 1)), rng.random() < 0.5, rng.random() < 0.5
    imap, fmap = ((dim, 1 - dim), ()) if both else ((dim,), (1 - dim,))

    def region(inner: Builder, *arguments: Value) -> None:
        tiles = [inner.raw("iterator", [x], (2, 2), imap=imap, fmap=fmap) for x in arguments]
        if fused:
            thread, registers = Builder(), [Value(t.type) for t in tiles]
            body = ThreadGraph(registers, thread.nodes, [thread(op, *registers)])
            inner.nodes.append(Node("fused", tuple(tiles), (Value(tiles[0].type),), {}, body=body))
            result = inner.nodes[-1].result
        else:
            result = inner(op, *tiles)
        if not both:
            whole = (4, 2) if dim == 1 else (2, 4)
            result = inner.raw("accumulate", [result], whole, kind="concat", loop=0, dim=1 - dim)
        inner.save(result, *imap)

    if both:
        return build.custom((2, 2), (), operands, (N, N), region)
    return build.custom((2,), (2,), operands, (N, N), region)


# --- attention in its variants ----------------------------------------------------------------------------


def attention(variant: str, scale: float, trips: int = 2, rows: int = 2) -> KernelGraph:
    """softmax(scale Q K) V: "naive", "stable" (maximum subtracted) or "online" (one kernel, rescaled sums)."""
    q, k, v = value(4, 3), value(3, 4), value(4, 2)
    build = Builder()
    if variant == "online":
        region = partial(_online, scale, trips, rows)
        out = build.custom((rows,), (trips,), [q, k, v], (4, 2), region)
        return KernelGraph("main", [q, k, v], build.nodes, [out])
    s = build("mul", build("matmul", q, k), build.constant(scale))
    if variant == "stable":
        s = build("sub", s, build("reduce_max", s, dims=(1,), keepdims=True))
    e = build("exp", s)
    total = build("reduce_sum", e, dims=(1,), keepdims=True)
    out = build("matmul", build("div", e, total), v)
    return KernelGraph("main", [q, k, v], build.nodes, [out])


def _online(scale: float, trips: int, rows: int, b: Builder, q: Value, k: Value, v: Value) -> None:
    m, n = 4 // rows, 4 // trips
    qt = b.raw("iterator", [q], (m, 3), imap=(0,), fmap=(-1,))
    kt = b.raw("iterator", [k], (3, n), imap=(-1,), fmap=(1,))
    vt = b.raw("iterator", [v], (n, 2), imap=(-1,), fmap=(0,))
    s = b("mul", b("matmul", qt, kt), b.constant(scale))
    top = b.raw("running_max", [b("reduce_max", s, dims=(1,), keepdims=True)], (m, 1), loop=0)
    p = b("exp", b("sub", s, top))
    total = b("reduce_sum", p, dims=(1,), keepdims=True)
    out = b.raw("accumulate", [b("matmul", p, vt), top], (m, 2), kind="rescaled", loop=0)
    norm = b.raw("accumulate", [total, top], (m, 1), kind="rescaled", loop=0)
    b.save(b("div", out, norm), 0)


# --- mutations --------------------------------------------------------------------------------------------

_OTHER = {
    "add": ("sub", "mul", "max"), "sub": ("add", "mul"), "mul": ("add", "div"), "div": ("mul", "sub"),
    "max": ("min", "add"), "min": ("max",), "exp": ("sigmoid", "neg"), "neg": ("square", "exp"),
    "square": ("neg", "exp"), "sqrt": ("square", "reciprocal"), "reciprocal": ("neg", "sqrt"),
    "relu": ("neg", "sigmoid"), "sigmoid": ("exp", "relu"), "reduce_sum": ("reduce_mean", "reduce_max"),
    "reduce_max": ("reduce_min", "reduce_sum"),
}  # fmt: skip


def mutated(graph: KernelGraph, rng: random.Random) -> tuple[KernelGraph, str]:
    """A legal copy with one operator, operand, attribute, map or constant changed, and what it was."""
    numbers: dict[str, list[int]] = {}
    for i, (what, _) in enumerate(_all_changes(graph)):
        numbers.setdefault(what.split(": ")[1].split(" ")[0], []).append(i)
    # By kind first: there are many operands for each map or constant.
    kinds = sorted(numbers, key=lambda kind: rng.random() * (0.3 if kind.endswith("map") else 1.0))
    for kind in kinds:
        for number in rng.sample(numbers[kind], len(numbers[kind])):
            copy = parse(canonical_text(graph))
            what, change = list(_all_changes(copy))[number]
            change()
            if legal(copy):
                return copy, what
    raise AssertionError("no mutation is legal")


def _all_changes(graph: KernelGraph) -> Iterator[tuple[str, Callable[[], None]]]:
    for node, before in _places(graph.nodes, graph.inputs):
        for what, change in _changes(node, before):
            yield f"{node.op}: {what}", change


def _places(nodes: list[Node], inputs: list[Value]) -> Iterator[tuple[Node, list[Value]]]:
    before = list(inputs)
    for node in nodes:
        yield node, list(before)
        if isinstance(node.body, BlockGraph | ThreadGraph):
            arguments = node.body.inputs if isinstance(node.body, ThreadGraph) else []
            yield from _places(node.body.nodes, arguments)
        before += node.results


def _changes(node: Node, before: list[Value]) -> Iterator[tuple[str, Callable[[], None]]]:
    def set_op(op: str) -> None:
        node.op = op

    def set_operand(i: int, v: Value) -> None:
        node.operands = (*node.operands[:i], v, *node.operands[i + 1 :])

    def set_attr(key: str, x: Any) -> None:
        node.attrs[key] = x

    for op in _OTHER.get(node.op, ()):
        yield f"operator {op}", lambda op=op: set_op(op)
    if node.op not in ("iterator", "save", "custom", "fused"):
        for i, operand in enumerate(node.operands):
            for v in before:
                if v is not operand and v.type == operand.type:
                    yield f"operand {i}", lambda i=i, v=v: set_operand(i, v)
    for key, x in list(node.attrs.items()):
        if key in ("imap", "fmap", "omap") and isinstance(x, tuple):
            for i in range(len(x)):
                for d in (-1, 0, 1):
                    if d != x[i]:
                        y = (*x[:i], d, *x[i + 1 :])
                        yield f"{key} {y}", lambda key=key, y=y: set_attr(key, y)
            if len(x) == 2 and x[0] != x[1]:
                yield f"{key} turned", lambda key=key, x=x: set_attr(key, x[::-1])
            if key == "fmap":
                yield "fmap and imap turned", lambda: _turn(node)
        elif key == "value":
            yield "constant", lambda x=x: set_attr("value", float(str(x)) * 1.25 + 0.25)
        elif key == "kind":
            for kind in ("sum", "max"):
                if kind == x:
                    continue
                yield f"accumulator {kind}", lambda kind=kind: _accumulate(node, kind)
        elif key in ("offsets", "perm") and isinstance(x, tuple):
            for y in ((0, 0), (0, 2), (2, 0), (2, 2), (0, 1)):
                if y != x:
                    yield f"{key} {y}", lambda key=key, y=y: set_attr(key, y)
        elif key == "dims":
            yield "dims", lambda: set_attr("dims", (0,))


def _turn(node: Node) -> None:
    """Exchange the first two dimensions of the data."""
    for key in ("imap", "fmap"):
        dims = node.attrs[key]
        assert isinstance(dims, tuple)
        node.attrs[key] = tuple({0: 1, 1: 0}.get(d, d) for d in dims)


def _accumulate(node: Node, kind: str) -> None:
    node.attrs["kind"] = kind
    node.attrs.pop("dim", None)
    node.operands = node.operands[:1]


# --- the oracle -------------------------------------------------------------------------------------------


def floats(graph: KernelGraph, seed: int) -> list[np.ndarray[Any, Any]]:
    """Outputs in fp64 on inputs of a seed, positive and of ordinary size."""
    rng, domain = np.random.default_rng(seed), FloatDomain()
    inputs = [domain.tensor(rng.uniform(0.2, 1.7, v.shape)) for v in graph.inputs]
    return [t.planes[0] for t in evaluate(graph, inputs, domain)]


def agreement(a: KernelGraph, b: KernelGraph) -> bool | None:
    """Whether both give the same numbers; None where that cannot be told (not finite, too close)."""
    worst = 0.0
    for seed in range(3):
        for x, y in zip(floats(a, seed), floats(b, seed), strict=True):
            if x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
                return None
            worst = max(worst, float(np.max(np.abs(x - y) / (1e-3 + np.abs(x)))))
    return True if worst < 1e-8 else False if worst > 1e-5 else None


def legal(graph: KernelGraph) -> bool:
    try:
        check_kernel(graph)
    except SuperoptError:
        return False
    return True


def _base(rng: random.Random) -> tuple[KernelGraph, KernelGraph]:
    if rng.random() < 0.25:
        scale = rng.choice((0.25, 0.5, 2.0))
        variants = rng.sample(("naive", "stable", "online"), 2)
        first, second = (attention(v, scale, rng.choice((2, 4)), rng.choice((2, 4))) for v in variants)
        return first, second
    graph = random_kernel(rng)
    return graph, rewritten(graph, rng)


def equal_pairs(count: int, seed: int) -> Iterator[tuple[KernelGraph, KernelGraph]]:
    """Pairs of a program and a rewritten one."""
    rng = random.Random(seed)
    while count:
        first, second = _base(rng)
        if agreement(first, second) is not None:
            count -= 1
            yield first, second


def wrong_pairs(count: int, seed: int) -> Iterator[tuple[KernelGraph, KernelGraph, str]]:
    """Pairs that differ by one mutation, of a rewritten program as often as of the program itself."""
    rng = random.Random(seed)
    while count:
        first, second = _base(rng)
        wrong, what = mutated(rng.choice((first, second, second)), rng)
        if (
            legal(wrong)
            and wrong.outputs[0].type == first.outputs[0].type
            and agreement(first, wrong) is False
        ):
            count -= 1
            yield first, wrong, what
