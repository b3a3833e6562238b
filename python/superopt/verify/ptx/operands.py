"""Operands of PTX instructions: registers, immediates, vectors and addresses, as the core's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from superopt.errors import UnsupportedProgram
from superopt.verify.ptx.parser import SPECIAL, Kernel, Line

F32, F16, BF16, F16X2, BF16X2, F32X2, E4M3, E5M2, I1, I8, I16, I32, I64 = range(13)
TYPES = {"f32": F32, "f16": F16, "bf16": BF16, "f16x2": F16X2, "bf16x2": BF16X2, "f32x2": F32X2}
SHARED, GLOBAL = 0, 1
_IGNORED = {"rn", "ftz", "approx", "full", "sat_", "uni"}
_ZEROS = ("%tid.y", "%tid.z")
_WIDTHS = {"pred": 1} | {f"{kind}{bits}": bits for kind in "bsuf" for bits in (8, 16, 32, 64)}
_MOST_OFFSET = 1 << 32  # bytes
Arg = tuple[int, int]
"""A register's number or -1 for an immediate, and that."""


@dataclass
class Made:
    """What a rule says about an instruction."""

    op: str
    args: list[Arg]
    width: int = 0
    mode: int = 0
    aux: int = 0


@dataclass
class Decoder:
    """A kernel whose instructions are read one after the other; `numbers` are those of its registers so far."""

    kernel: Kernel
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    line: Line = field(default_factory=lambda: Line(0, "", False, "", ()))

    def unknown(self) -> UnsupportedProgram:
        """The error for the instruction that is being read."""
        return UnsupportedProgram(
            f"line {self.line.number} of its PTX: expected an instruction that can be verified, got opcode "
            f"'{self.line.opcode}'"
        )

    def register(self, name: str) -> int:
        """A register's number."""
        return self.numbers.setdefault(name, len(self.numbers))

    def value(self, text: str, width: int = 64) -> Arg:
        """A register or an immediate."""
        if text in self.kernel.widths or text in SPECIAL:
            return self.register(text), 0
        if text in _ZEROS:
            return -1, 0
        if text == "_":
            return -2, 0
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return -1, int(text[2:], 16)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return -1, int(text.rstrip("U"), 0) & ((1 << width) - 1)
        raise self.unknown()

    def constant(self, text: str) -> Arg:
        """An immediate."""
        register, value = self.value(text, 32)
        if register != -1:
            raise self.unknown()
        return register, value

    def vector(self, text: str, width: int = 64) -> list[Arg]:
        """Registers or immediates in braces, or one without."""
        inner = text[1:-1] if text.startswith("{") else text
        return [self.value(part.strip(), width) for part in inner.split(",")]

    def address(self, text: str) -> list[Arg]:
        """Base and offset."""
        found = re.fullmatch(r"\[\s*([%\w$@]+)\s*(?:\+\s*(-?\w+)\s*)?\]", text)
        if found is None:
            raise self.unknown()
        offset = int(found[2], 0) if found[2] else 0
        if abs(offset) >= _MOST_OFFSET:
            raise self.unknown()
        return [self.value(found[1]), (-1, offset)]

    def unextended(self, register: str, kind: str) -> None:
        """Refuse a register wider than a result of a signed type: the sign would fill it."""
        if is_signed(kind) and self.kernel.widths.get(register, bits_of(kind)) != bits_of(kind):
            raise self.unknown()

    def values(self, widths: Sequence[int] | int, count: int = 0) -> list[Arg]:
        """All operands: one for each width, or `count` of one width."""
        each = [widths] * count if isinstance(widths, int) else widths
        if len(each) != len(self.line.operands):
            raise self.unknown()
        return [self.value(o, w) for o, w in zip(self.line.operands, each, strict=True)]


Rule = Callable[[Decoder, list[str]], Made]
"""What an opcode's parts and operands mean."""


def only(d: Decoder, parts: Sequence[str], allowed: Sequence[str] | frozenset[str] = ()) -> None:
    """Refuse modifiers other than these and those that do not matter."""
    if any(p not in allowed and p not in _IGNORED for p in parts):
        raise d.unknown()


def bits_of(kind: str) -> int:
    """The bits of a type."""
    return _WIDTHS[kind]


def is_signed(kind: str) -> int:
    """1 for a type of signed integers, else 0."""
    return int(kind[0] == "s")
