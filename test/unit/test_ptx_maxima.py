"""Maxima in PTX that nobody reads yet: what they are worth does not depend on when they are read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from ptx_texts import HEAD, LOAD, STORE

from superopt.verify.fields import ImageField
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.memory import Buffer

FIELD = ImageField("maxima", lattice="free")
MODULUS = FIELD.fields[0].modulus
REGISTERS = 12  # %r10 to %r21 hold numbers


def stored(body: str, threads: int) -> tuple[list[int], list[int]]:
    """What a kernel is given, and what it stores, modulo p."""
    text = HEAD.replace("THREADS", str(threads)) + LOAD + body + STORE + "\nret;\n}\n"
    given, made = Buffer("x", threads, "f32", writable=False), Buffer("o", threads, "f32", writable=True)
    given.fill(FIELD.random("x", (threads,)))
    assert given.contents is not None
    launch = Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [given, made], FIELD)
    return given.contents.planes[0].tolist(), launch.run(0)[1].values.tolist()


class Model:
    """The same instructions, thread by thread, every maximum joined at once."""

    def __init__(self, given: list[int]) -> None:
        self.held = {10: given}

    def join(self, kind: str, to: int, a: int, b: int) -> None:
        x, y = (np.array(self.held[r], np.uint64) for r in (a, b))
        made = FIELD.lattices.join("max" if kind == "max" else "min", 0, x, y, (None, None))
        self.held[to] = [int(v) for v in made]

    def add(self, to: int, a: int, b: int) -> None:
        self.held[to] = [(x + y) % MODULUS for x, y in zip(self.held[a], self.held[b], strict=True)]

    def shuffle(self, to: int, a: int, mask: int) -> None:
        self.held[to] = [self.held[a][t ^ mask] for t in range(len(self.held[a]))]


def steps(seed: int, count: int) -> Iterator[tuple[str, int, int, int]]:
    """Random instructions: an opcode, the register that it sets, and what it reads; most are joins."""
    rng, known = random.Random(seed), [10]
    for _ in range(count):
        op = rng.choice(("max", "max", "max", "max", "min", "add", "shuffle"))
        to = rng.randrange(10, 10 + REGISTERS)
        yield op, to, rng.choice(known), 1 << rng.randrange(5) if op == "shuffle" else rng.choice(known)
        known = sorted({*known, to})
    yield "max", 10, rng.choice(known), rng.choice(known)


@pytest.mark.parametrize("seed", range(12))
def test_maxima_are_worth_the_same_whenever_they_are_read(seed: int):
    """Maxima of minima and the reverse, sums of both, what other threads hold."""
    chosen = list(steps(seed, 60))
    texts = {
        "max": "max.f32 %r{}, %r{}, %r{};",
        "min": "min.f32 %r{}, %r{}, %r{};",
        "add": "add.f32 %r{}, %r{}, %r{};",
        "shuffle": "shfl.sync.bfly.b32 %r{}, %r{}, {}, 31, -1;",
    }
    given, found = stored("\n".join(texts[op].format(*named) for op, *named in chosen) + "\n", 32)
    model = Model(given)
    for op, to, a, b in chosen:
        if op == "add":
            model.add(to, a, b)
        elif op == "shuffle":
            model.shuffle(to, a, b)
        else:
            model.join(op, to, a, b)
    assert found == model.held[10]


@pytest.mark.parametrize("numbers", [5, 700], ids=["few", "more than are left unread"])
def test_unread_maxima_outlive_numbers_that_are_dropped(numbers: int):
    """A maximum is made before 600,000 numbers that nothing holds, and read after these were dropped."""
    chain = ["mov.b32 %r12, 1065353216;", "mov.b32 %r11, %r10;"]
    chain += ["add.f32 %r11, %r11, %r12;\nmax.f32 %r10, %r10, %r11;"] * numbers
    waste = ["add.f32 %r13, %r11, %r12;"] * 600
    given, found = stored("\n".join([*chain, *waste]) + "\n", 1024)
    shifted = np.array([[(x + i) % MODULUS for i in range(numbers + 1)] for x in given], np.uint64)
    assert found == FIELD.lattices.reduce("max", 0, shifted, None).tolist()


def test_what_was_joined_before_numbers_are_dropped_is_forgotten():
    """The second maximum joins numbers in the places that those of the first one had."""
    body = """mov.b32 %r12, 1065353216;
add.f32 %r11, %r10, %r12;
max.f32 %r14, %r10, %r11;
add.f32 %r11, %r11, %r12;
"""
    waste = "add.f32 %r13, %r11, %r12;\n" * 600
    given, found = stored(body + waste + "max.f32 %r10, %r10, %r11;\n", 1024)
    pairs = np.array([[x, (x + 2) % MODULUS] for x in given], np.uint64)
    assert found == FIELD.lattices.reduce("max", 0, pairs, None).tolist()


def test_a_maximum_that_leaves_a_number_out_is_another_one():
    """In a chain that is longer than what is left unread, and in one of the maxima that lanes exchange."""
    more = "add.f32 %r11, %r11, %r12;\nmax.f32 %r10, %r10, %r11;\n"
    start = "mov.b32 %r12, 1065353216;\nmov.b32 %r11, %r10;\n"
    fewer = more.replace("max.f32 %r10, %r10, %r11", "mov.b32 %r10, %r10")
    lanes = "".join(
        f"shfl.sync.bfly.b32 %r13, %r10, {m}, 31, -1;\nmax.f32 %r10, %r10, %r13;\n" for m in (1, 2)
    )
    right = stored(start + more * 600 + lanes, 32)[1]
    for at in (0, 300, 599):
        wrong = stored(start + more * at + fewer + more * (599 - at) + lanes, 32)[1]
        assert all(a != b for a, b in zip(right, wrong, strict=True))
    assert right[:4] == right[:1] * 4
    alone = stored(start + more * 600 + lanes[: len(lanes) // 2], 32)[1]
    assert all(a != b for a, b in zip(right, alone, strict=True))
