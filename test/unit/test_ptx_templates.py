"""The templates of `superopt.verify.ptx.templates` are the functions that they are named after.

Each is written as C, instruction by instruction, and compared with the C library in fp64 on every n-th number of
32 bits; `make ptx-functions` tries all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from superopt.verify.ptx.templates import TEMPLATES, Expression

sys.path.insert(1, str(Path(__file__).parents[1]))
from about import about

STRIDE = int(os.environ.get("SUPEROPT_TEST_FLOATS", "997"))
RECORD = os.environ.get("SUPEROPT_TEST_FLOATS_JSON", "")
UNITS = 4  # of the last place

INSTRUCTIONS = """
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef uint32_t u32;
typedef uint64_t u64;
static inline float f(u32 a) { float x; memcpy(&x, &a, 4); return x; }
static inline double d(u64 a) { double x; memcpy(&x, &a, 8); return x; }
static inline u32 w(float x) { u32 a; memcpy(&a, &x, 4); return a; }
static inline u64 v(double x) { u64 a; memcpy(&a, &x, 8); return a; }
static inline u32 abs_f32(u32 a) { return w(fabsf(f(a))); }
static inline u32 neg_f32(u32 a) { return w(-f(a)); }
static inline u32 neg_s32(u32 a) { return -a; }
static inline u32 ex2_f32(u32 a) { return w(exp2f(f(a))); }
static inline u32 cvt_f32_s32(u32 a) { return w((float)(int32_t)a); }
// To the nearest integer; 0 for what is too large.
static inline u32 cvt_rni_s32_f32(u32 a) { return fabsf(f(a)) < 0x1p30f ? (u32)(int32_t)rintf(f(a)) : 0; }
static inline u64 cvt_u64_u32(u32 a) { return a; }
static inline u64 cvt_f64_s64(u64 a) { return v((double)(int64_t)a); }
static inline u32 cvt_f32_f64(u64 a) { return w((float)d(a)); }
static inline u32 setp_ge_f32(u32 a, u32 b) { return f(a) >= f(b); }
static inline u32 setp_lt_f32(u32 a, u32 b) { return f(a) < f(b); }
static inline u32 setp_eq_f32(u32 a, u32 b) { return f(a) == f(b); }
static inline u32 setp_lt_u32(u32 a, u32 b) { return a < b; }
static inline u32 setp_lt_s32(u32 a, u32 b) { return (int32_t)a < (int32_t)b; }
static inline u32 setp_eq_b32(u32 a, u32 b) { return a == b; }
static inline u32 setp_ne_b32(u32 a, u32 b) { return a != b; }
static inline u32 mul_f32(u32 a, u32 b) { return w(f(a) * f(b)); }
static inline u64 mul_f64(u64 a, u64 b) { return v(d(a) * d(b)); }
static inline u32 add_f32(u32 a, u32 b) { return w(f(a) + f(b)); }
static inline u32 sub_f32(u32 a, u32 b) { return w(f(a) - f(b)); }
static inline u32 add_s32(u32 a, u32 b) { return a + b; }
static inline u32 sub_s32(u32 a, u32 b) { return a - b; }
static inline u32 and_b32(u32 a, u32 b) { return a & b; }
static inline u32 or_b32(u32 a, u32 b) { return a | b; }
static inline u64 or_b64(u64 a, u64 b) { return a | b; }
static inline u32 xor_b32(u32 a, u32 b) { return a ^ b; }
static inline u32 shl_b32(u32 a, u32 b) { return b < 32 ? a << b : 0; }
static inline u64 shl_b64(u64 a, u32 b) { return b < 64 ? a << b : 0; }
static inline u32 shr_u32(u32 a, u32 b) { return b < 32 ? a >> b : 0; }
static inline u32 shr_s32(u32 a, u32 b) { return (u32)((int32_t)a >> (b < 31 ? b : 31)); }
static inline u32 choice(u32 s, u32 a, u32 b) { return s ? a : b; }
static inline u32 selp_b32(u32 a, u32 b, u32 s) { return s ? a : b; }
static inline u32 fma_f32(u32 a, u32 b, u32 c) { return w(fmaf(f(a), f(b), f(c))); }
static inline u32 shf_l_wrap_b32(u32 low, u32 high, u32 by) {
  return (u32)(((u64)high << 32 | low) << (by & 31) >> 32);
}
static inline u64 carried(u32 a, u32 b, u32 c) { return (u64)a * b + c; }
static inline u32 mad_lo_cc_u32(u32 a, u32 b, u32 c) { return (u32)carried(a, b, c); }
// With the carry of mad.lo.cc of x, y and z.
static inline u32 madc_hi_u32(u32 a, u32 b, u32 c, u32 x, u32 y, u32 z) {
  return (u32)((u64)a * b >> 32) + c + (u32)(((u64)(u32)((u64)x * y) + z) >> 32);
}
// The word of local memory at base - offset; of arguments that do not come there, any.
static inline u32 local(u32 x, u32 offset, u32 base, const u32 *words, u32 count, u32 *outside) {
  const u32 size = x & 0x7fffffff, place = base - offset;
  const int inside = place % 4 == 0 && place / 4 < count;
  *outside |= size >= 0x47ce4780 && size < 0x7f800000 && !inside;
  return words[inside ? place / 4 : 0];
}
"""

COMPARE = """
struct Outcome { u64 tried, wrong; u32 first; double worst; };
// Subnormal arguments may count as 0, as the instructions flush them.
void compare(u64 from, u64 to, u64 stride, double units, struct Outcome *out) {
  for (u64 i = from; i < to; i += stride) {
    const u32 bits = (u32)i;
    u32 outside = 0;
    const double found = f(of(bits, &outside)), expected = EXACT((double)f(bits));
    const float size = fabsf((float)expected);
    ++out->tried;
    int same = (isnan(found) && isnan(expected)) || found == expected;
    if (!same && isfinite(found) && isfinite(size)) {
      const double off = fabs(found - expected) / ((double)nextafterf(size, INFINITY) - size);
      same = off <= units;
      if (fabsf(f(bits)) >= 0x1p-126f && off > out->worst)
        out->worst = off;
    }
    if (outside || (!same && !(fabsf(f(bits)) < 0x1p-126f)))
      if (out->wrong++ == 0)
        out->first = bits;
  }
}
"""
WIDE = frozenset({"cvt.u64.u32", "cvt.f64.s64", "mul.f64", "or.b64", "shl.b64"})


def as_c(template: Expression) -> str:
    """A function `of` that computes what the template does."""
    names: dict[int, str] = {}
    lines: list[str] = []

    def name(e: Expression) -> str:
        if id(e) not in names:
            made = value(e)
            names[id(e)] = f"n{len(names)}"
            wide = e[0] in WIDE or e[0].startswith("0d")
            lines.append(f"  const {'u64' if wide else 'u32'} {names[id(e)]} = {made};")
        return names[id(e)]

    def value(e: Expression) -> str:
        head, *below = e
        if head == "x":
            return "x"
        if not below:
            return f"0x{head[2:]}" if head[:2] in ("0f", "0d") else f"{int(head) & 0xFFFFFFFF}u"
        if head == "madc.hi.u32":
            *below, before = below
            below += before[1:]
        if head == "local":
            offset, base, *words = (name(b) for b in below)
            array = f"(const u32[]){{{', '.join(words)}}}"
            return f"local(x, {offset}, {base}, {array}, {len(words)}, outside)"
        return f"{head.replace('.', '_')}({', '.join(name(b) for b in below)})"

    last = name(template)
    return "\n".join(["static inline u32 of(u32 x, u32 *outside) {", *lines, f"  return {last};", "}"])


class Outcome(ctypes.Structure):
    """`struct Outcome`."""

    _fields_ = (
        ("tried", ctypes.c_uint64), ("wrong", ctypes.c_uint64), ("first", ctypes.c_uint32), ("worst", ctypes.c_double),
    )  # fmt: skip


def outcome(folder: Path, name: str, made: str, stride: int) -> Outcome:
    """The function `of` that was `made` against the C library's, on every number that `stride` divides."""
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(INSTRUCTIONS + made + COMPARE.replace("EXACT", name))
    flags = ["-O2", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-lm"]
    subprocess.run([os.environ.get("CC", "cc"), source, "-o", library, *flags], check=True)
    found = Outcome()
    compare = ctypes.CDLL(str(library)).compare
    compare.argtypes = [*[ctypes.c_uint64] * 3, ctypes.c_double, ctypes.POINTER(Outcome)]
    compare.restype = None
    compare(0, 1 << 32, stride, UNITS, ctypes.byref(found))
    return found


@pytest.mark.parametrize(("name", "version"), [(n, i) for n, ts in TEMPLATES.items() for i in range(len(ts))])
def test_they_are_the_functions(tmp_path: Path, name: str, version: int):
    """Within 4 units of the last place."""
    start = time.process_time()
    found = outcome(tmp_path, name, as_c(TEMPLATES[name][version]), STRIDE)
    assert found.tried == -(-(1 << 32) // STRIDE)
    assert not found.wrong, f"{found.wrong} numbers, first 0x{found.first:08X}"
    if RECORD:
        path = Path(RECORD)
        again = version > 0 or name != next(iter(TEMPLATES))
        rows: list[Any] = json.loads(path.read_text())["functions"] if again else []
        row = {
            "function": name,
            "version": version,
            "inputs": found.tried,
            "wrong": found.wrong,
            "worst_units": round(found.worst, 2),
            "cpu_seconds": round(time.process_time() - start, 1),
        }
        path.write_text(json.dumps({**about(), "functions": [*rows, row]}, indent=1) + "\n")


CHANGED = {
    "erf": ("3F6A937E", "3F20D842", "BEC093AC"),
    "log": ("3F317218", "3EAAAA78", "BF000000"),
    "sin": ("BFC90FDA", "A2F9836E", "BE2AAAA8"),
    "cos": ("BFC90FDA", "A2F9836E", "BEFFFFFF"),
}


@pytest.mark.parametrize(("name", "constant"), [(n, c) for n, cs in CHANGED.items() for c in cs])
def test_another_constant_is_another_function(tmp_path: Path, name: str, constant: str):
    """The comparison finds a constant that is off by one in 2^11."""
    made, other = (re.sub(f"(?i)0x{constant}|{int(constant, 16)}u", to, as_c(TEMPLATES[name][0]))
                   for to in (r"\g<0>", f"0x{int(constant, 16) ^ 1 << 12:08X}"))  # fmt: skip
    assert made != other
    assert outcome(tmp_path, name, other, 65521).wrong
