"""Random PTX on integers that are loaded: where the check knows the number that is stored, the same instructions,
executed on bytes by an interpreter of its own, store it.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from ptx_texts import FIELD, HEAD

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir import Buffer

THREADS, BEYOND = 64, 16
TYPES = {"i1": np.int8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}
SELECTORS = (0x8880, 0x4440, 0x3210, 0x4410, 0x5410, 0x7632, 0x8808, 0x9991, 0xBBB3, 0x4441, 0x3330, 0x8810)
MASKS = (0, 1, 0xFF, 0xFFFF, 0xFF00, 0xFF00FF, 0x101, 0x80, 2, -1, -256)
Registers: TypeAlias = dict[int, list[str]]


def cut(x: int, width: int, kind: str = "u") -> int:
    """The number that the lowest `width` bits are, with a sign for kind "s"."""
    x &= (1 << width) - 1
    return x - (1 << width) if kind == "s" and x >> (width - 1) else x


def width_of(register: str) -> int:
    return {"%rs": 16, "%rd": 64, "%r": 32, "%p": 1}[register.rstrip("0123456789")]


# --- programs


def program(generator: random.Random, dtype: str) -> list[str]:
    """A load, some instructions, and what makes a number in %r10 of the last register."""
    return list(_lines(generator, 8 * np.dtype(TYPES[dtype]).itemsize, dtype == "i1"))


def _lines(generator: random.Random, own: int, truths: bool) -> Iterator[str]:
    choice, chance = generator.choice, generator.random
    held: Registers = {1: [], 16: [], 32: [], 64: []}

    def new(width: int) -> str:
        held[width].append({1: "%p1", 16: "%rs1", 32: "%r5", 64: "%rd1"}[width] + str(len(held[width])))
        return held[width][-1]

    def some(*widths: int) -> tuple[int, str]:
        width = choice([w for w in widths or (16, 32, 64) if held[w]])
        return width, held[width][-1] if chance() < 0.75 else choice(held[width])

    def kinds(most: int) -> tuple[str, int]:
        return choice("su"), choice([w for w in (8, 16, 32, 64) if w <= most])

    bits = own if chance() < 0.7 else choice((8, 16, 32, 64))
    to = 32 if bits == 8 and chance() < 0.2 else max(bits, 16)
    yield f"ld.global.{choice('bu')}{bits} {{{new(to)}}}, [%rd6 + {choice((0,) * 9 + (1, 2, 4, own // 8))}];"
    for _ in range(generator.randint(0, 4)):
        width, a = some()
        match choice(
            ["cvt"] * 6
            + ["setp"] * (4 if truths else 1)
            + ["bits", "bits", "shift", "prmt", "selp", "more", "pair"]
        ):
            case "cvt":
                (source, wide), into = kinds(width), choice((16, 32, 64))
                kind, narrow = kinds(into)
                yield f"cvt.{kind}{narrow}.{source}{wide} {new(into)}, {a};"
            case "bits":
                yield f"{choice(('and', 'and', 'or', 'xor'))}.b{width} {new(width)}, {a}, {cut(choice(MASKS), width, 's')};"
            case "shift":
                yield f"{choice(('shl.b', 'shr.u', 'shr.s'))}{width} {new(width)}, {a}, {choice((1, 8, 16, 24, 31))};"
            case "prmt" if held[32]:
                first, second = some(32)[1], choice((0, some(32)[1]))
                yield f"prmt.b32 {new(32)}, {first}, {second}, {choice(SELECTORS)};"
            case "setp":
                compare = choice(("eq", "eq", "ne", "ne", "lt", "ge"))
                yield f"setp.{compare}.{choice('su')}{width} {new(1)}, {a}, {choice((0, 0, 1, 1, 2, 255))};"
            case "selp" if held[1]:
                p = some(1)[1]
                yield f"selp.b{width} {new(width)}, {choice((a, 1, 0))}, {choice((0, 1, a))}, {p};"
            case "more":
                yield f"{choice(('neg', 'abs'))}.s{width} {new(width)}, {a};"
            case "pair" if held[32]:
                _, both = some(32)
                yield f"mov.b32 {{{new(16)}, {new(16)}}}, {both};"
            case _:
                pass
    if held[1] and chance() < 0.8:
        yes, no = choice(((1.0, 0.0), (0.0, 1.0), (2.0, 0.0)))
        p = some(1)[1]
        yield f"selp.f32 %r10, 0f{struct.pack('>f', yes).hex()}, 0f{struct.pack('>f', no).hex()}, {p};"
    else:
        width, a = some()
        kind, wide = kinds(width)
        yield f"cvt.rn.f32.{kind}{wide if chance() < 0.3 else width} %r10, {a};"


# --- executed


def executed(lines: Sequence[str], memory: bytes, first: int) -> float:
    """What a thread whose element is at byte `first` has in %r10."""
    registers: dict[str, int] = {}

    def value(operand: str, width: int) -> int:
        return registers[operand] if operand.startswith("%") else cut(int(operand, 0), width)

    for line in lines:
        opcode, rest = line.rstrip(";").split(" ", 1)
        name, *_, kind = opcode.split(".")
        if name == "ld":
            to, offset = rest.split("}, [%rd6 + ")
            at = first + int(offset[:-1])
            registers[to[1:]] = int.from_bytes(memory[at : at + int(kind[1:]) // 8], "little")
            continue
        if name == "mov":
            both, source = rest.split("}, ")
            low, high = both[1:].split(", ")
            registers[low], registers[high] = cut(registers[source], 16), registers[source] >> 16
            continue
        to, *operands = rest.split(", ")
        if to == "%r10":
            if name == "selp":
                chosen = operands[0 if registers[operands[2]] else 1]
                return struct.unpack(">f", bytes.fromhex(chosen[2:]))[0]
            return float(cut(registers[operands[0]], int(kind[1:]), kind[0]))
        width = width_of(to) if name != "setp" else int(kind[1:])
        x = [value(o, width) for o in operands]
        made = _made(opcode, x, width)
        registers[to] = cut(made, width_of(to))
    raise AssertionError("expected a program that ends with %r10")


def _made(opcode: str, x: Sequence[int], width: int) -> int:
    """The result of an instruction, before it is cut to its register."""
    name, *middle, kind = opcode.split(".")
    signed = [cut(v, width, "s") for v in x]
    match name:
        case "cvt":
            to = middle[0]
            return cut(cut(x[0], int(kind[1:]), kind[0]), int(to[1:]), to[0])
        case "and" | "or" | "xor":
            return {"and": x[0] & x[1], "or": x[0] | x[1], "xor": x[0] ^ x[1]}[name]
        case "shl":
            return x[0] << x[1]
        case "shr":
            return (signed[0] if kind[0] == "s" else x[0]) >> x[1]
        case "prmt":
            source = x[0].to_bytes(4, "little") + x[1].to_bytes(4, "little")
            picked = [x[2] >> 4 * i & 15 for i in range(4)]
            each = [source[n & 7] if n < 8 else 255 * (source[n & 7] >> 7) for n in picked]
            return int.from_bytes(bytes(each), "little")
        case "setp":
            a, b = signed if kind[0] == "s" else x
            return {"eq": a == b, "ne": a != b, "lt": a < b, "ge": a >= b}[middle[0]]
        case "selp":
            return x[0] if x[2] else x[1]
        case _:
            return -signed[0] if name == "neg" else abs(signed[0])


# --- compared


def known(lines: Sequence[str], dtype: str) -> Callable[[Sequence[int], int], float] | None:
    """What the check says that a thread stores, of all elements and its number; None where it says nothing."""
    modulus, size = FIELD.fields[0].modulus, np.dtype(TYPES[dtype]).itemsize
    head = HEAD.replace("THREADS", str(THREADS)).replace("<9>", "<99>").replace("<40>", "<99>")
    address = f"mul.wide.u32 %rd6, %r1, {size};\nadd.s64 %rd6, %rd1, %rd6;\n"
    text = head + address + "\n".join(lines) + "\nst.global.b32 [%rd5], {%r10};\nret;\n}\n"
    given = Buffer("x", THREADS + BEYOND, dtype, writable=False)
    given.fill(FIELD.random("x", (THREADS + BEYOND,)))
    made = Buffer("o", THREADS, "f32", writable=True)
    try:
        stored = Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [given, made], FIELD, 1024).run(0)[1]
    except (IllegalProgram, UnsupportedProgram):
        return None
    assert given.contents is not None
    residues, values = given.contents.planes[0].astype(object), stored.values.astype(object)
    if len(set(values)) == 1:
        (alone,) = set(values)
        constant = float(alone if alone < modulus // 2 else alone - modulus)
        return lambda _, __: constant
    for away in range(BEYOND):
        x = residues[away : away + THREADS]
        for factor in (1, 2):
            if np.array_equal(values, factor * x % modulus):
                return lambda a, t, away=away, factor=factor: float(np.float32(factor * a[t + away]))
            if np.array_equal(values, (factor - factor * x) % modulus):
                return lambda a, t, away=away, factor=factor: float(factor - factor * a[t + away])
    raise AssertionError("expected a line of one element:\n" + text)


@pytest.mark.parametrize("dtype", TYPES)
def test_integers_are_what_their_instructions_make_of_them(dtype: str):
    generator, fates, kind = random.Random(dtype), Counter[bool](), TYPES[dtype]
    least, most = (0, 1) if dtype == "i1" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for _ in range(500):
        lines = program(generator, dtype)
        said = known(lines, dtype)
        fates[said is not None] += 1
        if said is None:
            continue
        elements = [
            generator.choice((least, most, *range(max(least, -3), min(most, 3) + 1))) for _ in range(60)
        ]
        elements += [generator.randint(least, most) for _ in range(THREADS + BEYOND - 60)]
        memory: Any = np.asarray(elements, kind)
        for thread in range(THREADS):
            found = executed(lines, memory.tobytes(), thread * memory.itemsize)
            assert np.float32(found) == np.float32(said(elements, thread)), "\n".join(lines)
    assert fates[True] > 20
