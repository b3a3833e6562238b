"""PTX instructions as the numbers that the core (`transforms/core/ptx`) runs.

One entry per family of opcodes says what its operands are; whatever is not here is refused by name, as are
modifiers that change what an instruction computes. Rounding, flushing of subnormals and approximation are not
represented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.transforms.core import _ptx
from superopt.verify.domains import Array
from superopt.verify.ptx.functions import fold
from superopt.verify.ptx.parser import Kernel, Line
from superopt.verify.ptx.templates import TEMPLATES

_OPS = _ptx.ops()
F32, F16, BF16, F16X2, BF16X2, F32X2, E4M3, E5M2 = range(8)
TYPES = {"f32": F32, "f16": F16, "bf16": BF16, "f16x2": F16X2, "bf16x2": BF16X2, "f32x2": F32X2}
# What the tensor core multiplies: types, and the bytes of an element. tf32 is an fp32 number of fewer digits.
_FACTORS = {"tf32": (F32, 4), "f16": (F16, 2), "bf16": (BF16, 2), "e4m3": (E4M3, 1), "e5m2": (E5M2, 1)}
_PAIRS = {"e4m3x2": E4M3, "e5m2x2": E5M2, "f16x2": F16}
_SHARED, _GLOBAL = 0, 1
_COMPARE = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4, "hs": 5}
_IGNORED = {"rn", "ftz", "approx", "full", "sat_", "uni"}
SPECIAL = (
    "%tid.x",
    "%laneid",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%ntid.x",
)
_ZEROS = ("%tid.y", "%tid.z")
_WIDTHS = {"pred": 1} | {f"{kind}{bits}": bits for kind in "bsuf" for bits in (8, 16, 32, 64)}
_MOST_OFFSET = 1 << 32  # bytes
_MOST_ACCESSED = 256  # bits
_Arg = tuple[int, int]


@dataclass
class Decoded:
    """A kernel as arrays; `numbers` are those of its registers, special values and parameters.

    `code` has a row for each instruction, the line in the file last; `opcodes` are their names.
    """

    kernel: Kernel
    code: Array
    args: Array
    numbers: Mapping[str, int]
    opcodes: tuple[str, ...]

    @property
    def preset(self) -> Mapping[str, int]:
        """The registers that hold special values and parameters."""
        return {n: i for n, i in self.numbers.items() if n in SPECIAL or n in self.kernel.params}


@dataclass
class _Made:
    """What a rule says about an instruction."""

    op: str
    args: list[_Arg]
    width: int = 0
    mode: int = 0
    aux: int = 0


@dataclass
class _Decoder:
    kernel: Kernel
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    line: Line = field(default_factory=lambda: Line(0, "", False, "", ()))

    def unknown(self) -> UnsupportedProgram:
        return UnsupportedProgram(
            f"line {self.line.number} of its PTX: expected an instruction that can be verified, got opcode "
            f"'{self.line.opcode}'"
        )

    def register(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def value(self, text: str, width: int = 64) -> _Arg:
        """A register or an immediate."""
        if text in self.kernel.widths or text in SPECIAL:
            return self.register(text), 0
        if text in _ZEROS:
            return -1, 0
        if text == "_":
            return -2, 0
        if text == "global_smem":
            return -1, _ptx.SHARED_BASE
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return -1, int(text[2:], 16)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return -1, int(text.rstrip("U"), 0) & ((1 << width) - 1)
        raise self.unknown()

    def constant(self, text: str) -> _Arg:
        """An immediate."""
        register, value = self.value(text, 32)
        if register != -1:
            raise self.unknown()
        return register, value

    def vector(self, text: str, width: int = 64) -> list[_Arg]:
        inner = text[1:-1] if text.startswith("{") else text
        return [self.value(part.strip(), width) for part in inner.split(",")]

    def address(self, text: str) -> list[_Arg]:
        """Base and offset."""
        found = re.fullmatch(r"\[\s*([%\w$@]+)\s*(?:\+\s*(-?\w+)\s*)?\]", text)
        if found is None:
            raise self.unknown()
        offset = int(found[2], 0) if found[2] else 0
        if abs(offset) >= _MOST_OFFSET:
            raise self.unknown()
        return [self.value(found[1]), (-1, offset)]

    def values(self, widths: Sequence[int] | int, count: int = 0) -> list[_Arg]:
        """All operands: one for each width, or `count` of one width."""
        each = [widths] * count if isinstance(widths, int) else widths
        if len(each) != len(self.line.operands):
            raise self.unknown()
        return [self.value(o, w) for o, w in zip(self.line.operands, each, strict=True)]


def decode(kernel: Kernel, numbers: Mapping[str, int] | None = None) -> Decoded:
    """The kernel as arrays; registers in `numbers` get these. Raises UnsupportedProgram for unknown opcodes."""
    kernel = fold(kernel)
    made = _Decoder(kernel, dict(numbers or {}))
    code: list[list[int]] = []
    args: list[_Arg] = []
    opcodes: list[str] = []
    for line in kernel.lines:
        made.line = line
        parts = line.opcode.split(".")
        rule = _RULES.get(parts[0])
        if rule is None:
            raise made.unknown()
        try:
            one = rule(made, parts)
        except (ValueError, IndexError, KeyError):
            raise made.unknown() from None
        predicate = made.register(line.predicate) if line.predicate else -1
        fields = [_OPS[one.op], one.width, one.mode, predicate, int(line.negated), len(args), len(one.args)]
        code.append([*fields, one.aux, line.number])
        args += one.args
        opcodes.append(line.opcode)
    words = [[r, v - (1 << 64) if v >= 1 << 63 else v] for r, v in args]
    return Decoded(
        kernel,
        np.asarray(code, np.int64).reshape(-1, 9),
        np.asarray(words, np.int64).reshape(-1, 2),
        made.numbers,
        tuple(opcodes),
    )


# --- rules: what an opcode's parts and operands mean -------------------------------------------------------

_Rule = Callable[[_Decoder, list[str]], _Made]


def _only(d: _Decoder, parts: Sequence[str], allowed: Sequence[str] | frozenset[str] = ()) -> None:
    """Refuse modifiers other than these and those that do not matter."""
    if any(p not in allowed and p not in _IGNORED for p in parts):
        raise d.unknown()


def _bits(kind: str) -> int:
    return _WIDTHS[kind]


def _signed(kind: str) -> int:
    return int(kind[0] == "s")


_OPERANDS = {"neg": 2, "abs": 2, "mad": 4, "fma": 4}


def _arithmetic(d: _Decoder, parts: list[str]) -> _Made:
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
        _only(d, modifiers)
        width = {F32: 32, F32X2: 64}.get(TYPES[kind], 32 if "x2" in kind else 16)
        op = opcode if opcode == "fma" else "f" + opcode
        return _Made(op, d.values(width, count), mode=TYPES[kind], aux=mixed)
    if opcode == "fma":
        raise d.unknown()
    width, signed = _bits(kind), _signed(kind)
    if "wide" in modifiers:
        _only(d, modifiers, ("wide",))
        widths = [2 * width, width, width, 2 * width][:count]
        return _Made(f"{opcode}_wide", d.values(widths), width, signed)
    if "hi" in modifiers and opcode == "mul":
        _only(d, modifiers, ("hi",))
        return _Made("mul_hi", d.values(width, count), width, signed)
    _only(d, modifiers, ("lo",))
    return _Made(opcode, d.values(width, count), width, signed)


def _bitwise(d: _Decoder, parts: list[str]) -> _Made:
    name, kind = parts
    ops = {"and": "and_", "or": "or_", "xor": "xor_", "not": "not_"}
    return _Made(ops[name], d.values(_bits(kind), 2 if name == "not" else 3), _bits(kind))


def _shift(d: _Decoder, parts: list[str]) -> _Made:
    name, kind = parts
    return _Made(name, d.values([_bits(kind), _bits(kind), 32]), _bits(kind), _signed(kind))


def _bfe(d: _Decoder, parts: list[str]) -> _Made:
    width = _bits(parts[-1])
    return _Made("bfe", d.values([width, width, 32, 32]), width, _signed(parts[-1]))


def _setp(d: _Decoder, parts: list[str]) -> _Made:
    _, compare, kind = parts
    if kind in TYPES and kind != "f32x2" and compare.removesuffix("u") in ("lt", "le", "gt", "ge"):
        to, *numbers = d.line.operands
        width = 16 if kind in ("f16", "bf16") else 32
        results = [d.value(p.strip(), 1) for p in to.split("|")]
        first, second = (d.value(n, width) for n in numbers)
        if len(results) != (2 if "x2" in kind else 1):
            raise d.unknown()
        how = _COMPARE[compare.removesuffix("u")]  # what is stored is no NaN
        return _Made("fsetp", [*results, first, second], mode=TYPES[kind], aux=how)
    if kind == "f32" and compare in ("num", "nan"):  # what is stored is no NaN
        return _Made("mov", [d.value(d.line.operands[0], 1), (-1, int(compare == "num"))], 1)
    if kind in TYPES:
        raise d.unknown()
    return _Made("setp", d.values(_bits(kind), 3), _bits(kind), _signed(kind), _COMPARE[compare])


def _selp(d: _Decoder, parts: list[str]) -> _Made:
    return _Made("selp", d.values([_bits(parts[1])] * 3 + [1]), _bits(parts[1]))


def _mov(d: _Decoder, parts: list[str]) -> _Made:
    width = _bits(parts[1])
    to, source = d.line.operands
    if to.startswith("{") or source.startswith("{"):
        unpacks = to.startswith("{")
        inner = d.vector(to if unpacks else source)
        if len(inner) not in (2, 4) or 16 * len(inner) > width:
            raise d.unknown()
        if unpacks:
            return _Made("unpack", [*inner, d.value(source, width)], width)
        return _Made("pack", [d.value(to), *inner], width)
    return _Made("mov", [d.value(to), d.value(source, width)], width)


def _cvt(d: _Decoder, parts: list[str]) -> _Made:
    *modifiers, to, source = parts[1:]
    if to == "tf32":
        _only(d, modifiers, ("rna",))
        to, modifiers = "f32", []
    if {to, source} & {"e4m3x2", "e5m2x2"}:
        _only(d, modifiers, ("satfinite",))
        if source == "f32":
            return _Made("pack_halves", d.values(32, 3), mode=_PAIRS[to])
        if "f16x2" not in (to, source):
            raise d.unknown()
        return _Made("convert_pair", d.values(32, 2), mode=_PAIRS[to], aux=_PAIRS[source])
    if to in ("f16x2", "bf16x2") and source == "f32":
        _only(d, modifiers)
        return _Made("pack_halves", d.values(32, 3), mode=F16 if to == "f16x2" else BF16)
    if to in TYPES and source in TYPES:
        _only(d, modifiers)
        return _Made("to_float", d.values(32, 2), mode=TYPES[to], aux=TYPES[source])
    if to in TYPES:
        _only(d, modifiers)
        if _bits(source) != 32:
            raise d.unknown()
        return _Made("from_integer", d.values(32, 2), mode=TYPES[to], aux=_signed(source))
    if source in TYPES or modifiers:
        raise d.unknown()
    return _Made("convert", d.values([_bits(to), _bits(source)]), _bits(to), _signed(source), _bits(source))


def _function(op: str) -> _Rule:
    def rule(d: _Decoder, parts: list[str]) -> _Made:
        _only(d, parts[1:-1])
        return _Made(op, d.values(32, 2), mode=TYPES[parts[-1]])

    return rule


def _bra(d: _Decoder, parts: list[str]) -> _Made:
    _only(d, parts[1:])
    (label,) = d.line.operands
    return _Made("branch", [], aux=d.kernel.labels[label])


def _ret(d: _Decoder, parts: list[str]) -> _Made:
    _only(d, parts[1:])
    return _Made("ret", [])


def _trap(d: _Decoder, parts: list[str]) -> _Made:
    _only(d, parts[1:])
    return _Made("trap", [])


def _bar(d: _Decoder, parts: list[str]) -> _Made:
    if parts[1:] == ["warp", "sync"]:
        return _Made("warp_barrier", d.values(32, 1))
    how = [p for p in parts[1:] if p not in ("cta", "aligned")]
    if how not in (["sync"], ["arrive"]) or not 1 <= len(d.line.operands) <= 2:
        raise d.unknown()
    number, count = [*d.line.operands, "0"][:2]
    if how == ["arrive"] and count == "0":
        raise d.unknown()
    return _Made("barrier" if how == ["sync"] else "arrive", [d.value(number, 32), d.value(count, 32)])


_ATOMICS = {"add": 0, "max": 1, "min": 2, "and": 3, "or": 4, "xor": 5}
_ORDERED = ("cas", "exch", "inc", "dec")
_SCOPES = ("relaxed", "acq_rel", "acquire", "release", "gpu", "cta", "sys", "noftz")


def _atomic(d: _Decoder, parts: list[str]) -> _Made:
    name, *modifiers, kind = parts
    if set(modifiers) & set(_ORDERED):
        raise UnsupportedProgram(f"{d.unknown().message}, whose outcome depends on the order of threads")
    spaces = {"global": _GLOBAL, "shared": _SHARED, "shared::cta": _SHARED}
    (space,) = (spaces[m] for m in modifiers if m in spaces)
    (how,) = (_ATOMICS[m] for m in modifiers if m in _ATOMICS)
    count = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v[248]", m)), 1)
    _only(d, modifiers, (*_SCOPES, *spaces, *_ATOMICS, f"v{count}"))
    # Other blocks may add to the same element.
    if space == _GLOBAL and "cta" in modifiers:
        raise d.unknown()
    widths = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "u32": 32, "s32": 32, "b32": 32}
    # Integers are marked by a type that no atomic has.
    of = TYPES.get(kind, F32X2 + 256 * (kind == "s32"))
    if kind == "f32x2":
        raise d.unknown()
    to, place, values = d.line.operands if name == "atom" else ("", *d.line.operands)
    results = d.vector(to) if to else [(-2, 0)] * count
    given = d.vector(values, widths[kind])
    if len(results) != count or len(given) != count:
        raise d.unknown()
    return _Made("atomic", [*results, *d.address(place), *given], widths[kind], space + 2 * how, of)


def _prmt(d: _Decoder, parts: list[str]) -> _Made:
    if parts[1:] != ["b32"]:
        raise d.unknown()
    return _Made("prmt", d.values(32, 4), 32)


def _griddepcontrol(d: _Decoder, parts: list[str]) -> _Made:
    """What comes before `wait` may run beside the kernel before; that the next one may start changes nothing."""
    if parts[1:] not in (["wait"], ["launch_dependents"]):
        raise d.unknown()
    return _Made("grid_wait" if parts[1] == "wait" else "nop", [])


def _access(d: _Decoder, parts: list[str]) -> _Made:
    name, space, *modifiers, kind = parts
    operands = d.line.operands
    if space == "param" and name == "ld" and not modifiers:
        to, source = operands
        if (param := source[1:-1].strip()) not in d.kernel.params:
            raise d.unknown()
        return _Made("mov", [d.value(to), (d.register(param), 0)], _bits(kind))
    spaces = {"shared": _SHARED, "shared::cta": _SHARED, "global": _GLOBAL}
    # Where data is cached does not change it: device memory of a launch is not written by others.
    hints = (
        "v2",
        "v4",
        "v8",
        "ca",
        "cg",
        "cs",
        "nc",
        "wb",
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
    )
    _only(d, modifiers, hints)
    width = _bits(kind)
    if width < 8:
        raise d.unknown()
    place, data = operands[:2] if name == "st" else operands[1::-1]
    if len(operands) != 2:
        raise d.unknown()
    items = d.vector(data, width)
    many = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v\d", m)), 1)
    if len(items) != many or many * width > _MOST_ACCESSED:
        raise d.unknown()
    address = d.address(place)
    if name == "st":
        return _Made("store", [*address, *items], width, spaces[space])
    return _Made("load", [*items, *address], width, spaces[space], int("nc" in modifiers))


_TO_SHARED = ("shared::cta.global", "shared::cluster.global")
_COMPLETES = ".mbarrier::complete_tx::bytes"


def _bulk(d: _Decoder, text: str, adds: bool = False) -> _Made:
    """cp.async.bulk of bytes, and of boxes of a tensor map, that stores or adds; `text` is what follows."""
    operands = d.line.operands
    if text == "commit_group":
        return _Made("bulk_commit", [])
    if text in ("wait_group", "wait_group.read"):
        (left,) = operands
        return _Made("bulk_wait", [d.constant(left)])
    found = re.fullmatch(r"(?:tensor\.([1-5])d\.)?(.*)", text)
    assert found is not None
    rank, kind = int(found[1] or 0), found[2].replace(".tile", "")
    load = not adds and kind in [to + _COMPLETES for to in _TO_SHARED]
    if not load and kind != "global.shared::cta.bulk_group":
        raise d.unknown()
    # In shared memory, in global memory, the size or nothing, the mbarrier.
    size = [] if rank else [operands[2]]
    if len(operands) != 2 + len(size) + load:
        raise d.unknown()
    coordinates = size
    places = [d.address(o) for o in operands[:2] if o.find(",") < 0]
    if rank:
        box = re.fullmatch(r"\[\s*([^,]+?)\s*,\s*(\{[^{}]*\})\s*\]", operands[1 if load else 0])
        if box is None:
            raise d.unknown()
        places.insert(1 if load else 0, d.address(f"[{box[1]}]"))
        coordinates = [c.strip() for c in box[2][1:-1].split(",")]
        if len(coordinates) != rank:
            raise d.unknown()
    args = [*places[0], *places[1], *(d.address(operands[-1]) if load else [])]
    args += [d.value(c, 32) for c in coordinates]
    return _Made("bulk_load" if load else "bulk_store", args, mode=int(adds), aux=rank)


_MAP_FIELDS = (
    "global_address",
    "rank",
    "box_dim",
    "global_dim",
    "global_stride",
    "element_stride",
    "elemtype",
    "interleave_layout",
    "swizzle_mode",
    "fill_mode",
)
_PUBLISH = "cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"


def _tensormap(d: _Decoder, parts: list[str]) -> _Made:
    operands = d.line.operands
    if ".".join(parts[1:]) == _PUBLISH:
        to, source, size = operands
        if int(size, 0) != 128:
            raise d.unknown()
        return _Made("map_publish", [*d.address(to), *d.address(source)])
    action, how, name, *space = parts[1:]
    if (action, how) != ("replace", "tile") or space not in (
        ["shared::cta", "b1024", b] for b in ("b32", "b64")
    ):
        raise d.unknown()
    place, *dimension, value = operands
    (at,) = dimension or ["0"]
    args = [*d.address(place), d.constant(at), d.value(value)]
    return _Made("map_replace", args, aux=_MAP_FIELDS.index(name))


def _cp(d: _Decoder, parts: list[str]) -> _Made:
    if parts[1:3] == ["async", "bulk"]:
        return _bulk(d, ".".join(parts[3:]))
    if parts[1:4] == ["reduce", "async", "bulk"] and ".".join(parts[-2:]) == "add.bulk_group":
        return _bulk(d, ".".join([*parts[4:-2], "bulk_group"]), adds=True)
    if parts[1:] == ["async", "commit_group"]:
        return _Made("copy_commit", [])
    if parts[1:] == ["async", "wait_group"]:
        (left,) = d.line.operands
        return _Made("copy_wait", [d.constant(left)])
    if parts[1:] == ["async", "wait_all"]:
        raise d.unknown()
    if parts[1:] not in (["async", kind, "shared", "global"] for kind in ("cg", "ca")):
        raise d.unknown()
    to, source, size, *used = d.line.operands
    args = [*d.address(to), *d.address(source), *(d.value(u, 32) for u in used)]
    if len(used) > 1 or int(size, 0) not in (4, 8, 16):
        raise d.unknown()
    return _Made("copy", args, aux=int(size, 0))


def _matrix_move(d: _Decoder, parts: list[str]) -> _Made:
    name, *modifiers = parts
    _only(
        d, modifiers, ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    )
    first, second = d.line.operands
    count = next(int(m[1:]) for m in modifiers if re.fullmatch(r"x\d", m))
    if len(d.vector(first if name == "ldmatrix" else second)) != count:
        raise d.unknown()
    if name == "ldmatrix":
        return _Made(name, [*d.vector(first), *d.address(second)], mode="trans" in modifiers)
    return _Made(name, [*d.address(first), *d.vector(second)], mode="trans" in modifiers)


def _mma(d: _Decoder, parts: list[str]) -> _Made:
    name, sync, aligned, shape, row, column, *types = parts
    if (sync, aligned, row, column) != ("sync", "aligned", "row", "col"):
        raise d.unknown()
    (left, size), (right, other) = _FACTORS[types[1]], _FACTORS[types[2]]
    if [types[0], types[3]] != ["f32", "f32"] or size != other or (size > 1 and left != right):
        raise d.unknown()
    depth = int(shape.removeprefix("m16n8k"))
    if depth * size not in (16, 32):
        raise d.unknown()
    args = [a for o in d.line.operands for a in d.vector(o, 32)]
    if len(args) != 4 + 3 * depth * size // 16 + 4:
        raise d.unknown()
    return _Made(name, args, mode=left, aux=depth + (right << 16))


def _shfl(d: _Decoder, parts: list[str]) -> _Made:
    _, sync, how, kind = parts
    if sync != "sync" or kind != "b32" or "|" in d.line.operands[0]:
        raise d.unknown()
    return _Made("shuffle", d.values(32, 5), 32, {"bfly": 0, "idx": 1}[how])


def _elect(d: _Decoder, parts: list[str]) -> _Made:
    if parts[1:] != ["sync"]:
        raise d.unknown()
    both, members = d.line.operands
    leader, chosen = both.split("|")
    return _Made("elect", [d.value(leader), d.value(chosen), d.value(members, 32)])


def _redux(d: _Decoder, parts: list[str]) -> _Made:
    _, sync, how, kind = parts
    if sync != "sync" or kind != "f32":
        raise d.unknown()
    return _Made("reduce", d.values(32, 3), 32, {"min": 0, "max": 1}[how])


def _cvta(d: _Decoder, parts: list[str]) -> _Made:
    """Addresses in global memory are generic ones."""
    if parts[1:] not in (["global", "u64"], ["to", "global", "u64"]):
        raise d.unknown()
    return _Made("mov", d.values(64, 2), 64)


def _fence(d: _Decoder, parts: list[str]) -> _Made:
    if parts[1:] == ["proxy", "tensormap::generic", "acquire", "gpu"]:
        place, size = d.line.operands
        if int(size, 0) != 128:
            raise d.unknown()
        return _Made("map_acquire", d.address(place))
    if parts[1:] not in (["proxy", "async", "shared::cta"], ["proxy", "async"]):
        raise d.unknown()
    return _Made("proxy_fence", [])


def _wgmma(d: _Decoder, parts: list[str]) -> _Made:
    rest = parts[2:]
    if parts[1] in ("fence", "commit_group", "wait_group"):
        _only(d, rest, ("sync", "aligned"))
        left = [d.constant(o) for o in d.line.operands]
        if len(left) != (parts[1] == "wait_group"):
            raise d.unknown()
        return _Made(f"wgmma_{parts[1].removesuffix('_group')}", left)
    shape, *types = rest[2:]
    found = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if parts[1] != "mma_async" or rest[:2] != ["sync", "aligned"] or found is None or len(types) != 3:
        raise d.unknown()
    n, (kind, size), (second, other) = int(found[1]), _FACTORS[types[1]], _FACTORS[types[2]]
    if types[0] != "f32" or size != other or (size > 1 and kind != second) or int(found[2]) * size != 32:
        raise d.unknown()
    if n not in range(8, 257, 8):
        raise d.unknown()
    to, a, b, scale, *flags = d.line.operands
    registers = a.startswith("{")
    wanted = 2 + (size == 2) * (1 if registers else 2)
    if flags[:2] != ["1", "1"] or len(flags) != wanted or any(f not in ("0", "1") for f in flags):
        raise d.unknown()
    transposed = [False, False, *(f == "1" for f in flags[2:])][-2:]
    args = [*d.vector(to), *d.vector(a), d.value(b), d.value(scale, 1)]
    if len(args) != n // 2 + (4 if registers else 1) + 2:
        raise d.unknown()
    mode = kind + 16 * registers + 32 * transposed[0] + 64 * transposed[1]
    return _Made("wgmma", args, mode=mode, aux=n + (second << 16))


def _mbarrier(d: _Decoder, parts: list[str]) -> _Made:
    operands = d.line.operands
    if parts[1] in ("init", "inval") and parts[2:] in (["shared::cta", "b64"], ["shared", "b64"]):
        count = [d.value(o, 32) for o in operands[1:]]
        if len(count) != (parts[1] == "init"):
            raise d.unknown()
        return _Made(f"mbarrier_{parts[1]}", [*d.address(operands[0]), *count])
    if parts[1:] in (["arrive", "expect_tx", space, "b64"] for space in ("shared", "shared::cta")):
        state, place, count = operands
        if state != "_":
            raise d.unknown()
        return _Made("mbarrier_expect", [*d.address(place), d.value(count, 32)])
    if parts[1:3] == ["try_wait", "parity"] and parts[3:] in (["shared", "b64"], ["shared::cta", "b64"]):
        done, place, parity, *_ = operands
        return _Made("mbarrier_test", [d.value(done), *d.address(place), d.value(parity, 32)])
    raise d.unknown()


def _tcgen05(d: _Decoder, parts: list[str]) -> _Made:
    text, operands = ".".join(parts[1:]), d.line.operands
    if text == "alloc.cta_group::1.sync.aligned.shared::cta.b32":
        return _Made("tensor_alloc", [*d.address(operands[0]), d.value(operands[1], 32)])
    if text == "relinquish_alloc_permit.cta_group::1.sync.aligned":
        return _Made("tensor_release", [])
    if text == "dealloc.cta_group::1.sync.aligned.b32":
        return _Made("tensor_free", d.values(32, 2))
    if text in ("wait::ld.sync.aligned", "wait::st.sync.aligned"):
        return _Made("tensor_wait", [], mode=int("ld" in text))
    if text in ("fence::before_thread_sync", "fence::after_thread_sync"):
        return _Made("nop", [])
    commits = ("commit.cta_group::1.mbarrier::arrive::one", "b64")
    if text in (".".join(commits), f"{commits[0]}.shared::cluster.{commits[1]}"):
        return _Made("tensor_commit", d.address(operands[0]))
    if moved := re.fullmatch(r"(ld|st)\.sync\.aligned\.(32x32b|16x32bx2)\.x(\d+)\.b32", text):
        place, data = operands[:2] if moved[1] == "st" else operands[1::-1]
        if moved[2] == "16x32bx2":
            place, half, data = (
                (operands[0], operands[1], operands[2])
                if moved[1] == "st"
                else (operands[1], operands[2], operands[0])
            )
        else:
            half = "0"
        items, address = d.vector(data, 32), [*d.address(place), d.constant(half)]
        if len(items) != int(moved[3]):
            raise d.unknown()
        ordered = [*items, *address] if moved[1] == "ld" else [*address, *items]
        op = "tensor_load" if moved[1] == "ld" else "tensor_store"
        return _Made(op, ordered, mode=int(moved[2] == "16x32bx2"))
    kinds = ("f16", "tf32", "f8f6f4")
    if text in (f"mma.cta_group::1.kind::{k}" for k in kinds):
        to, a, b, description, enabled = operands
        tensor = a.startswith("[")
        left = d.address(a) if tensor else [d.value(a)]
        rest = [d.value(b), d.value(description, 32), d.value(enabled, 1)]
        return _Made(
            "tensor_mma",
            [*d.address(to), *left, *rest],
            mode=tensor + 2 * kinds.index(text.rsplit(":", 1)[1]),
        )
    raise d.unknown()


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "mad", "neg", "min", "max", "div", "rem", "abs", "fma"), _arithmetic
    ),
    **dict.fromkeys(("and", "or", "xor", "not"), _bitwise),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("ld", "st"), _access),
    **dict.fromkeys(("ldmatrix", "stmatrix"), _matrix_move),
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
    **dict.fromkeys(("atom", "red"), _atomic),
    "prmt": _prmt,
    "griddepcontrol": _griddepcontrol,
    "cp": _cp,
    "cvta": _cvta,
    "tensormap": _tensormap,
    "mma": _mma,
    "shfl": _shfl,
    "elect": _elect,
    "redux": _redux,
    "fence": _fence,
    "wgmma": _wgmma,
    "mbarrier": _mbarrier,
    "tcgen05": _tcgen05,
}
