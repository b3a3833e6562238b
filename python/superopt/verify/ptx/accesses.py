"""Rules for opcodes that access memory, order accesses, or multiply matrices."""

from __future__ import annotations

import re
from collections.abc import Mapping

from superopt.errors import UnsupportedProgram
from superopt.verify.ptx.operands import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F32X2,
    GLOBAL,
    SHARED,
    TYPES,
    Decoder,
    Made,
    Rule,
    bits_of,
    only,
)

# What the tensor core multiplies: types, and the bytes of an element. tf32 is an fp32 number of fewer digits.
_FACTORS = {"tf32": (F32, 4), "f16": (F16, 2), "bf16": (BF16, 2), "e4m3": (E4M3, 1), "e5m2": (E5M2, 1)}
_MOST_ACCESSED = 256  # bits
_ATOMICS = {"add": 0, "max": 1, "min": 2, "and": 3, "or": 4, "xor": 5}
_ORDERED = ("cas", "exch", "inc", "dec")
_SCOPES = ("relaxed", "acq_rel", "acquire", "release", "gpu", "cta", "sys", "noftz")


def _atomic(d: Decoder, parts: list[str]) -> Made:
    name, *modifiers, kind = parts
    if set(modifiers) & set(_ORDERED):
        raise UnsupportedProgram(f"{d.unknown().message}, whose outcome depends on the order of threads")
    spaces = {"global": GLOBAL, "shared": SHARED, "shared::cta": SHARED}
    (space,) = (spaces[m] for m in modifiers if m in spaces)
    (how,) = (_ATOMICS[m] for m in modifiers if m in _ATOMICS)
    count = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v[248]", m)), 1)
    only(d, modifiers, (*_SCOPES, *spaces, *_ATOMICS, f"v{count}"))
    # Other blocks may add to the same element.
    if space == GLOBAL and "cta" in modifiers:
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
    return Made("atomic", [*results, *d.address(place), *given], widths[kind], space + 2 * how, of)


def _access(d: Decoder, parts: list[str]) -> Made:
    name, space, *modifiers, kind = parts
    operands = d.line.operands
    if space == "param" and name == "ld" and not modifiers:
        to, source = operands
        if (param := source[1:-1].strip()) not in d.kernel.params:
            raise d.unknown()
        bits = d.kernel.param_widths[d.kernel.params.index(param)]
        if bits_of(kind) != bits or d.kernel.widths.get(to) != bits:
            raise d.unknown()
        return Made("mov", [d.value(to), (d.register(param), 0)], bits)
    spaces = {"shared": SHARED, "shared::cta": SHARED, "global": GLOBAL}
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
    only(d, modifiers, hints)
    width = bits_of(kind)
    if width < 8 or (width < 32 and kind[0] == "s"):  # those are extended by their sign
        raise d.unknown()
    place, data = operands[:2] if name == "st" else operands[1::-1]
    if len(operands) != 2:
        raise d.unknown()
    items = d.vector(data, width)
    many = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v\d", m)), 1)
    if len(items) != many or many * width > _MOST_ACCESSED:
        raise d.unknown()
    address = d.address(place)
    for text in data.strip("{}").split(","):
        if name == "ld":
            d.unextended(text.strip(), kind)
    if name == "st":
        return Made("store", [*address, *items], width, spaces[space])
    return Made("load", [*items, *address], width, spaces[space], int("nc" in modifiers))


_TO_SHARED = ("shared::cta.global", "shared::cluster.global")
_COMPLETES = ".mbarrier::complete_tx::bytes"


def _bulk(d: Decoder, text: str, adds: bool = False) -> Made:
    """cp.async.bulk of bytes, and of boxes of a tensor map, that stores or adds; `text` is what follows."""
    operands = d.line.operands
    if text == "commit_group":
        return Made("bulk_commit", [])
    if text in ("wait_group", "wait_group.read"):
        (left,) = operands
        return Made("bulk_wait", [d.constant(left)])
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
    return Made("bulk_load" if load else "bulk_store", args, mode=int(adds), aux=rank)


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


def _tensormap(d: Decoder, parts: list[str]) -> Made:
    operands = d.line.operands
    if ".".join(parts[1:]) == _PUBLISH:
        to, source, size = operands
        if int(size, 0) != 128:
            raise d.unknown()
        return Made("map_publish", [*d.address(to), *d.address(source)])
    action, how, name, *space = parts[1:]
    if (action, how) != ("replace", "tile") or space not in (
        ["shared::cta", "b1024", b] for b in ("b32", "b64")
    ):
        raise d.unknown()
    place, *dimension, value = operands
    (at,) = dimension or ["0"]
    args = [*d.address(place), d.constant(at), d.value(value)]
    return Made("map_replace", args, aux=_MAP_FIELDS.index(name))


def _cp(d: Decoder, parts: list[str]) -> Made:
    if parts[1:3] == ["async", "bulk"]:
        return _bulk(d, ".".join(parts[3:]))
    if parts[1:4] == ["reduce", "async", "bulk"] and ".".join(parts[-2:]) == "add.bulk_group":
        return _bulk(d, ".".join([*parts[4:-2], "bulk_group"]), adds=True)
    if parts[1:] == ["async", "commit_group"]:
        return Made("copy_commit", [])
    if parts[1:] == ["async", "wait_group"]:
        (left,) = d.line.operands
        return Made("copy_wait", [d.constant(left)])
    if parts[1:] == ["async", "wait_all"]:
        raise d.unknown()
    if parts[1:] not in (["async", kind, "shared", "global"] for kind in ("cg", "ca")):
        raise d.unknown()
    to, source, size, *used = d.line.operands
    args = [*d.address(to), *d.address(source), *(d.value(u, 32) for u in used)]
    # Another form has a predicate there that leaves the source out.
    sizes = all(d.kernel.widths.get(u, 32) == 32 for u in used)
    if len(used) > 1 or not sizes or int(size, 0) not in (4, 8, 16):
        raise d.unknown()
    return Made("copy", args, aux=int(size, 0))


def _matrix_move(d: Decoder, parts: list[str]) -> Made:
    name, *modifiers = parts
    only(d, modifiers, ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"))
    first, second = d.line.operands
    count = next(int(m[1:]) for m in modifiers if re.fullmatch(r"x\d", m))
    if len(d.vector(first if name == "ldmatrix" else second)) != count:
        raise d.unknown()
    if name == "ldmatrix":
        return Made(name, [*d.vector(first), *d.address(second)], mode="trans" in modifiers)
    return Made(name, [*d.address(first), *d.vector(second)], mode="trans" in modifiers)


def _mma(d: Decoder, parts: list[str]) -> Made:
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
    return Made(name, args, mode=left, aux=depth + (right << 16))


def _fence(d: Decoder, parts: list[str]) -> Made:
    if parts[1:] == ["proxy", "tensormap::generic", "acquire", "gpu"]:
        place, size = d.line.operands
        if int(size, 0) != 128:
            raise d.unknown()
        return Made("map_acquire", d.address(place))
    if parts[1:] not in (["proxy", "async", "shared::cta"], ["proxy", "async"]):
        raise d.unknown()
    return Made("proxy_fence", [])


def _wgmma(d: Decoder, parts: list[str]) -> Made:
    rest = parts[2:]
    if parts[1] in ("fence", "commit_group", "wait_group"):
        only(d, rest, ("sync", "aligned"))
        left = [d.constant(o) for o in d.line.operands]
        if len(left) != (parts[1] == "wait_group"):
            raise d.unknown()
        return Made(f"wgmma_{parts[1].removesuffix('_group')}", left)
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
    return Made("wgmma", args, mode=mode, aux=n + (second << 16))


def _mbarrier(d: Decoder, parts: list[str]) -> Made:
    operands = d.line.operands
    if parts[1] in ("init", "inval") and parts[2:] in (["shared::cta", "b64"], ["shared", "b64"]):
        count = [d.value(o, 32) for o in operands[1:]]
        if len(count) != (parts[1] == "init"):
            raise d.unknown()
        return Made(f"mbarrier_{parts[1]}", [*d.address(operands[0]), *count])
    if parts[1:] in (["arrive", "expect_tx", space, "b64"] for space in ("shared", "shared::cta")):
        state, place, count = operands
        if state != "_":
            raise d.unknown()
        return Made("mbarrier_expect", [*d.address(place), d.value(count, 32)])
    if parts[1:3] == ["try_wait", "parity"] and parts[3:] in (["shared", "b64"], ["shared::cta", "b64"]):
        done, place, parity, *_ = operands
        return Made("mbarrier_test", [d.value(done), *d.address(place), d.value(parity, 32)])
    raise d.unknown()


def _tcgen05(d: Decoder, parts: list[str]) -> Made:
    text, operands = ".".join(parts[1:]), d.line.operands
    if text == "alloc.cta_group::1.sync.aligned.shared::cta.b32":
        return Made("tensor_alloc", [*d.address(operands[0]), d.value(operands[1], 32)])
    if text == "relinquish_alloc_permit.cta_group::1.sync.aligned":
        return Made("tensor_release", [])
    if text == "dealloc.cta_group::1.sync.aligned.b32":
        return Made("tensor_free", d.values(32, 2))
    if text in ("wait::ld.sync.aligned", "wait::st.sync.aligned"):
        return Made("tensor_wait", [], mode=int("ld" in text))
    if text in ("fence::before_thread_sync", "fence::after_thread_sync"):
        return Made("nop", [])
    commits = ("commit.cta_group::1.mbarrier::arrive::one", "b64")
    if text in (".".join(commits), f"{commits[0]}.shared::cluster.{commits[1]}"):
        return Made("tensor_commit", d.address(operands[0]))
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
        return Made(op, ordered, mode=int(moved[2] == "16x32bx2"))
    kinds = ("f16", "tf32", "f8f6f4")
    if text in (f"mma.cta_group::1.kind::{k}" for k in kinds):
        to, a, b, description, enabled = operands
        tensor = a.startswith("[")
        left = d.address(a) if tensor else [d.value(a)]
        rest = [d.value(b), d.value(description, 32), d.value(enabled, 1)]
        return Made(
            "tensor_mma",
            [*d.address(to), *left, *rest],
            mode=tensor + 2 * kinds.index(text.rsplit(":", 1)[1]),
        )
    raise d.unknown()


ACCESSES: Mapping[str, Rule] = {
    **dict.fromkeys(("ld", "st"), _access),
    **dict.fromkeys(("ldmatrix", "stmatrix"), _matrix_move),
    **dict.fromkeys(("atom", "red"), _atomic),
    "cp": _cp,
    "tensormap": _tensormap,
    "mma": _mma,
    "fence": _fence,
    "wgmma": _wgmma,
    "mbarrier": _mbarrier,
    "tcgen05": _tcgen05,
}
"""By the first part of an opcode."""
