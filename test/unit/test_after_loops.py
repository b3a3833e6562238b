"""What only a loop's last trip needs to do runs after it, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from superopt.program import (
    Buffer,
    Loop,
    LoopVar,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
    statements,
)
from superopt.transforms.lower.builder import compute, load, store, whole
from superopt.transforms.tile_saturation.after_loops import after_loops
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate_tile import evaluate_tile


def _program(body: Any, chips: int = 3) -> TileProgram:
    """y[4] of x[12]: a loop of three trips whose body `body(out, var, x, y, chips)` writes, after chips = x[:4]."""
    x, y = Buffer(TensorType((12,), "f32"), "x"), Buffer(TensorType((4,), "f32"), "y")
    held = [Buffer(TensorType((4,), "f32"), f"c{i}", "chip") for i in range(chips)]
    var = LoopVar("k")
    first: list[Statement] = []
    value = load(first, x, (Window(4),))
    for buffer in (*held, y):
        store(first, buffer, whole(buffer), value)
    inner: list[Statement] = []
    body(inner, var, x, y, held)
    loop = Loop(var, 0, 12, 4, False, inner)
    after: list[Statement] = []
    value = load(after, y, whole(y))
    for buffer in held:
        value = compute(after, "sub", (load(after, buffer, whole(buffer)), value))
    store(after, y, whole(y), value)
    return TileProgram("k", [x, y], 1, held, [*first, loop, *after])


def _moved(program: TileProgram) -> tuple[TileProgram, int]:
    """The program with its loops' last statements after them, and how many these are."""
    made = replace(program, body=after_loops(program.body))
    return made, len(made.body) - len(program.body)


def _result(program: TileProgram) -> Any:
    domain = FloatDomain()
    numbers = np.random.default_rng(7).integers(-3, 4, 12).astype(np.float32)
    return evaluate_tile(program, [domain.constant(numbers)], domain)[0].planes[0]


def _sum(out: list[Statement], var: LoopVar, x: Buffer, total: Buffer) -> None:
    part = load(out, x, (Window(4, 0, ((var, 1),)),))
    store(out, total, whole(total), compute(out, "add", (load(out, total, whole(total)), part)))


def test_an_epilogue_runs_once() -> None:
    def body(out: list[Statement], var: LoopVar, x: Buffer, y: Buffer, chips: list[Buffer]) -> None:
        _sum(out, var, x, chips[0])
        store(out, y, whole(y), compute(out, "square", (load(out, chips[0], whole(chips[0])),)))

    program = _program(body)
    made, count = _moved(program)
    assert count == 3
    np.testing.assert_array_equal(_result(made), _result(program))
    loop = next(s for s in made.body if isinstance(s, Loop))
    assert not any(isinstance(s, Store) and s.buffer.name == "y" for s in loop.body)


@pytest.mark.parametrize("what", ["accumulates", "is read", "moves", "is stored again"])
def test_what_every_trip_needs_stays(what: str) -> None:
    def body(out: list[Statement], var: LoopVar, x: Buffer, y: Buffer, chips: list[Buffer]) -> None:
        total, other, _ = chips
        if what == "is read":  # by the next trip
            _sum(out, var, x, total)
            value = load(out, other, whole(other))
            store(out, total, whole(total), compute(out, "mul", (value, load(out, total, whole(total)))))
            store(out, other, whole(other), compute(out, "neg", (load(out, total, whole(total)),)))
        elif what == "accumulates":
            kept = load(out, y, whole(y))
            store(out, y, whole(y), compute(out, "add", (kept, load(out, total, whole(total)))))
        elif what == "moves":
            store(out, y, whole(y), load(out, x, (Window(4, 0, ((var, 1),)),)))
        else:
            store(out, y, whole(y), compute(out, "neg", (load(out, total, whole(total)),)))
            store(out, y, whole(y), load(out, x, (Window(4, 0, ((var, 1),)),)))

    program = _program(body)
    made, count = _moved(program)
    assert count == 0
    np.testing.assert_array_equal(_result(made), _result(program))


def test_loops_that_run_never_keep_their_bodies() -> None:
    def body(out: list[Statement], var: LoopVar, x: Buffer, y: Buffer, chips: list[Buffer]) -> None:
        store(out, y, whole(y), compute(out, "neg", (load(out, chips[0], whole(chips[0])),)))

    program = _program(body)
    never: list[Statement] = [
        Loop(s.var, 0, 0, 4, False, s.body) if isinstance(s, Loop) else s for s in program.body
    ]
    assert len(after_loops(never)) == len(never)
    assert _moved(program)[1] == 3


@pytest.mark.parametrize("seed", range(4))
def test_random_bodies_compute_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    moved = 0
    for _ in range(150):

        def body(out: list[Statement], var: LoopVar, x: Buffer, y: Buffer, chips: list[Buffer]) -> None:
            values: list[Value] = [load(out, x, (Window(4, 0, ((var, 1),)),))]
            for _ in range(rng.integers(3, 10)):
                places = [*chips, y]
                match int(rng.integers(4)):
                    case 0:
                        buffer = places[rng.integers(len(places))]
                        values.append(load(out, buffer, whole(buffer)))
                    case 1:
                        a, b = (values[rng.integers(len(values))] for _ in range(2))
                        values.append(compute(out, ("add", "sub", "max")[rng.integers(3)], (a, b)))
                    case 2:
                        values = values[1:] or values
                    case _:
                        buffer = places[rng.integers(len(places))]
                        store(out, buffer, whole(buffer), values[rng.integers(len(values))])

        program = _program(body)
        made, count = _moved(program)
        moved += count
        np.testing.assert_array_equal(_result(made), _result(program))
        assert len(list(statements(made.body))) == len(list(statements(program.body)))
    assert moved
