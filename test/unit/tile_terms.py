"""Small programs of tile loops for tests: values from s-expressions, statements, execution against a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from execute_terms import Unbound, execute

from superopt.transforms.tile_saturation.encode import Encoder
from superopt.transforms.tile_saturation.terms import (
    FULL,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermIndex,
    TermProgram,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
    loops,
    stores,
)

_BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "div", "max": "max"}


def value(
    text: str, shapes: Mapping[str, tuple[int, ...]] | None = None, env: Mapping[str, Any] | None = None
) -> ValueTerm:
    """An s-expression as a value; names are loads of whole inputs, 4 x 4 unless `shapes` says otherwise.

    `env` gives names another meaning: a `Region` to load, or a value.
    """
    shapes = dict(shapes or {})
    known: dict[str, Any] = env if isinstance(env, dict) else {}
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()

    def read() -> ValueTerm:
        token = tokens.pop(0)
        if token != "(":
            return _leaf(token, shapes, known)
        name, _, dim = tokens.pop(0).partition(":")
        args: list[ValueTerm] = []
        while tokens[0] != ")":
            args.append(read())
        tokens.pop(0)
        if name in ("rsum", "rmax"):
            return ValueTerm(
                "reduce_sum" if name == "rsum" else "reduce_max", tuple(args), (("dims", (-1,)),)
            )
        if name == "concat":
            return ValueTerm("concat", tuple(args), (("dim", int(dim)),))
        return ValueTerm(_BINARY.get(name, name), tuple(args))

    return read()


def _leaf(token: str, shapes: Mapping[str, tuple[int, ...]], known: dict[str, Any]) -> ValueTerm:
    if token[0].isdigit():
        return ValueTerm("const", (), (("shape", shapes.get(token, (4, 4))), ("value", float(token))))
    if token not in known:
        shape = shapes.get(token, (4, 4))
        known[token] = TermRegion(TermTensor(token, shape, "f32", "input"), (FULL,) * len(shape))
    found = known[token]
    return ValueTerm("load", region=found) if isinstance(found, TermRegion) else found


def tensor(name: str, *shape: int, kind: str = "temporary") -> TermTensor:
    """A tensor of f32."""
    return TermTensor(name, shape, "f32", kind)  # pyright: ignore[reportArgumentType]


def at(tensor: TermTensor, *dims: Any) -> TermRegion:
    """A region: ":" all, a variable its tile, ("elem", v), (base, size) a range."""
    out: list[TermIndex] = []
    for d in dims:
        if d == ":":
            out.append(FULL)
        elif isinstance(d, TermVar):
            out.append(TermIndex("tile", d))
        elif d[0] == "elem":
            out.append(TermIndex("elem", d[1]))
        else:
            out.append(TermIndex("range", None, d[0], d[1]))
    return TermRegion(tensor, tuple(out))


def loop(var: TermVar, *body: StatementTerm, starts: Sequence[tuple[TermRegion, float]] = ()) -> LoopTerm:
    """A loop."""
    return LoopTerm(var, tuple(starts), tuple(body))


def put(region: TermRegion, expr: ValueTerm) -> StoreTerm:
    """A store."""
    return StoreTerm(region, expr)


def load(region: TermRegion) -> ValueTerm:
    """A load."""
    return ValueTerm("load", region=region)


def accumulate(region: TermRegion, part: ValueTerm) -> StoreTerm:
    """region = region + part"""
    return StoreTerm(region, ValueTerm("add", (load(region), part)))


def program(*body: StatementTerm) -> TermProgram:
    """A program over the tensors that its statements mention."""
    tensors: dict[TermTensor, None] = {}
    for store in stores(body):
        for region in [*store.value.regions, store.region]:
            for member in [*region.tensor.members, region.tensor]:
                tensors[member] = None
    for inner in loops(body):
        for region, _ in inner.starts:
            tensors[region.tensor] = None
    ordered = sorted(tensors, key=lambda t: (bool(t.lanes), t.name))
    inputs = [t for t in ordered if t.kind == "input"]
    outputs = [t for t in ordered if t.kind == "output"]
    return TermProgram("test", inputs, outputs, tuple(body), ordered)


def saturated(p: TermProgram, rules: Sequence[str], weaken: str = "", **limits: Any) -> Encoder:
    """The e-graph of a program after the rules."""
    encoder = Encoder(p)
    if weaken:
        encoder.graph.weaken(weaken)
    encoder.graph.saturate(
        list(rules), limits.get("iterations", 12), limits.get("nodes", 20_000), 1 << 30, 20.0
    )
    return encoder


def holds(encoder: Encoder, *body: StatementTerm) -> bool:
    """Whether the root class holds a program."""
    return encoder.graph.same(encoder.root, encoder.sequence(body))


def memory(p: TermProgram, seed: int, scale: float = 1.0) -> dict[TermTensor, Any]:
    """Random contents for every tensor, positive and away from zero."""
    rng = np.random.default_rng(seed)
    return {t: scale * rng.uniform(0.5, 1.5, t.shape) for t in p.tensors if not t.lanes}


def run(
    p: TermProgram, body: Sequence[StatementTerm], seed: int, steps: Mapping[TermVar, int], scale: float = 1.0
) -> dict[TermTensor, Any]:
    """What a program leaves behind."""
    state = memory(p, seed, scale)
    execute(body, state, steps)
    return state


def steps_for(p: TermProgram, rng: np.random.Generator) -> dict[TermVar, int]:
    """A random width that divides the extent for every parameter."""
    out: dict[TermVar, int] = {}
    for var in p.vars:
        if not var.step:
            divisors = [d for d in range(1, var.end + 1) if var.end % d == 0 and var.end // d <= 8]
            out[var] = int(rng.choice(divisors))
    return out


def agrees(left: Mapping[TermTensor, Any], right: Mapping[TermTensor, Any]) -> bool:
    """Whether two memories are equal up to rounding."""
    return all(np.allclose(left[t], right[t], rtol=1e-6, atol=1e-9, equal_nan=True) for t in left)


def wrong_samples(encoder: Encoder, p: TermProgram, samples: int, seed: int = 0) -> int:
    """How many of `samples` random programs of the root class do something else than `p`, or nothing sensible."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for i in range(samples):
        steps = steps_for(p, rng)
        want = run(p, p.body, i, steps)
        try:
            got = run(p, encoder.decode(encoder.graph.sample(encoder.root, i)), i, steps)
        except (Unbound, ValueError):
            wrong += 1
            continue
        wrong += not agrees(want, got)
    return wrong


INFINITY = math.inf
