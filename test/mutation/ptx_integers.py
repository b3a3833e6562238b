"""Integers of PTX by numpy, for `ptx_orders`: 64 bits for each thread, of which an instruction takes its width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
# What `computed` knows, and two that exchange values of threads.
FOLLOWED = frozenset(
    [
        "mov",
        "cvta",
        "add",
        "sub",
        "neg",
        "and",
        "or",
        "xor",
        "mul",
        "mad",
        "shl",
        "shr",
        "bfe",
        "cvt",
        "setp",
        "selp",
        "shfl",
        "elect",
    ]
)


class Undecided(Exception):
    """The text has something that is not followed here."""


def width_of(opcode: str) -> int:
    found = re.search(r"\.[busf](8|16|32|64)(?:x2)?$", opcode)
    return int(found[1]) if found else 32


def _signed(x: Array, width: int) -> Array:
    shift = np.uint64(64 - width)
    return (x << shift).astype(np.int64) >> np.int64(64 - width)


def _bits(x: Array, width: int) -> Array:
    return x & np.uint64((1 << width) - 1)


def _compare(op: str, width: int, a: Array, b: Array) -> Array:
    x, y = (_signed(a, width), _signed(b, width)) if ".s" in op else (_bits(a, width), _bits(b, width))
    how = op.split(".")[1]
    table = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    if how not in table:
        raise Undecided(op)
    return table[how].astype(np.uint64)


def _wide(op: str, width: int, a: Array, b: Array) -> Array:
    if ".wide" in op:
        x, y = (_signed(a, width), _signed(b, width)) if ".s" in op else (_bits(a, width), _bits(b, width))
        return (x * y).astype(np.uint64)
    if ".lo" not in op:
        raise Undecided(op)
    return _bits(a * b, width)


def _shift(op: str, width: int, a: Array, b: Array) -> Array:
    by = np.minimum(_bits(b, 32), np.uint64(63))
    if op.startswith("shl"):
        made = _bits(a << by, width)
    elif ".s" in op:
        made = _bits((_signed(a, width) >> by.astype(np.int64)).astype(np.uint64), width)
    else:
        made = _bits(a, width) >> by
    return np.where((_bits(b, 32) >= width) & (".s" not in op), np.uint64(0), made)


def _field(op: str, width: int, a: Array, start: Array, length: Array) -> Array:
    size = int(length[0])
    made = _bits(_bits(a, width) >> start, size)
    return _bits(_signed(made, size).astype(np.uint64), width) if ".s" in op else made


def _convert(op: str, a: Array) -> Array:
    to, of = re.findall(r"\.[usb](8|16|32|64)", op)
    source = op.rsplit(".", 1)[1]
    x = _signed(a, int(of)).astype(np.uint64) if source.startswith("s") else _bits(a, int(of))
    return _bits(x, int(to))


def computed(stem: str, op: str, width: int, given: Sequence[Array]) -> Array:
    """What an instruction makes of its operands. Raises Undecided."""
    a = given[0]
    if stem == "cvta":
        return a
    if stem == "mov":
        return (a != 0).astype(np.uint64) if ".pred" in op else _bits(a, width)
    if stem == "neg":
        return _bits(np.uint64(0) - a, width)
    if stem == "cvt":
        return _convert(op, a)
    b = given[1]
    simple = {"add": a + b, "sub": a - b, "and": a & b, "or": a | b, "xor": a ^ b}
    if stem in simple:
        return _bits(simple[stem], width)
    if stem == "setp":
        return _compare(op, width, a, b)
    if stem == "mul":
        return _wide(op, width, a, b)
    if stem in ("shl", "shr"):
        return _shift(op, width, a, b)
    c = given[2]
    if stem == "mad":
        return _bits(_wide(op, width, a, b) + c, 2 * width if ".wide" in op else width)
    if stem == "bfe":
        return _field(op, width, a, b, c)
    if stem == "selp":
        return _bits(np.where(c != 0, a, b), width)
    raise Undecided(op)
