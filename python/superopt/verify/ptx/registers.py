"""Rules for opcodes that compute with registers, exchange them, or branch."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.verify.ptx.operands import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F32X2,
    TYPES,
    Decoder,
    Made,
    Rule,
    bits_of,
    is_signed,
    only,
)
from superopt.verify.ptx.templates import TEMPLATES

_PAIRS = {"e4m3x2": E4M3, "e5m2x2": E5M2, "f16x2": F16}
_COMPARE = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4, "hs": 5}
_OPERANDS = {"neg": 2, "abs": 2, "mad": 4, "fma": 4}


def _arithmetic(d: Decoder, parts: list[str]) -> Made:
    """add, sub, mul, mad, neg, min, max, div, rem, abs: of integers or of numbers; fma."""
    opcode, *modifiers, kind = parts
    count = _OPERANDS.get(opcode, 3)
    if kind in TYPES:
        if opcode in ("mad", "abs", "rem"):
            raise d.unknown()
        if opcode in ("max", "min") and len(d.line.operands) == 4 and kind == "f32":
            count = 4
        mixed = 0
        if opcode in ("add", "sub", "fma") and kind in ("f16", "bf16") and "f32" in modifiers:
            modifiers.remove("f32")
            mixed, kind = TYPES[kind], "f32"
        only(d, modifiers)
        width = {F32: 32, F32X2: 64}.get(TYPES[kind], 32 if "x2" in kind else 16)
        op = opcode if opcode == "fma" else "f" + opcode
        return Made(op, d.values(width, count), mode=TYPES[kind], aux=mixed)
    if opcode == "fma":
        raise d.unknown()
    width, signed = bits_of(kind), is_signed(kind)
    if "wide" in modifiers and opcode in ("mul", "mad"):
        only(d, modifiers, ("wide",))
        widths = [2 * width, width, width, 2 * width][:count]
        return Made(f"{opcode}_wide", d.values(widths), width, signed)
    if "hi" in modifiers and opcode == "mul":
        only(d, modifiers, ("hi",))
        return Made("mul_hi", d.values(width, count), width, signed)
    only(d, modifiers, ("lo",))
    return Made(opcode, d.values(width, count), width, signed)


def _bitwise(d: Decoder, parts: list[str]) -> Made:
    name, kind = parts
    ops = {"and": "and_", "or": "or_", "xor": "xor_", "not": "not_"}
    return Made(ops[name], d.values(bits_of(kind), 2 if name == "not" else 3), bits_of(kind))


def _shift(d: Decoder, parts: list[str]) -> Made:
    name, kind = parts
    return Made(name, d.values([bits_of(kind), bits_of(kind), 32]), bits_of(kind), is_signed(kind))


def _bfe(d: Decoder, parts: list[str]) -> Made:
    width = bits_of(parts[-1])
    return Made("bfe", d.values([width, width, 32, 32]), width, is_signed(parts[-1]))


def _setp(d: Decoder, parts: list[str]) -> Made:
    _, compare, kind = parts
    if kind in TYPES and kind != "f32x2" and compare.removesuffix("u") in ("lt", "le", "gt", "ge"):
        to, *numbers = d.line.operands
        width = 16 if kind in ("f16", "bf16") else 32
        results = [d.value(p.strip(), 1) for p in to.split("|")]
        first, second = (d.value(n, width) for n in numbers)
        if len(results) != (2 if "x2" in kind else 1):
            raise d.unknown()
        how = _COMPARE[compare.removesuffix("u")]  # what is stored is no NaN
        return Made("fsetp", [*results, first, second], mode=TYPES[kind], aux=how)
    if kind == "f32" and compare in ("num", "nan"):
        return Made("fdefined", d.values([1, 32, 32]), mode=F32, aux=int(compare == "num"))
    if kind in TYPES:
        raise d.unknown()
    return Made("setp", d.values(bits_of(kind), 3), bits_of(kind), is_signed(kind), _COMPARE[compare])


def _selp(d: Decoder, parts: list[str]) -> Made:
    return Made("selp", d.values([bits_of(parts[1])] * 3 + [1]), bits_of(parts[1]))


def _mov(d: Decoder, parts: list[str]) -> Made:
    width = bits_of(parts[1])
    to, source = d.line.operands
    if to.startswith("{") or source.startswith("{"):
        unpacks = to.startswith("{")
        inner = d.vector(to if unpacks else source)
        if len(inner) not in (2, 4) or 16 * len(inner) > width:
            raise d.unknown()
        if unpacks:
            return Made("unpack", [*inner, d.value(source, width)], width)
        return Made("pack", [d.value(to), *inner], width)
    return Made("mov", [d.value(to), d.value(source, width)], width)


def _cvt(d: Decoder, parts: list[str]) -> Made:
    *modifiers, to, source = parts[1:]
    if to == "tf32":
        only(d, modifiers, ("rna",))
        to, modifiers = "f32", []
    if {to, source} & {"e4m3x2", "e5m2x2"}:
        only(d, modifiers, ("satfinite",))
        if source == "f32":
            return Made("pack_halves", d.values(32, 3), mode=_PAIRS[to])
        if "f16x2" not in (to, source):
            raise d.unknown()
        return Made("convert_pair", d.values(32, 2), mode=_PAIRS[to], aux=_PAIRS[source])
    if to in ("f16x2", "bf16x2") and source == "f32":
        only(d, modifiers)
        return Made("pack_halves", d.values(32, 3), mode=F16 if to == "f16x2" else BF16)
    if to in TYPES and source in TYPES:
        only(d, modifiers)
        return Made("to_float", d.values(32, 2), mode=TYPES[to], aux=TYPES[source])
    if to in TYPES:
        only(d, modifiers)
        if to not in ("f32", "f16", "bf16") or (width := bits_of(source)) < 8:
            raise d.unknown()
        args = d.values([32 if to == "f32" else 16, width])
        return Made("from_integer", args, width, mode=TYPES[to], aux=is_signed(source))
    if source in TYPES or modifiers:
        raise d.unknown()
    register = d.kernel.widths.get(d.line.operands[0], bits_of(to))
    if is_signed(to) and bits_of(to) < min(register, bits_of(source)):  # cut, and filled by its sign
        return Made("convert", d.values([register, bits_of(source)]), register, 1, bits_of(to))
    d.unextended(d.line.operands[0], to)
    return Made(
        "convert", d.values([bits_of(to), bits_of(source)]), bits_of(to), is_signed(source), bits_of(source)
    )


def _function(op: str) -> Rule:
    def rule(d: Decoder, parts: list[str]) -> Made:
        only(d, parts[1:-1])
        return Made(op, d.values(32, 2), mode=TYPES[parts[-1]])

    return rule


def _bra(d: Decoder, parts: list[str]) -> Made:
    only(d, parts[1:])
    (label,) = d.line.operands
    return Made("branch", [], mode=int("uni" in parts), aux=d.kernel.labels[label])


def _ret(d: Decoder, parts: list[str]) -> Made:
    if parts[1:]:
        raise d.unknown()
    return Made("ret", [])


def _trap(d: Decoder, parts: list[str]) -> Made:
    only(d, parts[1:])
    return Made("trap", [])


def _bar(d: Decoder, parts: list[str]) -> Made:
    if parts[1:] == ["warp", "sync"]:
        return Made("warp_barrier", d.values(32, 1))
    how = [p for p in parts[1:] if p not in ("cta", "aligned")]
    if how not in (["sync"], ["arrive"]) or not 1 <= len(d.line.operands) <= 2:
        raise d.unknown()
    number, count = [*d.line.operands, "0"][:2]
    if how == ["arrive"] and count == "0":
        raise d.unknown()
    return Made("barrier" if how == ["sync"] else "arrive", [d.value(number, 32), d.value(count, 32)])


def _prmt(d: Decoder, parts: list[str]) -> Made:
    if parts[1:] != ["b32"]:
        raise d.unknown()
    return Made("prmt", d.values(32, 4), 32)


def _griddepcontrol(d: Decoder, parts: list[str]) -> Made:
    """What comes before `wait` may run beside the kernel before; that the next one may start changes nothing."""
    if parts[1:] not in (["wait"], ["launch_dependents"]):
        raise d.unknown()
    return Made("grid_wait" if parts[1] == "wait" else "nop", [])


def _shfl(d: Decoder, parts: list[str]) -> Made:
    _, sync, how, kind = parts
    if sync != "sync" or kind != "b32" or "|" in d.line.operands[0]:
        raise d.unknown()
    return Made("shuffle", d.values(32, 5), 32, {"bfly": 0, "idx": 1}[how])


def _elect(d: Decoder, parts: list[str]) -> Made:
    if parts[1:] != ["sync"]:
        raise d.unknown()
    both, members = d.line.operands
    leader, chosen = both.split("|")
    return Made("elect", [d.value(leader), d.value(chosen), d.value(members, 32)])


def _redux(d: Decoder, parts: list[str]) -> Made:
    _, sync, how, kind = parts
    if sync != "sync" or kind != "f32":
        raise d.unknown()
    return Made("reduce", d.values(32, 3), 32, {"min": 0, "max": 1}[how])


def _cvta(d: Decoder, parts: list[str]) -> Made:
    """Addresses in global memory are generic ones."""
    if parts[1:] not in (["global", "u64"], ["to", "global", "u64"]):
        raise d.unknown()
    return Made("mov", d.values(64, 2), 64)


REGISTERS: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "mad", "neg", "min", "max", "div", "rem", "abs", "fma"), _arithmetic
    ),
    **dict.fromkeys(("and", "or", "xor", "not"), _bitwise),
    **dict.fromkeys(("shl", "shr"), _shift),
    **{name: _function(name) for name in ("ex2", "lg2", "sqrt", "rsqrt", "rcp")},
    **{f"@{name}": _function(name) for name in TEMPLATES},
    "bfe": _bfe,
    "setp": _setp,
    "selp": _selp,
    "mov": _mov,
    "cvt": _cvt,
    "bra": _bra,
    "ret": _ret,
    "trap": _trap,
    "bar": _bar,
    "barrier": _bar,
    "prmt": _prmt,
    "griddepcontrol": _griddepcontrol,
    "cvta": _cvta,
    "shfl": _shfl,
    "elect": _elect,
    "redux": _redux,
}
"""By the first part of an opcode."""
